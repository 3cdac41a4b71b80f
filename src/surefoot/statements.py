"""Named SQL statements, read from the ``.sql`` files of a package.

SQL lives in files of its own, where it can be pasted, explained and diffed. A block begins with
``-- name: …``, goes on with a comment that explains it, and ends where the next one begins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

__all__ = ["Statement", "named_statements"]

_NAME = re.compile(r"^-- name: ([a-z_]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Statement:
    """A named statement.

    Attributes:
        name: Of the ``-- name:`` line.
        explanation: The comment below that line.
        text: The statement without comments and without its last semicolon.
    """

    name: str
    explanation: str
    text: str


@cache
def named_statements(package: str, path: str) -> Mapping[str, Statement]:
    """Statements of a file by name.

    Args:
        package: Dotted name of the package that holds the file.
        path: Below the package, with slashes.

    Raises:
        ValueError: A statement is there twice, empty or unexplained, or there is none.
    """
    whole = files(package).joinpath(*path.split("/")).read_text(encoding="utf-8")
    pieces = _NAME.split(whole)
    found: dict[str, Statement] = {}
    for name, block in zip(pieces[1::2], pieces[2::2], strict=True):
        lines = [line for line in block.splitlines() if line.strip()]
        comments = [line[2:].strip() for line in lines if line.startswith("--")]
        text = "\n".join(line for line in lines if not line.startswith("--"))
        if name in found or not comments or not text:
            raise ValueError(f"{path}: statement {name!r} is there twice, empty or unexplained")
        found[name] = Statement(name, " ".join(comments), text.rstrip().removesuffix(";"))
    if not found:
        raise ValueError(f"{path}: no statement")
    return MappingProxyType(found)
