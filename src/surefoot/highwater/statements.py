"""Reads the named statements of a dialect from its ``.sql`` file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType

__all__ = ["load"]

_NAME = re.compile(r"^-- name: ([a-z_]+)$")


def load(dialect: str) -> Mapping[str, str]:
    """Returns the statements of ``sql/<dialect>.sql`` by name, without their comments.

    Args:
        dialect: ``sqlite`` or ``postgres``.

    Raises:
        ValueError: A name is given twice or has no statement.
    """
    text = (files("surefoot.highwater") / "sql" / f"{dialect}.sql").read_text(encoding="utf-8")
    blocks: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in text.splitlines():
        named = _NAME.match(line)
        if named:
            if named[1] in blocks:
                raise ValueError(f"{dialect}.sql names {named[1]} twice")
            current = blocks[named[1]] = []
        elif current is not None and not line.startswith("--"):
            current.append(line)
    statements = {name: "\n".join(lines).strip() for name, lines in blocks.items()}
    empty = [name for name, sql in statements.items() if not sql]
    if empty or not statements:
        raise ValueError(f"{dialect}.sql has no statement for {empty or 'any name'}")
    return MappingProxyType(statements)
