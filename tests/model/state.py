"""What a state of the model consists of, what a configuration allows, and what must hold."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.model.records import RECORDS, Slot, ancestry

# Phases of a worker.
IDLE = "idle"
LOAD = "load"  # has read B, is about to read A
DOUBT = "doubt"  # A does not fit, is about to read B again
RUN = "run"  # decides what comes next
APPEND = "append"
GATE = "gate"  # an append was refused or not answered, is about to read B
PUBLISH = "publish"
READ_BACK = "read back"  # a publish was refused or not answered, is about to read B
SEND = "send"
WAIT = "wait"
ASK = "ask"
COLLECT = "collect"
ORDER = "order"  # an operator's restore: acquired, about to write its record
HALT = "halt"  # alarmed, refused, or in doubt: a person decides
DONE = "done"

OVER = frozenset({IDLE, HALT, DONE})
TASK_DONE = 9


class Rows(NamedTuple):
    """A: records in the order of their commits, and the head row that gates appends."""

    rows: tuple[int, ...] = ()
    top: int = 0

    def visible(self) -> tuple[int, ...]:
        return self.rows if self.top else ()


class Mark(NamedTuple):
    """B: one row. ``prepared`` is used by one broken variant only."""

    digest: int
    epoch: int
    leased: bool
    clean: bool
    tainted: bool
    step: int = -1
    intents: tuple[Slot, ...] = ()
    horizon: int = -1
    prepared: int = 0


class World(NamedTuple):
    """What is outside: receivers, the network, and what callers were told.

    Attributes:
        landed: (slot, key, arguments, times) of executions at the receivers.
        flying: (slot, key, arguments, epoch) of requests that are under way.
        acked: Newest checkpoint whose save was acknowledged.
        alarmed: Somebody refused the stores (only where an operator may react).
    """

    landed: tuple[tuple[Slot, int, int, int], ...] = ()
    flying: tuple[tuple[Slot, int, int, int], ...] = ()
    acked: int = 0
    alarmed: bool = False


class Budget(NamedTuple):
    """How much may still go wrong, and what the adversary has seen."""

    crashes: int
    failures: int
    timeouts: int
    replies: int
    edits: int
    failovers: int
    restores: int
    losses: int
    ever: tuple[int, ...] = ()
    before: Mark | None = None


class Worker(NamedTuple):
    """A worker's memory; nothing of it survives a crash."""

    phase: str = IDLE
    epoch: int = 0
    head: int = 0
    expected: int = 0
    mark: int = 0
    wrote: bool = False
    step: int = -1
    value: int = 0
    at: int = 0
    fixed: int = -1
    deferred: bool = False
    ledger: tuple[tuple[Slot, str, int], ...] = ()
    intents: tuple[Slot, ...] = ()
    horizon: int = -1
    then: Any = ()


class Reader(NamedTuple):
    """A reader: what it has read, and what was acknowledged when it began."""

    phase: str = IDLE
    seen: Any = 0
    acked: int = 0


class Shared(NamedTuple):
    """Everything that more than one actor sees."""

    rows: Rows
    mark: Mark | None
    world: World
    budget: Budget


class Config(NamedTuple):
    """What is explored: the program, what may go wrong, and how often.

    Attributes:
        name: Of the configuration.
        program: Classes of the receivers that each step calls.
        durability: ``async`` (as ``sync``: the save is inside ``put``) or ``exit``.
        values: How many results a node may have; another one each time it runs.
        writes: A step's pending writes are stored on their own before its checkpoint.
        prune_at: Step whose checkpoint is followed by a prune.
        strong: Lookups are authoritative at once; otherwise the first answer may lag.
        epochs: Highest epoch that is handed out.
        crashes: How often a worker dies.
        failures: How often a body proves that nothing happened.
        timeouts: How often a body gives up waiting.
        replies: How many replies or requests of A and B are lost.
        edits: How often the adversary edits A.
        subsets: The adversary may leave any subset of what was ever stored, not only cuts.
        failovers: How often A fails over and loses its newest commits.
        restores: How often an operator orders a restore.
        losses: How often B loses its row, and an operator orders its adoption from A.
        reader: Somebody looks at the thread all the time.
        broken: Name of the mistake that is made on purpose.
        blind: Invariants that are not looked at, so that a mistake shows by its harm.
    """

    name: str
    program: tuple[tuple[str, ...], ...] = (("N",),)
    durability: str = "async"
    values: int = 1
    writes: bool = False
    prune_at: int = -1
    strong: bool = True
    epochs: int = 3
    crashes: int = 1
    failures: int = 0
    timeouts: int = 0
    replies: int = 0
    edits: int = 0
    subsets: bool = False
    failovers: int = 0
    restores: int = 0
    losses: int = 0
    reader: bool = False
    broken: str = ""
    blind: frozenset[str] = frozenset()

    def budget(self) -> Budget:
        return Budget(
            self.crashes,
            self.failures,
            self.timeouts,
            self.replies,
            self.edits,
            self.failovers,
            self.restores,
            self.losses,
        )

    def last_step(self) -> int:
        return len(self.program)

    def receiver(self, slot: Slot) -> str:
        return self.program[slot[0]][slot[1]]


