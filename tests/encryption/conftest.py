"""Pairs of stores, encrypted and plain, and a search through all that they hold."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import zstandard
from psycopg import sql
from tests.saver.conftest import BACKENDS, Backend, make_backend

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


@pytest.fixture(params=BACKENDS)
def new_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Backend]]:
    """Makes fresh stores, on SQLite and on PostgreSQL."""
    made: list[Backend] = []

    def make() -> Backend:
        made.append(make_backend(request.param, tmp_path))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


@pytest.fixture
def backend(new_backend: Callable[[], Backend]) -> Backend:
    """One pair of stores."""
    return new_backend()


def everything_in(backend: Backend) -> list[bytes]:
    """All that both stores hold: raw files or COPY of all tables, and what is compressed in it."""
    if backend.name == "sqlite":
        raw = [*_files(backend.url), *_files(backend.highwater)]
    else:
        raw = [
            *_copied(backend.url, backend.schema or "public"),
            *_copied(backend.highwater, "public"),
        ]
    if not raw:
        raise AssertionError("a search through nothing finds nothing")
    return [piece for part in raw for piece in _inflated(part)]


def _files(url: str) -> Iterator[bytes]:
    path = Path(url.removeprefix("sqlite:///"))
    for found in path.parent.glob(f"{path.name}*"):
        yield found.read_bytes()
    # A value that is longer than a page lies in pieces; the cells show it whole.
    with closing(sqlite3.connect(path)) as database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            for row in database.execute(f'SELECT * FROM "{table}"'):
                for cell in row:
                    yield cell if isinstance(cell, bytes) else str(cell).encode()


def _copied(url: str, schema: str) -> Iterator[bytes]:
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)
        ).fetchall()
        for (table,) in tables:
            statement = sql.SQL("COPY {} TO STDOUT (FORMAT binary)").format(
                sql.Identifier(schema, table)
            )
            with connection.cursor() as cursor, cursor.copy(statement) as copy:
                yield b"".join(map(bytes, copy))


def _inflated(raw: bytes) -> Iterator[bytes]:
    """The bytes, and what every compressed frame inside them holds."""
    yield raw
    at = raw.find(_ZSTD_MAGIC)
    while at >= 0:
        try:
            inside = zstandard.ZstdDecompressor().decompressobj().decompress(raw[at:])
        except zstandard.ZstdError:
            inside = b""  # four bytes that only look like the beginning of a frame
        if inside:
            yield from _inflated(inside)
        at = raw.find(_ZSTD_MAGIC, at + 1)
