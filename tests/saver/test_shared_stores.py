"""Cases 37 to 39: two processes on one file, servers that hang up, loops and closed savers."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

import psycopg
import pytest
from langgraph.graph import END, START, StateGraph
from tests.postgres import Cluster, fresh_database
from tests.saver.conftest import Backend, at, checkpoint, make_backend, metadata

from surefoot import Keyring, SurefootSaver, effect
from surefoot.errors import Closed
from surefoot.signing import Reviewers, SigningKey

#: Steps of each process in case 37; `make campaign-faults` takes the thousand of the case.
STEPS = 1_000 if os.environ.get("SUREFOOT_FAULTS") == "all" else 60
postgres = pytest.mark.postgres


# --- case 37: two processes, one file -------------------------------------------------------------

LONG_RUN = """
import asyncio, json, logging, operator, sys
from typing import Annotated, TypedDict
from langgraph.graph import END, START, StateGraph
from surefoot import effect

thread, steps, asynchronous = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "async"
logging.basicConfig(stream=sys.stdout, format="LOG %(message)s", level=logging.WARNING)

class State(TypedDict):
    n: int
    paid: Annotated[list, operator.add]

sent = []

@effect(idempotent=True)
def pay(n, *, idempotency_key):
    sent.append(idempotency_key)
    return n

def count(state):
    n = state["n"] + 1
    return {"n": n, "paid": [pay(n)] if n % 20 == 0 else []}

built = StateGraph(State)
built.add_node("count", count)
built.add_edge(START, "count")
built.add_conditional_edges("count", lambda s: "count" if s["n"] < steps else END)
graph = built.compile(checkpointer=saver)
config = {"configurable": {"thread_id": thread}, "recursion_limit": steps + 10}
sys.stdout.write("READY\\n")  # whole lines: print() writes the end of a line on its own
sys.stdout.flush()
sys.stdin.readline()
given = {"n": 0, "paid": []}
try:
    if asynchronous:
        done = asyncio.run(graph.ainvoke(given, config, durability="sync"))
    else:
        done = graph.invoke(given, config, durability="sync")
except Exception as error:
    sys.stdout.write(f"RAISED {error!r}\\n")
    raise SystemExit(1)
saver.close()
told = json.dumps([done["n"], len(done["paid"]), len(sent), len(set(sent))])
sys.stdout.write(f"DONE {told}\\n")
sys.stdout.flush()
"""


@pytest.mark.timeout(120 + STEPS // 2)
def test_case_37_two_processes_and_one_sqlite_file(tmp_path: Path) -> None:
    """Both files are shared: the one of the content and the one of the marks."""
    backend = make_backend("sqlite", tmp_path)
    saver = backend.open_saver()
    children = [
        backend.child(LONG_RUN, thread, str(STEPS), colour)
        for thread, colour in (("one", "sync"), ("two", "async"))
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "READY\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        out, err = child.communicate(timeout=110 + STEPS // 2)
        assert child.returncode == 0, (out, err)
        assert "locked" not in out + err
        assert "LOG" not in out, out
        assert json.loads(out.split("DONE ")[1]) == [STEPS, STEPS // 20, STEPS // 20, STEPS // 20]
    for thread in ("one", "two"):
        steps = [found.metadata["step"] for found in saver.list(at(thread))]
        assert steps == [*range(STEPS, -2, -1)], "a step is missing"
    backend.close()


# --- case 38: servers that hang up ----------------------------------------------------------------


class State(TypedDict, total=False):
    n: int
    paid: int


class Counter:
    """Receives effects."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def graph(self, saver: SurefootSaver, between: Callable[[], object]) -> Any:
        """Two nodes with an effect each; between them something happens to the stores."""

        @effect(idempotent=True)
        def pay(what: str, *, idempotency_key: str) -> str:
            self.keys.append(idempotency_key)
            return what

        def first(state: State) -> State:
            pay("first")
            between()
            return {"n": state["n"] + 1}

        def second(state: State) -> State:
            pay("second")
            between()
            return {"n": state["n"] + 1}

        built = StateGraph(State)
        built.add_node("first", first)
        built.add_node("second", second)
        built.add_edge(START, "first")
        built.add_edge("first", "second")
        built.add_edge("second", END)
        return built.compile(checkpointer=saver)


async def run(graph: Any, thread: str, *, is_async: bool) -> Any:
    """A whole run, in either colour."""
    if is_async:
        return await graph.ainvoke({"n": 0}, at(thread), durability="sync")
    return await asyncio.to_thread(graph.invoke, {"n": 0}, at(thread), durability="sync")


def sessions(url: str) -> int:
    """Sessions of others in a database."""
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    with psycopg.connect(url, autocommit=True) as looking:
        row = looking.execute(others).fetchone()
    assert row is not None
    return int(row[0])


