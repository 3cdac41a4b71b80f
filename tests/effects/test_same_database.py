"""Effects in the content store's own database: rows and record are one commit (class S)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import psycopg_pool
import pytest
from langgraph.graph import END, START, StateGraph
from tests.effects.conftest import Bench, State

from surefoot import EffectCall, SurefootSaver, effect
from surefoot.errors import (
    EffectConflict,
    EffectInDoubt,
    Fenced,
    Misconfigured,
    Misuse,
    NotStorable,
    SaveFailed,
    StoreUnavailable,
    SurefootError,
    TransactionEnded,
)
from surefoot.flows import effects as flow
from surefoot.flows import journal, same_database
from surefoot.flows.acquire import acquire, effect_of
from surefoot.flows.views import viewing
from surefoot.ports import Lease
from surefoot.rules.effects import Receiver
from surefoot.rules.envelope import Kind, Record
from surefoot.testing.faults import Died, Fault, Plan, bury, with_faults

pytestmark = pytest.mark.optimized
ROOT = Path(__file__).resolve().parents[2]
#: On SQLite the body holds the write lock, so no other worker gets that far; and a statement that
#: fails leaves the transaction usable.
ON_POSTGRES = pytest.mark.parametrize(
    "either", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)


class Boom(Exception):
    """The node, or the process in it, fails."""


def connected(bench: Bench) -> Any:
    if bench.conn.startswith("sqlite"):
        return closing(sqlite3.connect(bench.conn.removeprefix("sqlite:///"), timeout=30))
    return psycopg.connect(bench.conn, autocommit=True)


def rows(bench: Bench, account: str) -> list[int]:
    """What is booked, as anybody else sees it."""
    with connected(bench) as database:
        mark = "?" if bench.conn.startswith("sqlite") else "%s"
        found = database.execute(f"SELECT amount FROM book WHERE account = {mark}", (account,))
        return [amount for (amount,) in found.fetchall()]


def insert(conn: Any, account: str, amount: int) -> None:
    mark = "?" if isinstance(conn, sqlite3.Connection) else "%s"
    conn.execute(f"INSERT INTO book (account, amount) VALUES ({mark}, {mark})", (account, amount))


@pytest.fixture
def book(either: Bench) -> Bench:
    """A bench whose content database has a table of the user's."""
    assert either.saver
    with connected(either) as database:
        database.execute("CREATE TABLE IF NOT EXISTS book (account TEXT, amount BIGINT)")
        if either.conn.startswith("sqlite"):
            database.commit()
    return either


def booking(then: Callable[[Any], Any] = lambda conn: None) -> Callable[..., Any]:
    @effect(name="post", same_database=True)
    def post(account: str, amount: int, *, conn: Any) -> int:
        insert(conn, account, amount)
        then(conn)
        return amount * 10

    return post


def ledger(bench: Bench, config: dict[str, Any]) -> list[str]:
    thread = config["configurable"]["thread_id"]

    def look(chain: Any) -> list[str]:
        found = [effect_of(thread, r) for r in chain.walk() if r.kind is Kind.EFFECT]
        return [e.state for e in reversed(found)]

    return viewing(bench.saver.core.ports, thread, look)


def account(config: dict[str, Any]) -> str:
    return str(config["configurable"]["thread_id"])


def failing_once(work: Callable[[], Any]) -> Callable[[Any], Any]:
    tries: list[int] = []

    def node(state: Any) -> Any:
        result = work()
        tries.append(1)
        if len(tries) == 1:
            raise Boom
        return {"log": [result]}

    return node


# --- the plain path ----------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_runs_once_and_is_replayed_on_resume(book: Bench, durability: Any) -> None:
    post, config = booking(), book.config()
    graph = book.graph(failing_once(lambda: post(account(config), 7)))
    with pytest.raises(Boom):
        graph.invoke({"log": []}, config, durability=durability)
    assert rows(book, account(config)) == [7]
    assert graph.invoke(None, config, durability=durability)["log"] == [70]
    assert rows(book, account(config)) == [7]
    assert ledger(book, config) == ["succeeded"], "one record, in the commit of its rows"


