"""Loads named SQL statements and migrations from the ``.sql`` files of a dialect."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from types import MappingProxyType

__all__ = ["Migration", "Statement", "load_migrations", "load_statements"]

_NAME = re.compile(r"^-- name: ([a-z_]+)$", re.MULTILINE)
_FILE = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


@dataclass(frozen=True, slots=True)
class Statement:
    """A named statement.

    Attributes:
        name: Of the ``-- name:`` line.
        explanation: The comment below that line.
        text: The statement without comments and without its semicolon.
    """

    name: str
    explanation: str
    text: str


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


@cache
def load_statements(dialect: str) -> Mapping[str, Statement]:
    """Statements of a dialect by name.

    Raises:
        ValueError: The file names a statement twice, or does not explain one.
    """
    folder = files("surefoot.store") / "sql" / dialect
    pieces = _NAME.split((folder / "queries.sql").read_text(encoding="utf-8"))
    found: dict[str, Statement] = {}
    for name, block in zip(pieces[1::2], pieces[2::2], strict=True):
        lines = [line for line in block.splitlines() if line.strip()]
        comments = [line[2:].strip() for line in lines if line.startswith("--")]
        text = "\n".join(line for line in lines if not line.startswith("--"))
        if name in found or not comments or not text:
            raise ValueError(f"{dialect}: statement {name!r} is there twice, empty or unexplained")
        found[name] = Statement(name, " ".join(comments), text.rstrip().removesuffix(";"))
    return MappingProxyType(found)


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
