"""The shipped conformance suite on both drivers, and proof that it can fail."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.postgres import fresh_database

from surefoot.highwater import PostgresHighWater, SqliteHighWater
from surefoot.ports import HighWater, Lease, Mark
from surefoot.testing import (
    ConformanceFailure,
    ConformanceReport,
    HighWaterConformance,
    run_highwater_conformance,
)

NAMES = HighWaterConformance(lambda: SqliteHighWater("unused.db")).names()
IN_ONE_PROCESS = [name for name in NAMES if not name.endswith("_processes")]


@pytest.mark.parametrize("name", NAMES)
def test_sqlite_conforms(name: str, tmp_path: Path) -> None:
    run_highwater_conformance(
        partial(SqliteHighWater, tmp_path / "b.db"), only=[name]
    ).raise_if_failed()


@pytest.fixture(scope="module")
def shared_url() -> str:
    return fresh_database()


@pytest.mark.postgres
@pytest.mark.parametrize("name", NAMES)
def test_postgres_conforms(name: str, shared_url: str) -> None:
    run_highwater_conformance(partial(PostgresHighWater, shared_url), only=[name]).raise_if_failed()


@pytest.mark.postgres
@pytest.mark.parametrize("isolation", ["repeatable\\ read", "serializable"])
def test_postgres_conforms_whatever_the_default_isolation(isolation: str, shared_url: str) -> None:
    option = f"-c default_transaction_isolation={isolation}"
    url = make_conninfo(shared_url, options=option)
    with psycopg.connect(url) as conn:
        shown = conn.execute("SHOW transaction_isolation").fetchone()
    assert shown == (isolation.replace("\\", ""),)
    races = [name for name in IN_ONE_PROCESS if name.startswith("race_")]
    run_highwater_conformance(
        partial(PostgresHighWater, url, schema="isolated"), only=races
    ).raise_if_failed()


@pytest.mark.postgres
def test_postgres_in_a_schema_conforms(shared_url: str) -> None:
    factory = partial(PostgresHighWater, shared_url, schema="Mark")
    run_highwater_conformance(factory, only=IN_ONE_PROCESS).raise_if_failed()


# --- the suite has teeth ----------------------------------------------------------------------


class Mutant(SqliteHighWater):
    """The SQLite driver with a piece of one statement replaced, and no guard in the schema."""

    def __init__(self, path: Path, statement: str, old: str, new: str) -> None:
        super().__init__(path)
        sql = dict(self._sql)
        assert old in sql[statement], "the mutation does not apply"
        sql[statement] = sql[statement].replace(old, new, 1)
        self._sql = sql

    def setup(self, *, verify_only: bool = False) -> None:
        super().setup(verify_only=verify_only)
        without_guards(self._path)
        # The second set-up would repair the guards, so it is left out.
        self.setup = lambda **_: None  # type: ignore[method-assign]


def without_guards(path: Path) -> None:
    conn = sqlite3.connect(path, isolation_level=None)
    names = conn.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for (name,) in names:
        conn.execute(f"DROP TRIGGER IF EXISTS {name}")
    conn.close()


NOW = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
DEAD = "CASE WHEN state = 'tombstone' THEN"
MUTANTS = [
    # (statement, piece, instead, a check that must notice)
    ("publish", "AND epoch = :epoch", "", "publish_compares"),
    ("publish", "AND seq = :seq", "", "publish_compares"),
    ("publish", "AND digest = :digest", "", "publish_compares"),
    ("publish", "AND thread = :thread", "", "ids"),
    ("publish", "WHERE tenant = :tenant", "WHERE tenant > ''", "tenants"),
    ("publish", "CASE WHEN :ttl_ms = 0 THEN 0", "CASE WHEN 1 THEN lease_until_ms", "publish_frees"),
    ("publish", "clean = :clean", "clean = max(clean, :clean)", "clean"),
    ("publish", "tainted = CASE WHEN :folded THEN 0", "tainted = CASE WHEN 0 THEN 0", "taint"),
    ("publish", "tainted = CASE WHEN :folded", "tainted = CASE WHEN :clean", "taint"),
    ("publish", "resumes = CASE WHEN :folded", "resumes = CASE WHEN 1", "taint"),
    ("publish", "resumes = CASE WHEN :folded", "resumes = CASE WHEN 0", "taint"),
    ("publish", "state = :state", "state = 'live'", "frozen"),
    ("publish", "intents = :intents", "intents = intents || :intents", "intents"),
    ("publish", "step = :step", "step = max(step, :step)", "numbers"),
    ("acquire", "epoch = epoch + 1", "epoch = epoch", "epochs_grow_by_one"),
    ("acquire", "epoch = epoch + 1", f"epoch = {DEAD} 1 ELSE epoch + 1 END", "tombstone"),
    ("acquire", f"lease_until_ms <= {NOW}", "1", "lease_excludes"),
    ("acquire", f"lease_until_ms <= {NOW}", "lease_until_ms = 0", "lease_expires"),
    ("acquire", f"lease_until_ms <= {NOW}", f"lease_until_ms - 100 <= {NOW}", "lease_expires"),
    ("acquire", "epoch = :over_epoch", "epoch >= :over_epoch", "over_epoch"),
    ("acquire", "epoch = :over_epoch", "epoch <= :over_epoch", "over_epoch"),
    ("acquire", "epoch = :over_epoch", "0", "over_epoch"),
    ("acquire", "AND state <> 'frozen'", "", "frozen"),
    ("acquire", "WHEN clean = 0 THEN 1 ELSE tainted", "ELSE tainted", "taint"),
    ("acquire", "WHEN clean = 0 THEN 1 ELSE tainted", "ELSE 1 - clean", "taint"),
    ("acquire", "WHEN clean = 0 THEN resumes + 1 ELSE resumes", "ELSE resumes", "taint"),
    (
        "acquire",
        "WHEN clean = 0 THEN resumes + 1",
        "ELSE resumes + 1 END, step = CASE WHEN 0 THEN 0",
        "clean",
    ),
    ("acquire", "clean = 0,\n", "clean = clean,\n", "clean"),
    ("acquire", "THEN incarnation + 1", "THEN incarnation", "tombstone"),
    ("acquire", f"seq = {DEAD} 0", f"seq = {DEAD} seq", "tombstone"),
    ("acquire", f"intents = {DEAD} x''", f"intents = {DEAD} intents", "tombstone"),
    ("acquire", f"tainted = {DEAD} 0", f"tainted = {DEAD} 1", "tombstone"),
    ("acquire", "owner = :owner", "owner = owner", "epochs_grow_by_one"),
    ("create", "DO NOTHING", "DO UPDATE SET owner = :owner", "create"),
    ("renew", "AND epoch = :epoch", "", "renew"),
    ("renew", f"{NOW} + :ttl_ms", "lease_until_ms", "renew"),
    ("marks", "ORDER BY thread", "ORDER BY rowid", "pages"),
    ("marks", "thread >= :from_thread", "thread > :from_thread", "ids"),
    ("marks", "LIMIT :page", "LIMIT 10", "pages"),
    ("marks", "tenant = :tenant", "tenant >= :tenant", "tenants"),
    ("marks_with_intents", " AND length(intents) > 0", "", "intents_listed"),
    ("marks_with_intents", "LIMIT :page", "LIMIT 2", "intents_listed"),
    ("read", "thread = :thread", "lower(thread) = lower(:thread)", "ids"),
]


@pytest.mark.parametrize(("statement", "old", "new", "noticed_by"), MUTANTS)
def test_a_broken_statement_fails(
    statement: str,
    old: str,
    new: str,
    noticed_by: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("surefoot.testing.highwater_suite.EXPIRY_S", 1.0)
    report = run_highwater_conformance(
        lambda: Mutant(tmp_path / "b.db", statement, old, new), only=[noticed_by]
    )
    assert not report.passed
    with pytest.raises(ConformanceFailure, match=noticed_by):
        report.raise_if_failed()


class Deleting(SqliteHighWater):
    """Forgets a thread when it is deleted, as a cache would."""

    def publish(self, tenant: str, thread: str, publish: object) -> bool:
        done = super().publish(tenant, thread, publish)  # type: ignore[arg-type]
        if done and getattr(publish, "state", "") == "tombstone":
            without_guards(self._path)
            conn = sqlite3.connect(self._path, isolation_level=None)
            conn.execute("DELETE FROM surefoot_marks WHERE thread = ?", (thread.encode(),))
            conn.close()
        return done


class ReadThenWrite(SqliteHighWater):
    """Looks whether the lease is free and then takes it, as two steps."""

    def acquire(
        self, tenant: str, thread: str, lease: Lease, *, over_epoch: int | None = None
    ) -> Mark | None:
        mark = self.read(tenant, thread)
        if mark is None or (mark.lease_left_ms > 0 and mark.epoch != over_epoch):
            return None
        threading.Event().wait(0.02)  # the gap in which others look, too
        after = super().acquire(tenant, thread, lease, over_epoch=mark.epoch)
        return after or self.read(tenant, thread)


class Lossy(SqliteHighWater):
    """Says that it has published without having compared."""

    def publish(self, tenant: str, thread: str, publish: object) -> bool:
        super().publish(tenant, thread, publish)  # type: ignore[arg-type]
        return True


class Shortening(SqliteHighWater):
    """Cuts ids as a column of limited width would."""

    def _ids(self, tenant: str, thread: str) -> dict[str, object]:
        ids = super()._ids(tenant, thread)
        return {name: value[:1_000] for name, value in ids.items()}


class Unavailable(SqliteHighWater):
    """Answers nothing."""

    def read(self, tenant: str, thread: str) -> Mark | None:
        raise OSError("no answer")


@pytest.mark.parametrize(
    ("kind", "noticed_by"),
    [
        (Deleting, "tombstone"),
        (ReadThenWrite, "race_acquire_threads"),
        (ReadThenWrite, "race_acquire_processes"),
        (ReadThenWrite, "race_takeover"),
        (Lossy, "race_publish_threads"),
        (Lossy, "race_publish_processes"),
        (Lossy, "publish_compares"),
        (Shortening, "ids"),
        (Unavailable, "create"),
    ],
)
def test_a_broken_store_fails(
    kind: Callable[[Path], HighWater], noticed_by: str, tmp_path: Path
) -> None:
    # A race that a store loses shows in one round or another; a sound store never fails one.
    rounds = 10 if noticed_by.startswith("race_") else 1
    reports = (
        run_highwater_conformance(partial(kind, tmp_path / f"b{number}.db"), only=[noticed_by])
        for number in range(rounds)
    )
    assert any(not report.passed for report in reports)


def test_a_store_without_guards_still_conforms(tmp_path: Path) -> None:
    """The mutants fail because of their mutation, not because their guards are gone."""
    run_highwater_conformance(
        lambda: Mutant(tmp_path / "b.db", "read", "SELECT", "SELECT"), only=IN_ONE_PROCESS
    ).raise_if_failed()


def test_no_checks_is_a_failure(tmp_path: Path) -> None:
    report = run_highwater_conformance(lambda: SqliteHighWater(tmp_path / "b.db"), only=[])
    assert not report.passed
    with pytest.raises(ConformanceFailure, match="no check"):
        report.raise_if_failed()
    with pytest.raises(ConformanceFailure):
        ConformanceReport(()).raise_if_failed()


def test_an_unknown_check_is_a_failure(tmp_path: Path) -> None:
    report = run_highwater_conformance(lambda: SqliteHighWater(tmp_path / "b.db"), only=["nope"])
    assert [result.passed for result in report.results] == [False]


def test_a_factory_that_cannot_travel_is_a_failure_not_a_hang(tmp_path: Path) -> None:
    report = run_highwater_conformance(
        lambda: SqliteHighWater(tmp_path / "b.db"), only=["race_acquire_processes"]
    )
    assert not report.passed
    assert "pickle" in report.failures[0].detail


def test_the_suite_has_every_check_it_had() -> None:
    assert len(NAMES) == len(set(NAMES)) == 34
