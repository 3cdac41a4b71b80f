"""What is run while stores fail: a graph with effects, a till that counts them, and a judge.

One node is *stubborn*: it catches what an effect raises and tries the next one. So a run that
could not save goes on asking for effects, and only the latch (rule E10) stops them.

Checks here are explicit, because ``assert`` vanishes under ``python -O``.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langgraph.graph import END, START, StateGraph
from tests.crash.workloads import DONE, Pay, State, invoke, next_input

from surefoot import Keyring, Limits, ResumePolicy, SurefootSaver
from surefoot.errors import SurefootError, Unavailable

__all__ = ["CHARGES", "Errand", "Failed", "Stores", "Till", "Walk", "no_alarm", "walked"]

#: What the errand pays, each exactly once.
CHARGES = ("k1", "l1", "k2", "l2")
_RUNS_MAX = 4
_NEVER_MS = 10**9
#: Fills several pages of a file and is stored beside its record.
_LONG = "a long note " * 600


class Failed(Exception):
    """Something did not hold; says all of it."""


class Till:
    """The receiver of all effects, and the order in which everything happened."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.landed: list[tuple[str, str, str]] = []
        self.log: list[tuple[str, str]] = []

    def note(self, what: str, detail: str = "") -> None:
        """Puts an event of the test's own into the order."""
        with self._lock:
            self.log.append((what, detail))

    def charge(self, mode: str, invoice: str, key: str) -> dict[str, Any]:
        """Lands a charge, or replays it where the mode deduplicates."""
        with self._lock:
            self.log.append(("effect", invoice))
            if mode != "idempotent" or (mode, invoice, key) not in self.landed:
                self.landed.append((mode, invoice, key))
        return {"invoice": invoice, "amount": 700}

    def find(self, key: str) -> list[dict[str, Any]]:
        """What landed in the mode that can be asked."""
        with self._lock:
            return [
                {"invoice": invoice, "amount": 700}
                for mode, invoice, held in self.landed
                if mode == "lookup" and held == key
            ]

    def counts(self) -> Counter[str]:
        """How often each invoice was paid."""
        with self._lock:
            return Counter(invoice for _, invoice, _ in self.landed)

    def runs(self) -> Iterator[list[tuple[str, str]]]:
        """Events of each run, in order."""
        with self._lock:
            events = list(self.log)
        run: list[tuple[str, str]] = []
        for event in events:
            if event[0] == "run" and run:
                yield run
                run = []
            run.append(event)
        if run:
            yield run


def _stubborn(pay: Pay, till: Till) -> Callable[[Any], Any]:
    """Two effects; the second is tried although the first one raised."""

    def caught(error: SurefootError, errors: list[SurefootError]) -> None:
        till.note("caught", error.code)
        errors.append(error)

    def run(state: State) -> State:
        paid, errors = [], list[SurefootError]()
        for kind, what in (("K", "k1"), ("L", "l1")):
            try:
                paid.append(pay(kind, what))
            except SurefootError as error:
                caught(error, errors)
        if errors:
            raise errors[0]
        return {"paid": paid, "notes": [_LONG]}

    async def arun(state: State) -> State:
        paid, errors = [], list[SurefootError]()
        for kind, what in (("K", "k1"), ("L", "l1")):
            try:
                paid.append(await pay(kind, what))
            except SurefootError as error:
                caught(error, errors)
        if errors:
            raise errors[0]
        return {"paid": paid, "notes": [_LONG]}

    return arun if pay.is_async else run


def _pure(text: str) -> Callable[[Any], Any]:
    def run(state: State) -> State:
        return {"notes": [text]}

    return run


def errand(pay: Pay, till: Till) -> StateGraph[State, None, State, State]:
    """Pure, two effects in the stubborn node, pure, two effects in another node."""
    graph = StateGraph(State)
    nodes = {
        "think": _pure("thought"),
        "first": _stubborn(pay, till),
        "between": _pure("between"),
        "second": pay.node(("K", "k2"), ("L", "l2")),
    }
    before = START
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(before, name)
        before = name
    graph.add_edge(before, END)
    return graph


@dataclass(frozen=True)
class Stores:
    """Addresses of a pair of stores, and how a process of its own opens them."""

    url: str
    highwater: str
    keys: Keyring
    limits: Limits = field(default_factory=lambda: Limits(flush_after_ms=_NEVER_MS))

    @classmethod
    def in_folder(cls, folder: Path, keys: Keyring) -> Stores:
        """Two SQLite files."""
        return cls(f"sqlite:///{folder}/a.db", f"sqlite:///{folder}/b.db", keys)

    def open(self, **settings: Any) -> SurefootSaver:
        """A saver for which nothing happens by the clock."""
        given: dict[str, Any] = {
            "limits": self.limits,
            "policy": ResumePolicy(
                lease_ttl_ms=3_600_000,
                settling_ms=0,
                handover_grace_ms=0,
                barrier_timeout_ms=20_000,
            ),
            **settings,
        }
        highwater = given.pop("highwater", self.highwater)
        conn = given.pop("conn", self.url)
        return SurefootSaver(conn, highwater=highwater, keys=self.keys, **given)

    def set_up(self) -> Stores:
        """Makes the tables."""
        with self.open() as saver:
            saver.setup()
        return self


