"""The places where the content store's suite runs: the same tests over every driver."""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.postgres import fresh_database

from surefoot.config import Limits
from surefoot.ports import Append, ChunkRow, ContentStore, FrameRow, HeadRow
from surefoot.store.postgres import PostgresContentStore
from surefoot.store.sqlite import SqliteContentStore

CHILD = Path(__file__).parent / "child.py"
TABLES = ("thread", "frame", "value", "chunk", "run")
_schemas = itertools.count(1)


@cache
def shared_database() -> str:
    """One database for all tests; each has a schema of its own in it."""
    return fresh_database()


@dataclass
class Place:
    """An empty database of one dialect, and ways into it.

    Attributes:
        dialect: ``sqlite`` or ``postgres``.
        target: File or connection string.
        schema: In Postgres.
    """

    dialect: str
    target: str
    schema: str | None = None
    _opened: list[ContentStore] = field(default_factory=list)

    def open(self, limits: Limits | None = None) -> ContentStore:
        """Another store on this database, as another process would have it."""
        store: ContentStore
        if self.dialect == "sqlite":
            store = SqliteContentStore(self.target, limits=limits)
        else:
            store = PostgresContentStore(self.target, schema=self.schema, limits=limits)
        self._opened.append(store)
        return store

    def ready(self, limits: Limits | None = None) -> ContentStore:
        """The same with the tables created."""
        store = self.open(limits)
        store.setup()
        return store

    def execute(self, text: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Executes SQL behind the store's back; tables are named without a schema."""
        if self.dialect == "sqlite":
            lite = sqlite3.connect(self.target, isolation_level=None)
            try:
                return lite.execute(text, parameters).fetchall()
            finally:
                lite.close()
        with psycopg.connect(self.target, autocommit=True) as connection:
            path = sql.SQL("SET search_path = {}").format(sql.Identifier(self.schema or "public"))
            connection.execute(path)
            cursor = connection.execute(text.replace("?", "%s").encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def counts(self) -> Mapping[str, int]:
        """Rows per table."""
        return {
            name: self.execute(f"SELECT count(*) FROM surefoot_{name}")[0][0] for name in TABLES
        }

    def contents(self) -> Mapping[str, list[tuple[Any, ...]]]:
        """Every row of every table, to see that nothing at all has changed."""
        return {
            name: sorted(self.execute(f"SELECT * FROM surefoot_{name}"), key=repr)
            for name in TABLES
        }

    def child(self, *command: str) -> subprocess.Popen[str]:
        """Another process on this database; it waits for a line before it begins."""
        place = json.dumps([self.dialect, self.target, self.schema])
        return subprocess.Popen(
            [sys.executable, str(CHILD), place, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def close(self) -> None:
        for store in self._opened:
            store.close()


class FailingCommit:
    """A connection whose COMMIT ends in an error of the disk."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    def execute(self, statement: str, *rest: object) -> object:
        if statement == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(statement, *rest)  # type: ignore[arg-type]


def together(children: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Lets all children begin at once; gives what each printed."""
    for child in children:
        assert child.stdout is not None
        if child.stdout.readline() != "ready\n":
            raise AssertionError(child.communicate()[1])
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    outputs = [child.communicate(timeout=100) for child in children]
    assert [
        (child.returncode, errors) for child, (_, errors) in zip(children, outputs, strict=True)
    ] == [(0, "") for _ in children]
    return [out for out, _ in outputs]


def digest_of(seq: int, epoch: int = 1) -> bytes:
    return seq.to_bytes(16, "big") + epoch.to_bytes(16, "big")


def head(seq: int, epoch: int = 1) -> HeadRow:
    return HeadRow(seq, epoch, digest_of(seq, epoch))


def step(
    seq: int,
    *,
    after: HeadRow | None = None,
    thread: str = "thread",
    tenant: str = "tenant",
    epoch: int = 1,
    body: bytes | None = None,
    **rest: Any,
) -> Append:
    """An append whose frame has this seq; ``after`` is None for the first one."""
    body = b"body %d" % seq if body is None else body
    frame = FrameRow(seq, epoch, b"head %d" % seq, body)
    return Append(
        tenant=tenant,
        thread=thread,
        incarnation=rest.pop("incarnation", 1),
        expected=after,
        head=head(seq, epoch),
        frame=frame,
        **rest,
    )


def full_step(seq: int, *, after: HeadRow | None, **rest: Any) -> Append:
    """The same with something for every table."""
    return step(
        seq,
        after=after,
        checkpoint_hash=seq.to_bytes(8, "big"),
        values=[(digest_of(seq, 77), b"value %d" % seq)],
        chunks=[ChunkRow(1, seq, b"chunk %d" % seq), ChunkRow(seq, 0, b"own log")],
        run_ids=[f"run {seq}"],
        **rest,
    )


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Iterator[Place]:
    place = Place("sqlite", str(tmp_path / "content.db"))
    yield place
    place.close()


@pytest.fixture
def postgres_place() -> Iterator[Place]:
    place = Place("postgres", shared_database(), f"s{next(_schemas)}")
    yield place
    place.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found


@pytest.fixture
def store(place: Place) -> ContentStore:
    return place.ready()


@pytest.fixture
def chain(store: ContentStore) -> Callable[..., int]:
    """Appends several steps to a thread; gives its key."""

    def chained(last: int, *, make: Callable[..., Append] = step, **rest: Any) -> int:
        key: int | None = None
        for seq in range(1, last + 1):
            key = store.append(make(seq, after=head(seq - 1) if seq > 1 else None, **rest))
            assert key is not None
        assert key is not None
        return key

    return chained
