"""Counts of what became of effects in this process since it started. Cheap, safe for threads."""

from __future__ import annotations

import threading
from dataclasses import dataclass

__all__ = ["Tally", "TallyNumbers"]

_REMEMBERED = 65_536


@dataclass(frozen=True, slots=True)
class TallyNumbers:
    """A reading of a tally.

    Attributes:
        opened: Starts that were recorded, each attempt counted.
        reconciled: Effects in doubt that were settled without a person.
        escalated: Effects that were left to a person; each is counted once.
    """

    opened: int
    reconciled: int
    escalated: int


class Tally:
    """Counts effects that were opened, settled by themselves, and left to a person."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened = self._reconciled = self._escalated = 0
        self._left: set[bytes] = set()

    def opened(self) -> None:
        """A start was recorded."""
        with self._lock:
            self._opened += 1

    def reconciled(self) -> None:
        """A doubt was settled: by a lookup, or by sending again with the same key."""
        with self._lock:
            self._reconciled += 1

    def escalated(self, slot: bytes) -> None:
        """A person has to decide; a slot that is refused again is the same doubt."""
        with self._lock:
            if slot in self._left:
                return
            if len(self._left) >= _REMEMBERED:
                self._left.clear()
            self._left.add(slot)
            self._escalated += 1

    def numbers(self) -> TallyNumbers:
        """What was counted so far."""
        with self._lock:
            return TallyNumbers(self._opened, self._reconciled, self._escalated)
