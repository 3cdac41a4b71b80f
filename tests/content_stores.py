"""Content stores as their attacker sees them: raw SQL, copies of every byte, copies put back."""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
from tests.postgres import fresh_database

__all__ = ["TABLES", "PostgresStore", "SqliteStore"]

TABLES = ("surefoot_thread", "surefoot_frame", "surefoot_value", "surefoot_chunk", "surefoot_run")
_schemas = itertools.count(1)


class SqliteStore:
    """Two SQLite files; the content file is what the attacker holds."""

    dialect = "sqlite"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "content.db"
        self.url, self.marks = f"sqlite:///{self.path}", f"sqlite:///{folder}/marks.db"
        self.schema: str | None = None

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Runs SQL behind the saver's back."""
        with closing(sqlite3.connect(self.path, timeout=30)) as database:
            rows = database.execute(statement, values).fetchall()
            database.commit()
            return rows

    def snapshot(self) -> Any:
        """A copy of every byte, taken while nobody has the file open."""
        copy = self.path.with_suffix(".copy")
        shutil.copy2(self.path, copy)
        return copy

    def restore(self, token: Any) -> None:
        """Puts the copy back."""
        for side in ("-wal", "-shm", "-journal"):
            self.path.with_name(self.path.name + side).unlink(missing_ok=True)
        shutil.copy2(token, self.path)

    def drop(self) -> None:
        """The folder goes with the test."""


@cache
def _databases() -> tuple[str, str]:
    return fresh_database(), fresh_database()


class PostgresStore:
    """A schema of a real PostgreSQL, and a high-water store in another database."""

    dialect = "postgres"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url, self.marks = _databases()
        self.schema = f"agmi_{os.getpid()}_{next(_schemas)}"

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Runs SQL behind the saver's back."""
        path = f"-c search_path={self.schema}"
        with psycopg.connect(self.url, autocommit=True, options=path) as connection:
            cursor = connection.execute(statement.replace("?", "%s").encode(), values)
            return [] if cursor.description is None else cursor.fetchall()

    def snapshot(self) -> Any:
        """Every row of every table in PostgreSQL's binary form."""
        copied: dict[str, bytes] = {}
        with psycopg.connect(self.url, autocommit=True) as connection:
            for table in TABLES:
                copy = f"COPY {self.schema}.{table} TO STDOUT (FORMAT BINARY)"
                with connection.cursor().copy(copy.encode()) as rows:
                    copied[table] = b"".join(bytes(row) for row in rows)
        return copied

    def restore(self, token: Any) -> None:
        """Puts the rows back."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for table, raw in token.items():
                connection.execute(f"TRUNCATE {self.schema}.{table}".encode())
                copy = f"COPY {self.schema}.{table} FROM STDIN (FORMAT BINARY)"
                with connection.cursor().copy(copy.encode()) as rows:
                    rows.write(raw)

    def drop(self) -> None:
        """Drops the schema."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE".encode())
