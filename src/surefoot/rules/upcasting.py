"""From each older layout of a document to the next one, until it is the one of today.

Whoever reads knows one layout. What an earlier release wrote is raised step by step by pure
functions from version n to n + 1; what a later release wrote is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

__all__ = ["Step", "UnknownSchema", "Upcasters"]

Step: TypeAlias = Callable[[Any], Any]


class UnknownSchema(ValueError):
    """A document of a kind or a version that this release does not know."""


class Upcasters:
    """The versions of each kind of document, and the steps between them.

    Args:
        current: The version of each kind that is written today; the first one is 1.
        steps: By kind and version: makes of a document of that version one of the next. There is
            one for each version below the present one, and no other.

    Raises:
        ValueError: A step is missing, or leads nowhere.
    """

    def __init__(self, current: Mapping[str, int], steps: Mapping[tuple[str, int], Step]) -> None:
        wanted = {(kind, n) for kind, last in current.items() for n in range(1, last)}
        if steps.keys() != wanted:
            odd = sorted(steps.keys() ^ wanted)
            raise ValueError(f"steps are missing, or lead nowhere: {odd}")
        self._current = dict(current)
        self._steps = dict(steps)

    def knows(self, kind: str, schema: int) -> bool:
        """True for a version that this release can raise to the present one."""
        return 1 <= schema <= self._current.get(kind, 0)

    def raised(self, kind: str, schema: int, document: Any) -> Any:
        """The document in the layout of today.

        Raises:
            UnknownSchema: The kind or the version is not known.
        """
        if not self.knows(kind, schema):
            raise UnknownSchema(f"schema {schema} of kind {kind} is not known to this release")
        for version in range(schema, self._current[kind]):
            document = self._steps[kind, version](document)
        return document
