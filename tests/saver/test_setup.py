"""Case 38 and 42: setting up in parallel, with few rights, elsewhere, or not at all."""

from __future__ import annotations

import json
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypedDict

import psycopg
import pytest
from langgraph.graph import START, StateGraph
from psycopg import sql
from psycopg_pool import ConnectionPool
from tests.postgres import fresh_role, with_parts
from tests.saver.conftest import BACKENDS, TABLES, Backend, at, checkpoint, make_backend, metadata

from surefoot import Keyring, Limits, SurefootSaver
from surefoot.errors import (
    Busy,
    KeyMissing,
    Misconfigured,
    NotSetUp,
    StoreUnavailable,
    SurefootError,
)
from surefoot.highwater import SqliteHighWater

postgres = pytest.mark.postgres
PASSWORD = "hunter2-of-the-test"


class State(TypedDict):
    n: int


def watched_graph(saver: SurefootSaver, ran: list[str]) -> Any:
    def node(state: State) -> dict[str, Any]:
        ran.append("node")
        return {"n": state["n"] + 1}

    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    return builder.compile(checkpointer=saver)


def works(saver: SurefootSaver) -> bool:
    return bool(watched_graph(saver, []).invoke({"n": 1}, at("probe")) == {"n": 2})


@pytest.fixture(params=BACKENDS)
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """Stores that hold nothing: no file, or two databases without a table."""
    if request.param == "sqlite":
        made = make_backend("sqlite", tmp_path)
    else:
        content, marks = request.getfixturevalue("empty_pair")
        made = Backend("postgres", content, marks, None, "default", tmp_path)
    yield made
    made.close()


# --- in parallel ----------------------------------------------------------------------------------

#: Imports once, then forks: what has to meet is `setup()`, not eight imports.
PARALLEL = """
import json, multiprocessing, os

fork = multiprocessing.get_context("fork")
barrier, answers = fork.Barrier(8), fork.Queue()

def work(number):
    try:
        barrier.wait(60)
        saver.setup()
        saver.setup(verify_only=True)
        saver.put(
            {"configurable": {"thread_id": f"t{number}", "checkpoint_ns": ""}},
            {"v": 1, "id": "c1", "ts": "", "channel_values": {}, "channel_versions": {},
             "versions_seen": {}},
            {"source": "loop", "step": 0, "parents": {}},
            {},
        )
        answers.put((os.getpid(), "ok"))
    except BaseException as error:
        answers.put((os.getpid(), repr(error)))

workers = [fork.Process(target=work, args=(n,)) for n in range(8)]
for worker in workers:
    worker.start()
found = [answers.get(timeout=60) for _ in workers]
for worker in workers:
    worker.join()
print(json.dumps(found))
"""


@pytest.mark.optimized
def test_case_38_eight_processes_set_up_at_once(bare: Backend) -> None:
    if bare.name == "postgres":
        bare.schema = "agents"  # which is made as well
    child = bare.child(PARALLEL)
    out, err = child.communicate(timeout=100)
    assert child.returncode == 0, err
    answers = json.loads(out)
    assert [answer for _, answer in answers] == ["ok"] * 8
    assert len({pid for pid, _ in answers}) == 8
    saver = bare.open_saver(setup=False)
    saver.setup(verify_only=True)
    threads = [f.config["configurable"]["thread_id"] for f in saver.list(None)]
    assert sorted(threads) == [f"t{n}" for n in range(8)]


def test_setup_again_changes_nothing(backend: Backend) -> None:
    saver = backend.open_saver()
    assert works(saver)
    before = [backend.rows(table) for table in TABLES]
    for again in (saver, backend.open_saver(setup=False)):
        again.setup()
        again.setup(verify_only=True)
    assert [backend.rows(table) for table in TABLES] == before


# --- beside a caller's transaction ----------------------------------------------------------------


