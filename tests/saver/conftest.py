"""The saver on real stores: SQLite files, and PostgreSQL with a schema of its own per test.

The high-water store is in another file, or in another database. A second saver on the same
addresses shares nothing with the first one but the stores, as another process would.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from tests.postgres import fresh_database

from surefoot import Keyring, SurefootSaver

ROOT = Path(__file__).resolve().parents[2]
TABLES = (
    "surefoot_thread",
    "surefoot_frame",
    "surefoot_value",
    "surefoot_chunk",
    "surefoot_run",
)
_numbers = itertools.count(1)


# --- stores -----------------------------------------------------------------------------------


class Backend:
    """Addresses of a pair of stores that belong to one test.

    Attributes:
        name: ``sqlite`` or ``postgres``.
        url: Address of the content store.
        highwater: Address of the high-water store.
        schema: Of the content store, where it has schemas.
        tenant: Name under which this test's threads live in both stores.
        key_file: Keys that all savers and children of this test use.
    """

    def __init__(
        self, name: str, url: str, highwater: str, schema: str | None, tenant: str, folder: Path
    ) -> None:
        self.name = name
        self.url = url
        self.highwater = highwater
        self.schema = schema
        self.tenant = tenant
        self.key_file = folder / "keys.json"
        self.keys = Keyring.generate()
        self.keys.to_file(self.key_file)
        self._savers: list[SurefootSaver] = []
        self._children: list[subprocess.Popen[str]] = []

    def open_saver(self, *, setup: bool = True, **settings: Any) -> SurefootSaver:
        """A saver on these stores; it shares only the stores with those opened before."""
        given: dict[str, Any] = {
            "highwater": self.highwater,
            "keys": self.keys,
            "schema": self.schema,
            "tenant": self.tenant,
            **settings,
        }
        saver = SurefootSaver(given.pop("conn", self.url), **given)
        self._savers.append(saver)
        if setup:
            saver.setup()
        return saver

    def child(self, source: str, *arguments: str) -> subprocess.Popen[str]:
        """Starts another process that runs ``source`` with ``saver`` opened on these stores."""
        prelude = (
            "import sys\n"
            "from surefoot import Keyring, SurefootSaver\n"
            f"saver = SurefootSaver({self.url!r}, highwater={self.highwater!r},\n"
            f"    keys=Keyring.from_file({str(self.key_file)!r}), schema={self.schema!r},\n"
            f"    tenant={self.tenant!r})\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", prelude + source, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),  # the same sources
                "PYTHONUNBUFFERED": "1",
            },
        )
        self._children.append(process)
        return process

    # --- behind the saver's back ------------------------------------------------------------------

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Runs SQL on the content store; ``?`` stands for a value."""
        return self._execute(self.url, self.schema, statement, values)

    def execute_on_marks(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Runs SQL on the high-water store."""
        return self._execute(self.highwater, None, statement, values)

    def _execute(
        self, url: str, schema: str | None, statement: str, values: tuple[Any, ...]
    ) -> list[tuple[Any, ...]]:
        if self.name == "sqlite":
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as database:
                rows = database.execute(statement, values).fetchall()
                database.commit()
                return rows
        options = None if schema is None else f"-c search_path={schema}"
        with psycopg.connect(url, autocommit=True, options=options) as connection:
            cursor = connection.execute(statement.replace("?", "%s"), values)
            return [] if cursor.description is None else cursor.fetchall()

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """All rows of a table, in any order."""
        return self.execute(f"SELECT * FROM {table}")

    def counts(self) -> dict[str, int]:
        """Number of rows by table."""
        return {table: self.execute(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES}

    def dump(self) -> bytes:
        """Every byte that both stores hold, also what SQLite has deleted but not overwritten."""
        parts: list[bytes] = []
        if self.name == "sqlite":
            for url in (self.url, self.highwater):
                path = Path(url.removeprefix("sqlite:///"))
                parts += [found.read_bytes() for found in path.parent.glob(f"{path.name}*")]
            return b"\0".join(parts)
        rows = [row for table in TABLES for row in self.rows(table)]
        rows += self.execute_on_marks(
            "SELECT * FROM surefoot_marks WHERE tenant = ?", self.tenant.encode()
        )
        return b"\0".join(
            bytes(cell) if isinstance(cell, bytes | memoryview) else str(cell).encode()
            for row in rows
            for cell in row
        )

    def stored_bytes(self) -> int:
        """Bytes of heads and bodies, without what a database adds to each row."""
        total = 0
        for table, columns in (
            ("surefoot_frame", "length(head) + length(body)"),
            ("surefoot_value", "32 + length(body)"),
            ("surefoot_chunk", "length(body)"),
        ):
            total += int(self.execute(f"SELECT coalesce(sum({columns}), 0) FROM {table}")[0][0])
        return total

    def close(self) -> None:
        """Ends children and savers."""
        for process in self._children:
            process.kill()
            process.communicate()
        for saver in self._savers:
            saver.close()


@cache
def _databases() -> tuple[str, str]:
    """Content and high-water database that the tests of this process share."""
    return fresh_database(), fresh_database()


def make_backend(name: str, folder: Path) -> Backend:
    """Stores that nobody has set up yet."""
    number = next(_numbers)
    if name == "sqlite":
        folder = folder / f"stores-{number}"
        folder.mkdir()
        content, marks = f"sqlite:///{folder}/a.db", f"sqlite:///{folder}/b.db"
        return Backend(name, content, marks, None, "default", folder)
    content, marks = _databases()
    folder = folder / f"stores-{number}"
    folder.mkdir()
    return Backend(name, content, marks, f"saver_{number}", f"tenant-{number}", folder)


BACKENDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """A pair of stores, on SQLite and on PostgreSQL."""
    made = make_backend(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def saver(backend: Backend) -> SurefootSaver:
    """A saver that is set up."""
    return backend.open_saver()


@pytest.fixture
def empty_pair() -> tuple[str, str]:
    """Two PostgreSQL databases that hold nothing at all."""
    return fresh_database(), fresh_database()


# --- calling either half ------------------------------------------------------------------------


class Half:
    """One half of a saver's methods, sync or async, called alike: ``await half.put(…)``."""

    def __init__(self, saver: SurefootSaver, *, is_async: bool) -> None:
        self.saver = saver
        self.is_async = is_async

    def on(self, other: SurefootSaver) -> Half:
        """The same half of another saver."""
        return Half(other, is_async=self.is_async)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.is_async:
                return await getattr(self.saver, f"a{name}")(*args, **kwargs)
            return getattr(self.saver, name)(*args, **kwargs)

        return call

    async def list(self, config: Any, **kwargs: Any) -> list[CheckpointTuple]:
        """All of `list` or `alist`."""
        if self.is_async:
            return [found async for found in self.saver.alist(config, **kwargs)]
        return [*self.saver.list(config, **kwargs)]

    async def ids(self, config: Any, **kwargs: Any) -> list[str]:
        """Ids of the checkpoints listed."""
        return [found.checkpoint["id"] for found in await self.list(config, **kwargs)]


@pytest.fixture
def half(backend: Backend, saver: SurefootSaver) -> Half:
    """One half on each store: the sync one on SQLite, the async one on PostgreSQL."""
    return Half(saver, is_async=backend.name == "postgres")


@pytest.fixture(params=["sync", "async"])
def each_half(request: pytest.FixtureRequest, saver: SurefootSaver) -> Half:
    """Both halves on both stores, for what is at the heart or where they differ."""
    return Half(saver, is_async=request.param == "async")


# --- what is put ----------------------------------------------------------------------------------


def at(
    thread: str, checkpoint_id: str | None = None, *, namespace: str | None = ""
) -> dict[str, Any]:
    """A config; ``namespace=None`` leaves it out."""
    configurable = {"thread_id": thread}
    if namespace is not None:
        configurable["checkpoint_ns"] = namespace
    if checkpoint_id is not None:
        configurable["checkpoint_id"] = checkpoint_id
    return {"configurable": configurable}


def checkpoint(checkpoint_id: str | None = None, **values: Any) -> dict[str, Any]:
    """A checkpoint with these channels, each at a version of its own."""
    made: dict[str, Any] = {**empty_checkpoint()}
    if checkpoint_id is not None:
        made["id"] = checkpoint_id
    made["channel_values"] = values
    made["channel_versions"] = dict.fromkeys(values, next(_numbers))
    return made


def metadata(step: int = 0, **extra: Any) -> dict[str, Any]:
    """Metadata as a loop writes it."""
    return {"source": "loop", "step": step, "parents": {}, **extra}


async def put(
    half: Half,
    config: Mapping[str, Any],
    checkpoint_id: str | None = None,
    *,
    meta: Mapping[str, Any] | None = None,
    **values: Any,
) -> dict[str, Any]:
    """Puts a checkpoint with these channel values; all of them are new."""
    made = checkpoint(checkpoint_id, **values)
    stored: dict[str, Any] = await half.put(
        config, made, dict(meta or metadata()), made["channel_versions"]
    )
    return stored


async def put_chain(
    half: Half, thread: str, *checkpoint_ids: str, namespace: str = ""
) -> dict[str, Any]:
    """Puts checkpoints, each the parent of the next one; gives the last one's config."""
    config = at(thread, namespace=namespace)
    for step, checkpoint_id in enumerate(checkpoint_ids):
        config = await put(half, config, checkpoint_id, meta=metadata(step), n=step)
    return config
