"""What only the PostgreSQL driver has to stand."""

from __future__ import annotations

import select
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import psycopg_pool
import pytest
from psycopg import sql
from psycopg.rows import dict_row
from tests.postgres import Cluster, fresh_database, fresh_role, with_parts
from tests.store.conftest import Place, full_step, head, step

from surefoot.config import Limits
from surefoot.errors import (
    Misconfigured,
    NotSetUp,
    OutcomeUnknown,
    StoreUnavailable,
    SurefootError,
)
from surefoot.ports import ContentStore, Kept, LogRef
from surefoot.store.postgres import PostgresContentStore

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A server that may be restarted."""
    own = Cluster()
    yield own
    own.remove()


@pytest.fixture
def pool(postgres_place: Place) -> Iterator[psycopg_pool.ConnectionPool[Any]]:
    """A pool as users have them: one connection, transactions, rows as dicts."""
    kwargs = {"row_factory": dict_row}
    with psycopg_pool.ConnectionPool(
        postgres_place.target, kwargs=kwargs, min_size=1, max_size=1, open=True
    ) as given:
        yield given


def until(condition: Callable[[], bool]) -> None:
    """Waits for something that another process does."""
    pause = threading.Event()
    for _ in range(2_000):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("it did not happen")


def hang_up(store: ContentStore, place: Place) -> None:
    """Terminates the store's idle connections, and waits until that has arrived here."""
    assert isinstance(store, PostgresContentStore)
    assert store._own is not None
    idle = list(store._own._pool)
    assert idle
    for connection in idle:
        place.execute("SELECT pg_terminate_backend(?)", connection.info.backend_pid)
    for connection in idle:
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        until(lambda poll=poll: any(event & select.POLLHUP for _, event in poll.poll(0)))  # type: ignore[misc]


# --- where ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [
        'we"ird',
        "Mixed Case",
        "select",
        "per%cent %s %(x)s",
        "semi;colon'",
        "ünï",
        "{schema}",
        "x" * 63,
    ],
)
def test_odd_schema_names(schema: str) -> None:
    url = fresh_database()
    store = PostgresContentStore(url, schema=schema)
    with pytest.raises(NotSetUp):
        store.read_thread("t", "x")
    store.setup()
    store.setup(verify_only=True)
    key = store.append(full_step(1, after=None))
    assert key is not None
    store.collect(key, Kept(head(1), [], 1, [], {}))
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'surefoot%'"
        ).fetchall()
    assert found == [(schema,)]
    store.close()


@pytest.mark.parametrize(
    "schema", ["", "x" * 64, "ü" * 32, "pg_mine", "information_schema", "a\0b", "\ud800"]
)
def test_schema_names_that_postgres_would_change_or_refuse(schema: str) -> None:
    with pytest.raises(Misconfigured, match="schema"):
        PostgresContentStore("postgresql:///x", schema=schema)


def test_without_a_schema_it_is_public_whatever_the_search_path_says() -> None:
    url = fresh_database()
    store = PostgresContentStore(with_parts(url, options="-c search_path=pg_catalog"))
    store.setup()
    assert store.append(step(1)) is not None
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM public.surefoot_frame").fetchone() == (1,)
    store.close()


def test_two_schemas_of_one_database_are_two_stores(
    postgres_place: Place, pool: psycopg_pool.ConnectionPool[Any]
) -> None:
    stores = [
        PostgresContentStore(pool, schema=f"{postgres_place.schema}{n}", prepare_threshold=0)
        for n in range(2)
    ]
    for store in stores:
        store.setup()
    assert stores[0].append(step(1)) is not None
    assert stores[1].read_thread("tenant", "thread") is None
    assert stores[1].append(step(1)) is not None


# --- rights ---------------------------------------------------------------------------------


def grant(place: Place, role_url: str, *rights: str) -> None:
    role = psycopg.conninfo.conninfo_to_dict(role_url)["user"]
    names = {"schema": sql.Identifier(place.schema or ""), "role": sql.Identifier(str(role))}
    with psycopg.connect(place.target, autocommit=True) as connection:
        for right in rights:
            connection.execute(sql.SQL(right).format(**names))


def test_a_role_that_may_not_create_anything(postgres_place: Place) -> None:
    postgres_place.ready()
    url = fresh_role(postgres_place.target)
    grant(
        postgres_place,
        url,
        "GRANT USAGE ON SCHEMA {schema} TO {role}",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}",
    )
    store = PostgresContentStore(url, schema=postgres_place.schema)
    store.setup()
    store.setup(verify_only=True)
    store.check_durability()
    key = store.append(full_step(1, after=None))
    assert key is not None
    assert store.append(full_step(2, after=head(1))) == key
    store.collect(key, Kept(head(2), [], 1, [], {}))
    store.delete_thread(key)
    store.close()