@postgres
@pytest.mark.parametrize("autocommit", [True, False], ids=["autocommit", "transactions"])
def test_case_38_setup_inside_a_transaction_of_the_caller(
    empty_pair: tuple[str, str], autocommit: bool
) -> None:
    """The pool is the caller's, and one of its connections is in a transaction."""
    content, marks = empty_pair
    kwargs = {"autocommit": autocommit}
    with ConnectionPool(content, min_size=1, max_size=4, kwargs=kwargs, open=True) as pool:
        saver = SurefootSaver(pool, highwater=marks, keys=Keyring.generate())
        with pool.connection() as mine:
            with mine.transaction(force_rollback=True):
                mine.execute("CREATE TABLE mine (n integer)")
                saver.setup()
                assert works(saver)
            assert mine.execute("SELECT to_regclass('mine')").fetchone() == (None,)
        # What the caller rolled back was the caller's.
        saver.setup(verify_only=True)
        assert works(saver)
        saver.close()
        with pool.connection() as mine:
            assert mine.autocommit is autocommit
            assert mine.execute("SELECT 1").fetchone() == (1,)


@postgres
def test_a_pool_without_a_free_connection_is_no_hang(empty_pair: tuple[str, str]) -> None:
    content, marks = empty_pair
    with ConnectionPool(content, min_size=1, max_size=1, open=True) as pool:
        limits = Limits(connect_timeout_ms=200)
        saver = SurefootSaver(pool, highwater=marks, keys=Keyring.generate(), limits=limits)
        with pool.connection(), pytest.raises(StoreUnavailable, match="no connection"):
            saver.setup()
        saver.setup()
        assert works(saver)
        saver.close()


def test_setup_while_another_connection_writes_to_the_file(tmp_path: Path) -> None:
    backend = make_backend("sqlite", tmp_path)
    path = backend.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as mine:
        mine.execute("BEGIN IMMEDIATE")
        mine.execute("CREATE TABLE mine (n integer)")
        saver = backend.open_saver(setup=False, limits=Limits(lock_timeout_ms=100))
        with pytest.raises(Busy, match="write lock"):
            saver.setup()
        mine.execute("COMMIT")
        saver.setup()
        assert works(saver)
    backend.close()


# --- few rights -----------------------------------------------------------------------------------


def grant_data(database: str, role: str, schema: str) -> None:
    """What an application needs: to read and write rows, nothing else."""
    names = {"role": sql.Identifier(role), "schema": sql.Identifier(schema)}
    with psycopg.connect(database, autocommit=True) as connection:
        for statement in (
            "GRANT USAGE ON SCHEMA {schema} TO {role}",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}",
            "GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role}",
        ):
            connection.execute(sql.SQL(statement).format(**names))


@postgres
def test_case_38_a_role_without_ddl_rights(empty_pair: tuple[str, str]) -> None:
    content, marks = empty_pair
    as_role = fresh_role(content)
    role = psycopg.conninfo.conninfo_to_dict(as_role)["user"]
    marks_as_role = with_parts(marks, user=role, password="hunter2")
    keys = Keyring.generate()

    def opened(url: str, highwater: str) -> SurefootSaver:
        return SurefootSaver(url, highwater=highwater, keys=keys, schema="agents")

    poor = opened(as_role, marks_as_role)
    with pytest.raises(NotSetUp):
        poor.setup(verify_only=True)
    with pytest.raises(Misconfigured, match="right"):
        poor.setup()
    ran: list[str] = []
    with pytest.raises(NotSetUp):
        watched_graph(poor, ran).invoke({"n": 0}, at("t"))
    assert not ran

    with opened(content, marks) as owner:
        owner.setup()
    with pytest.raises((Misconfigured, StoreUnavailable), match="permission denied"):
        watched_graph(poor, ran).invoke({"n": 0}, at("t"))
    assert not ran
    grant_data(content, str(role), "agents")
    grant_data(marks, str(role), "public")
    poor.setup(verify_only=True)
    poor.setup()
    assert works(poor)
    assert poor.health()["ok"] is True
    poor.prune(["probe"])
    poor.delete_thread("probe")
    poor.close()


# --- schemas --------------------------------------------------------------------------------------


@postgres
@pytest.mark.parametrize("schema", ["agents", "Agents", 'we"ird. name; --', "smörgås"])
def test_case_38_a_schema_by_name(empty_pair: tuple[str, str], schema: str) -> None:
    content, marks = empty_pair
    keys = Keyring.generate()
    one = SurefootSaver(content, highwater=marks, keys=keys, schema=schema)
    one.setup()
    assert works(one)
    with psycopg.connect(content) as connection:
        found = connection.execute(
            "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'surefoot%'"
        ).fetchall()
    assert found == [(schema,)]
    elsewhere = SurefootSaver(content, highwater=marks, keys=keys, tenant="other")
    with pytest.raises(NotSetUp):
        elsewhere.setup(verify_only=True)
    elsewhere.setup()
    assert elsewhere.get_tuple(at("probe")) is None
    assert works(elsewhere)
    assert len([*one.list(None)]) == 3
    one.close()
    elsewhere.close()