@postgres
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_case_38_a_server_that_closes_idle_connections(*, is_async: bool) -> None:
    content, marks = fresh_database(), fresh_database()
    closed: list[int] = []

    def wait_until_the_server_has_closed_all() -> None:
        before = sessions(content) + sessions(marks)
        while sessions(content) + sessions(marks):
            continue
        closed.append(before)

    with SurefootSaver(content, highwater=marks, keys=Keyring.generate()) as saver:
        saver.setup()
        for url in (content, marks):
            with psycopg.connect(url, autocommit=True) as owner:
                name = owner.info.dbname
                owner.execute(f'ALTER DATABASE "{name}" SET idle_session_timeout = 200')
                owner.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
        counter = Counter()
        graph = counter.graph(saver, wait_until_the_server_has_closed_all)
        assert await run(graph, "t", is_async=is_async) == {"n": 2}
        assert len(counter.keys) == 2
        assert saver.health()["ok"] is True
        assert len([*saver.list(at("t"))]) == 4
    assert len(closed) == 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.remove()


@postgres
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_case_38_the_server_restarts_between_two_puts(
    cluster: Cluster, *, is_async: bool
) -> None:
    """Both stores are on it; nobody notices, and nothing is in doubt."""
    content, marks = fresh_database(cluster.url), fresh_database(cluster.url)
    restarts: list[str] = []

    def restart() -> None:
        with psycopg.connect(content) as witness:
            cluster.restart()
            with pytest.raises(psycopg.OperationalError):
                witness.execute("SELECT 1")
        restarts.append("restarted")

    with SurefootSaver(content, highwater=marks, keys=Keyring.generate()) as saver:
        saver.setup()
        counter = Counter()
        assert await run(counter.graph(saver, restart), "t", is_async=is_async) == {"n": 2}
        assert len(counter.keys) == 2
        saver.put(at("u"), checkpoint("c1"), metadata(), {})
        restart()
        saver.put(at("u", "c1"), checkpoint("c2"), metadata(1), {})
        assert [found.checkpoint["id"] for found in saver.list(at("u"))] == ["c2", "c1"]
    assert len(restarts) == 3


# --- case 39: loops, and savers that are closed ---------------------------------------------------

_numbers = itertools.count(1)
_operator = SigningKey.generate("operator")


def _resolve(saver: SurefootSaver) -> object:
    saver.put(at("r"), checkpoint("c1"), metadata(), {})
    return saver.resolve(_operator.sign(saver.propose("r", "abort", reason="for the test")))


def _propose(saver: SurefootSaver) -> object:
    saver.put(at("p-sync"), checkpoint("c1"), metadata(), {})
    return saver.propose("p-sync", "abort", reason="for the test")


async def _aresolve(saver: SurefootSaver) -> object:
    thread = f"r-{next(_numbers)}"
    await saver.aput(at(thread), checkpoint("c1"), metadata(), {})
    proposed = await saver.apropose(thread, "abort", reason="for the test")
    return await saver.aresolve(_operator.sign(proposed))


#: Every public method that touches a store, and a call of it that works on a thread "t" with
#: the checkpoints c1 and c2. Pairs of (sync call, async twin or None).
METHODS: dict[str, Callable[[SurefootSaver], Any]] = {
    "get": lambda s: s.get(at("t")),
    "get_tuple": lambda s: s.get_tuple(at("t")),
    "list": lambda s: [*s.list(at("t"))],
    "get_delta_channel_history": lambda s: s.get_delta_channel_history(
        config=at("t"), channels=["a"]
    ),
    "put": lambda s: s.put(at("p"), checkpoint("c9"), metadata(), {}),
    "put_writes": lambda s: s.put_writes(at("t", "c2"), [("a", 1)], "task"),
    "copy_thread": lambda s: s.copy_thread("t", "u"),
    "prune": lambda s: s.prune(["t"]),
    "delete_for_runs": lambda s: s.delete_for_runs(["run"]),
    "delete_thread": lambda s: s.delete_thread("t"),
    "record": lambda s: s.record("r", "test.fact", {"n": 1}),
    "events": lambda s: s.events("p"),
    "threads": lambda s: [*s.threads()],
    "verify": lambda s: [*s.verify()],
    "in_doubt": lambda s: s.in_doubt(),
    "effects": lambda s: s.effects("t"),
    "effect_numbers": lambda s: s.effect_numbers(),
    "propose": _propose,
    "resolve": _resolve,
    "retire_key": lambda s: s.retire_key("t", "k-none"),
    "release": lambda s: s.release("t"),
    "setup": lambda s: s.setup(),
}
#: Touch no store, or have tests of their own.
OTHERS = {"from_conn_string", "get_next_version", "with_allowlist", "health", "close"}
ASYNC: dict[str, Callable[[SurefootSaver], Any]] = {
    "aget": lambda s: s.aget(at("t")),
    "aget_tuple": lambda s: s.aget_tuple(at("t")),
    "alist": lambda s: _all(s.alist(at("t"))),
    "aget_delta_channel_history": lambda s: s.aget_delta_channel_history(
        config=at("t"), channels=["a"]
    ),
    "aput": lambda s: s.aput(at("p"), checkpoint("c9"), metadata(), {}),
    "aput_writes": lambda s: s.aput_writes(at("t", "c2"), [("a", 1)], "task"),
    "acopy_thread": lambda s: s.acopy_thread("t", f"copy-{next(_numbers)}"),
    "aprune": lambda s: s.aprune(["t"]),
    "adelete_for_runs": lambda s: s.adelete_for_runs(["run"]),
    "adelete_thread": lambda s: s.adelete_thread("t"),
    "apropose": lambda s: s.apropose("p", "abort", reason="for the test"),
    "ain_doubt": lambda s: s.ain_doubt(),
    "aeffects": lambda s: s.aeffects("t"),
    "aeffect_numbers": lambda s: s.aeffect_numbers(),
    "averify": lambda s: _all(s.averify()),
    "arecord": lambda s: s.arecord("r", "test.fact", {"n": 1}),
    "aevents": lambda s: s.aevents("p"),
    "aresolve": _aresolve,
    "asetup": lambda s: s.asetup(),
}