def test_rights_that_are_missing_are_named(postgres_place: Place) -> None:
    url = fresh_role(postgres_place.target)
    store = PostgresContentStore(url, schema=postgres_place.schema)
    with pytest.raises(NotSetUp):
        store.setup(verify_only=True)
    with pytest.raises(Misconfigured, match="permission denied"):
        store.setup()
    postgres_place.ready()
    with pytest.raises(Misconfigured, match="permission denied"):
        store.append(step(1))
    store.close()


def test_no_message_holds_the_password(postgres_place: Place) -> None:
    url = fresh_role(postgres_place.target)
    wrong = with_parts(url, dbname="no_such_database", password="s3cr3t!")
    store = PostgresContentStore(wrong, schema=postgres_place.schema)
    with pytest.raises(StoreUnavailable, match="does not exist") as caught:
        store.read_thread("t", "x")
    chain: BaseException | None = caught.value
    while chain is not None:
        assert "s3cr3t" not in f"{chain!r} {chain}"
        chain = chain.__cause__
    assert "s3cr3t" not in f"{store.shown} {store!r}"
    with pytest.raises(Misconfigured) as misconfigured:
        PostgresContentStore("postgresql://u:s3cr3t@h:no/x?y=z")
    assert "s3cr3t" not in f"{misconfigured.value!r} {misconfigured.value.__cause__}"


@pytest.mark.parametrize(
    ("conninfo", "shown"),
    [
        (
            "postgresql://u:p@db.example:6432/app?sslmode=require",
            "postgresql://db.example:6432/app",
        ),
        ("host=db.example dbname=app password=p", "postgresql://db.example/app"),
        ("postgresql:///app?host=/run/pg&user=u", "postgresql://(local socket)/app"),
    ],
)
def test_what_is_shown_of_an_address(conninfo: str, shown: str) -> None:
    assert PostgresContentStore(conninfo).shown == shown


# --- connections ------------------------------------------------------------------------------


def test_a_connection_closed_while_idle_is_replaced(postgres_place: Place) -> None:
    store = postgres_place.ready()
    key = store.append(step(1))
    hang_up(store, postgres_place)
    assert store.append(step(2, after=head(1))) == key
    hang_up(store, postgres_place)
    row = store.read_thread("tenant", "thread")
    assert row is not None
    assert row.head == head(2)


def test_a_connection_lost_while_an_append_runs_is_an_unknown_outcome(
    postgres_place: Place,
) -> None:
    store = postgres_place.ready()
    store.append(step(1))
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE ?"
    with psycopg.connect(postgres_place.target) as holder, ThreadPoolExecutor(1) as threads:
        holder.execute(
            sql.SQL("SELECT 1 FROM {}.surefoot_thread FOR UPDATE").format(
                sql.Identifier(postgres_place.schema or "")
            )
        )
        doomed = threads.submit(store.append, step(2, after=head(1)))
        mine = f"%{postgres_place.schema}%surefoot_thread%SET head_seq%"
        until(lambda: bool(postgres_place.execute(waiting, mine)))
        ((pid,),) = postgres_place.execute(waiting, mine)
        postgres_place.execute("SELECT pg_terminate_backend(?)", pid)
        with pytest.raises(OutcomeUnknown, match="append is unknown"):
            doomed.result()
    row = store.read_thread("tenant", "thread")
    assert row is not None
    assert row.head == head(1)
    assert store.append(step(2, after=head(1))) is not None


def test_a_statement_timeout_is_respected_and_leaves_nothing(postgres_place: Place) -> None:
    postgres_place.ready().append(step(1))
    url = with_parts(postgres_place.target, options="-c statement_timeout=100")
    store = PostgresContentStore(url, schema=postgres_place.schema)
    with psycopg.connect(postgres_place.target) as holder:
        holder.execute(
            sql.SQL("SELECT 1 FROM {}.surefoot_thread FOR UPDATE").format(
                sql.Identifier(postgres_place.schema or "")
            )
        )
        with pytest.raises(StoreUnavailable, match="57014"):
            store.append(step(2, after=head(1)))
    assert store.append(step(2, after=head(1))) is not None
    store.close()


def test_a_server_that_restarts_between_two_appends(cluster: Cluster) -> None:
    store = PostgresContentStore(fresh_database(cluster.url))
    store.setup()
    key = store.append(step(1))
    store.append(step(1, thread="other"))
    cluster.restart()
    assert store.append(step(2, after=head(1))) == key
    cluster.restart()
    assert len(store.threads("tenant")) == 2
    store.close()


