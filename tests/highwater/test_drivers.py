"""What is special about each driver: damage, permissions, lost connections, sudden death."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool
from tests.postgres import Cluster, fresh_database, fresh_role, with_parts

from surefoot.config import Limits
from surefoot.errors import (
    Closed,
    MarkCorrupt,
    MigrationRefused,
    Misconfigured,
    Misuse,
    NotSetUp,
    OutcomeUnknown,
    StoreUnavailable,
    SurefootError,
)
from surefoot.highwater import PostgresHighWater, SqliteHighWater, open_highwater
from surefoot.highwater.statements import load
from surefoot.ports import HighWater, Lease, Mark, Publish

LONG = Lease("holder", 60_000)
ZERO = bytes(32)
SECRET = "s3cret-pa55"

Make = Callable[..., Any]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """A factory of handles to one store; takes the driver's keyword arguments."""
    if request.param == "sqlite":
        return partial(SqliteHighWater, tmp_path / "b.db")
    return partial(PostgresHighWater, request.getfixturevalue("postgres_url"))


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[SqliteHighWater]:
    store = SqliteHighWater(tmp_path / "b.db")
    store.setup()
    yield store
    store.close()


@pytest.fixture
def postgres_store(postgres_url: str) -> Iterator[PostgresHighWater]:
    store = PostgresHighWater(postgres_url)
    store.setup()
    yield store
    store.close()


def raised(mark: Mark, **changes: Any) -> Publish:
    fields: dict[str, Any] = {
        "epoch": mark.epoch,
        "seq": mark.seq,
        "digest": mark.digest,
        "new_seq": mark.seq + 1,
        "new_digest": bytes([mark.seq % 255 + 1]) * 32,
        "step": 0,
        "intents": b"",
        "ttl_ms": 60_000,
    }
    return Publish(**{**fields, **changes})


def created(store: HighWater, thread: str = "t") -> Mark:
    mark = store.create("tenant", thread, LONG)
    assert mark is not None
    return mark


def seen(store: HighWater, thread: str = "t") -> Mark:
    mark = store.read("tenant", thread)
    assert mark is not None
    return mark


def raw(store: SqliteHighWater, *statements: str) -> None:
    """Runs SQL behind the driver's back, without the schema's guards."""
    conn = sqlite3.connect(store._path, isolation_level=None)
    conn.execute("PRAGMA ignore_check_constraints = ON")
    triggers = conn.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for (name,) in triggers:
        conn.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        conn.execute(statement)
    conn.close()


# --- both -------------------------------------------------------------------------------------


def test_the_dialects_have_the_same_statements() -> None:
    assert list(load("sqlite")) == list(load("postgres"))


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_statement_says_which_rule_it_serves(dialect: str) -> None:
    text = (files("surefoot.highwater") / "sql" / f"{dialect}.sql").read_text(encoding="utf-8")
    blocks = re.split(r"^-- name: ", text, flags=re.MULTILINE)[1:]
    assert len(blocks) == len(load(dialect)) >= 11
    for block in blocks:
        name, comment, *_ = block.splitlines()
        assert comment.startswith("-- "), name


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
@pytest.mark.parametrize("name", ["read", "create", "acquire", "publish", "renew", "marks"])
def test_each_method_is_one_statement(dialect: str, name: str) -> None:
    sql = load(dialect)[name]
    assert sql.count(";") == 1
    assert sql.endswith(";")


def test_a_store_that_is_not_set_up_says_so(make: Make) -> None:
    store = make()
    with pytest.raises(NotSetUp):
        store.read("tenant", "t")
    with pytest.raises(NotSetUp):
        store.create("tenant", "t", LONG)
    with pytest.raises(NotSetUp):
        store.setup(verify_only=True)
    store.check_durability()
    store.setup()
    store.setup(verify_only=True)
    assert store.read("tenant", "t") is None


def set_up(make: Make, barrier: Any, answers: Any) -> None:
    try:
        store = make()
        barrier.wait(60)
        store.setup()
        answers.put(store.create("tenant", "t", LONG) is not None)
    except BaseException as exc:
        answers.put(repr(exc))
        raise


def test_eight_processes_set_up_at_once(make: Make) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(8), context.Queue()
    children = [context.Process(target=set_up, args=(make, barrier, answers)) for _ in range(8)]
    for child in children:
        child.start()
    found = [answers.get(timeout=90) for _ in children]
    for child in children:
        child.join(30)
    assert sorted(map(str, found)) == ["False"] * 7 + ["True"]
    make().setup(verify_only=True)


def test_a_fork_uses_connections_of_its_own(make: Make) -> None:
    store = make()
    store.setup()
    mark = created(store)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if store.publish("tenant", "t", raised(mark)) and seen(store).seq == 1:
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert store.publish("tenant", "t", raised(seen(store)))
    assert seen(store).seq == 2


def test_a_closed_store_refuses(make: Make) -> None:
    store = make()
    store.setup()
    store.close()
    store.close()
    for call in (
        lambda: store.read("tenant", "t"),
        lambda: store.create("tenant", "t", LONG),
        store.setup,
        store.check_durability,
        store.server_identity,
    ):
        with pytest.raises(Closed):
            call()