async def _all(found: Any) -> list[Any]:
    return [one async for one in found]


def opened(backend: Backend) -> SurefootSaver:
    saver = backend.open_saver(reviewers=Reviewers({"operator": _operator.public()}))
    config = saver.put(at("t"), checkpoint("c1", a=1), metadata(), {"a": 1})
    saver.put(config, checkpoint("c2", a=2), metadata(1), {"a": 2})
    return saver


def test_every_public_method_is_tried_in_loops_and_after_close() -> None:
    public = {
        name
        for name, member in inspect.getmembers(SurefootSaver)
        if callable(member) and not name.startswith("_")
    }
    assert public == {*METHODS, *ASYNC, *OTHERS, "aclose"}


async def in_time(work: Callable[[], Any]) -> Any:
    """Carries out work on this very loop's thread; a hang fails the test by its time-out."""
    assert asyncio.get_running_loop().is_running()
    return work()


@pytest.mark.timeout(60)
async def test_case_39_every_sync_method_inside_a_running_loop(backend: Backend) -> None:
    saver = opened(backend)
    for call in METHODS.values():
        await in_time(lambda call=call: call(saver))  # type: ignore[misc]
    assert saver.get_tuple(at("t")) is None
    assert saver.health()["ok"] is True
    await in_time(saver.close)


@pytest.mark.timeout(60)
def test_case_39_every_async_method_in_a_second_and_a_third_loop(backend: Backend) -> None:
    saver = opened(backend)

    async def everything() -> list[str]:
        done = []
        for name, call in ASYNC.items():
            await call(saver)
            done.append(name)
        return done

    assert asyncio.run(everything()) == [*ASYNC]
    config = saver.put(at("t"), checkpoint("c1", a=1), metadata(), {"a": 1})
    saver.put(config, checkpoint("c2", a=2), metadata(1), {"a": 2})
    second: list[Any] = []
    loop_thread = threading.Thread(target=lambda: second.append(asyncio.run(everything())))
    loop_thread.start()
    loop_thread.join(50)
    assert second == [[*ASYNC]]
    asyncio.run(saver.aclose())
    asyncio.run(saver.aclose())


@pytest.mark.optimized
@pytest.mark.timeout(60)
@pytest.mark.parametrize("closed_in", ["this thread", "a loop that is gone"])
async def test_case_39_every_method_after_close_says_closed(
    backend: Backend, closed_in: str
) -> None:
    saver = opened(backend)
    signed = _operator.sign(saver.propose("t", "abort", reason="for the test"))
    if closed_in == "this thread":
        saver.close()
    else:
        await asyncio.to_thread(asyncio.run, saver.aclose())
    calls: dict[str, Callable[[], Any]] = {
        name: (lambda call=call: call(saver))  # type: ignore[misc]
        for name, call in METHODS.items()
    }
    calls["resolve"] = lambda: saver.resolve(signed)
    for name, call in calls.items():
        try:
            call()
        except Closed:
            continue
        pytest.fail(f"{name} did not say that the saver is closed")
    for name, make in ASYNC.items():
        try:
            await make(saver)
        except Closed:
            continue
        pytest.fail(f"{name} did not say that the saver is closed")
    if saver.health()["ok"] is not False:
        pytest.fail("a closed saver is not healthy")