def test_sqlite_has_no_schemas(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="schema"):
        SurefootSaver(
            f"sqlite:///{tmp_path}/a.db",
            highwater=f"sqlite:///{tmp_path}/b.db",
            keys=Keyring.generate(),
            schema="agents",
        )


# --- not set up -----------------------------------------------------------------------------------

CALLS: dict[str, Callable[[SurefootSaver], Any]] = {
    "verify": lambda s: s.setup(verify_only=True),
    "get_tuple": lambda s: s.get_tuple(at("t")),
    "list": lambda s: [*s.list(at("t"))],
    "list all": lambda s: [*s.list(None)],
    "put": lambda s: s.put(at("t"), checkpoint("c1"), metadata(), {}),
    "put_writes": lambda s: s.put_writes(at("t", "c1"), [("a", 1)], "task"),
    "delete_thread": lambda s: s.delete_thread("t"),
    "delete_for_runs": lambda s: s.delete_for_runs(["run"]),
    "copy_thread": lambda s: s.copy_thread("t", "u"),
    "prune": lambda s: s.prune(["t"]),
}


@pytest.mark.optimized
def test_without_tables_everything_is_refused(bare: Backend) -> None:
    saver = bare.open_saver(setup=False)
    for call in CALLS.values():
        with pytest.raises(NotSetUp, match="setup"):
            call(saver)
    ran: list[str] = []
    with pytest.raises(NotSetUp):
        watched_graph(saver, ran).invoke({"n": 0}, at("t"))
    assert not ran
    assert saver.health()["ok"] is False
    if bare.name == "sqlite":
        assert not Path(bare.url.removeprefix("sqlite:///")).exists(), "nothing makes a file"
    saver.setup()
    assert works(saver)


@pytest.mark.optimized
@pytest.mark.parametrize("journal_mode", ["DELETE", "WAL"])
def test_no_node_runs_on_a_file_that_may_lose_commits(tmp_path: Path, journal_mode: str) -> None:
    """P0 is asked when a run begins, not only by whoever sets up."""
    place = make_backend("sqlite", tmp_path)
    place.open_saver().close()
    ((mode,),) = place.execute(f"PRAGMA journal_mode = {journal_mode}")
    assert mode == journal_mode.lower(), "the setting of the test did not take"
    saver = place.open_saver(setup=False)
    ran: list[str] = []
    if journal_mode == "WAL":
        assert watched_graph(saver, ran).invoke({"n": 0}, at("t")) == {"n": 1}
        assert ran
    else:
        with pytest.raises(Misconfigured, match="journal_mode=delete"):
            watched_graph(saver, ran).invoke({"n": 0}, at("t"))
        with pytest.raises(Misconfigured, match="journal_mode=delete"):
            saver.delete_thread("t")
        assert not ran
    place.close()


@pytest.mark.optimized
def test_no_node_runs_beside_marks_that_may_be_lost(tmp_path: Path) -> None:
    """The high-water store of the caller's says that it does not keep what it acknowledges."""
    place = make_backend("sqlite", tmp_path)
    place.open_saver().close()

    class Weak(SqliteHighWater):
        """Its disk does not wait for anything."""

        def check_durability(self) -> None:
            raise Misconfigured(field="highwater", reason="this disk forgets")

    weak = Weak(place.highwater.removeprefix("sqlite:///"))
    saver = place.open_saver(setup=False, highwater=weak)
    ran: list[str] = []
    with pytest.raises(Misconfigured, match="forgets"):
        watched_graph(saver, ran).invoke({"n": 0}, at("t"))
    assert not ran
    place.close()
    weak.close()


