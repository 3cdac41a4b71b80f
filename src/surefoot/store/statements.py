"""Loads named SQL statements and migrations from the ``.sql`` files of a dialect."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from surefoot.statements import Statement, named_statements

__all__ = ["Migration", "Statement", "load_migrations", "load_statements"]

_FILE = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """A numbered step of the schema.

    Attributes:
        number: From 1, without gaps.
        name: File name.
        digest: SHA-256 of the text, independent of the checkout's line ends.
        text: Statements, with ``{schema}`` where the dialect has schemas.
    """

    number: int
    name: str
    digest: bytes
    text: str = field(repr=False)


def load_statements(dialect: str) -> Mapping[str, Statement]:
    """Statements of a dialect by name."""
    return named_statements("surefoot.store", f"sql/{dialect}/queries.sql")


@cache
def load_migrations(dialect: str) -> Sequence[Migration]:
    """Migrations of a dialect in order.

    Raises:
        ValueError: The numbers are not 1, 2, 3, …
    """
    folder = files("surefoot.store") / "sql" / dialect / "migrations"
    found: list[Migration] = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        match = _FILE.fullmatch(entry.name)
        if match is None:
            continue
        text = entry.read_text(encoding="utf-8").replace("\r\n", "\n")
        digest = hashlib.sha256(text.encode()).digest()
        found.append(Migration(int(match[1]), entry.name, digest, text))
    if [m.number for m in found] != list(range(1, len(found) + 1)) or not found:
        raise ValueError(f"{dialect}: migrations are not numbered 1, 2, 3, …")
    return tuple(found)