#: What must hold, by name.
INVARIANTS = {
    "twice": "an effect happened more than once, or under two keys",
    "arguments": "one key was sent with different arguments",
    "lost effect": "a completed run lacks an effect",
    "lost outcome": "a stored outcome that follows the head was not adopted",
    "lost checkpoint": "somebody goes on from a chain that lacks an acknowledged checkpoint",
    "unwitnessed": "the mark does not stand for an acknowledged checkpoint",
    "wrong state": "a state was served that is not the one that the mark names",
    "false alarm": "an alarm although nobody edited A and no commit was lost",
    "false refusal": "an effect was refused although nothing went wrong before it",
    "false conflict": "other arguments were met although nobody edited A",
    "unpublished base": "an effect under a checkpoint that is not published",
    "hole": "a record was stored behind a record that A has lost",
    "mark": "the mark went down, or changed at the same height",
    "epoch": "an epoch went down or was handed out twice",
    "stuck": "nothing can happen any more although a worker has not ended",
}


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, name: str, text: str) -> None:
        if name not in INVARIANTS:
            raise KeyError(name)
        super().__init__(f"{name}: {INVARIANTS[name]} ({text})")
        self.name = name


class Checks:
    """The invariants over a configuration."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def require(self, holds: bool, name: str, text: str) -> None:
        if not holds and name not in self.config.blind:
            raise Violation(name, text)

    def untouched(self, budget: Budget) -> bool:
        """Nobody has edited A so far, and no commit was lost."""
        left = (budget.edits, budget.failovers, budget.losses)
        return left == (self.config.edits, self.config.failovers, self.config.losses)

    def alarm(self, budget: Budget, text: str) -> None:
        self.require(not self.untouched(budget), "false alarm", text)

    def shared(self, old: Shared, new: Shared) -> None:
        """What holds between any two states that follow each other."""
        if new.mark is not old.mark and new.budget.losses == old.budget.losses:
            self._mark(old.mark, new.mark)
        if new.world is not old.world:
            self._landed(new.world)
        moved = new.mark is not old.mark or new.world is not old.world
        if moved and new.mark is not None:
            head, acked = new.mark.digest, new.world.acked
            text = f"{shown(acked)} is not below {shown(head)}"
            self.require(acked in ancestry(head), "unwitnessed", text)

    def _mark(self, old: Mark | None, new: Mark | None) -> None:
        if old is None or new is None:
            self.require(old is None, "mark", "it is gone")
            return
        self.require(new.epoch >= old.epoch, "epoch", f"{old.epoch} to {new.epoch}")
        if new.digest != old.digest:
            up = RECORDS[new.digest].seq > RECORDS[old.digest].seq
            self.require(up, "mark", f"{shown(old.digest)} to {shown(new.digest)}")

    def _landed(self, world: World) -> None:
        times: dict[Slot, int] = {}
        bound: dict[int, int] = {}
        for slot, key, arguments, count in world.landed:
            # A receiver that deduplicates executes a key once, however often it is sent.
            executed = 1 if self.config.receiver(slot) == "K" else count
            if bound.setdefault(key, arguments) != arguments:
                self.require(False, "arguments", f"slot {slot}")
                executed = 0
            times[slot] = times.get(slot, 0) + executed
        for slot, count in times.items():
            self.require(count <= 1, "twice", f"slot {slot}")

    def completed(self, world: World) -> None:
        done = {slot for slot, *_ in world.landed}
        for step, receivers in enumerate(self.config.program):
            for at in range(len(receivers)):
                self.require((step, at) in done, "lost effect", f"slot {(step, at)}")


def shown(number: int) -> str:
    """A record for people: kind, number, epoch."""
    if number == 0:
        return "(nothing)"
    here = RECORDS[number]
    return f"{here.kind}{here.seq}@{here.epoch}"
