"""A pair of stores that holds every kind of record and of value, made through the saver itself.

Two tenants, threads with equal content, values inside records, in rows and in chunks, writes of
every kind, subgraphs, interrupts, effects that succeeded and one in doubt, forks, a DeltaChannel,
a prune with kept frames, a copy, a deleted thread, one in its second life, and one whose worker
died with records beyond the published head. After each step the whole content is written down,
so that it can be put back.
"""

from __future__ import annotations

import hashlib
import operator
import shutil
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from tests.postgres import fresh_database
from tests.tamper.content import (
    Content,
    Rows,
    copied_database,
    drop_database,
    open_content,
)
from tests.tamper.tripwire import Tripwire

from surefoot import Absent, Committed, Keyring, Limits, ResumePolicy, SurefootSaver, effect
from surefoot.errors import EffectInDoubt
from surefoot.ports import Mark
from surefoot.testing.faults import Died, Fault, Plan, bury, with_faults

__all__ = [
    "TENANTS",
    "Desk",
    "Snapshot",
    "Stores",
    "World",
    "at",
    "build",
    "delta_graph",
    "desk_graph",
    "opened",
]

TENANTS = ("acme", "rival")


def at(thread: str, checkpoint_id: str | None = None, namespace: str | None = "") -> Any:
    """A config; ``namespace=None`` leaves it out."""
    configurable: dict[str, Any] = {"thread_id": thread}
    if namespace is not None:
        configurable["checkpoint_ns"] = namespace
    if checkpoint_id is not None:
        configurable["checkpoint_id"] = checkpoint_id
    return {"configurable": configurable}


@dataclass(frozen=True)
class Stores:
    """Addresses of a content store and a high-water store, and the keys of all savers on them."""

    backend: str
    url: str
    highwater: str
    key_file: str

    @classmethod
    def fresh(cls, backend: str, folder: Path) -> Stores:
        """A pair that nobody has set up yet."""
        key_file = folder / "keys.json"
        Keyring.generate().to_file(key_file)
        if backend == "postgres":
            return cls(backend, fresh_database(), fresh_database(), str(key_file))
        return cls(backend, f"sqlite:///{folder}/a.db", f"sqlite:///{folder}/b.db", str(key_file))

    def open(self, tenant: str, wire: Tripwire, **settings: Any) -> SurefootSaver:
        """A saver with the tripwire's serialiser; nothing happens by the clock."""
        return SurefootSaver(
            self.url,
            highwater=self.highwater,
            keys=Keyring.from_file(Path(self.key_file)),
            tenant=tenant,
            serde=wire.serde,
            policy=ResumePolicy(settling_ms=0, lease_ttl_ms=3_600_000, handover_grace_ms=0),
            limits=Limits(flush_after_ms=10**9, pool_max_connections=4, offload_threads=4),
            **settings,
        )

    def content(self) -> Content:
        """A way into the tables behind the saver's back."""
        return open_content(self.backend, self.url)

    def copy(self, folder: Path) -> Stores:
        """The same two stores once more; nobody may have the originals open."""
        if self.backend == "sqlite":
            copied = Stores("sqlite", f"sqlite:///{folder}/a.db", f"sqlite:///{folder}/b.db", "")
            for old, new in ((self.url, copied.url), (self.highwater, copied.highwater)):
                with closing(sqlite3.connect(old.removeprefix("sqlite:///"))) as database:
                    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                shutil.copyfile(old.removeprefix("sqlite:///"), new.removeprefix("sqlite:///"))
        else:
            copied = Stores(
                "postgres", copied_database(self.url), copied_database(self.highwater), ""
            )
        return replace(copied, key_file=self.key_file)

    def drop(self) -> None:
        """Takes a copy away again, where it would stay in a server."""
        if self.backend == "postgres":
            for url in (self.url, self.highwater):
                drop_database(url)


@dataclass(frozen=True)
class Snapshot:
    """All rows of the content store, and the marks, after a step.

    Attributes:
        step: Name of the step.
        rows: By table.
        marks: By tenant and thread.
    """

    step: str
    rows: Rows
    marks: Mapping[tuple[str, str], Mark]


@dataclass
class World:
    """The prepared stores.

    Attributes:
        stores: Addresses.
        wire: The tripwire that knows all that was written.
        savers: One per tenant.
        desks: The receiver of each thread's effects.
        snapshots: After each step; the last one is the present.
    """

    stores: Stores
    wire: Tripwire
    savers: dict[str, SurefootSaver]
    desks: dict[str, Desk] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)

    def close(self) -> None:
        """Closes the savers."""
        for saver in self.savers.values():
            saver.close()

    def threads(self) -> list[tuple[str, str]]:
        """(tenant, thread) of every thread that was ever admitted."""
        return sorted(self.snapshots[-1].marks)

    def note(self, content: Content, step: str) -> None:
        """Writes down what is stored now."""
        marks = {
            (tenant, thread): mark
            for tenant, saver in self.savers.items()
            for thread, mark in saver.core.ports.marks.marks(tenant, limit=1_000)
        }
        self.snapshots.append(Snapshot(step, content.dump(), marks))