def test_two_intended_calls_are_two(book: Bench) -> None:
    post, config = booking(), book.config()

    def node(state: Any) -> Any:
        return {"log": [post(account(config), 7), post(account(config), 7)]}

    graph = book.graph(node)
    assert graph.invoke({"log": []}, config)["log"] == [70, 70]
    assert rows(book, account(config)) == [7, 7]


def test_parallel_branches(book: Bench) -> None:
    """Sixteen at once: they take turns, and none waits for one that waits for it."""
    post, config = booking(), book.config()
    builder = StateGraph(State)
    for number in range(16):
        builder.add_node(f"n{number}", lambda s, n=number: {"log": [post(account(config), n)]})
        builder.add_edge(START, f"n{number}")
        builder.add_edge(f"n{number}", END)
    graph = builder.compile(checkpointer=book.saver)
    done = graph.invoke({"log": []}, {**config, "max_concurrency": 16})
    assert sorted(done["log"]) == [n * 10 for n in range(16)]
    assert sorted(rows(book, account(config))) == list(range(16))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="async nodes have no ambient config there")
@pytest.mark.parametrize("how", ["a plain node", "to_thread"])
async def test_under_ainvoke(book: Bench, how: str) -> None:
    post, config = booking(), book.config()

    async def node(state: State) -> Any:
        return {"log": [await asyncio.to_thread(post, account(config), 7)]}

    plain: Any = lambda state: {"log": [post(account(config), 7)]}
    graph = book.graph(plain if how == "a plain node" else node)
    assert (await graph.ainvoke({"log": []}, config))["log"] == [70]
    assert rows(book, account(config)) == [7]


def test_other_arguments_at_the_same_place_are_refused(book: Bench) -> None:
    post, config = booking(), book.config()
    amounts = [7, 8]
    graph = book.graph(failing_once(lambda: post(account(config), amounts.pop(0))))
    with pytest.raises(Boom):
        graph.invoke({"log": []}, config)
    with pytest.raises(EffectConflict):
        graph.invoke(None, config)
    assert rows(book, account(config)) == [7]


# --- the body fails ----------------------------------------------------------------------------


def test_what_the_body_raises_takes_everything_back(book: Bench) -> None:
    """Proven: nothing happened. So it may run again, also with other arguments."""
    faults = [Boom()]

    def fault(conn: Any) -> None:
        if faults:
            raise faults.pop()

    post, config = booking(fault), book.config()
    amounts = [7, 8]
    graph = book.graph(lambda s: {"log": [post(account(config), amounts.pop(0))]})
    with pytest.raises(Boom):
        graph.invoke({"log": []}, config)
    assert rows(book, account(config)) == []
    assert ledger(book, config) == ["failed"]
    assert graph.invoke(None, config)["log"] == [80]
    assert rows(book, account(config)) == [8]


def test_an_error_of_the_database_takes_everything_back(book: Bench) -> None:
    """Raised as the driver raised it, also when the body swallows it on PostgreSQL."""
    broken = [True]

    def fault(conn: Any) -> None:
        if broken.pop() if broken else False:
            conn.execute("INSERT INTO no_such_table VALUES (1)")

    post, config = booking(fault), book.config()
    graph = book.graph(lambda s: {"log": [post(account(config), 7)]})
    with pytest.raises((sqlite3.Error, psycopg.Error), match="no_such_table"):
        graph.invoke({"log": []}, config)
    assert (rows(book, account(config)), ledger(book, config)) == ([], ["failed"])
    assert graph.invoke(None, config)["log"] == [70]


@ON_POSTGRES
def test_a_swallowed_error_of_postgres(book: Bench) -> None:
    def fault(conn: Any) -> None:
        try:
            conn.execute("SELECT 1/0")
        except psycopg.Error:
            return

    post, config = booking(fault), book.config()
    graph = book.graph(lambda s: {"log": [post(account(config), 7)]})
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        graph.invoke({"log": []}, config)
    assert (rows(book, account(config)), ledger(book, config)) == ([], ["failed"])