@dataclass(frozen=True)
class Walk:
    """All that a fresh saver shows of a thread, each record verified on the way."""

    values: str
    steps: tuple[int, ...]
    tasks: int


def walked(stores: Stores, thread: str) -> Walk:
    """Walks the whole history with a saver that has seen nothing yet.

    Raises:
        SurefootError: Something does not verify.
    """
    with stores.open() as saver:
        till = Till()
        graph = errand(Pay(till, thread, is_async=False), till).compile(checkpointer=saver)
        history = [*graph.get_state_history({"configurable": {"thread_id": thread}})]
    steps = tuple(int((found.metadata or {}).get("step", -9)) for found in history)
    values = [found.values for found in history]
    shown = json.dumps(values, sort_keys=True).replace(thread, "THREAD")
    return Walk(shown, steps, len(history[0].tasks) if history else 0)


class Errand:
    """One thread on one pair of stores, run until it is done, whatever happens on the way.

    Attributes:
        till: The receiver.
        errors: What the runs raised.
    """

    def __init__(
        self, stores: Stores, thread: str, *, is_async: bool = False, durability: str = "sync"
    ) -> None:
        self.stores = stores
        self.thread = thread
        self.is_async = is_async
        self.durability = durability
        self.till = Till()
        self.errors: list[BaseException] = []
        self.config = {"configurable": {"thread_id": thread}}

    def graph(self, saver: SurefootSaver) -> Any:
        """The graph on a saver."""
        pay = Pay(self.till, self.thread, is_async=self.is_async)
        return errand(pay, self.till).compile(checkpointer=saver)

    def attempt(self, saver: SurefootSaver) -> BaseException | None:
        """One run of what is left to do; gives what it raised."""
        self.till.note("run")
        graph = self.graph(saver)
        try:
            given = next_input(graph.get_state(self.config))
            if given is not DONE:
                invoke(
                    graph,
                    given,
                    self.config,
                    durability=self.durability,
                    is_async=self.is_async,
                )
        except Exception as error:
            self.till.note("raised", type(error).__name__)
            self.errors.append(error)
            return error
        self.till.note("returned")
        return None

    def until(self, saver: SurefootSaver, node: str) -> None:
        """Runs and pauses before a node."""
        self.till.note("run")
        graph = self.graph(saver)
        given = next_input(graph.get_state(self.config))
        graph.invoke(given, self.config, interrupt_before=[node], durability=self.durability)
        self.till.note("paused")

    def finish(self, saver: SurefootSaver) -> None:
        """Runs until there is nothing left to do.

        Raises:
            Failed: There still is.
        """
        for _ in range(_RUNS_MAX):
            if self.attempt(saver) is None:
                return
        raise Failed(f"never done: {self.errors}")

    def problems(
        self,
        reference: Walk,
        *,
        expected: tuple[type[BaseException], ...] = (Unavailable,),
    ) -> list[str]:
        """What does not hold after the thread was finished.

        Args:
            reference: The walk of an uninterrupted run.
            expected: What a run may have raised.
        """
        found = [
            f"raised {error!r}, which is none of {[e.__name__ for e in expected]}"
            for error in self.errors
            if not isinstance(error, expected)
        ]
        counts = self.till.counts()
        wanted = {f"{self.thread}/{what}": 1 for what in CHARGES}
        if counts != wanted:
            found.append(f"paid {dict(counts)}")
        for run in self.till.runs():
            names = [name for name, _ in run]
            if "caught" in names and "effect" in names[names.index("caught") :]:
                found.append(f"an effect started after a save had failed: {run}")
        try:
            walk = walked(self.stores, self.thread)
        except SurefootError as error:
            found.append(f"the whole thread does not verify: {error!r}")
        else:
            if walk.values != reference.values:
                found.append("other values than in an uninterrupted run")
            if walk.steps != reference.steps or walk.tasks:
                found.append(f"steps {walk.steps} instead of {reference.steps}")
        return found


class _Alarms(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if any(code in text for code in ("[ROLLBACK]", "[TAMPER]", "[MARK_CORRUPT]", "[FENCED]")):
            self.heard.append(text)


@contextmanager
def no_alarm() -> Iterator[Sequence[str]]:
    """Listens to the log: a fault of a store that is honest may cause no alarm.

    Raises:
        Failed: There was one.
    """
    alarms = _Alarms()
    logger = logging.getLogger("surefoot")
    logger.addHandler(alarms)
    try:
        yield alarms.heard
    finally:
        logger.removeHandler(alarms)
    if alarms.heard:
        raise Failed(f"alarms in the log: {alarms.heard}")
