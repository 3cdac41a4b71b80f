"""A thread with something in every table, and every way of reading it."""

from __future__ import annotations

import operator
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.channels import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from tests.content_stores import PostgresStore, SqliteStore
from tests.saver.conftest import Half, at

from surefoot import Keyring, SurefootSaver, effect
from surefoot.errors import SurefootError

RUN = "run-1"
READS = (
    "setup",
    "get_tuple",
    "get_tuple by id",
    "list",
    "list of all threads",
    "list with a filter",
    "list before",
    "get_delta_channel_history",
    "get_state",
    "get_state_history",
)
WRITES = ("copy_thread", "resume", "update_state", "prune", "delete_for_runs", "delete_thread")


def _extend(state: list[str], writes: list[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


class State(TypedDict, total=False):
    text: str
    log: Annotated[list[str], operator.add]
    delta: Annotated[list[str], DeltaChannel(_extend, snapshot_frequency=4)]


class Attacked:
    """Stores of one test; both can be put back as they were.

    The high-water store is a file of its own, which is never attacked.
    """

    def __init__(self, store: SqliteStore | PostgresStore, folder: Path) -> None:
        self.store = store
        self.marks = SqliteStore(folder)
        self.marks.path = folder / "highwater.db"
        self.keys = Keyring.generate()
        self.sent: list[str] = []
        self._savers: list[SurefootSaver] = []
        self._saved: tuple[Any, Any] | None = None
        self.checkpoint_id = ""

    def open(self, *, setup: bool = True, **settings: Any) -> SurefootSaver:
        """Another saver, as another process would open it."""
        given = {
            "highwater": f"sqlite:///{self.marks.path}",
            "keys": self.keys,
            "schema": self.store.schema,
            **settings,
        }
        saver = SurefootSaver(self.store.url, **given)
        self._savers.append(saver)
        if setup:
            saver.setup()
        return saver

    def close(self) -> None:
        """Closes all savers."""
        for saver in self._savers:
            saver.close()
        self._savers.clear()

    def save(self) -> None:
        """Copies both stores."""
        self.close()
        self._saved = (self.store.snapshot(), self.marks.snapshot())

    def put_back(self) -> None:
        """Puts both stores back as they were."""
        self.close()
        if self._saved is None:
            raise AssertionError("nothing was saved")
        self.store.restore(self._saved[0])
        self.marks.restore(self._saved[1])

    def graph(self, saver: SurefootSaver) -> Any:
        """Two steps with an effect each; the second one waits for an answer."""

        @effect(name="act", idempotent=True)
        def act(what: str, *, idempotency_key: str) -> str:
            self.sent.append(what)
            return f"{what} done"

        def one(state: State) -> State:
            return {"text": os.urandom(900).hex(), "delta": ["one"], "log": [act("one")] * 12}

        def two(state: State) -> State:
            done = act("two")
            return {"log": [done, interrupt("go on?")] * 12, "delta": ["two"]}

        builder = StateGraph(State)
        builder.add_node("one", one)
        builder.add_node("two", two)
        builder.add_edge(START, "one")
        builder.add_edge("one", "two")
        return builder.compile(checkpointer=saver)

    def prepare(self) -> None:
        """A thread that waits for an answer, beside another one of the same kind."""
        saver = self.open()
        for thread in ("other", "t"):
            config = {**at(thread), "metadata": {"run_id": f"{RUN}-{thread}"}}
            self.graph(saver).invoke({"delta": ["start"], "log": ["start"]}, config)
            saver.release(thread)
        latest = saver.get_tuple(at("t"))
        if latest is None:
            raise AssertionError("the thread was not stored")
        self.checkpoint_id = latest.checkpoint["id"]
        self.save()
        if sorted(self.sent) != ["one", "one", "two", "two"]:
            raise AssertionError(self.sent)


def said(found: Any) -> str:
    """What a reader got, to be compared."""
    return repr(found)


async def ways(
    attacked: Attacked, *, is_async: bool
) -> AsyncIterator[tuple[str, Callable[[], Awaitable[Any]]]]:
    """Every way of reading the thread, by name: first those that change nothing."""
    saver = attacked.open(setup=False)
    half, graph = Half(saver, is_async=is_async), attacked.graph(saver)

    async def of_graph(name: str, *args: Any, **more: Any) -> Any:
        if is_async:
            return await getattr(graph, f"a{name}")(*args, **more)
        return getattr(graph, name)(*args, **more)

    async def history() -> Any:
        if is_async:
            return [s async for s in graph.aget_state_history(at("t"))]
        return [*graph.get_state_history(at("t"))]

    async def copied() -> Any:
        await half.copy_thread("t", "copy")
        return await half.get_tuple(at("copy"))

    ident = attacked.checkpoint_id
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "setup": half.setup,
        "get_tuple": lambda: half.get_tuple(at("t")),
        "get_tuple by id": lambda: half.get_tuple(at("t", ident)),
        "list": lambda: half.list(at("t", namespace=None)),
        "list of all threads": lambda: half.list(None),
        "list with a filter": lambda: half.list(at("t"), filter={"step": 0}),
        "list before": lambda: half.list(at("t"), before=at("t", ident)),
        "get_delta_channel_history": lambda: half.get_delta_channel_history(
            config=at("t"), channels=["delta"]
        ),
        "get_state": lambda: of_graph("get_state", at("t"), subgraphs=True),
        "get_state_history": history,
        "copy_thread": copied,
        "resume": lambda: of_graph("invoke", Command(resume="yes"), at("t")),
        "update_state": lambda: of_graph("update_state", at("t"), {"log": ["u"]}, as_node="two"),
        "prune": lambda: half.prune(["t"]),
        "delete_for_runs": lambda: half.delete_for_runs([f"{RUN}-t"]),
        "delete_thread": lambda: half.delete_thread("t"),
    }
    if tuple(calls) != READS + WRITES:
        raise AssertionError("a way was left out")
    for name, call in calls.items():
        yield name, call


async def answers(
    attacked: Attacked, fired: Callable[[], list[str]], *, is_async: bool
) -> dict[str, str]:
    """What every way gives: what was read, or ``!`` and the code of the refusal.

    Raises:
        AssertionError: Something was decoded that must not be, or failed with no error of ours.
    """
    given: dict[str, str] = {}
    async for name, call in ways(attacked, is_async=is_async):
        try:
            given[name] = said(await call())
        except SurefootError as error:
            given[name] = f"!{error.code}"
        except Exception as error:
            raise AssertionError(f"{name} failed with {type(error).__name__}: {error}") from error
        if fired():
            raise AssertionError(f"{name} decoded the payload: {fired()}")
    return given


def refusals(given: dict[str, str]) -> set[str]:
    """The ways that refused."""
    return {name for name, answer in given.items() if answer.startswith("!")}


def make_attacked(kind: str, folder: Path) -> Attacked:
    """Stores of a kind with the thread in them."""
    made = Attacked((SqliteStore if kind == "sqlite" else PostgresStore)(folder), folder)
    made.prepare()
    return made


def check_honest(given: dict[str, str]) -> None:
    """Nothing was touched: every way must have given something."""
    if refusals(given) or len(given) != len(READS) + len(WRITES):
        raise AssertionError(given)
    empty = [name for name in READS[1:] if given[name] in ("None", "[]", "{}")]
    if empty:
        raise AssertionError(f"there is nothing to be read by {empty}")


__all__ = [
    "READS",
    "WRITES",
    "Attacked",
    "answers",
    "check_honest",
    "make_attacked",
    "refusals",
]
