"""Checkpoints for LangGraph that you can resume from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from surefoot.config import Limits, ResumePolicy
    from surefoot.flows.doubts import EffectNumbers, EffectRecord, InDoubt
    from surefoot.keys import Keyring
    from surefoot.langgraph.effects import EffectCall, current_call, effect
    from surefoot.langgraph.middleware import EffectMiddleware, RecordModelMiddleware
    from surefoot.langgraph.nodes import effect_node
    from surefoot.langgraph.reads import now, pure, random, recorded, uuid4
    from surefoot.langgraph.saver import SurefootSaver
    from surefoot.langgraph.tools import ToolEffects, wrap_tool_call
    from surefoot.langgraph.trail import arecord, record
    from surefoot.rules.answers import Absent, Committed, Conflicting, NotSent, Unknown
    from surefoot.rules.decisions import Decision, SignedDecision
    from surefoot.rules.events import Event
    from surefoot.rules.folding import ThreadState, fold
    from surefoot.signing import Reviewers, SigningKey

_HOMES = {
    "Absent": "surefoot.rules.answers",
    "Committed": "surefoot.rules.answers",
    "Conflicting": "surefoot.rules.answers",
    "Decision": "surefoot.rules.decisions",
    "EffectCall": "surefoot.langgraph.effects",
    "EffectMiddleware": "surefoot.langgraph.middleware",
    "EffectNumbers": "surefoot.flows.doubts",
    "EffectRecord": "surefoot.flows.doubts",
    "Event": "surefoot.rules.events",
    "InDoubt": "surefoot.flows.doubts",
    "Keyring": "surefoot.keys",
    "Limits": "surefoot.config",
    "NotSent": "surefoot.rules.answers",
    "RecordModelMiddleware": "surefoot.langgraph.middleware",
    "ResumePolicy": "surefoot.config",
    "Reviewers": "surefoot.signing",
    "SignedDecision": "surefoot.rules.decisions",
    "SigningKey": "surefoot.signing",
    "SurefootSaver": "surefoot.langgraph.saver",
    "ThreadState": "surefoot.rules.folding",
    "ToolEffects": "surefoot.langgraph.tools",
    "Unknown": "surefoot.rules.answers",
    "arecord": "surefoot.langgraph.trail",
    "current_call": "surefoot.langgraph.effects",
    "effect": "surefoot.langgraph.effects",
    "effect_node": "surefoot.langgraph.nodes",
    "fold": "surefoot.rules.folding",
    "now": "surefoot.langgraph.reads",
    "pure": "surefoot.langgraph.reads",
    "random": "surefoot.langgraph.reads",
    "record": "surefoot.langgraph.trail",
    "recorded": "surefoot.langgraph.reads",
    "uuid4": "surefoot.langgraph.reads",
    "wrap_tool_call": "surefoot.langgraph.tools",
}

__all__ = [
    "Absent",
    "Committed",
    "Conflicting",
    "Decision",
    "EffectCall",
    "EffectMiddleware",
    "EffectNumbers",
    "EffectRecord",
    "Event",
    "InDoubt",
    "Keyring",
    "Limits",
    "NotSent",
    "RecordModelMiddleware",
    "ResumePolicy",
    "Reviewers",
    "SignedDecision",
    "SigningKey",
    "SurefootSaver",
    "ThreadState",
    "ToolEffects",
    "Unknown",
    "__version__",
    "arecord",
    "current_call",
    "effect",
    "effect_node",
    "fold",
    "now",
    "pure",
    "random",
    "record",
    "recorded",
    "uuid4",
    "wrap_tool_call",
]


def __getattr__(name: str) -> Any:
    """Imports public names when they are first used, so that small parts start fast."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'surefoot' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
