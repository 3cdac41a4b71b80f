"""What a lookup may answer, and what a body says when nothing happened (rule E8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

__all__ = ["Absent", "Answer", "Committed", "Conflicting", "NotSent", "Unknown"]

_SAME: Any = object()


@dataclass(frozen=True, slots=True)
class Committed:
    """The effect happened.

    Attributes:
        evidence: What the receiver holds: a map or an object with the fields that
            ``compare=`` names.
        result: What the effect's call returns; by default the evidence.
    """

    evidence: Any
    result: Any = field(default=_SAME)

    def returned(self) -> Any:
        """The result of the call."""
        return self.evidence if self.result is _SAME else self.result


@dataclass(frozen=True, slots=True)
class Absent:
    """The receiver does not hold it. Counts after the settling time; see ``settling=``."""

    evidence: Any = None


@dataclass(frozen=True, slots=True)
class Conflicting:
    """The receiver holds something else under this key, or several things: a person decides."""

    evidence: Any
    reason: str = "the receiver holds something else"


@dataclass(frozen=True, slots=True)
class Unknown:
    """The receiver could not be asked, or does not say. Never a proof of anything."""

    reason: str = "the receiver did not say"


Answer: TypeAlias = Committed | Absent | Conflicting | Unknown


class NotSent(Exception):
    """Raised by an effect's body: proven, nothing happened at the receiver.

    The call is recorded as failed and may be run again, also with other arguments. Never raise
    it for a time-out or a lost connection: those prove nothing.
    """
