"""Everybody but the workers: readers, the network, time, the adversary, a failover."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from tests.model.records import RECORDS, ancestry, fold, hole
from tests.model.state import IDLE, Mark, Reader, Rows, Shared, shown
from tests.model.worker import Workers

SAW_MARK = "saw B"
SAW_ROWS = "saw A"
IN_DOUBT = "in doubt"


class Readers(Workers):
    """Somebody who looks: B, then A, and B again before any alarm."""

    def looks(self, s: Shared, r: Reader) -> Iterator[tuple[str, Reader]]:
        """Everything that a reader may do now; it changes nothing."""
        if s.mark is None:
            return
        if r.phase == IDLE:
            if self.broken == "reader reads A first":
                yield "reader: A", Reader(SAW_ROWS, s.rows, s.world.acked)
            else:
                yield "reader: B", Reader(SAW_MARK, s.mark.digest, s.world.acked)
        elif r.phase == SAW_ROWS:
            yield self._judged(s, r, s.mark._replace(prepared=0), r.seen)
        elif r.phase == SAW_MARK:
            yield self._judged(s, r, s.mark._replace(digest=r.seen, prepared=0), s.rows)
        elif s.mark.digest != r.seen:
            yield "reader: again", Reader(SAW_MARK, s.mark.digest, r.acked)
        else:
            yield self._reader_alarm(s, "again")

    def _judged(self, s: Shared, r: Reader, mark: Mark, rows: Rows) -> tuple[str, Reader]:
        look = self.look(mark, rows)
        # It lists the whole history, as `surefoot.flows.views.viewing` carries it out.
        missing = None if look.refused else hole(look.head, rows.visible())
        if not look.refused and missing is None:
            text = f"a reader got {shown(look.head)} for {shown(mark.digest)}"
            self.require(mark.digest in ancestry(look.head), "wrong state", text)
            self.require(fold(look.head, None) == look.fold, "wrong state", text)
            self.require(r.acked in ancestry(look.head), "lost checkpoint", text)
            return "reader: serve", Reader()
        if self.broken in {"reader does not look again", "reader reads A first"}:
            return self._reader_alarm(s, look.rules or "R6")
        return "reader: in doubt", Reader(IN_DOUBT, mark.digest, r.acked)

    def _reader_alarm(self, s: Shared, rules: str) -> tuple[str, Reader]:
        self.alarm(s.budget, rules)
        return "reader: alarm", Reader()


class Surroundings(Readers):
    """What happens by itself, or by ill will."""

    def events(self, s: Shared) -> Iterator[tuple[str, Shared]]:
        """Everything that may happen now without a worker or a reader."""
        yield from self._network(s)
        mark = s.mark
        if mark is not None and mark.leased and mark.epoch < self.config.epochs:
            yield "lease runs out", s._replace(mark=mark._replace(leased=False))
        if s.budget.failovers:
            budget = s.budget._replace(failovers=s.budget.failovers - 1)
            for rows in self._prefixes(s.rows):
                yield "failover", s._replace(rows=rows, budget=budget)
        # Before anything is stored, a lost row cannot be told from a new thread.
        if s.budget.losses and mark is not None and s.rows.top:
            budget = s.budget._replace(losses=s.budget.losses - 1)
            yield "B lost", s._replace(mark=None, budget=budget)
        if self.broken == "synchronous commit off":
            for rows in self._prefixes(s.rows):
                yield "A restarts", s._replace(rows=rows)
        if self.broken == "weak high-water store" and s.budget.before is not None:
            budget = s.budget._replace(before=None)
            yield "B fails over", s._replace(mark=s.budget.before, budget=budget)
        if s.budget.edits:
            left = s.budget.edits - 1
            budget = s.budget._replace(edits=left, ever=s.budget.ever if left else ())
            for name, rows in self._edited(s):
                yield name, s._replace(rows=rows, budget=budget)

    def _network(self, s: Shared) -> Iterator[tuple[str, Shared]]:
        world = s.world
        for at, request in enumerate(world.flying):
            if at and world.flying[at - 1] == request:
                continue
            slot, key, arguments, _ = request
            rest = world._replace(flying=(*world.flying[:at], *world.flying[at + 1 :]))
            yield "dropped", s._replace(world=rest)
            counts = {entry[:3]: entry[3] for entry in world.landed}
            seen = counts.get((slot, key, arguments), 0)
            counts[slot, key, arguments] = min(seen + 1, 2)
            if self.config.receiver(slot) == "K":
                counts[slot, key, arguments] = 1
            landed = tuple(sorted((*what, times) for what, times in counts.items()))
            yield "landed", s._replace(world=rest._replace(landed=landed))

    @staticmethod
    def _prefixes(rows: Rows) -> Iterator[Rows]:
        for length in range(len(rows.rows)):
            left = rows.rows[:length]
            yield Rows(left, left[-1] if left else 0)

    # --- the adversary --------------------------------------------------------------------------

    def _edited(self, s: Shared) -> Iterator[tuple[str, Rows]]:
        found: dict[Rows, str] = {s.rows: ""}
        for name, left, top in self._cuts(s):
            last = left[-1] if left else 0
            found.setdefault(Rows(left, last if top is None else top), name)
        for rows, name in found.items():
            if name:
                yield name, rows

    def _cuts(self, s: Shared) -> Iterator[tuple[str, tuple[int, ...], int | None]]:
        """Rows that are left or put back, and the head row (None: what fits them)."""
        ever, now, top = s.budget.ever, s.rows.rows, s.rows.top
        head = 0 if s.mark is None else s.mark.digest
        height = RECORDS[head].seq
        beyond = tuple(n for n in now if RECORDS[n].seq <= height)
        yield "edit: rows beyond the head deleted", beyond, None
        for epoch in {RECORDS[n].epoch for n in ever}:
            siblings = tuple(n for n in ever if RECORDS[n].epoch == epoch)
            yield "edit: one epoch only", siblings, None
        for at in range(len(now)):
            yield "edit: newest deleted", now[:at], None
            yield "edit: newest deleted, head row kept", now[:at], top
            yield "edit: oldest deleted", now[at + 1 :], None
            yield "edit: one deleted", now[:at] + now[at + 1 :], top
        yield "edit: everything ever stored", ever, None
        for at in range(len(ever)):
            yield "edit: older state put back", ever[:at], None
            yield "edit: head row changed", now, ever[at]
        yield "edit: head row deleted", now, 0
        if self.config.subsets and len(ever) <= 9:
            for size in range(len(ever) + 1):
                for left in combinations(ever, size):
                    yield "edit: any subset", left, None
                    yield "edit: any subset, head row kept", left, top