@pytest.mark.parametrize(
    "change",
    [
        {"new_seq": 0},
        {"new_seq": 1, "new_digest": b"\2" * 32},
        {"new_digest": b"short"},
        {"digest": b""},
        {"seq": -1},
        {"step": -(2**63)},
        {"ttl_ms": -1},
        {"ttl_ms": 2**62},
        {"state": "dead"},
        {"epoch": 2**63},
    ],
    ids=str,
)
def test_what_no_mark_may_become_is_not_sent(make: Make, change: dict[str, Any]) -> None:
    store = make()
    store.setup()
    assert store.publish("tenant", "t", raised(created(store)))
    before = seen(store)
    with pytest.raises(Misuse):
        store.publish("tenant", "t", raised(before, **change))
    assert (seen(store).seq, seen(store).digest) == (before.seq, before.digest)


@pytest.mark.parametrize("ttl_ms", [0, -1, 2**62])
def test_a_lease_has_a_length(make: Make, ttl_ms: int) -> None:
    store = make()
    store.setup()
    created(store, "other")
    with pytest.raises(Misuse):
        store.create("tenant", "t", Lease("x", ttl_ms))
    with pytest.raises(Misuse):
        store.acquire("tenant", "other", Lease("x", ttl_ms), over_epoch=1)
    with pytest.raises(Misuse):
        store.renew("tenant", "other", 1, ttl_ms)


def test_a_tombstone_is_not_published_away(make: Make) -> None:
    store = make()
    store.setup()
    assert store.publish("tenant", "t", raised(created(store), state="tombstone"))
    dead = seen(store)
    with pytest.raises(Misuse, match="tombstone"):
        store.publish("tenant", "t", raised(dead))
    assert seen(store).state == "tombstone"


GUARDED = [
    "UPDATE surefoot_marks SET epoch = epoch - 1",
    "UPDATE surefoot_marks SET seq = seq - 1",
    "UPDATE surefoot_marks SET incarnation = incarnation + 1",
    "UPDATE surefoot_marks SET digest = owner",
    "UPDATE surefoot_marks SET thread = owner",
    "UPDATE surefoot_marks SET state = 'gone'",
    "DELETE FROM surefoot_marks",
]


@pytest.mark.parametrize("statement", GUARDED)
def test_sqlite_guards_its_rows(sqlite_store: SqliteHighWater, statement: str) -> None:
    assert sqlite_store.publish("tenant", "t", raised(created(sqlite_store)))
    before = seen(sqlite_store)
    conn = sqlite3.connect(sqlite_store._path, isolation_level=None)
    with pytest.raises(sqlite3.IntegrityError):
        conn.execute(statement)
    conn.execute("REPLACE INTO surefoot_marks SELECT * FROM surefoot_marks")
    conn.close()
    assert seen(sqlite_store).epoch == before.epoch


@pytest.mark.postgres
@pytest.mark.parametrize("statement", [*GUARDED, "TRUNCATE surefoot_marks"])
def test_postgres_guards_its_rows(
    postgres_store: PostgresHighWater, postgres_url: str, statement: str
) -> None:
    assert postgres_store.publish("tenant", "t", raised(created(postgres_store)))
    before = seen(postgres_store)
    with psycopg.connect(postgres_url, autocommit=True) as conn, pytest.raises(psycopg.Error):
        conn.execute(statement.encode())
    assert seen(postgres_store).epoch == before.epoch


def test_addresses(tmp_path: Path) -> None:
    assert isinstance(open_highwater(f"sqlite:///{tmp_path}/b.db"), SqliteHighWater)
    store = open_highwater(f"postgresql://app:{SECRET}@db.example:6432/mark?sslmode=require")
    assert isinstance(store, PostgresHighWater)
    assert store.shown == "postgresql://db.example:6432/mark"
    assert SECRET not in repr(store)
    for wrong in ("redis://x", "sqlite://", "b.db"):
        with pytest.raises(Misconfigured):
            open_highwater(wrong)


# --- SQLite -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", ":memory:", "file::memory:?cache=shared", "a\0b"])
def test_sqlite_needs_a_file(path: str) -> None:
    with pytest.raises(Misconfigured):
        SqliteHighWater(path)


def test_sqlite_paths_are_taken_literally(tmp_path: Path) -> None:
    store = SqliteHighWater(tmp_path / "a b?mode=memory#%41.db")
    store.setup()
    created(store)
    store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a b?mode=memory#%41.db"]
    assert seen(SqliteHighWater(tmp_path / "a b?mode=memory#%41.db")).epoch == 1


def test_sqlite_file_is_private_and_durable(sqlite_store: SqliteHighWater) -> None:
    created(sqlite_store)
    assert sqlite_store._path.stat().st_mode & 0o777 == 0o600
    with sqlite_store._connection() as conn:
        assert conn.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert conn.execute("PRAGMA synchronous").fetchone() == (2,)