def test_a_server_that_is_down(cluster: Cluster) -> None:
    url = fresh_database(cluster.url)
    store, late = PostgresContentStore(url), None
    store.setup()
    short = Limits(connect_timeout_ms=300)
    opened = PostgresContentStore(url, limits=short)
    assert opened.read_thread("tenant", "thread") is None
    cluster.stop()
    try:
        late = PostgresContentStore(url, limits=short)
        for call in (late.check_durability, late.setup, lambda: late.append(step(1))):
            with pytest.raises(StoreUnavailable, match="No such file or directory"):
                call()
        with pytest.raises(StoreUnavailable, match="no connection within 300 ms"):
            opened.append(step(1))
        with pytest.raises(StoreUnavailable, match="no connection within 300 ms"):
            opened.read_thread("tenant", "thread")
    finally:
        cluster.start()
    assert late.append(step(1)) is not None
    until(lambda: _answers(opened))
    for each in (store, late, opened):
        each.close()


def _answers(store: ContentStore) -> bool:
    try:
        return store.read_thread("tenant", "thread") is not None
    except SurefootError:
        return False


# --- durability -------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_a_server_that_may_lose_commits_is_refused(cluster: Cluster, setting: str) -> None:
    store = PostgresContentStore(fresh_database(cluster.url))
    store.check_durability()
    cluster.restart(**{setting: "off"})
    try:
        with pytest.raises(Misconfigured, match=f"has {setting} switched off"):
            store.check_durability()
    finally:
        cluster.restart()
        store.close()


def test_an_append_waits_for_the_disk_whatever_the_server_says(cluster: Cluster) -> None:
    store = PostgresContentStore(fresh_database(cluster.url))
    store.setup()
    cluster.restart(synchronous_commit="off", wal_writer_delay="10s")
    try:
        with psycopg.connect(cluster.url, autocommit=True) as connection:
            behind = "SELECT pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()"
            connection.execute("CREATE TABLE lazy (a int)")
            connection.execute("INSERT INTO lazy VALUES (1)")
            assert connection.execute(behind).fetchone() == (True,), "the setting has no effect"
            at = "SELECT pg_current_wal_insert_lsn()"
            for seq in (1, 2):
                before = connection.execute(at).fetchone()
                assert before is not None
                store.append(full_step(seq, after=head(seq - 1) if seq > 1 else None))
                flushed = connection.execute(
                    "SELECT pg_current_wal_flush_lsn() > %s::pg_lsn", before
                ).fetchone()
                assert flushed == (True,)
    finally:
        cluster.restart()
        store.close()


# --- pools of the caller ------------------------------------------------------------------------


def test_a_pool_of_the_caller_stays_as_it_is(
    postgres_place: Place, pool: psycopg_pool.ConnectionPool[Any]
) -> None:
    store = PostgresContentStore(pool, schema=postgres_place.schema)
    store.setup()
    key = store.append(full_step(1, after=None))
    assert key is not None
    assert store.read_values(key, [], [LogRef(1, 2)]).tips == {1: 2}
    store.close()
    with pool.connection() as connection:
        assert connection.autocommit is False
        assert connection.execute("SELECT 1 AS one").fetchone() == {"one": 1}
    assert not pool.closed


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
def test_stricter_isolation_of_the_caller(postgres_place: Place, level: str) -> None:
    """A serialisation failure is no answer: the gate decides again."""
    options = f"-c default_transaction_isolation={level.replace(' ', chr(92) + ' ')}"
    url = with_parts(postgres_place.target, options=options)
    stores = [PostgresContentStore(url, schema=postgres_place.schema) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda store: store.setup(), stores))
        start = threading.Barrier(4)

        def write(store: ContentStore) -> int:
            won = 0
            for seq in range(1, 16):
                start.wait()
                won += store.append(step(seq, after=head(seq - 1) if seq > 1 else None)) is not None
            return won

        assert sum(threads.map(write, stores)) == 15
    for store in stores:
        store.close()


def test_statements_that_a_pooler_forgot(
    postgres_place: Place, pool: psycopg_pool.ConnectionPool[Any]
) -> None:
    postgres_place.ready()
    store = PostgresContentStore(pool, schema=postgres_place.schema, prepare_threshold=0)
    key = store.append(step(1))
    with pool.connection() as connection:
        names = connection.execute("SELECT name FROM pg_prepared_statements").fetchall()
        assert len(names) == 1
        assert names[0]["name"].startswith("surefoot_")
        connection.execute("DEALLOCATE ALL")
    assert store.append(step(1, thread="other")) is not None
    assert store.append(step(2, after=head(1))) == key
    with pool.connection() as connection:
        names = connection.execute("SELECT name FROM pg_prepared_statements").fetchall()
        assert names == [], "it has stopped preparing"


