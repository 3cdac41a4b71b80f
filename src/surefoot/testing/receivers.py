"""Receivers of side effects for tests: they outlive a killed process, and count what landed."""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

__all__ = ["CountingReceiver", "CountsEffects"]


class CountsEffects(Protocol):
    """Whatever can say how often each effect happened: a test double, or a real sandbox."""

    def snapshot(self) -> Mapping[str, int]:
        """How often each thing happened so far, by a name of its own."""
        ...


class CountingReceiver:
    """A receiver that is a file: every effect that landed is a line of it.

    Any number of processes and threads may use one at the same time. It does what the three
    classes of receivers do: `send` with ``once=True`` deduplicates on the key, `find` can be
    asked, and neither has to be used.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Uses this file, or creates it."""
        self.path = Path(path)
        self.path.touch()

    def send(self, what: str, *, key: str | None = None, once: bool = False, **facts: Any) -> Any:
        """Lets an effect happen.

        Args:
            what: What happened, as `snapshot` counts it: an invoice, a recipient.
            key: Idempotency key of the request.
            once: Deduplicate: a key that has landed is answered and not counted again.
            **facts: More about it, plain data; `find` gives it back.

        Returns:
            What landed: ``{"what": …, "key": …, **facts}``.
        """
        landed = {**facts, "what": what, "key": key}
        with self._locked() as file:
            if once and key is not None:
                for held in map(json.loads, file):
                    if held["key"] == key:
                        return held
            file.seek(0, os.SEEK_END)
            file.write(json.dumps(landed) + "\n")
        return landed

    def find(self, key: str) -> list[dict[str, Any]]:
        """What landed under this key, oldest first."""
        return [landed for landed in self._all() if landed["key"] == key]

    def count(self, what: str | None = None) -> int:
        """How often this, or anything, happened."""
        return sum(1 for landed in self._all() if what in (None, landed["what"]))

    def snapshot(self) -> Mapping[str, int]:
        """How often each thing happened."""
        return dict(Counter(landed["what"] for landed in self._all()))

    def reset(self) -> None:
        """Forgets everything."""
        with self._locked() as file:
            file.truncate(0)

    def _all(self) -> list[dict[str, Any]]:
        with self._locked() as file:
            return [json.loads(line) for line in file]

    @contextmanager
    def _locked(self) -> Iterator[IO[str]]:
        """The file from its beginning; nobody else reads or writes it meanwhile."""
        with self.path.open("r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # the kernel gives it back when the file is closed
            yield file