# --- what is put by hand ------------------------------------------------------------------------


def _put(saver: SurefootSaver, thread: str, id_: str, parent: str | None, step: int, **v: Any):
    versions = dict.fromkeys(v, f"{step + 2:032}.0")
    checkpoint: Any = {
        **empty_checkpoint(),
        "id": id_,
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": v,
        "channel_versions": versions,
    }
    metadata: Any = {"source": "loop", "step": step, "parents": {}, "run_id": f"run-{thread}"}
    saver.put(at(thread, parent), checkpoint, metadata, versions)


def _values(saver: SurefootSaver, thread: str) -> None:
    """Values of every size, writes of every kind, early writes, a branch."""
    messages = [f"message {n}" for n in range(10)]
    noise = hashlib.shake_256(b"noise").digest(700)
    _put(saver, thread, "c0", None, -1, odd=["\ud800", 2**70, {(1, 2): 2}, {"x"}, -0.0, None])
    _put(saver, thread, "c1", "c0", 0, small=HumanMessage("hi", id="m-1"), m=messages, noise=noise)
    saver.put_writes(at(thread, "c1"), [("m", ["m"]), ("small", b"\0\xff")], "task-1", "~a")
    saver.put_writes(at(thread, "c1"), [("__interrupt__", ["sure?"])], "task-2", "~b")
    saver.put_writes(at(thread, "c1"), [("__error__", "first")], "task-3", "~c")
    saver.put_writes(at(thread, "c2"), [("small", "early" * 200)], "task-4", "~d")
    saver.record(thread, "guardrail.tripped", {"why": "amount"})
    saver.record(thread, "transcript", {"noise": noise.hex()}, schema=2)
    _put(saver, thread, "c2", "c1", 1, small=bytearray(b"22"), m=[*messages, *messages])
    _put(saver, thread, "c2b", "c1", 1, small="a branch", packed="abc" * 400)


def _lives(saver: SurefootSaver, thread: str) -> None:
    _put(saver, thread, "old", None, 0, n="first life", m=[*range(9)])


# --- graphs -------------------------------------------------------------------------------------