@pytest.mark.parametrize("missing", ["content", "marks"])
def test_with_one_half_of_the_tables_no_node_runs(bare: Backend, missing: str) -> None:
    saver = bare.open_saver(setup=False)
    (saver.core.ports.marks if missing == "content" else saver.core.ports.store).setup()
    ran: list[str] = []
    with pytest.raises(NotSetUp):
        watched_graph(saver, ran).invoke({"n": 0}, at("t"))
    assert not ran
    with pytest.raises(NotSetUp):
        saver.setup(verify_only=True)
    report = saver.health()
    assert (report["content_store"]["ok"], report["highwater"]["ok"]) == (
        missing != "content",
        missing != "marks",
    )


# --- keys and the high-water store ----------------------------------------------------------------


def test_without_keys_nothing_opens(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SUREFOOT_KEYS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(KeyMissing, match="surefoot init"):
        SurefootSaver(backend.url, highwater=backend.highwater)
    with (
        pytest.raises(KeyMissing, match="SUREFOOT_KEYS"),
        SurefootSaver.from_conn_string(backend.url, highwater=backend.highwater),
    ):
        pytest.fail("it opened")
    monkeypatch.setenv("SUREFOOT_KEYS", str(backend.key_file))
    saver = backend.open_saver(keys=None)
    assert works(saver)
    monkeypatch.setenv("SUREFOOT_KEYS", str(tmp_path / "gone.json"))
    with pytest.raises(KeyMissing, match="it names a key file"):
        backend.open_saver(keys=None)


def test_without_a_high_water_store_nothing_opens(backend: Backend) -> None:
    with pytest.raises(Misconfigured) as caught:
        SurefootSaver(backend.url, keys=Keyring.generate())
    assert caught.value.field == "highwater"
    assert "sqlite:///" in str(caught.value)
    with pytest.raises(Misconfigured, match="redis"):
        SurefootSaver(backend.url, highwater="redis://localhost", keys=Keyring.generate())


@pytest.mark.parametrize("url", ["", "a.db", "sqlite://", "sqlite:///:memory:", "mysql://h/d"])
def test_addresses_that_are_not_understood(url: str, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured):
        SurefootSaver(url, highwater=f"sqlite:///{tmp_path}/b.db", keys=Keyring.generate())


# --- down -----------------------------------------------------------------------------------------


@pytest.fixture
def nowhere(backend: Backend, tmp_path: Path) -> str:
    """An address of the backend's kind where nobody answers."""
    if backend.name == "sqlite":
        return f"sqlite:///{tmp_path}/no/such/folder/a.db"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return f"postgresql://app:{PASSWORD}@127.0.0.1:{port}/agents"


@pytest.mark.optimized
@pytest.mark.parametrize("down", ["content_store", "highwater"])
def test_case_42_a_store_that_is_down_at_start(backend: Backend, nowhere: str, down: str) -> None:
    backend.open_saver()
    limits = Limits(connect_timeout_ms=2_000)
    address = {"conn": nowhere} if down == "content_store" else {"highwater": nowhere}
    saver = backend.open_saver(setup=False, limits=limits, **address)
    ran: list[str] = []
    graph = watched_graph(saver, ran)
    errors: list[SurefootError] = []
    for call in (
        lambda: graph.invoke({"n": 0}, at("t")),
        lambda: graph.get_state(at("t")),
        lambda: saver.setup(verify_only=True),
        saver.setup,
    ):
        with pytest.raises(SurefootError) as caught:
            call()
        errors.append(caught.value)
    assert not ran
    assert errors[-1].reaction == "unavailable"
    if backend.name == "postgres":
        assert all(isinstance(e, StoreUnavailable) for e in errors)
    assert backend.counts() == dict.fromkeys(TABLES, 0)

    report = saver.health()
    other = "highwater" if down == "content_store" else "content_store"
    assert report["ok"] is False
    assert report[down]["ok"] is False
    assert report[down]["error"]
    assert report[other]["ok"] is True
    assert report["degraded"] is None
    shown = " ".join([repr(report), *map(str, errors)])
    assert PASSWORD not in shown


async def test_case_42_down_for_the_async_half(backend: Backend, nowhere: str) -> None:
    saver = backend.open_saver(setup=False, conn=nowhere, limits=Limits(connect_timeout_ms=2_000))
    ran: list[str] = []
    with pytest.raises(SurefootError):
        await watched_graph(saver, ran).ainvoke({"n": 0}, at("t"))
    assert not ran
