"""The named statements of the high-water stores."""

from __future__ import annotations

from collections.abc import Mapping

from surefoot.statements import named_statements

__all__ = ["load"]


def load(dialect: str) -> Mapping[str, str]:
    """The statements of ``sql/<dialect>.sql`` by name.

    Args:
        dialect: ``sqlite`` or ``postgres``.
    """
    found = named_statements("surefoot.highwater", f"sql/{dialect}.sql")
    return {name: f"{statement.text};" for name, statement in found.items()}
