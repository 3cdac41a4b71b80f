"""Visits every state that a configuration can reach, breadth first.

A state is one integer: the parts that several actors see, the reader and the workers are
numbered on first sight and their numbers packed side by side. States are kept as these integers,
not as fingerprints, so no two are ever confused. What an actor can do depends on itself and on
the shared parts only and is worked out once for each pair. The workers are interchangeable (B
knows a holder by its epoch), so they are kept in order.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.model.records import forget_records
from tests.model.state import (
    OVER,
    Config,
    Mark,
    Reader,
    Rows,
    Shared,
    Violation,
    Worker,
    World,
    shown,
)
from tests.model.surroundings import Surroundings

_BITS = 26
_MASK = (1 << _BITS) - 1
_READER, _LOW, _HIGH = _BITS, 2 * _BITS, 3 * _BITS
_READERS = _MASK << _READER

Progress = Callable[[int, int], None]


@dataclass
class Found:
    """What an exploration found."""

    name: str
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    peak_mb: int = 0
    actions: Counter[str] = field(default_factory=Counter)
    violation: str | None = None
    invariant: str | None = None
    trace: list[str] = field(default_factory=list)
    whole: bool = True


class _Numbers:
    """Numbers things on first sight."""

    def __init__(self) -> None:
        self.number: dict[Any, int] = {}
        self.thing: list[Any] = []

    def of(self, thing: Any) -> int:
        number = self.number.get(thing)
        if number is None:
            number = self.number[thing] = len(self.thing)
            self.thing.append(thing)
            if number > _MASK:
                raise OverflowError("too many parts; make the configuration smaller")
        return number


class Explorer:
    """One configuration.

    Args:
        config: What to explore.
        tracing: Remember how each state was reached, to show a trace.
    """

    def __init__(self, config: Config, *, tracing: bool = False) -> None:
        forget_records()
        self.config = config
        self.model = Surroundings(config)
        self._shared = _Numbers()
        self._workers = _Numbers()
        self._readers = _Numbers()
        # What an actor can do, by its number and that of the shared parts.
        self._steps: dict[int, list[tuple[int, int]]] = {}
        self._events: dict[int, list[int]] = {}
        self._looks: dict[int, list[int]] = {}
        self._epochs: list[int] = []  # by worker; 0 when it holds nothing
        # By shared: epoch in B when leased; -1 when B has no row, where any live worker counts.
        self._holder: list[int] = []
        self._parents: dict[int, int] | None = {} if tracing else None
        self.found = Found(config.name)

    # --- numbering ------------------------------------------------------------------------------

    def _number_worker(self, w: Worker) -> int:
        number = self._workers.of(w)
        if number == len(self._epochs):
            self._epochs.append(0 if w.phase in OVER else w.epoch)
        return number

    def _number_shared(self, old: Shared, new: Shared) -> int:
        if new is not old:
            if self.config.broken == "weak high-water store" and new.mark != old.mark:
                before = old.mark if new.mark != old.budget.before else None
                new = new._replace(budget=new.budget._replace(before=before))
            self.model.shared(old, new)
        number = self._shared.of(new)
        if number == len(self._holder):
            mark = new.mark
            self._holder.append(-1 if mark is None else mark.epoch if mark.leased else 0)
        return number

    # --- what an actor can do -------------------------------------------------------------------

    def _worker_steps(self, key: int, shared: int, w: int, *, lives: bool) -> list[tuple[int, int]]:
        s = self._shared.thing[shared]
        steps = []
        actor: Worker = self._workers.thing[w]
        for name, after, then in self.model.actions(s, actor, holder_lives=lives):
            self.found.actions[name] += 1
            steps.append((self._number_shared(s, after), self._number_worker(then)))
        self._steps[key] = steps
        return steps

    def _shared_events(self, shared: int) -> list[int]:
        s = self._shared.thing[shared]
        events = []
        for name, after in self.model.events(s):
            self.found.actions[name] += 1
            events.append(self._number_shared(s, after))
        self._events[shared] = events
        return events

    def _reader_looks(self, key: int, shared: int, r: int) -> list[int]:
        looks = []
        reader: Reader = self._readers.thing[r]
        for name, then in self.model.looks(self._shared.thing[shared], reader):
            self.found.actions[name] += 1
            looks.append(self._readers.of(then) << _READER)
        self._looks[key] = looks
        return looks

    # --- the search -----------------------------------------------------------------------------

    def _first(self) -> int:
        s = Shared(Rows(), None, World(), self.config.budget())
        self._number_shared(s, s)
        self._number_worker(Worker())
        self._readers.of(Reader())
        return 0

    def _next(self, state: int) -> list[int]:
        """All states that follow; a violation is raised from in here."""
        shared = state & _MASK
        low = (state >> _LOW) & _MASK
        high = state >> _HIGH
        held = self._holder[shared]
        if held == 0:
            lives = False
        elif held < 0:
            lives = self._epochs[low] > 0 or self._epochs[high] > 0
        else:
            lives = held in (self._epochs[low], self._epochs[high])
        reader = state & _READERS
        key = (shared | low << _BITS) << 1 | lives
        steps = self._steps.get(key)
        if steps is None:
            steps = self._worker_steps(key, shared, low, lives=lives)
        out = [
            then | reader | (w << _LOW | high << _HIGH if w < high else high << _LOW | w << _HIGH)
            for then, w in steps
        ]
        if low != high:
            key = (shared | high << _BITS) << 1 | lives
            steps = self._steps.get(key)
            if steps is None:
                steps = self._worker_steps(key, shared, high, lives=lives)
            out += [
                then | reader | (w << _LOW | low << _HIGH if w < low else low << _LOW | w << _HIGH)
                for then, w in steps
            ]
        events = self._events.get(shared)
        if events is None:
            events = self._shared_events(shared)
        if events:
            rest = state - shared
            out += [rest | then for then in events]
        if self.config.reader:
            key = shared | reader
            looks = self._looks.get(key)
            if looks is None:
                looks = self._reader_looks(key, shared, reader >> _READER)
            fixed = state - reader
            out += [fixed | then for then in looks]
        return out

    def run(self, *, limit: int | None = None, progress: Progress | None = None) -> Found:
        """Visits everything, or stops at the first violation or at the limit."""
        gc.disable()  # nothing in here is cyclic, and there is much to look through
        try:
            return self._run(limit, progress)
        finally:
            gc.enable()

    def _run(self, limit: int | None, progress: Progress | None) -> Found:
        began = time.monotonic()
        found = self.found
        first = self._first()
        seen = {first}
        frontier = [first]
        parents = self._parents
        state = first
        try:
            while frontier:
                found.depth += 1
                following: list[int] = []
                add = following.append
                for state in frontier:
                    after = self._next(state)
                    found.transitions += len(after)
                    if not after:
                        self._ended(state)
                    for then in after:
                        if then not in seen:
                            seen.add(then)
                            add(then)
                            if parents is not None:
                                parents[then] = state
                if progress is not None:
                    progress(found.depth, len(seen))
                frontier = following
                if limit is not None and len(seen) > limit:
                    found.whole = False
                    break
        except Violation as violation:
            found.violation, found.invariant = str(violation), violation.name
            if parents is not None:
                found.trace = [*self._trace(state, parents), f"  => {violation}"]
        found.states = len(seen)
        found.seconds = time.monotonic() - began
        found.peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (
            1024 if sys.platform != "darwin" else 1024 * 1024
        )
        return found

    def _ended(self, state: int) -> None:
        for number in ((state >> _LOW) & _MASK, state >> _HIGH):
            w: Worker = self._workers.thing[number]
            self.model.require(w.phase in OVER, "stuck", f"a worker of epoch {w.epoch}: {w.phase}")

    # --- traces ---------------------------------------------------------------------------------

    def _trace(self, state: int, parents: dict[int, int]) -> list[str]:
        path = [state]
        while path[-1] in parents:
            path.append(parents[path[-1]])
        path.reverse()
        lines = []
        for number, at in enumerate(path):
            name = "begin" if number == 0 else self._name(path[number - 1], at)
            lines.append(f"{number:3} {name:42} {self._shown(at)}")
        return lines

    def _name(self, before: int, after: int) -> str:
        """Which action leads from one state to the next."""
        s: Shared = self._shared.thing[before & _MASK]
        for number in ((before >> _LOW) & _MASK, before >> _HIGH):
            w: Worker = self._workers.thing[number]
            for lives in (True, False):
                for name, then, next_w in self._quietly(s, w, lives=lives):
                    if self._packs(before, number, then, next_w, after):
                        who = next_w.epoch or w.epoch
                        return f"worker of epoch {who}: {name}" if who else f"operator: {name}"
        for name, then in self.model.events(s):
            if self._shared.number.get(then) == after & _MASK and before >> _BITS == after >> _BITS:
                return name
        return "reader" if before & _MASK == after & _MASK else "event"

    def _quietly(
        self, s: Shared, w: Worker, *, lives: bool
    ) -> Iterator[tuple[str, Shared, Worker]]:
        try:
            yield from self.model.actions(s, w, holder_lives=lives)
        except Violation:
            return

    def _packs(self, before: int, number: int, then: Shared, w: Worker, after: int) -> bool:
        workers = [(before >> _LOW) & _MASK, before >> _HIGH]
        workers.remove(number)
        next_number = self._workers.number.get(w)
        if next_number is None or self._shared.number.get(then) != after & _MASK:
            return False
        pair = sorted([workers[0], next_number])
        return pair == [(after >> _LOW) & _MASK, after >> _HIGH]

    def _shown(self, state: int) -> str:
        s: Shared = self._shared.thing[state & _MASK]
        rows = " ".join(shown(n) for n in s.rows.rows) or "-"
        landed = ", ".join(f"{e[0]} x{e[3]}" for e in s.world.landed) or "-"
        return (
            f"A: {rows} | B: {_mark_shown(s.mark)} | acknowledged: {shown(s.world.acked)}"
            f" | happened: {landed}"
        )


def _mark_shown(mark: Mark | None) -> str:
    if mark is None:
        return "-"
    lease = "held" if mark.leased else "free"
    intents = f" intents {list(mark.intents)}" if mark.intents else ""
    return f"{shown(mark.digest)} epoch {mark.epoch} {lease}{intents}"


def explore(config: Config, *, tracing: bool = False, limit: int | None = None) -> Found:
    """Explores a configuration; for pools."""
    return Explorer(config, tracing=tracing).run(limit=limit)


__all__ = ["Explorer", "Found", "explore"]