def damaged(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "no database":
        data[:16] = b"not a database!!"
    elif how == "page of zeros":
        data[4096:] = bytes(len(data) - 4096)
    elif how == "torn":
        del data[len(data) // 2 + 100 :]
    elif how == "noise":
        data[100:4096] = bytes(n * 7 % 251 for n in range(3996))
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["no database", "page of zeros", "torn", "noise"])
def test_sqlite_damage_is_refused(tmp_path: Path, how: str) -> None:
    path = tmp_path / "b.db"
    store = SqliteHighWater(path)
    store.setup()
    for number in range(200):
        created(store, f"{number:0200}")
    store.close()
    assert not path.with_name("b.db-wal").exists(), "the damage must hit the whole content"
    damaged(path, how)
    hits = []
    for number in range(200):
        for call in (
            lambda s, t: s.read("tenant", t),
            lambda s, t: s.acquire("tenant", t, LONG, over_epoch=1),
        ):
            store = SqliteHighWater(path)
            try:
                call(store, f"{number:0200}")
            except SurefootError as exc:
                hits.append(type(exc))
            finally:
                store.close()
        if hits:
            break
    assert hits
    assert set(hits) == {MarkCorrupt}


def test_sqlite_that_is_empty_again_is_not_set_up(sqlite_store: SqliteHighWater) -> None:
    created(sqlite_store)
    sqlite_store.close()
    sqlite_store._path.write_bytes(b"")
    with pytest.raises(NotSetUp):
        SqliteHighWater(sqlite_store._path).read("tenant", "t")


@pytest.mark.parametrize(
    "damage",
    [
        "digest = x'00'",
        "digest = 'text of thirty-two characters...'",
        "seq = -1",
        "seq = 1.5",
        "seq = 'x'",
        "seq = 0, digest = zeroblob(31) || x'01'",
        "epoch = 0",
        "incarnation = 0",
        "step = 'x'",
        "resumes = -1",
        "state = 'odd'",
        "state = x'ff'",
        "clean = 2",
        "tainted = 'no'",
        "owner = 'text'",
        "owner = x'ff'",
        "intents = 'text'",
        "lease_until_ms = 'soon'",
    ],
)
def test_sqlite_row_that_is_no_mark_is_refused(sqlite_store: SqliteHighWater, damage: str) -> None:
    assert sqlite_store.publish("tenant", "t", raised(created(sqlite_store)))
    raw(sqlite_store, f"UPDATE surefoot_marks SET {damage}")
    with pytest.raises(MarkCorrupt) as caught:
        sqlite_store.read("tenant", "t")
    assert caught.value.fields["thread"] == "t"
    with pytest.raises(MarkCorrupt):
        list(sqlite_store.marks("tenant"))


def test_sqlite_does_not_acquire_a_row_that_is_no_mark(sqlite_store: SqliteHighWater) -> None:
    created(sqlite_store)
    raw(sqlite_store, "UPDATE surefoot_marks SET resumes = -5")
    with pytest.raises(MarkCorrupt):
        sqlite_store.acquire("tenant", "t", LONG, over_epoch=1)
    conn = sqlite3.connect(sqlite_store._path)
    assert conn.execute("SELECT epoch, resumes FROM surefoot_marks").fetchall() == [(1, -5)]
    conn.close()


def test_sqlite_table_of_another_kind_is_refused(tmp_path: Path) -> None:
    conn = sqlite3.connect(tmp_path / "b.db")
    conn.execute("CREATE TABLE surefoot_marks (tenant BLOB, thread BLOB, note TEXT)")
    conn.commit()
    conn.close()
    store = SqliteHighWater(tmp_path / "b.db")
    with pytest.raises(MigrationRefused):
        store.setup(verify_only=True)
    with pytest.raises((MigrationRefused, StoreUnavailable, NotSetUp)):
        store.setup()


def test_sqlite_missing_guard_is_noticed_and_repaired(sqlite_store: SqliteHighWater) -> None:
    created(sqlite_store)
    raw(sqlite_store)
    with pytest.raises(MigrationRefused, match="surefoot_marks_epoch"):
        sqlite_store.setup(verify_only=True)
    sqlite_store.setup()
    sqlite_store.setup(verify_only=True)
    assert seen(sqlite_store).epoch == 1


def test_sqlite_missing_folder_is_unavailable(tmp_path: Path) -> None:
    store = SqliteHighWater(tmp_path / "no" / "b.db")
    for call in (store.setup, store.check_durability, lambda: store.read("tenant", "t")):
        with pytest.raises(StoreUnavailable):
            call()


def test_sqlite_folder_instead_of_a_file(tmp_path: Path) -> None:
    store = SqliteHighWater(tmp_path)
    with pytest.raises(Misconfigured):
        store.check_durability()
    with pytest.raises(StoreUnavailable):
        store.read("tenant", "t")


def test_sqlite_read_only_file(open_folder: Path, unprivileged: Callable[[], None]) -> None:
    store = SqliteHighWater(open_folder / "b.db")
    store.setup()
    mark = created(store)
    store._path.chmod(0o444)
    store.close()
    unprivileged()
    store = SqliteHighWater(open_folder / "b.db")
    assert seen(store).epoch == 1
    with pytest.raises(StoreUnavailable, match="readonly"):
        store.publish("tenant", "t", raised(mark))
    with pytest.raises(StoreUnavailable):
        store.acquire("tenant", "t", LONG, over_epoch=1)
    assert seen(store).epoch == 1
    store.close()


def test_sqlite_without_permission(open_folder: Path, unprivileged: Callable[[], None]) -> None:
    store = SqliteHighWater(open_folder / "b.db")
    store.setup()
    store.close()
    store._path.chmod(0)
    unprivileged()
    store = SqliteHighWater(open_folder / "b.db")
    for call in (store.setup, store.check_durability, lambda: store.read("tenant", "t")):
        with pytest.raises(StoreUnavailable):
            call()


def test_sqlite_folder_that_takes_no_files(
    open_folder: Path, unprivileged: Callable[[], None]
) -> None:
    unprivileged()
    open_folder.chmod(0o555)
    with pytest.raises(StoreUnavailable):
        SqliteHighWater(open_folder / "b.db").setup()


def test_sqlite_file_that_takes_no_wal(open_folder: Path, unprivileged: Callable[[], None]) -> None:
    conn = sqlite3.connect(open_folder / "b.db")
    conn.execute("CREATE TABLE t (x)")
    conn.commit()
    conn.close()
    (open_folder / "b.db").chmod(0o444)
    unprivileged()
    with pytest.raises((Misconfigured, StoreUnavailable)):
        SqliteHighWater(open_folder / "b.db").check_durability()


def test_sqlite_weaker_settings_are_refused(sqlite_store: SqliteHighWater) -> None:
    sql = dict(sqlite_store._sql)
    sql["durability"] = sql["durability"].replace("= FULL", "= NORMAL")
    sqlite_store._sql = sql
    sqlite_store._idle.clear()
    with pytest.raises(Misconfigured, match="FULL"):
        sqlite_store.check_durability()
    with pytest.raises(Misconfigured, match="FULL"):
        sqlite_store.read("tenant", "t")


def test_sqlite_on_a_weak_file_system_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqliteHighWater(tmp_path / "b.db")
    monkeypatch.setattr("surefoot.highwater.sqlite._file_system", lambda _: "nfs4")
    with caplog.at_level(logging.WARNING):
        store.check_durability()
    assert "network file system" in caplog.text


@pytest.mark.skipif(not Path("/dev/shm").is_mount(), reason="no tmpfs to look at")
def test_sqlite_sees_a_file_system_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        SqliteHighWater("/dev/shm/surefoot-is-not-here.db").check_durability()
    assert "is lost when the machine stops" in caplog.text


def test_sqlite_waits_for_another_process_and_then_gives_up(tmp_path: Path) -> None:
    store = SqliteHighWater(tmp_path / "b.db", limits=Limits(busy_timeout_ms=300))
    store.setup()
    mark = created(store)
    other = sqlite3.connect(tmp_path / "b.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="300 ms"):
        store.publish("tenant", "t", raised(mark))
    assert seen(store).seq == 0, "readers do not wait"
    other.execute("ROLLBACK")
    assert store.publish("tenant", "t", raised(mark))
    other.close()


def test_sqlite_goes_on_when_the_lock_is_gone(tmp_path: Path) -> None:
    store = SqliteHighWater(tmp_path / "b.db")
    store.setup()
    mark = created(store)
    other = sqlite3.connect(tmp_path / "b.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.5, other.execute, ("ROLLBACK",))
    timer.start()
    assert store.publish("tenant", "t", raised(mark))
    timer.join()
    other.close()


def test_sqlite_replaced_file_is_noticed(tmp_path: Path) -> None:
    store = SqliteHighWater(tmp_path / "b.db")
    store.setup()
    created(store)
    other = SqliteHighWater(tmp_path / "new.db")
    other.setup()
    assert other.publish("tenant", "t", raised(created(other)))
    other.close()
    (tmp_path / "new.db").replace(tmp_path / "b.db")
    for name in ("b.db-wal", "b.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    assert seen(store).seq == 1
    (tmp_path / "b.db").unlink()
    with pytest.raises(NotSetUp):
        store.acquire("tenant", "t", LONG, over_epoch=1)


def test_sqlite_identity_is_that_of_the_file(tmp_path: Path) -> None:
    store = SqliteHighWater(tmp_path / "b.db")
    assert store.server_identity()
    store.setup()
    (tmp_path / "link.db").symlink_to(tmp_path / "b.db")
    linked = SqliteHighWater(tmp_path / "link.db")
    other = SqliteHighWater(tmp_path / "other.db")
    other.setup()
    assert linked.server_identity() == store.server_identity()
    assert other.server_identity() != store.server_identity()
    created(store)
    assert seen(linked).epoch == 1


class FailingCommit:
    """A connection whose commit fails, before or after it was carried out."""

    def __init__(self, conn: sqlite3.Connection, *, carried_out: bool) -> None:
        self._conn = conn
        self._carried_out = carried_out

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)

    def execute(self, statement: str, *params: Any) -> Any:
        if statement == "COMMIT":
            if self._carried_out:
                self._conn.execute(statement)
            raise sqlite3.OperationalError("disk I/O error")
        return self._conn.execute(statement, *params)


@pytest.mark.parametrize("carried_out", [False, True])
def test_sqlite_failed_commit_is_an_unknown_outcome(tmp_path: Path, carried_out: bool) -> None:
    store = SqliteHighWater(tmp_path / "b.db")
    store.setup()
    mark = created(store)

    class Failing(SqliteHighWater):
        def _open(self) -> Any:
            return FailingCommit(super()._open(), carried_out=carried_out)

    failing = Failing(tmp_path / "b.db")
    with pytest.raises(OutcomeUnknown):
        failing.publish("tenant", "t", raised(mark))
    assert seen(store).seq == int(carried_out)
    assert store.publish("tenant", "t", raised(seen(store))), "the lock is free"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("database is locked", StoreUnavailable),
        ("database table is locked", StoreUnavailable),
        ("locking protocol", StoreUnavailable),
        ("database disk image is malformed", MarkCorrupt),
        ("file is not a database", MarkCorrupt),
        ("attempt to write a readonly database", StoreUnavailable),
        ("unable to open database file", NotSetUp),
        ("no such table: surefoot_marks", NotSetUp),
        ("disk I/O error", StoreUnavailable),
        ("database or disk is full", StoreUnavailable),
    ],
)
def test_sqlite_errors_are_understood_without_codes(
    tmp_path: Path, text: str, kind: type[SurefootError]
) -> None:
    """Python 3.10 shows texts only."""
    store = SqliteHighWater(tmp_path / "b.db", limits=Limits(busy_timeout_ms=1))

    def fail() -> None:
        raise sqlite3.OperationalError(text)

    with pytest.raises(SurefootError) as caught:
        store._patiently(fail, thread="t")
    assert type(caught.value) is kind


# --- sudden death -----------------------------------------------------------------------------

KILLED_AT = {
    # Stops before SQLite carries out the commit: the statement has run, nothing is durable.
    "before the commit": (
        "conn = store._open()\n"
        "store._open = lambda: conn\n"
        "stop = lambda text: (print('barrier', flush=True), sys.stdin.read())\n"
        "conn.set_trace_callback(lambda text: stop(text) if text == 'COMMIT' else None)\n"
        "store.acquire('tenant', 't', lease, over_epoch=1)\n"
    ),
    "after the commit": (
        "store.acquire('tenant', 't', lease, over_epoch=1)\n"
        "print('barrier', flush=True)\n"
        "sys.stdin.read()\n"
    ),
}


def killed_at_barrier(script: str, *arguments: str) -> None:
    """Runs a script until it prints a barrier, then kills it there."""
    child = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "barrier\n", "the child never came to the barrier"
    child.kill()
    assert child.wait(30) == -signal.SIGKILL, "the child ended by itself"
    child.stdout.close()
    if child.stdin is not None:
        child.stdin.close()


@pytest.mark.kill
@pytest.mark.parametrize(("where", "epoch"), [("before the commit", 1), ("after the commit", 2)])
def test_sqlite_survives_a_kill_inside_acquire(
    sqlite_store: SqliteHighWater, where: str, epoch: int
) -> None:
    created(sqlite_store)
    head = (
        "import sys\n"
        "from surefoot.highwater import SqliteHighWater\n"
        "from surefoot.ports import Lease\n"
        "store, lease = SqliteHighWater(sys.argv[1]), Lease('killed', 60_000)\n"
    )
    killed_at_barrier(head + KILLED_AT[where], str(sqlite_store._path))
    mark = seen(sqlite_store)
    assert mark.epoch == epoch
    assert mark.owner == ("holder" if epoch == 1 else "killed")
    conn = sqlite3.connect(sqlite_store._path)
    assert conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    conn.close()
    after = sqlite_store.acquire("tenant", "t", LONG, over_epoch=epoch)
    assert after is not None
    assert after.epoch == epoch + 1


def waits_for_a_lock(conn: psycopg.Connection[Any]) -> bool:
    found = conn.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        " AND datname = current_database()"
    ).fetchone()
    return found is not None and found[0] > 0