def test_nothing_is_prepared_if_not_wanted(
    postgres_place: Place, pool: psycopg_pool.ConnectionPool[Any]
) -> None:
    postgres_place.ready()
    store = PostgresContentStore(pool, schema=postgres_place.schema, prepare_threshold=None)
    for seq in range(1, 12):
        assert store.append(step(seq, after=head(seq - 1) if seq > 1 else None)) is not None
    with pool.connection() as connection:
        assert connection.execute("SELECT name FROM pg_prepared_statements").fetchall() == []


# --- counts ---------------------------------------------------------------------------------


ONE_TRIP: dict[str, Callable[[ContentStore, int, int], object]] = {
    "read_thread": lambda s, key, n: s.read_thread("tenant", "thread"),
    "read_newest": lambda s, key, n: s.read_newest("tenant", "thread", limit=5),
    "find_checkpoint": lambda s, key, n: s.find_checkpoint(key, bytes(8)),
    "read_heads": lambda s, key, n: s.read_heads(key, from_seq=1),
    "read_frames": lambda s, key, n: s.read_frames(key, [(1, 1), (2, 1)]),
    "read_values": lambda s, key, n: s.read_values(key, [bytes(32)], [LogRef(1, n)]),
    "append": lambda s, key, n: s.append(step(n, after=head(n - 1))),
    "append of everything": lambda s, key, n: s.append(full_step(n, after=head(n - 1))),
    "append of a new thread": lambda s, key, n: s.append(full_step(1, after=None, thread=f"{n}")),
    "collect": lambda s, key, n: s.collect(key, Kept(head(n), [(1, 1)], 1, [bytes(32)], {1: 2})),
    "delete_thread": lambda s, key, n: s.delete_thread(key + 10_000),
    "threads": lambda s, key, n: s.threads("tenant"),
    "threads_of_runs": lambda s, key, n: s.threads_of_runs("tenant", ["run"]),
}


@pytest.mark.parametrize("call", ONE_TRIP.values(), ids=ONE_TRIP)
def test_one_round_trip_and_no_new_plan(
    postgres_place: Place,
    pool: psycopg_pool.ConnectionPool[Any],
    call: Callable[[ContentStore, int, int], object],
) -> None:
    store = PostgresContentStore(pool, schema=postgres_place.schema, prepare_threshold=2)
    store.setup()
    key = store.append(step(1))
    assert key is not None
    for n in range(2, 14):
        call(store, key, n)
    with tempfile.TemporaryFile() as trace:
        with pool.connection() as connection:
            connection.pgconn.trace(trace.fileno())
        call(store, key, 14)
        with pool.connection() as connection:
            connection.pgconn.untrace()
            plans = connection.execute(
                "SELECT generic_plans, custom_plans FROM pg_prepared_statements"
                " ORDER BY prepare_time DESC LIMIT 1"
            ).fetchone()
        trace.seek(0)
        # A line is: direction, length, message; Sync ends what the server answers at once.
        assert trace.read().count(b"Sync") == 1
    # The server tries five plans for known parameters, then one for all: never a plan per call.
    assert plans is not None
    assert plans["custom_plans"] == 5
    assert plans["generic_plans"] >= 5


def test_head_rows_are_updated_in_place(postgres_place: Place) -> None:
    """No index entry is written when a head moves (HOT)."""
    store = postgres_place.ready()
    for seq in range(1, 101):
        store.append(step(seq, after=head(seq - 1) if seq > 1 else None))
    store.close()
    query = (
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables"
        " WHERE schemaname = ? AND relname = 'surefoot_thread'"
    )
    until(lambda: postgres_place.execute(query, postgres_place.schema)[0][0] == 99)
    ((updated, in_place),) = postgres_place.execute(query, postgres_place.schema)
    assert in_place == updated


def test_a_thread_is_found_by_its_own_index(postgres_place: Place) -> None:
    """Also while the table is small and nothing is known of it."""
    postgres_place.ready()
    ((plan,),) = postgres_place.execute(
        "SELECT string_agg(indexdef, ' ') FROM pg_indexes"
        " WHERE schemaname = ? AND indexname = 'surefoot_thread_id'",
        postgres_place.schema,
    )
    assert "UNIQUE" in plan
    assert "sha256((sha256(tenant) || sha256(thread)))" in plan