def test_a_result_that_cannot_be_stored_takes_everything_back(book: Bench) -> None:
    results: list[Any] = [threading.Lock(), 70]

    @effect(same_database=True)
    def post(amount: int, *, conn: Any) -> Any:
        insert(conn, name, amount)
        return results.pop(0)

    config = book.config()
    name = account(config)
    graph = book.graph(lambda s: {"log": [post(7)]})
    with pytest.raises(NotStorable):
        graph.invoke({"log": []}, config)
    assert (rows(book, name), ledger(book, config)) == ([], ["failed"])
    assert graph.invoke(None, config)["log"] == [70]
    assert rows(book, name) == [7]


@pytest.mark.parametrize("way", ["commit", "rollback", "COMMIT", "ROLLBACK"])
def test_the_body_cannot_end_the_transaction(book: Bench, way: str) -> None:
    """Refused by the driver where it can be, and noticed where it cannot."""

    def end(conn: Any) -> None:
        if way.isupper():
            conn.execute(way)
        else:
            getattr(conn, way)()

    post, config = booking(end), book.config()
    graph = book.graph(lambda s: {"log": [post(account(config), 7)]})
    noticed = way.isupper() and not book.conn.startswith("sqlite")
    expected: Any = TransactionEnded if noticed else (sqlite3.Error, psycopg.ProgrammingError)
    with pytest.raises(expected):
        graph.invoke({"log": []}, config)
    if not noticed:
        assert (rows(book, account(config)), ledger(book, config)) == ([], ["failed"])
        return
    assert ledger(book, config) == ["in_doubt"], "nobody can prove what was committed"
    with pytest.raises(EffectInDoubt):
        graph.invoke(None, config)


@pytest.mark.parametrize("raises", [True, False])
def test_a_transaction_that_was_begun_anew_is_noticed(book: Bench, raises: bool) -> None:
    def end(conn: Any) -> None:
        if isinstance(conn, sqlite3.Connection):
            conn.execute("CREATE TEMP TABLE IF NOT EXISTS one (x UNIQUE)")
            conn.execute("INSERT INTO one VALUES (1)")
            try:
                conn.execute("INSERT OR ROLLBACK INTO one VALUES (1)")
            except sqlite3.IntegrityError:
                insert(conn, account(config), 8)  # commits by itself
        else:
            conn.execute("COMMIT")
            conn.execute("BEGIN")
        if raises:
            raise Boom

    post, config = booking(end), book.config()
    graph = book.graph(lambda s: {"log": [post(account(config), 7)]})
    with pytest.raises(TransactionEnded):
        graph.invoke({"log": []}, config)
    assert ledger(book, config) == ["in_doubt"]
    with pytest.raises(EffectInDoubt):
        graph.invoke(None, config)
    assert len(rows(book, account(config))) == 1


def test_the_saver_goes_on_after_a_body_that_changed_its_connection(book: Bench) -> None:
    def odd(conn: Any) -> None:
        if isinstance(conn, sqlite3.Connection):
            conn.row_factory = sqlite3.Row
        else:
            conn.row_factory = psycopg.rows.dict_row

    post, config = booking(odd), book.config()
    graph = book.graph(*[lambda s: {"log": [post(account(config), 7)]}] * 3)
    assert graph.invoke({"log": []}, config)["log"] == [70] * 3
    assert rows(book, account(config)) == [7] * 3


@pytest.mark.postgres
@pytest.mark.parametrize("either", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    "sql",
    [
        "SET synchronous_commit TO off",
        "SET default_transaction_read_only TO on",
        "SET ROLE pg_read_all_data",
        "SELECT set_config('app.tenant', 'a', false)",
        "CREATE TEMPORARY TABLE mine (n int)",
        "SELECT pg_advisory_lock(4711)",
    ],
)
def test_what_the_body_sets_does_not_stay(either: Bench, sql: str) -> None:
    """The next commits are durable (P0), and whoever gets the connection next sees nothing."""
    seen: list[Any] = []
    look = """
        SELECT current_setting('synchronous_commit'), current_user = session_user,
            current_setting('default_transaction_read_only'),
            coalesce(current_setting('app.tenant', true), ''), to_regclass('pg_temp.mine'),
            (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711)
    """

    @effect(name="sets", same_database=True)
    def sets(*, conn: Any) -> int:
        seen.append(conn.execute(look).fetchone())
        conn.execute(sql)
        return 1

    graph = either.graph(lambda state: {"log": [sets()]}, lambda state: {"log": [sets()]})
    assert graph.invoke({"log": []}, either.config())["log"] == [1, 1]
    assert seen[0] == seen[1] == ("on", True, "off", "", None, 0)