class Desk:
    """The receiver of one thread's effects: it counts, and can be asked.

    Attributes:
        landed: How often each invoice was paid.
        nodes: How many nodes have run.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.landed: Counter[str] = Counter()
        self.nodes = 0
        self._by_key: dict[str, dict[str, Any]] = {}

    def pay(self, invoice: str, key: str) -> dict[str, Any]:
        """Lands a payment; one key lands once more only if somebody sends it twice."""
        with self._lock:
            self.landed[invoice] += 1
            receipt = hashlib.shake_256(invoice.encode()).hexdigest(500)
            return self._by_key.setdefault(key, {"invoice": invoice, "receipt": receipt})

    def find(self, key: str) -> dict[str, Any] | None:
        """What landed under a key."""
        with self._lock:
            return self._by_key.get(key)

    def clone(self) -> Desk:
        """The same world, for a play that shall not change this one."""
        with self._lock:
            made = Desk()
            made.landed, made._by_key, made.nodes = self.landed.copy(), {**self._by_key}, self.nodes
            return made


class Work(TypedDict, total=False):
    """State of the graph."""

    notes: Annotated[list[Any], operator.add]
    paid: Annotated[list[Any], operator.add]


def desk_graph(saver: SurefootSaver, desk: Desk, *, doubtful: bool = False) -> Any:
    """A graph that pays before, in and after a subgraph, which asks a question in between."""

    def lookup(call: Any) -> Any:
        found = desk.find(call.key)
        return Committed(found) if found else Absent()

    def body(invoice: str, *, idempotency_key: str) -> dict[str, Any]:
        return desk.pay(invoice, idempotency_key)

    asked = effect(name="asked", reconcile=lookup, compare=["invoice"], lookup="strong")(body)
    once = effect(name="once")(body)

    @effect(name="lost")
    def lost(invoice: str, *, idempotency_key: str) -> dict[str, Any]:
        desk.pay(invoice, idempotency_key)
        raise TimeoutError("the answer was lost")

    def node(work: Callable[[Work], Work]) -> Callable[[Work], Work]:
        def run(state: Work) -> Work:
            desk.nodes += 1
            return work(state)

        return run

    def ask(state: Work) -> Work:
        first = asked("inner")
        return {"paid": [first, once("after-answer")], "notes": [interrupt("go on?")]}

    inner = StateGraph(Work)
    inner.add_node("ask", node(ask))
    inner.add_edge(START, "ask")
    graph = StateGraph(Work)
    graph.add_node("think", node(lambda _: {"notes": ["thought " + "so " * 300]}))
    graph.add_node("pay", node(lambda _: {"paid": [once("first"), asked("second")]}))
    graph.add_node("sub", inner.compile())
    graph.add_node("last", node(lambda _: {"paid": [(lost if doubtful else once)("last")]}))
    for one, other in ((START, "think"), ("think", "pay"), ("pay", "sub"), ("sub", "last")):
        graph.add_edge(one, other)
    graph.add_edge("last", END)
    return graph.compile(checkpointer=saver)


def _paused(world: World, thread: str, tenant: str = "acme") -> Any:
    """Runs to the question."""
    desk = world.desks[thread] = Desk()
    graph = desk_graph(world.savers[tenant], desk)
    graph.invoke({"notes": ["begun"]}, at(thread), durability="sync")
    return graph


def _finished(world: World, thread: str) -> None:
    """Runs to the end, and forks an older checkpoint."""
    graph = _paused(world, thread)
    graph.invoke(Command(resume="yes"), at(thread))
    older = next(s for s in graph.get_state_history(at(thread)) if s.next == ("pay",))
    graph.update_state(older.config, {"notes": ["forked"]}, as_node="think")


def _doubt(world: World, thread: str) -> None:
    """Ends in doubt."""
    desk = world.desks[thread] = Desk()
    graph = desk_graph(world.savers["acme"], desk, doubtful=True)
    graph.invoke({"notes": ["begun"]}, at(thread))
    try:
        graph.invoke(Command(resume="yes"), at(thread))
    except (EffectInDoubt, TimeoutError):
        world.savers["acme"].release(thread)
        return
    raise AssertionError("the effect is not in doubt")


def _extend(value: list[Any], writes: Any) -> list[Any]:
    return [*value, *(item for write in writes for item in write)]


def delta_graph(saver: SurefootSaver) -> Any:
    """A graph with a DeltaChannel."""
    schema: Any = TypedDict(
        "schema", {"x": Annotated[list, DeltaChannel(_extend, list, snapshot_frequency=3)]}
    )
    graph = StateGraph(schema)
    graph.add_node("say", lambda state: {"x": [f"said {len(state['x'])}"]})
    graph.add_edge(START, "say")
    return graph.compile(checkpointer=saver)


def _delta(world: World, thread: str) -> None:
    """A DeltaChannel over several turns."""
    graph = delta_graph(world.savers["acme"])
    for turn in range(4):
        graph.invoke({"x": [turn]}, at(thread))


def _crashed(world: World, thread: str, boundary: str) -> None:
    """Its worker dies between an append and its publish."""
    plan = Plan({boundary: Fault.DIE})
    desk = world.desks[thread] = Desk()
    saver = with_faults(world.stores.open("acme", world.wire), plan)
    config: RunnableConfig = at(thread)
    try:
        desk_graph(saver, desk).invoke({"notes": ["begun"]}, config, durability="sync")
    except Died:
        pass
    if plan.hit != [boundary]:
        raise AssertionError(f"meant {boundary}, hit {plan.hit}")
    bury(saver, plan)


def _steps(world: World) -> list[tuple[str, Callable[[], object]]]:
    acme, rival = (world.savers[tenant] for tenant in TENANTS)
    return [
        ("values", lambda: _values(acme, "values")),
        ("twin", lambda: _values(acme, "twin")),
        ("rival values", lambda: _values(rival, "values")),
        ("copied", lambda: acme.copy_thread("values", "copied")),
        ("paused", lambda: _paused(world, "paused")),
        ("finished", lambda: _finished(world, "finished")),
        ("doubt", lambda: _doubt(world, "doubt")),
        ("delta", lambda: _delta(world, "delta")),
        ("to be pruned", lambda: _finished(world, "pruned")),
        ("pruned", lambda: acme.prune(["pruned"])),
        ("delta to be pruned", lambda: _delta(world, "delta-pruned")),
        ("delta pruned", lambda: acme.prune(["delta-pruned"])),
        ("to be deleted", lambda: _lives(acme, "deleted")),
        ("deleted", lambda: acme.delete_thread("deleted")),
        ("first life", lambda: _lives(acme, "reborn")),
        ("between lives", lambda: acme.delete_thread("reborn")),
        ("second life", lambda: _put(acme, "reborn", "new", None, 0, n="second life")),
        ("crashed before", lambda: _values(acme, "before-crash")),
        ("crashed", lambda: _crashed(world, "crashed", "marks.publish.before#5")),
    ]


def opened(stores: Stores) -> World:
    """A world on stores as they are, which has no past yet."""
    wire = Tripwire()
    return World(stores, wire, {tenant: stores.open(tenant, wire) for tenant in TENANTS})


def build(backend: str, folder: Path) -> World:
    """Makes the stores, step by step."""
    world = opened(Stores.fresh(backend, folder))
    stores, wire = world.stores, world.wire
    for saver in world.savers.values():
        saver.setup()
    content = stores.content()
    with wire.set(), wire.learning():
        for step, work in _steps(world):
            work()
            world.note(content, step)
    content.close()
    return world