def until(happened: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(6_000):
        if happened():
            return
        pause.wait(0.005)
    pytest.fail("it never happened")


@pytest.mark.kill
@pytest.mark.postgres
def test_postgres_survives_a_kill_inside_acquire(
    postgres_store: PostgresHighWater, postgres_url: str
) -> None:
    created(postgres_store)
    script = (
        "import sys\n"
        "from surefoot.highwater import PostgresHighWater\n"
        "from surefoot.ports import Lease\n"
        "store = PostgresHighWater(sys.argv[1])\n"
        "store.acquire('tenant', 't', Lease('killed', 60_000), over_epoch=1)\n"
    )
    with (
        psycopg.connect(postgres_url) as holder,
        psycopg.connect(postgres_url, autocommit=True) as watcher,
    ):
        holder.execute("SELECT 1 FROM surefoot_marks FOR UPDATE")
        child = subprocess.Popen([sys.executable, "-c", script, postgres_url])
        until(lambda: waits_for_a_lock(watcher))
        child.kill()
        assert child.wait(30) == -signal.SIGKILL
        holder.rollback()
        until(lambda: not waits_for_a_lock(watcher))
    # The server never learns in time that its client is gone; both outcomes are whole.
    mark = seen(postgres_store)
    assert (mark.epoch, mark.owner, mark.resumes) in {(1, "holder", 0), (2, "killed", 1)}
    after = postgres_store.acquire("tenant", "t", LONG, over_epoch=mark.epoch)
    if after is None:  # the orphan committed between our two looks
        mark = seen(postgres_store)
        after = postgres_store.acquire("tenant", "t", LONG, over_epoch=mark.epoch)
    assert after is not None
    assert after.epoch == mark.epoch + 1


# --- PostgreSQL -------------------------------------------------------------------------------


def end_backends(url: str) -> int:
    """Ends all other sessions of the database and waits until they are gone."""
    with psycopg.connect(url, autocommit=True) as conn:
        ended = conn.execute(
            "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone()
    assert ended is not None
    return int(ended[0])


@pytest.mark.postgres
def test_postgres_ended_backend_between_calls_costs_nothing(
    postgres_store: PostgresHighWater, postgres_url: str
) -> None:
    mark = created(postgres_store)
    for _ in range(10):
        assert end_backends(postgres_url) >= 1, "there was no backend to end"
        assert postgres_store.publish("tenant", "t", raised(mark))
        mark = seen(postgres_store)
    assert mark.seq == 10


@pytest.mark.postgres
def test_postgres_ended_backend_within_a_call_is_an_unknown_outcome(
    postgres_store: PostgresHighWater, postgres_url: str
) -> None:
    mark = created(postgres_store)
    caught: list[BaseException | bool] = []

    def publish() -> None:
        try:
            caught.append(postgres_store.publish("tenant", "t", raised(mark)))
        except OutcomeUnknown as exc:
            caught.append(exc)

    with psycopg.connect(postgres_url) as holder:
        holder.execute("SELECT 1 FROM surefoot_marks FOR UPDATE")
        worker = threading.Thread(target=publish)
        worker.start()
        with psycopg.connect(postgres_url, autocommit=True) as watcher:
            until(lambda: waits_for_a_lock(watcher))
            watcher.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
        worker.join(30)
    assert [type(item) for item in caught] == [OutcomeUnknown]
    assert seen(postgres_store).seq == 0
    assert postgres_store.publish("tenant", "t", raised(mark))


@pytest.mark.postgres
def test_postgres_locked_row_is_unavailable_after_the_limit(
    postgres_store: PostgresHighWater, postgres_url: str
) -> None:
    mark = created(postgres_store)
    hasty = PostgresHighWater(postgres_url, limits=Limits(lock_timeout_ms=200))
    with psycopg.connect(postgres_url) as holder:
        holder.execute("SELECT 1 FROM surefoot_marks FOR UPDATE")
        for call in (
            lambda: hasty.publish("tenant", "t", raised(mark)),
            lambda: hasty.acquire("tenant", "t", LONG, over_epoch=1),
            lambda: hasty.renew("tenant", "t", 1, 1_000),
        ):
            with pytest.raises(StoreUnavailable, match="lock timeout"):
                call()
        assert seen(hasty).seq == 0
    assert hasty.publish("tenant", "t", raised(mark))
    hasty.close()


@pytest.mark.postgres
@pytest.mark.slow
def test_postgres_restarted_server_between_calls_costs_nothing(cluster: Cluster) -> None:
    url = fresh_database(cluster.url)
    own = PostgresHighWater(url)
    own.setup()
    mark = created(own)
    with ConnectionPool(url, min_size=3, open=True) as pool:
        pool.wait()
        given = PostgresHighWater(pool)
        for store in (own, given):
            cluster.restart()
            assert store.publish("tenant", "t", raised(mark))
            mark = seen(store)
    assert mark.seq == 2
    cluster.stop()
    with pytest.raises(StoreUnavailable):
        own.read("tenant", "t")
    cluster.start()
    assert seen(own).seq == 2


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_postgres_that_may_lose_commits_is_refused(cluster: Cluster, setting: str) -> None:
    store = PostgresHighWater(fresh_database(cluster.url))
    store.check_durability()
    cluster.restart(**{setting: "off"})
    try:
        with pytest.raises(Misconfigured, match=setting):
            store.check_durability()
    finally:
        cluster.restart()
    store.check_durability()


@pytest.mark.postgres
def test_postgres_unlogged_table_is_refused(
    postgres_store: PostgresHighWater, postgres_url: str
) -> None:
    postgres_store.check_durability()
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute("ALTER TABLE surefoot_marks SET UNLOGGED")
    with pytest.raises(Misconfigured, match="not permanent"):
        postgres_store.check_durability()


RECORD_COMMITS = """
    CREATE TABLE seen (commits text, op text);
    CREATE FUNCTION record() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      INSERT INTO seen VALUES (current_setting('synchronous_commit'), TG_OP); RETURN NEW;
    END $$;
    CREATE TRIGGER record BEFORE INSERT OR UPDATE ON surefoot_marks
      FOR EACH ROW EXECUTE FUNCTION record();
"""


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("default", "wanted"),
    [("off", "on"), ("local", "on"), ("remote_write", "on"), ("remote_apply", "remote_apply")],
)
def test_postgres_commits_synchronously_whatever_the_session_says(
    postgres_url: str, default: str, wanted: str
) -> None:
    url = make_conninfo(postgres_url, options=f"-c synchronous_commit={default}")
    with ConnectionPool(url, min_size=1, open=True) as pool:
        store = PostgresHighWater(pool)
        store.setup()
        with psycopg.connect(postgres_url, autocommit=True) as conn:
            conn.execute(RECORD_COMMITS)
            mark = created(store)
            assert store.publish("tenant", "t", raised(mark, ttl_ms=0))
            assert store.acquire("tenant", "t", LONG) is not None
            assert store.renew("tenant", "t", 2, 1_000)
            found = conn.execute("SELECT commits, op FROM seen").fetchall()
        assert found == [(wanted, "INSERT"), *[(wanted, "UPDATE")] * 3]
        store.check_durability()
        with pool.connection() as conn:
            assert conn.execute("SHOW synchronous_commit").fetchone() == (default,)


@pytest.mark.postgres
def test_postgres_given_pool_stays_as_it_was(postgres_url: str) -> None:
    kwargs = {"row_factory": dict_row}
    with ConnectionPool(postgres_url, min_size=1, max_size=2, kwargs=kwargs, open=True) as pool:
        store = PostgresHighWater(pool)
        store.setup()
        assert store.publish("tenant", "t", raised(created(store)))
        store.close()
        with pytest.raises(Closed):
            store.read("tenant", "t")
        with pool.connection() as conn:
            assert conn.autocommit is False
            row: Any = conn.execute("SELECT seq FROM surefoot_marks").fetchone()
            assert row == {"seq": 1}
        again = PostgresHighWater(pool, limits=Limits(connect_timeout_ms=300))
        with pool.connection(), pool.connection(), pytest.raises(StoreUnavailable, match="300 ms"):
            again.read("tenant", "t")
        assert seen(again).seq == 1
    with pytest.raises(StoreUnavailable, match="closed"):
        again.read("tenant", "t")


@pytest.mark.postgres
def test_postgres_given_pool_with_ended_backends(postgres_url: str) -> None:
    with ConnectionPool(postgres_url, min_size=4, open=True) as pool:
        pool.wait()
        store = PostgresHighWater(pool)
        store.setup()
        mark = created(store)
        assert end_backends(postgres_url) >= 4
        assert store.publish("tenant", "t", raised(mark))


@pytest.mark.postgres
def test_postgres_connections_are_bounded_and_kept(postgres_url: str) -> None:
    store = PostgresHighWater(postgres_url, limits=Limits(pool_max_connections=2))
    store.setup()
    mark = created(store)
    workers = [threading.Thread(target=store.read, args=("tenant", "t")) for _ in range(12)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        count = conn.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'surefoot-highwater'"
            " AND datname = current_database()"
        ).fetchone()
    assert count is not None
    assert 1 <= count[0] <= 2
    assert store.publish("tenant", "t", raised(mark))
    store.close()


def silent_port() -> tuple[socket.socket, int]:
    """A port that accepts connections and says nothing."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    return server, server.getsockname()[1]


@pytest.mark.parametrize("form", ["url", "keywords"])
def test_postgres_unreachable_is_unavailable_and_tells_no_secret(form: str) -> None:
    server, port = silent_port()
    server.close()
    conninfo = (
        f"postgresql://app:{SECRET}@127.0.0.1:{port}/mark"
        if form == "url"
        else f"host=127.0.0.1 port={port} user=app password={SECRET} dbname=mark"
    )
    store = PostgresHighWater(conninfo)
    for call in (
        store.setup,
        store.check_durability,
        store.server_identity,
        lambda: store.read("tenant", "t"),
        lambda: store.create("tenant", "t", LONG),
    ):
        with pytest.raises(StoreUnavailable) as caught:
            call()
        told = "".join(traceback.format_exception(caught.value)) + repr(caught.value.fields)
        assert SECRET not in told
    assert SECRET not in repr(store) + store.shown
    assert store.shown == f"postgresql://127.0.0.1:{port}/mark"


def test_postgres_that_says_nothing_is_unavailable() -> None:
    server, port = silent_port()
    store = PostgresHighWater(
        f"postgresql://app@127.0.0.1:{port}/mark", limits=Limits(connect_timeout_ms=1_000)
    )
    with server, pytest.raises(StoreUnavailable):
        store.read("tenant", "t")


@pytest.mark.parametrize("conninfo", [f"password={SECRET} =", f"postgresql://a:{SECRET}@[x/y"])
def test_postgres_malformed_address_tells_no_secret(conninfo: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        PostgresHighWater(conninfo)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("schema", ["", 'a"b', "a.b", "1a", "a" * 64, "a;b", "a\n", "ä"])
def test_postgres_schema_is_a_plain_name(schema: str) -> None:
    with pytest.raises(Misconfigured):
        PostgresHighWater("postgresql://h/d", schema=schema)


@pytest.mark.postgres
def test_postgres_identity_is_that_of_the_server(postgres_url: str) -> None:
    first = PostgresHighWater(postgres_url)
    second = PostgresHighWater(fresh_database())
    assert first.server_identity() == second.server_identity()
    assert first.server_identity().startswith("postgresql:system:")


@pytest.mark.postgres
@pytest.mark.slow
def test_postgres_identity_without_permission(cluster: Cluster) -> None:
    urls = [fresh_database(cluster.url) for _ in range(2)]
    for url in urls:
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    names = {PostgresHighWater(fresh_role(url)).server_identity() for url in urls}
    assert len(names) == 1
    assert names.pop().startswith("postgresql:started:")


@pytest.mark.postgres
def test_postgres_role_that_may_only_use_the_table(postgres_url: str) -> None:
    owner = PostgresHighWater(postgres_url, schema="mark")
    owner.setup()
    limited = PostgresHighWater(fresh_role(postgres_url), schema="mark")
    with pytest.raises(Misconfigured, match="permission denied"):
        limited.read("tenant", "t")
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute("GRANT USAGE ON SCHEMA mark TO PUBLIC")
        conn.execute("GRANT SELECT, INSERT, UPDATE ON mark.surefoot_marks TO PUBLIC")
    limited.setup()
    limited.setup(verify_only=True)
    limited.check_durability()
    assert limited.publish("tenant", "t", raised(created(limited)))
    assert seen(owner).seq == 1


@pytest.mark.postgres
def test_postgres_role_that_may_not_create_is_told(postgres_url: str) -> None:
    store = PostgresHighWater(fresh_role(postgres_url), schema="mark")
    with pytest.raises(Misconfigured, match="permission denied"):
        store.setup()


@pytest.mark.postgres
@pytest.mark.parametrize(
    "damage",
    ["digest = '\\x00'", "seq = -1", "state = 'odd'", "resumes = -1", "owner = '\\xff'"],
)
def test_postgres_row_that_is_no_mark_is_refused(
    postgres_store: PostgresHighWater, postgres_url: str, damage: str
) -> None:
    created(postgres_store)
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute("ALTER TABLE surefoot_marks DISABLE TRIGGER USER")
        names = conn.execute(
            "SELECT conname FROM pg_constraint WHERE contype = 'c'"
            " AND conrelid = 'surefoot_marks'::regclass"
        ).fetchall()
        for (name,) in names:
            conn.execute(f"ALTER TABLE surefoot_marks DROP CONSTRAINT {name}".encode())
        conn.execute(f"UPDATE surefoot_marks SET {damage}".encode())
    with pytest.raises(MarkCorrupt):
        postgres_store.read("tenant", "t")
    with pytest.raises(MarkCorrupt):
        list(postgres_store.marks("tenant"))
    with pytest.raises(MigrationRefused, match="trigger"):
        postgres_store.setup(verify_only=True)


@pytest.mark.postgres
def test_postgres_row_that_breaks_its_rules_is_refused(
    postgres_store: PostgresHighWater, postgres_url: str
) -> None:
    created(postgres_store)
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute("ALTER TABLE surefoot_marks DROP CONSTRAINT surefoot_marks_resumes")
        conn.execute("UPDATE surefoot_marks SET resumes = -9")
        conn.execute(
            "ALTER TABLE surefoot_marks ADD CONSTRAINT surefoot_marks_resumes"
            " CHECK (resumes >= 0) NOT VALID"
        )
    with pytest.raises(MarkCorrupt):
        postgres_store.acquire("tenant", "t", LONG, over_epoch=1)


@pytest.mark.postgres
def test_postgres_errors_quote_no_row(postgres_store: PostgresHighWater, postgres_url: str) -> None:
    mark = created(postgres_store)
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute("ALTER TABLE surefoot_marks ADD CONSTRAINT extra CHECK (step < 5)")
    with pytest.raises(SurefootError) as caught:
        postgres_store.publish("tenant", "t", raised(mark, step=9, intents=SECRET.encode()))
    told = "".join(traceback.format_exception(caught.value))
    assert SECRET not in told
    assert SECRET.encode().hex() not in told


@pytest.mark.postgres
def test_postgres_socket_address_is_shown_without_its_user(postgres_url: str) -> None:
    url = with_parts(postgres_url, dbname="mark")
    assert re.fullmatch(r"postgresql://[^@]*/mark", PostgresHighWater(url).shown)