@pytest.mark.postgres
@pytest.mark.parametrize("either", ["postgres"], indirect=True)
def test_settings_end_with_the_transaction_itself(either: Bench) -> None:
    """A pooler in transaction mode gives the same session of the server to another client."""
    found: list[Any] = []

    class Kept(psycopg.Connection[Any]):
        """Looks at its session right behind each commit, before anybody can close it."""

        @contextmanager
        def transaction(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
            with super().transaction(*args, **kwargs) as block:
                yield block
            found.append(self.execute("SHOW default_transaction_read_only").fetchone())
            found.append(self.execute("SELECT current_user = session_user").fetchone())

    @effect(name="sets", same_database=True)
    def sets(*, conn: Any) -> int:
        conn.execute("SET default_transaction_read_only TO on")
        conn.execute("SET ROLE pg_read_all_data")
        return 1

    either.saver.setup()
    with psycopg_pool.ConnectionPool(either.conn, connection_class=Kept, open=True) as pool:
        saver = SurefootSaver(
            pool, highwater=either.highwater, keys=either.keys, tenant=either.tenant
        )
        graph = either.graph(lambda state: {"log": [sets()]}, saver=saver)
        graph.invoke({"log": []}, either.config())
        saver.close()
    assert found == [("off",), (True,)]


@pytest.mark.parametrize(
    "sql",
    [
        "PRAGMA query_only = 1",
        "PRAGMA foreign_keys(1)",
        "PRAGMA wal_checkpoint",
        "PRAGMA main.synchronous = OFF",
        "CREATE TEMP TRIGGER t BEFORE INSERT ON surefoot_frame BEGIN SELECT RAISE(IGNORE); END",
        "CREATE TEMP TABLE surefoot_frame (n)",
    ],
)
def test_sqlite_lets_the_body_set_nothing(bench: Bench, sql: str) -> None:
    tries = [sql, "SELECT 1"]

    @effect(same_database=True)
    def sets(*, conn: Any) -> int:
        conn.execute("CREATE TEMP TABLE IF NOT EXISTS mine (n)")
        conn.execute("PRAGMA table_info(mine)")
        conn.execute(tries.pop(0))
        return int(conn.execute("PRAGMA query_only").fetchone()[0])

    graph, config = bench.graph(lambda s: {"log": [sets()]}), bench.config()
    with pytest.raises(sqlite3.DatabaseError):
        graph.invoke({"log": []}, config)
    assert graph.invoke(None, config)["log"] == [0]


def test_sqlite_forgets_what_the_body_has_made(bench: Bench) -> None:
    @effect(same_database=True)
    def makes(*, conn: Any) -> int:
        conn.execute("CREATE TEMP TABLE mine (n)")
        conn.create_function("twice", 1, lambda n: 2 * n)
        return int(conn.execute("SELECT twice(1)").fetchone()[0])

    graph = bench.graph(*[lambda s: {"log": [makes()]}] * 2)
    assert graph.invoke({"log": []}, bench.config())["log"] == [2, 2]


def test_sqlite_keeps_the_body_off_our_tables(bench: Bench) -> None:
    @effect(same_database=True)
    def post(*, conn: Any) -> None:
        conn.execute("DELETE FROM surefoot_frame")

    graph, config = bench.graph(lambda s: {"log": [post()]}), bench.config()
    with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|prohibited"):
        graph.invoke({"log": []}, config)
    assert ledger(bench, config) == ["failed"]


def test_nothing_else_is_recorded_from_within(book: Bench) -> None:
    """A note or another effect would wait for the transaction that waits for it."""

    @effect(idempotent=True)
    def inner(*, idempotency_key: str) -> int:
        return int(book.world.send(1))

    @effect(same_database=True)
    def noting(*, conn: Any, call: EffectCall) -> None:
        call.note(x=1)

    @effect(same_database=True)
    def nesting(*, conn: Any) -> int:
        return int(inner())

    for post in (noting, nesting):
        config = book.config()
        graph = book.graph(lambda s, post=post: {"log": [post()]})
        with pytest.raises(Misuse, match="nothing else of the run can be recorded"):
            graph.invoke({"log": []}, config)
        assert ledger(book, config) == ["failed"]
    assert book.world.count == 0


def test_what_does_not_go_together_is_refused_at_decoration() -> None:
    async def coroutine(*, conn: Any) -> None: ...

    def plain(*, conn: Any) -> None: ...

    def keyed(*, conn: Any, idempotency_key: str) -> None: ...

    for fn, settings, says in (
        (coroutine, {}, "plain function"),
        (lambda: None, {}, "parameter conn"),
        (keyed, {"idempotent": True}, "exactly once"),
        (plain, {"reconcile": lambda call: None}, "exactly once"),
    ):
        with pytest.raises(Misconfigured, match=says):
            effect(name="x", same_database=True, **settings)(fn)


def test_the_connection_is_not_passed_by_the_caller(book: Bench) -> None:
    post, config = booking(), book.config()
    graph = book.graph(lambda s: {"log": [post(account(config), 7, conn=None)]})
    with pytest.raises(Misuse, match="must not be passed"):
        graph.invoke({"log": []}, config)


def test_under_exit_there_is_no_place_to_hold_on_to(book: Bench) -> None:
    post, config = booking(), book.config()
    graph = book.graph(lambda s: {"log": [post(account(config), 7)]})
    with pytest.raises(Misuse, match="exit"):
        graph.invoke({"log": []}, config, durability="exit")
    assert rows(book, account(config)) == []


# --- crashes -----------------------------------------------------------------------------------


def played(book: Bench, config: dict[str, Any], plan: Plan, saver: SurefootSaver) -> Any:
    """A worker runs, or goes on, under a plan."""
    post = booking(lambda conn: plan.around("body", lambda: None))
    graph = book.graph(
        lambda s: {"log": ["first"]}, lambda s: {"log": [post(account(config), 7)]}, saver=saver
    )
    given = None if graph.get_state(config).tasks else {"log": []}
    return graph.invoke(given, config, durability="sync")


def gone_on(book: Bench, config: dict[str, Any]) -> Any:
    """Another process looks where the thread stands, and goes on or begins."""
    post = booking()
    graph = book.graph(
        lambda s: {"log": ["first"]},
        lambda s: {"log": [post(account(config), 7)]},
        saver=book.open(),
    )
    seen = graph.get_state(config)
    if seen.config["configurable"].get("checkpoint_id") is None:
        return graph.invoke({"log": []}, config)
    return graph.invoke(None, config) if seen.tasks else seen.values


def test_a_crash_at_every_boundary(book: Bench) -> None:
    """Rows and record are there together or not at all, wherever the process dies."""
    whole = Plan()
    played(book, book.config(), whole, with_faults(book.open(), whole))
    boundaries = whole.trace[whole.trace.index("store.append.before#1") :]
    assert {"body.before#1", "store.append_within.before#1", "store.append_within.after#1"} <= set(
        boundaries
    )
    for boundary in boundaries:
        config, plan = book.config(), Plan({boundary: Fault.DIE})
        saver = with_faults(book.open(), plan)
        with contextlib.suppress(Died, SurefootError):
            played(book, config, plan, saver)
        assert plan.hit == [boundary]
        bury(saver, plan)
        done = gone_on(book, config)
        assert done["log"] == ["first", 70], boundary
        assert rows(book, account(config)) == [7], boundary


def test_a_lost_reply_is_read_back(book: Bench) -> None:
    """The commit was carried out and its answer lost: it is not done again."""
    config, plan = book.config(), Plan({"store.append_within.after#1": Fault.LOST})
    done = played(book, config, plan, with_faults(book.open(), plan))
    assert plan.hit == ["store.append_within.after#1"]
    assert done["log"] == ["first", 70]
    assert [name for name in plan.trace if name.startswith("body.before")] == ["body.before#1"]
    assert rows(book, account(config)) == [7]


def test_a_store_that_is_away_leaves_nothing(book: Bench) -> None:
    config, plan = book.config(), Plan({"store.append_within.before#1": Fault.UNAVAILABLE})
    saver = with_faults(book.open(), plan)
    with pytest.raises(SurefootError):
        played(book, config, plan, saver)
    assert plan.hit
    assert rows(book, account(config)) == []
    done = played(book, config, plan, saver)
    assert done["log"] == ["first", 70]
    assert rows(book, account(config)) == [7]


_CHILD = """
import json, os, signal, sys
from tests.effects.test_same_database import insert
from tests.effects.conftest import State
from langgraph.graph import END, START, StateGraph
from surefoot import Keyring, SurefootSaver, effect
from surefoot.testing.faults import Died, Fault, Plan, bury, with_faults

conn, highwater, keys, tenant, thread, where = json.loads(sys.argv[1])

@effect(name="post", same_database=True)
def post(account, amount, *, conn):
    insert(conn, account, amount)
    if where == "in the body":
        print("AT body", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
    return amount * 10

builder = StateGraph(State)
builder.add_node("n0", lambda s: {"log": [post(thread, 7)]})
builder.add_edge(START, "n0")
builder.add_edge("n0", END)
saver = SurefootSaver(conn, highwater=highwater, keys=Keyring.from_file(keys), tenant=tenant)
if where == "after the commit":
    with_faults(saver, Plan({"store.append_within.after#1": Fault.KILL}))
builder.compile(checkpointer=saver).invoke({"log": []}, {"configurable": {"thread_id": thread}})
"""


@pytest.mark.kill
@pytest.mark.parametrize("where", ["in the body", "after the commit"])
def test_a_killed_process(book: Bench, tmp_path: Path, where: str) -> None:
    """SIGKILL between the insert and the commit, and right after the commit."""
    config = book.config()
    keys = tmp_path / "keys.json"
    book.keys.to_file(keys)
    given = [book.conn, book.highwater, str(keys), book.tenant, account(config), where]
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, json.dumps(given)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    at = "AT body" if where == "in the body" else "AT store.append_within.after#1"
    assert done.stdout.splitlines() == [at]
    assert rows(book, account(config)) == ([] if where == "in the body" else [7])
    ran: list[int] = []
    post = booking(lambda conn: ran.append(1))
    graph = book.graph(lambda s: {"log": [post(account(config), 7)]})
    assert graph.invoke(None, config)["log"] == [70]
    assert rows(book, account(config)) == [7]
    assert len(ran) == (1 if where == "in the body" else 0)


# --- two workers -------------------------------------------------------------------------------


def take_over(book: Bench, config: dict[str, Any]) -> None:
    """Another worker acquires the thread; its lease is over at once."""
    marks, thread = book.saver.core.ports.marks, account(config)
    held = marks.read(book.tenant, thread)
    assert held is not None
    taken = marks.acquire(book.tenant, thread, Lease("another", 1), over_epoch=held.epoch)
    assert taken is not None


def test_a_stale_worker_is_stopped_before_the_body(book: Bench) -> None:
    """It lost its thread and does not know: B says so before anything is written."""
    ran: list[int] = []
    post, config = booking(lambda conn: ran.append(1)), book.config()

    def node(state: Any) -> Any:
        take_over(book, config)
        return {"log": [post(account(config), 7)]}

    with pytest.raises((Fenced, SaveFailed)):
        book.graph(node).invoke({"log": []}, config, durability="sync")
    assert (ran, rows(book, account(config))) == ([], [])
    again = book.graph(lambda s: {"log": [post(account(config), 7)]}, saver=book.open())
    assert again.invoke(None, config)["log"] == [70]
    assert rows(book, account(config)) == [7]


def test_the_record_never_follows_a_checkpoint_that_is_not_published(book: Bench) -> None:
    """A worker that was interrupted between storing a checkpoint and publishing it books, and dies.

    Whoever comes next gives up a checkpoint that was not published, and all that follows it: the
    record would be lost beside its committed rows, and they would be booked again.
    """
    config = book.config()
    thread = account(config)
    saver = book.open()
    ports = saver.core.ports
    book.graph(lambda s: {"log": ["first"]}, saver=saver).invoke({"log": []}, config)
    session, _ = acquire(ports, thread, None)
    known = session.known["", session.latest[""]]

    def stored_again(chain: Any) -> Record:
        found = next(r for r in chain.walk() if r.kind is Kind.CHECKPOINT)
        return Record(found.kind, found.schema, found.subject, found.body)

    with session.lock:
        journal.append(ports, session, [viewing(ports, thread, stored_again)])
    place = flow.CallPlace(
        levels=(("", known.checkpoint_id),),
        saved=True,
        step=known.step + 1,
        namespace="",
        path="(pull,n1)",
        task=("task", 1, 0),
        family=("", "(pull,n1)"),
        origin="",
    )
    request = flow.CallRequest(
        name="post",
        place=place,
        call_id="one",
        receiver=Receiver.SAME_DATABASE,
        arguments={},
        fingerprint=bytes(32),
    )
    step = flow.begin(ports, session, saver.serde, request)
    same_database.run(ports, session, saver.serde, step, lambda conn: insert(conn, thread, 7), repr)
    assert rows(book, thread) == [7]
    take_over(book, config)  # nothing more of the first worker is published
    after, _ = acquire(book.open().core.ports, thread, None)
    assert after.effects[step.body.slot].state == "succeeded"


class Stale:
    """A worker that is in the body while others take its thread."""

    def __init__(self, book: Bench, config: dict[str, Any]) -> None:
        self.inside, self.go, self.over = threading.Event(), threading.Event(), threading.Event()
        self.error: BaseException | None = None
        post = booking(self._wait)
        graph = book.graph(lambda s: {"log": [post(account(config), 7)]}, saver=book.open())
        self._thread = threading.Thread(target=self._run, args=(graph, config))
        self._thread.start()
        assert self.inside.wait(30)
        take_over(book, config)

    def _wait(self, conn: Any) -> None:
        self.inside.set()
        assert self.go.wait(30)

    def _run(self, graph: Any, config: dict[str, Any]) -> None:
        try:
            graph.invoke({"log": []}, config)
        except BaseException as error:
            self.error = error
        self.over.set()

    def finish(self) -> None:
        self.go.set()
        assert self.over.wait(60)
        self._thread.join()


@ON_POSTGRES
@pytest.mark.parametrize("when", ["before the next one loads", "while the next one is inside"])
def test_a_late_commit_of_a_stale_worker_is_adopted(book: Bench, when: str) -> None:
    """It lost its thread in the body and committed all the same: that is the one commit."""
    config = book.config()
    stale = Stale(book, config)
    if when == "before the next one loads":
        stale.finish()
        post = booking()
    else:
        post = booking(lambda conn: stale.finish())
    graph = book.graph(lambda s: {"log": [post(account(config), 7)]}, saver=book.open())
    if when == "while the next one is inside":
        with pytest.raises(StoreUnavailable, match="run again"):
            graph.invoke(None, config)
        assert rows(book, account(config)) == [7], "the second one was undone"
    assert graph.invoke(None, config)["log"] == [70]
    assert rows(book, account(config)) == [7]
    assert isinstance(stale.error, (Fenced, SaveFailed)), stale.error


@ON_POSTGRES
def test_no_first_write_passes_over_a_late_commit(book: Bench) -> None:
    """The next worker writes something else first, between its load and the late commit."""
    config = book.config()
    stale = Stale(book, config)
    saver = book.open()
    gate = book.gate(saver)
    gate.before = lambda append: stale.finish()
    graph = book.graph(lambda s: {"log": [booking()(account(config), 7)]}, saver=saver)
    with pytest.raises(SurefootError):
        graph.update_state(config, {"log": ["by hand"]})
    gate.before = None
    assert rows(book, account(config)) == [7]
    again = book.graph(lambda s: {"log": [booking()(account(config), 7)]}, saver=book.open())
    assert again.invoke(None, config)["log"] == [70]
    assert rows(book, account(config)) == [7]


@ON_POSTGRES
def test_a_stale_worker_that_is_too_late_is_undone(book: Bench) -> None:
    config = book.config()
    stale = Stale(book, config)
    graph = book.graph(lambda s: {"log": [booking()(account(config), 7)]}, saver=book.open())
    assert graph.invoke(None, config)["log"] == [70]
    stale.finish()
    assert isinstance(stale.error, (Fenced, SaveFailed)), stale.error
    assert rows(book, account(config)) == [7]
