"""What only the SQLite driver has to stand."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from tests.store.conftest import FailingCommit, Place, full_step, head, step, together

from surefoot.config import Limits
from surefoot.errors import Misconfigured, NotSetUp, OutcomeUnknown, StoreUnavailable
from surefoot.store import sqlite
from surefoot.store.sqlite import SqliteContentStore


def test_two_processes_with_a_thousand_appends_each(sqlite_place: Place) -> None:
    sqlite_place.ready()
    children = [sqlite_place.child("append", thread, "1000") for thread in ("a", "b")]
    assert together(children) == ["1000\n"] * 2
    assert sqlite_place.counts()["frame"] == 2_000


def test_a_lock_that_is_never_given_back_is_named(sqlite_place: Place) -> None:
    store = sqlite_place.ready(Limits(busy_timeout_ms=150))
    holder = sqlite3.connect(sqlite_place.target, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="SQLITE_BUSY: locked for more than 150 ms"):
        store.append(step(1))
    assert store.read_thread("tenant", "thread") is None, "readers do not wait for writers"
    holder.execute("ROLLBACK")
    holder.close()
    assert store.append(step(1)) is not None


def test_every_connection_waits_for_the_disk(sqlite_place: Place) -> None:
    store = sqlite_place.ready()
    assert isinstance(store, SqliteContentStore)
    store.check_durability()
    with store._session(0.0) as session:
        execute = session.connection.execute
        assert execute("PRAGMA synchronous").fetchone() == (2,)
        assert execute("PRAGMA journal_mode").fetchone() == (b"wal",)
        assert execute("PRAGMA fullfsync").fetchone() == (1,)


def test_another_journal_mode_is_refused(sqlite_place: Place) -> None:
    sqlite_place.ready().close()
    sqlite_place.execute("PRAGMA journal_mode = DELETE")
    store = sqlite_place.open()
    with pytest.raises(Misconfigured, match="journal_mode=delete"):
        store.check_durability()
    store.setup()
    store.check_durability()


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_memory_is_refused(path: str) -> None:
    with pytest.raises(Misconfigured, match="in-memory"):
        SqliteContentStore(path)


def test_a_missing_file_is_not_created_by_reading(tmp_path: Path) -> None:
    store = SqliteContentStore(tmp_path / "no.db")
    with pytest.raises(NotSetUp, match="does not exist"):
        store.read_thread("t", "x")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder(tmp_path: Path) -> None:
    store = SqliteContentStore(tmp_path / "no" / "no.db")
    with pytest.raises(StoreUnavailable, match="CANTOPEN"):
        store.setup()


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("no database " * 1_000)
    store = SqliteContentStore(path)
    for call in (store.setup, lambda: store.read_thread("t", "x")):
        with pytest.raises(StoreUnavailable, match="NOTADB"):
            call()


def test_paths_that_look_like_addresses(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=memory&b#c%20d é.db"
    store = SqliteContentStore(path)
    store.setup()
    assert store.append(step(1)) is not None
    store.close()
    assert path.stat().st_size > 0


def test_a_read_only_file(sqlite_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sqlite_place.ready().close()
    if os.geteuid() == 0:  # file modes do not hold for root
        monkeypatch.setattr(sqlite, "_SETTINGS", (*sqlite._SETTINGS, "PRAGMA query_only = ON"))
    else:
        Path(sqlite_place.target).chmod(0o444)
    store = sqlite_place.open()
    with pytest.raises(StoreUnavailable, match="READONLY"):
        store.append(step(1))
    assert store.read_thread("tenant", "thread") is None


def test_a_full_disk(sqlite_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_SETTINGS", (*sqlite._SETTINGS, "PRAGMA max_page_count = 40"))
    store = sqlite_place.ready()
    with pytest.raises(StoreUnavailable, match="SQLITE_FULL"):
        store.append(step(1, body=bytes(1_000_000)))
    assert set(sqlite_place.counts().values()) == {0}
    assert store.append(step(1)) is not None


def test_a_commit_without_an_answer_is_unknown(
    sqlite_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = sqlite_place.ready()
    taken = sqlite._Connections.take
    with monkeypatch.context() as patched:
        patched.setattr(sqlite._Connections, "take", lambda *a, **k: FailingCommit(taken(*a, **k)))
        with pytest.raises(OutcomeUnknown, match="IOERR"):
            store.append(step(1))
    assert store.append(step(1)) is not None


def test_triggers_of_others_may_not_call_functions(sqlite_place: Place) -> None:
    """The file is not trusted: a schema that somebody edited reaches no loaded function."""
    store = sqlite_place.ready()
    with sqlite_place.open()._session(0.0) as session:  # type: ignore[attr-defined]
        assert session.connection.execute("PRAGMA trusted_schema").fetchone() == (0,)
    assert store.append(full_step(1, after=None)) is not None
    assert store.append(full_step(2, after=head(1))) is not None


def test_idle_connections_are_bounded(sqlite_place: Place) -> None:
    store = sqlite_place.ready(Limits(pool_max_connections=2))
    assert isinstance(store, SqliteContentStore)
    with store._session(9e9), store._session(9e9), store._session(9e9):
        pass
    assert len(store._connections._idle) == 2
