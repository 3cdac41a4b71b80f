"""What a worker does, one indivisible action at a time (steps P1 to P7, rules E1 to E9).

Every method yields (name of the action, everything shared afterwards, the worker afterwards). An
action touches one store at most, as a process does; between two of them anybody may act.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.model.records import (
    GENESIS,
    RECORDS,
    Fold,
    Slot,
    absent,
    after_publish,
    ancestry,
    barrier,
    call,
    fold,
    gate,
    may_acquire,
    record,
    resume,
    tail,
)
from tests.model.state import (
    APPEND,
    ASK,
    COLLECT,
    DONE,
    DOUBT,
    GATE,
    HALT,
    IDLE,
    LOAD,
    ORDER,
    OVER,
    PUBLISH,
    READ_BACK,
    RUN,
    SEND,
    TASK_DONE,
    WAIT,
    Checks,
    Config,
    Mark,
    Rows,
    Shared,
    Worker,
    shown,
)

from surefoot.rules.effects import Barrier, Verdict
from surefoot.rules.publish import Then
from surefoot.rules.resume import ResumeFacts

Action = tuple[str, Shared, Worker]

_OVER = {phase: Worker(phase=phase) for phase in (IDLE, HALT, DONE)}


class Look:
    """A as seen for a mark: the facts, the verdict and what a resume would go on from."""

    def __init__(self, config: Config, head: int, rows: Rows, prepared: int) -> None:
        present = frozenset(rows.visible())
        seq = RECORDS[head].seq
        found = head == GENESIS or head in present
        siblings = [n for n in rows.visible() if RECORDS[n].seq == seq]
        if config.broken == "counter without digest" and siblings:
            found, head = True, siblings[0]
        if prepared in present and prepared != GENESIS:
            head = prepared
        followed = tail(head, rows.visible()) if found else ()
        self.head = followed[-1] if followed else head
        if config.broken == "accept B or B+1" and found:
            self.head = self._with_checkpoint(self.head, rows.visible())
        self.fold = fold(self.head, present) if found else Fold(0, (), None, None)
        beyond = sum(RECORDS[n].seq > seq for n in rows.visible())
        facts = ResumeFacts(
            stored=bool(rows.top),
            witnessed=True,
            mark_seq=seq,
            highest_seq=max((RECORDS[n].seq for n in rows.visible()), default=0),
            head_found=found and bool(rows.top),
            sibling_found=not found and bool(siblings),
            adopted=len(followed),
            orphans=beyond - len(followed),
            missing_below=self.fold.missing,
        )
        self.refused, self.rules = resume(facts)
        if config.broken == "orphans alarm" and facts.orphans:
            self.refused, self.rules = True, "orphan"

    @staticmethod
    def _with_checkpoint(head: int, rows: tuple[int, ...]) -> int:
        for number in rows:
            if RECORDS[number].prev == head and RECORDS[number].kind == "C":
                return number
        return head


class Workers(Checks):
    """The actions of workers in one configuration."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.broken = config.broken
        self._looks: dict[tuple[int, Rows, int], Look] = {}

    def look(self, mark: Mark, rows: Rows) -> Look:
        key = (mark.digest, rows, mark.prepared)
        found = self._looks.get(key)
        if found is None:
            found = self._looks[key] = Look(self.config, mark.digest, rows, mark.prepared)
        return found

    def actions(self, s: Shared, w: Worker, *, holder_lives: bool) -> Iterator[Action]:
        """Everything that a worker may do now."""
        if w.phase == IDLE:
            yield from self._acquire(s, holder_lives=holder_lives)
            return
        if w.phase in OVER:
            return
        if s.budget.crashes:
            budget = s.budget._replace(crashes=s.budget.crashes - 1)
            yield "crash", s._replace(budget=budget), _OVER[IDLE]
        if w.phase == RUN:
            yield from self._run(s, w)
        elif w.phase in {LOAD, DOUBT}:
            yield from self._load(s, w)
        elif w.phase in {APPEND, GATE}:
            yield from self._store(s, w)
        elif w.phase in {PUBLISH, READ_BACK}:
            yield from self._publish(s, w)
        elif w.phase in {SEND, WAIT, ASK}:
            yield from self._effect(s, w)
        elif w.phase == COLLECT:
            yield self._collect(s, w)
        elif w.phase == ORDER:
            yield from self._order(s, w)

    # --- P1 -------------------------------------------------------------------------------------

    def _acquire(self, s: Shared, *, holder_lives: bool) -> Iterator[Action]:
        mark = s.mark
        if mark is None and s.budget.losses != self.config.losses and s.rows.top:
            yield from self._adopt(s, others_live=holder_lives)
        if mark is None:
            refused, rules = resume(ResumeFacts(stored=bool(s.rows.top), witnessed=False))
            if refused:
                yield self._alarm(s, Worker(), rules)
                return
            fresh = Mark(GENESIS, 1, leased=True, clean=False, tainted=False)
            yield "create", s._replace(mark=fresh), Worker(phase=LOAD, epoch=1)
            return
        grown = mark.epoch + (self.broken != "epoch not grown")
        dead = mark.leased and not holder_lives
        if grown > self.config.epochs or not may_acquire(mark.leased, dead):
            return
        taken = mark._replace(
            epoch=grown, leased=True, tainted=mark.tainted or not mark.clean, clean=False
        )
        w = Worker(
            phase=LOAD,
            epoch=grown,
            head=mark.digest,
            mark=mark.digest,
            intents=mark.intents,
            horizon=mark.horizon,
        )
        yield "take over" if dead else "acquire", s._replace(mark=taken), w
        if s.budget.restores and s.world.alarmed:
            yield "order", s._replace(mark=taken), w._replace(phase=ORDER)

    def _adopt(self, s: Shared, *, others_live: bool) -> Iterator[Action]:
        """An operator has stopped all workers and orders what A holds to be trusted.

        Nobody knows which epochs were handed out to workers that never wrote, and the intents
        are lost: so no worker may be left, and every step is tainted.
        """
        if others_live and self.broken != "adopt while a worker lives":
            return
        top = s.rows.top
        found = fold(top, frozenset(s.rows.rows))
        if found.missing is not None:
            return  # verified like any chain; there is nothing to adopt
        base = found.base
        step = RECORDS[base].body[0] if base != GENESIS else -1
        horizon = -1 if self.broken == "adopt without horizon" else max(step, 0)
        epoch = max(RECORDS[n].epoch for n in s.rows.rows) + 1
        if epoch < self.config.epochs:
            mark = Mark(top, epoch, leased=False, clean=False, tainted=True, step=step)
            yield "adopt", s._replace(mark=mark._replace(horizon=horizon)), _OVER[IDLE]

    # --- P2 -------------------------------------------------------------------------------------

    def _load(self, s: Shared, w: Worker) -> Iterator[Action]:
        if s.mark is None:
            yield self._alarm(s, w, "no mark")
        elif w.phase == DOUBT:
            if s.mark.epoch != w.epoch:
                yield "fenced", s, _OVER[IDLE]
            else:
                yield self._alarm(s, w, w.then)
        else:
            prepared = s.mark.prepared if s.mark.epoch == w.epoch else 0
            seen = s.mark._replace(digest=w.mark, prepared=prepared)
            look = self.look(seen, s.rows)
            if look.refused:
                yield "does not fit", s, w._replace(phase=DOUBT, then=look.rules)
            else:
                self._served(s, w, look)
                yield "load", s, self._resumed(s, w, look)

    def _served(self, s: Shared, w: Worker, look: Look) -> None:
        """What is gone on from is what the mark names, with records that follow it."""
        mark = w.mark
        follows = mark in ancestry(look.head)
        text = f"{shown(look.head)} does not follow {shown(mark)}"
        self.require(follows, "wrong state", text)
        left = [n for n in s.rows.visible() if RECORDS[n].prev == look.head]
        left = [n for n in left if RECORDS[n].kind in "EW"]
        self.require(not left, "lost outcome", f"{[shown(n) for n in left]} not adopted")
        truth = fold(look.head, None)
        self.require(truth == look.fold, "wrong state", f"{look.fold} instead of {truth}")
        self.require(
            s.mark is None or s.mark.epoch != w.epoch or s.world.acked in ancestry(look.head),
            "lost checkpoint",
            f"loaded {shown(look.head)}, acknowledged {shown(s.world.acked)}",
        )

    def _resumed(self, s: Shared, w: Worker, look: Look) -> Worker:
        base = look.fold.base
        step, value = RECORDS[base].body if base != GENESIS else (-1, 0)
        w = w._replace(
            phase=RUN,
            head=look.head,
            expected=s.rows.top,
            step=step,
            value=value,
            ledger=look.fold.ledger,
            intents=tuple(i for i in w.intents if i[0] >= step),
        )
        if look.fold.writes is not None:
            w = w._replace(at=TASK_DONE, fixed=look.fold.writes)
        if base == GENESIS and self.config.durability == "exit":
            w = w._replace(step=0, deferred=True)
        return w

    def _alarm(self, s: Shared, w: Worker, rules: str) -> Action:
        """Refuses, and gives the lease back if it is ours."""
        self.alarm(s.budget, rules)
        mark = s.mark
        if mark is not None and mark.epoch == w.epoch:
            mark = mark._replace(leased=False, clean=not mark.tainted)
        world = s.world._replace(alarmed=self.config.restores > 0)
        return f"alarm: {rules}", s._replace(mark=mark, world=world), _OVER[HALT]

    # --- the program ----------------------------------------------------------------------------

    def _run(self, s: Shared, w: Worker) -> Iterator[Action]:
        last = self.config.last_step()
        if w.step < 0:
            yield from self._put(s, w, 0, 0)
        elif w.step == last:
            yield "finish", s, w._replace(phase=PUBLISH, then="release")
        elif w.at < len(self.config.program[w.step]):
            yield self._call(s, w)
        elif w.fixed >= 0:
            yield from self._put(s, w, w.step + 1, w.fixed)
        elif self.config.writes:
            for value in range(self.config.values):
                yield "node", s, w._replace(phase=APPEND, then=("W", value, "writes"))
        else:
            for value in range(self.config.values):
                yield from self._put(s, w, w.step + 1, value)

    def _put(self, s: Shared, w: Worker, step: int, value: int) -> Iterator[Action]:
        body = (step, value)
        if step < self.config.last_step():
            first = self.config.program[step][:1]
            passes = [barrier(self.config.durability, r) is Barrier.PASS for r in first]
            if self.broken == "effect on an unpublished base" and step > 0:
                yield "go on", s, w._replace(step=step, value=value, at=0, deferred=True)
            if self.config.durability == "exit" and all(passes):
                # Nothing is stored before the end of the run.
                yield "go on", s, w._replace(step=step, value=value, at=0, deferred=True)
                return
        if self.broken == "publish before commit":
            ahead = record(RECORDS[w.head].seq + 1, w.epoch, "C", w.head, body)
            yield "put", s, w._replace(phase=PUBLISH, then=("ahead", ahead, body))
        elif self.broken == "publish with prepare":
            ahead = record(RECORDS[w.head].seq + 1, w.epoch, "C", w.head, body)
            yield "put", s, w._replace(phase=PUBLISH, then=("prepare", ahead, body))
        else:
            yield "put", s, w._replace(phase=APPEND, then=("C", body, "put"))

    def _call(self, s: Shared, w: Worker) -> Action:
        slot: Slot = (w.step, w.at)
        receiver = self.config.receiver(slot)
        may_pass = barrier(self.config.durability, receiver)
        if may_pass is Barrier.REFUSE:
            return "misuse", s, _OVER[HALT]
        held = next((entry for entry in w.ledger if entry[0] == slot), None)
        intent = slot in w.intents or w.step <= w.horizon
        if self.broken == "ledger in A only":
            intent = held is not None
        tainted = s.mark is not None and s.mark.tainted and s.mark.epoch == w.epoch
        state = None if held is None else held[1]
        same = held is not None and held[2] == w.value
        decided = call(receiver, state, same, intent, tainted)
        then = decided.verdict
        if then is Verdict.REPLAY:
            return "replay", s, w._replace(at=w.at + 1)
        if then is Verdict.CONFLICT:
            self.require(not self.untouched(s.budget), "false conflict", f"slot {slot}")
            return "conflict", s, w._replace(phase=PUBLISH, then="refuse")
        if then is Verdict.REFUSE:
            open_still = state in {None, "started", "in_doubt"}
            self.require(w.epoch > 1 and open_still, "false refusal", f"slot {slot}: {state}")
            return "refuse", s, w._replace(phase=PUBLISH, then="refuse")
        if then is Verdict.RECONCILE and decided.asks:
            return "call", s, w._replace(phase=ASK, then=0)
        name = "resend" if then is Verdict.RECONCILE else "call"
        return name, s, self._entry(w, slot, "started", "started")

    @staticmethod
    def _entry(w: Worker, slot: Slot, state: str, then: str) -> Worker:
        return w._replace(phase=APPEND, then=("E", (slot, state, w.value), then))

    # --- P3 -------------------------------------------------------------------------------------

    def _store(self, s: Shared, w: Worker) -> Iterator[Action]:
        kind, body = w.then[:2]
        number = record(RECORDS[w.head].seq + 1, w.epoch, kind, w.head, body)
        if w.phase == GATE and len(w.then) == 3:
            if s.rows.top == w.expected:
                yield "nothing stored", s, w._replace(phase=APPEND)
            else:
                yield "read head row", s, w._replace(then=(*w.then, s.rows.top))
            return
        if w.phase == GATE and len(w.then) == 4:
            # Before B is asked: what the next owner collects is no alarm.
            parent = w.wrote or w.head == GENESIS or w.head in s.rows.visible()
            parent = parent or self.broken == "re-base without its parent"
            yield "look for the parent", s, w._replace(then=(*w.then, parent))
            return
        if w.phase == GATE:
            yield self._after_gate(s, w, number)
            return
        later = w.expected != GENESIS and RECORDS[w.expected].epoch > w.epoch
        if later and self.broken != "append behind a later epoch":
            late = w._replace(phase=GATE, then=(*w.then, w.expected, False))
            yield "later epoch", s, late
            return
        if w.expected != s.rows.top and self.broken != "no parent check":
            yield "gate closed", s, w._replace(phase=GATE)
            return
        if number in s.rows.rows:
            # The same key is there already, under a head row that does not say so.
            yield self._alarm(s, w, "duplicate key")
            return
        rows = Rows((*s.rows.rows, number), number)
        if self.broken == "overwriting in place":
            rows = Rows((number,), number)
        budget = s.budget
        if budget.edits:
            budget = budget._replace(ever=(*budget.ever, number))
        if kind != "R":
            self._no_hole(s, w.head)
        stored = s._replace(rows=rows, budget=budget)
        yield f"append {kind}", *self._stored(stored, w, number)
        if s.budget.replies:
            less = budget._replace(replies=budget.replies - 1)
            lost = w._replace(phase=GATE)
            yield "reply of A lost", stored._replace(budget=less), lost
            less = s.budget._replace(replies=s.budget.replies - 1)
            yield "request to A lost", s._replace(budget=less), lost

    def _no_hole(self, s: Shared, prev: int) -> None:
        """With a store that is only ever put back as a whole, the gate leaves no hole."""
        if self.config.edits == 0:
            stored = prev == GENESIS or prev in s.rows.rows
            self.require(stored, "hole", f"behind {shown(prev)}")

    def _after_gate(self, s: Shared, w: Worker, number: int) -> Action:
        seen, parent = w.then[3:]
        if s.mark is None:
            return self._alarm(s, w, "no mark")
        stored = RECORDS[seen].epoch if seen else None
        then = gate(w.epoch, s.mark.epoch, not w.wrote, stored, seen == number, parent)
        if self.broken == "gate alarms on orphans" and then is Then.RELOAD:
            then = Then.ROLLBACK
        if then is Then.FENCED:
            return "fenced", s, _OVER[IDLE]
        if then is Then.COMMITTED:
            return "gate: committed", *self._stored(s, w, number)
        if then is Then.RELOAD:
            again = w._replace(phase=APPEND, expected=seen, then=w.then[:3])
            return "re-base", s, again
        return self._alarm(s, w, "gate")

    def _stored(self, s: Shared, w: Worker, number: int) -> tuple[Shared, Worker]:
        """The worker knows that its record is stored."""
        kind, body, then = w.then[:3]
        w = w._replace(head=number, expected=number, wrote=True, phase=RUN, then=())
        if kind == "E":
            return s, self._entered(w, body, then)
        if then == "writes":
            return s, w._replace(at=TASK_DONE, fixed=body)
        if then == "put" and self.broken in {
            "acknowledge before publish",
            "accept B or B+1",
            "publish with prepare",
        }:
            early = s._replace(world=s.world._replace(acked=number))
            if self.broken == "acknowledge before publish":
                return early, w._replace(phase=PUBLISH, then=("put", body))
            return early, self._at_checkpoint(w, body)
        if then == "ahead":
            return self._acknowledged(s, w._replace(mark=number), body)
        if then == "prune" and self.broken == "collect before publish":
            return s, w._replace(phase=COLLECT, then=body)
        return s, w._replace(phase=PUBLISH, then=(then, body))

    def _entered(self, w: Worker, body: tuple[Slot, str, int], then: str) -> Worker:
        slot = body[0]
        others = tuple(entry for entry in w.ledger if entry[0] != slot)
        w = w._replace(ledger=tuple(sorted((*others, body))))
        if then == "started":
            announced = self.config.receiver(slot) == "K" or self.broken == "ledger in A only"
            if announced:
                return w._replace(phase=SEND)
            intents = tuple(sorted({*w.intents, slot}))
            return w._replace(phase=PUBLISH, intents=intents, then=("intent", ()))
        if then == "absent":
            return self._entry(w, slot, "started", "started")
        if then == "failed":
            return w._replace(intents=tuple(i for i in w.intents if i != slot))
        if then == "doubt":
            return w._replace(phase=PUBLISH, then="give back")
        return w._replace(at=w.at + 1)

    # --- P4, P5, P7 -----------------------------------------------------------------------------

    def _publish(self, s: Shared, w: Worker) -> Iterator[Action]:
        if s.mark is None:
            yield self._alarm(s, w, "no mark")
        elif w.phase == READ_BACK:
            yield self._read_back(s, s.mark, w)
        else:
            mark = s.mark
            owned = mark.epoch == w.epoch or self.broken == "compare without epoch"
            if not owned or mark.digest != w.mark:
                yield "not published", s, w._replace(phase=READ_BACK)
                return
            moved = s._replace(mark=self._moved(mark, w))
            then = w.then if isinstance(w.then, str) else w.then[0]
            yield f"publish: {then}", *self._published(moved, w)
            if s.budget.replies:
                less = s.budget._replace(replies=s.budget.replies - 1)
                lost = w._replace(phase=READ_BACK)
                yield "reply of B lost", moved._replace(budget=less), lost
                yield "request to B lost", s._replace(budget=less), lost

    def _moved(self, mark: Mark, w: Worker) -> Mark:
        """B after this publish."""
        then = w.then if isinstance(w.then, str) else w.then[0]
        intents, horizon = w.intents, mark.horizon
        moved = mark._replace(digest=w.head, leased=True, clean=False, prepared=0)
        if then in {"put", "ahead"}:
            step = w.then[-1][0]
            intents = tuple(i for i in intents if i[0] >= step)
            moved = moved._replace(tainted=False, step=step)
            if then == "ahead":
                moved = moved._replace(digest=w.then[1])
        elif then == "prepare":
            moved = moved._replace(prepared=w.then[1])
        elif then == "restore":
            horizon = -1 if self.broken == "restore without horizon" else mark.step
            step = RECORDS[w.then[1][0]].body[0]
            intents = tuple(i for i in intents if i[0] >= step)
            moved = moved._replace(leased=False, step=step)
        elif then in {"give back", "refuse", "release"}:
            moved = moved._replace(leased=False, clean=True)
        return moved._replace(intents=intents, horizon=horizon)

    def _published(self, s: Shared, w: Worker) -> tuple[Shared, Worker]:
        """The worker knows that the mark is where it put it."""
        then, *rest = (w.then,) if isinstance(w.then, str) else w.then
        w = w._replace(mark=w.head, phase=RUN, then=())
        if then == "put":
            return self._acknowledged(s, w, rest[0])
        if then == "ahead":
            return s, w._replace(mark=rest[0], phase=APPEND, then=("C", rest[1], "ahead"))
        if then == "prepare":
            return s, w._replace(phase=APPEND, then=("C", rest[1], "put"))
        if then == "intent":
            return s, w._replace(phase=SEND)
        if then == "prune":
            return s, w._replace(phase=COLLECT, then=rest[0])
        if then == "restore":
            target = rest[0][0]
            return s._replace(world=s.world._replace(acked=target)), _OVER[IDLE]
        if then == "keep":
            return s, w
        if then == "give back":
            return s, _OVER[IDLE]
        return s, _OVER[DONE if then == "release" else HALT]

    def _acknowledged(self, s: Shared, w: Worker, body: tuple[int, int]) -> tuple[Shared, Worker]:
        base = w.head
        s = s._replace(world=s.world._replace(acked=base))
        w = self._at_checkpoint(w, body)
        if w.step == self.config.last_step():
            self.completed(s.world)
        if w.step == self.config.prune_at:
            w = w._replace(phase=APPEND, then=("P", (base,), "prune"))
        return s, w

    @staticmethod
    def _at_checkpoint(w: Worker, body: tuple[int, int]) -> Worker:
        step, value = body
        return w._replace(
            phase=RUN,
            step=step,
            value=value,
            at=0,
            fixed=-1,
            deferred=False,
            ledger=tuple(entry for entry in w.ledger if entry[0][0] >= step),
            intents=tuple(i for i in w.intents if i[0] >= step),
            then=(),
        )

    def _read_back(self, s: Shared, mark: Mark, w: Worker) -> Action:
        wanted = w.then[1] if w.then[0] == "ahead" else w.head
        then = after_publish(w.epoch, mark.epoch, mark.digest, w.mark, wanted)
        if self.broken == "guess a lost reply":
            then = Then.COMMITTED
        if then is Then.FENCED:
            return "fenced", s, _OVER[IDLE]
        if then is Then.AGAIN:
            return "publish again", s, w._replace(phase=PUBLISH)
        if then is Then.COMMITTED:
            return "read back: committed", *self._published(s, w)
        return self._alarm(s, w, "mark")

    # --- P6 -------------------------------------------------------------------------------------

    def _collect(self, s: Shared, w: Worker) -> Action:
        """Deletes what the prune does not keep; a stale worker may do it late."""
        kept = w.then[0]
        prune = next(n for n in (w.head, w.mark) if RECORDS[n].kind == "P")
        limit = RECORDS[prune].seq
        rows = tuple(n for n in s.rows.rows if n == kept or RECORDS[n].seq >= limit)
        w = w._replace(phase=RUN, then=())
        if self.broken == "collect before publish":
            w = w._replace(phase=PUBLISH, then="keep")
        return "collect", s._replace(rows=s.rows._replace(rows=rows)), w

    # --- effects --------------------------------------------------------------------------------

    def _effect(self, s: Shared, w: Worker) -> Iterator[Action]:
        slot: Slot = (w.step, w.at)
        if w.phase == SEND:
            yield from self._send(s, w, slot)
        elif w.phase == ASK:
            yield from self._ask(s, w, slot)
        else:
            key = w.then
            flying = any(f[0] == slot and f[3] == w.epoch for f in s.world.flying)
            landed = any(entry[:2] == (slot, key) for entry in s.world.landed)
            if not flying and landed:
                yield "reply", s, self._entry(w, slot, "succeeded", "outcome")
            less = s.budget.timeouts > 0
            if less or not (flying or landed):
                budget = s.budget._replace(timeouts=s.budget.timeouts - less)
                doubt = self._entry(w, slot, "in_doubt", "doubt")
                yield "time-out", s._replace(budget=budget), doubt

    def _send(self, s: Shared, w: Worker, slot: Slot) -> Iterator[Action]:
        receiver = self.config.receiver(slot)
        if s.budget.failures:
            budget = s.budget._replace(failures=s.budget.failures - 1)
            failed = self._entry(w, slot, "failed", "failed")
            yield "proven failure", s._replace(budget=budget), failed
        # The local clock's deadline is never later than B's, so the guard implies this.
        guarded = s.mark is not None and s.mark.epoch == w.epoch and s.mark.leased
        if not guarded and self.broken != "no lease guard":
            yield self._renew(s, w)
            return
        if not (self.config.durability == "exit" and receiver == "K"):
            published = s.mark is not None and self._base(w) in ancestry(s.mark.digest)
            text = f"slot {slot} under {shown(self._base(w))}"
            self.require(published and not w.deferred, "unpublished base", text)
        key = self._key(w, slot)
        flying = tuple(sorted((*s.world.flying, (slot, key, w.value, w.epoch))))
        world = s.world._replace(flying=flying)
        yield f"send {receiver}", s._replace(world=world), w._replace(phase=WAIT, then=key)

    def _key(self, w: Worker, slot: Slot) -> int:
        if self.broken == "key of the checkpoint":
            # The checkpoint that it runs under, which a replay makes anew.
            return 1_000 * (slot[0] * 10 + slot[1] + 1) + self._base(w)
        return slot[0] * 10 + slot[1] + 1

    @staticmethod
    def _base(w: Worker) -> int:
        return fold(w.head, None).base

    def _renew(self, s: Shared, w: Worker) -> Action:
        if s.mark is None or s.mark.epoch != w.epoch:
            return "fenced", s, _OVER[IDLE]
        return "renew", s._replace(mark=s.mark._replace(leased=True)), w

    def _ask(self, s: Shared, w: Worker, slot: Slot) -> Iterator[Action]:
        landed = any(entry[0] == slot for entry in s.world.landed)
        reads = w.then
        if landed:
            yield "found", s, self._entry(w, slot, "succeeded", "outcome")
        if landed and (self.config.strong or reads > 0):
            return
        # Settled: the longest time in flight has passed since the takeover.
        settled = not any(f[0] == slot for f in s.world.flying)
        if self.broken == "absent while a sender lives":
            settled = True
        reads += settled
        counts = absent(self.config.strong, reads, settled)
        if self.broken == "one weak read" and settled:
            counts = True
        if counts:
            yield "absent", s, self._entry(w, slot, "absent", "absent")
        elif settled:
            yield "absent once", s, w._replace(then=reads)

    # --- restore (E6) ---------------------------------------------------------------------------

    def _order(self, s: Shared, w: Worker) -> Iterator[Action]:
        """An operator names an older checkpoint of this chain that A still holds."""
        present = set(s.rows.visible())
        yield "give up", s, _OVER[IDLE]
        for target in sorted(ancestry(w.mark) & present):
            if RECORDS[target].kind == "C":
                budget = s.budget._replace(restores=s.budget.restores - 1)
                body: Any = ("R", (target,), "restore")
                ordered = w._replace(phase=APPEND, expected=s.rows.top, then=body)
                yield "choose", s._replace(budget=budget), ordered
