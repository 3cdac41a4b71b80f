"""Checkpoints for LangGraph that you can resume from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from surefoot.config import Limits, ResumePolicy
    from surefoot.keys import Keyring
    from surefoot.langgraph.saver import SurefootSaver

_HOMES = {
    "Keyring": "surefoot.keys",
    "Limits": "surefoot.config",
    "ResumePolicy": "surefoot.config",
    "SurefootSaver": "surefoot.langgraph.saver",
}

__all__ = ["Keyring", "Limits", "ResumePolicy", "SurefootSaver", "__version__"]


def __getattr__(name: str) -> Any:
    """Imports public names when they are first used, so that small parts start fast."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'surefoot' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
