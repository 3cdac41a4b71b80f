"""The tables of a content store, changed behind the saver's back as somebody with write access can.

Rows are named by their primary key. Every change proves that it hit exactly one row.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from tests.postgres import with_parts

__all__ = [
    "COLUMNS",
    "KEYS",
    "Blocked",
    "Content",
    "Rows",
    "copied_database",
    "drop_database",
    "open_content",
]

_numbers = itertools.count(1)

#: Rows of each table, each as a tuple of its columns.
Rows: TypeAlias = Mapping[str, Sequence[tuple[Any, ...]]]

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "surefoot_thread": (
        "key",
        "tenant",
        "thread",
        "incarnation",
        "head_seq",
        "head_epoch",
        "head_digest",
        "created_us",
        "updated_us",
        "has_open",
    ),
    "surefoot_frame": ("thread_key", "last_seq", "epoch", "checkpoint_hash", "head", "body"),
    "surefoot_value": ("thread_key", "digest", "body"),
    "surefoot_chunk": ("thread_key", "log_id", "ordinal", "body"),
    "surefoot_run": ("run_digest", "thread_key"),
    "surefoot_migration": ("number", "name", "digest", "applied_us"),
}
KEYS: Mapping[str, tuple[str, ...]] = {
    "surefoot_thread": ("key",),
    "surefoot_frame": ("thread_key", "last_seq", "epoch"),
    "surefoot_value": ("thread_key", "digest"),
    "surefoot_chunk": ("thread_key", "log_id", "ordinal"),
    "surefoot_run": ("run_digest", "thread_key"),
    "surefoot_migration": ("number",),
}


class Blocked(Exception):
    """The database's own schema does not let a change through."""


class Content:
    """One connection to the tables. ``?`` stands for a value in both dialects.

    Attributes:
        loose: Constraints and column types are gone (`loosen`).
    """

    def __init__(self, connection: Any, *, postgres: bool) -> None:
        self._connection = connection
        self.postgres = postgres
        self.loose = False

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """Runs one statement in a transaction of its own.

        Raises:
            Blocked: A constraint is in the way.
        """
        try:
            if self.postgres:
                return self._connection.execute(statement.replace("?", "%s"), values)
            return self._connection.execute(statement, values)
        except (sqlite3.IntegrityError, psycopg.IntegrityError) as error:
            raise Blocked(str(error)) from None
        except (psycopg.errors.DataError, OverflowError) as error:
            raise Blocked(str(error)) from None

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    # --- reading ----------------------------------------------------------------------------------

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """All rows of a table, by key."""
        order = ", ".join(KEYS[table])
        columns = ", ".join(COLUMNS[table])
        found = self.execute(f"SELECT {columns} FROM {table} ORDER BY {order}").fetchall()
        return [tuple(row) for row in found]

    def dump(self) -> Rows:
        """All rows of all tables."""
        return {table: self.rows(table) for table in COLUMNS}

    # --- changing ---------------------------------------------------------------------------------

    def change(self, table: str, row: tuple[Any, ...], column: str, value: Any) -> tuple[Any, ...]:
        """Changes one column of one row; gives the row as it is then.

        Raises:
            Blocked: A constraint is in the way.
        """
        at = COLUMNS[table].index(column)
        keys = [row[COLUMNS[table].index(name)] for name in KEYS[table]]
        where = " AND ".join(f"{name} = ?" for name in KEYS[table])
        done = self.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value, *keys))
        if done.rowcount != 1:
            raise AssertionError(f"{table}: meant one row, changed {done.rowcount}")
        return (*row[:at], value, *row[at + 1 :])

    def replace(self, table: str, old: tuple[Any, ...] | None, new: tuple[Any, ...] | None) -> None:
        """Takes away a row, puts one in, or both.

        Raises:
            Blocked: A constraint is in the way.
        """
        if old is not None:
            keys = [old[COLUMNS[table].index(name)] for name in KEYS[table]]
            same = "=" if not self.loose else "IS NOT DISTINCT FROM" if self.postgres else "IS"
            where = " AND ".join(f"{name} {same} ?" for name in KEYS[table])
            done = self.execute(f"DELETE FROM {table} WHERE {where}", keys)
            if done.rowcount != 1:
                raise AssertionError(f"{table}: meant one row, deleted {done.rowcount}")
        self._insert(table, [] if new is None else [new])

    def put_back(self, rows: Rows, present: Rows) -> None:
        """Makes these tables hold exactly these rows, in one transaction.

        Args:
            rows: What each table shall hold.
            present: What they hold now; only the difference is written.

        Raises:
            Blocked: A constraint is in the way; then nothing is changed.
        """
        self.execute("BEGIN")
        try:
            for table, wanted in rows.items():
                if _ambiguous(table, wanted) or _ambiguous(table, present[table]):
                    self.execute(f"DELETE FROM {table}")
                    self._insert(table, wanted)
                    continue
                held, kept = set(present[table]), set(wanted)
                for row in held - kept:
                    self.replace(table, row, None)
                self._insert(table, [row for row in wanted if row not in held])
        except BaseException:
            self.execute("ROLLBACK")
            raise
        self.execute("COMMIT")

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        names = ", ".join(COLUMNS[table])
        marks = ", ".join(("%s" if self.postgres else "?") for _ in COLUMNS[table])
        statement = f"INSERT INTO {table} ({names}) VALUES ({marks})"
        cursor = self._connection.cursor()
        try:
            if len(rows) > 3:
                cursor.executemany(statement, rows)
            else:
                for row in rows:
                    cursor.execute(statement, row)
        except (sqlite3.IntegrityError, psycopg.IntegrityError, psycopg.DataError) as error:
            raise Blocked(str(error)) from None
        finally:
            cursor.close()

    # --- the schema is theirs too -----------------------------------------------------------------

    def allow_keys(self) -> None:
        """Lets the keys of threads be written, as the owner of the tables can."""
        if self.postgres:
            self.execute("ALTER TABLE surefoot_thread ALTER COLUMN key SET GENERATED BY DEFAULT")

    def loosen(self) -> None:
        """Drops every constraint, and in SQLite every column type, and keeps the rows."""
        everything = self.dump()
        self.loose = True
        for table, columns in COLUMNS.items():
            rows = list(everything[table])
            if self.postgres:
                # Of these tables every column that is not nullable has a constraint of its own.
                self.execute(f"ALTER TABLE {table} RENAME TO {table}_strict")
                self.execute(f"CREATE TABLE {table} (LIKE {table}_strict)")
                for column in columns:
                    self.execute(f"ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL")
                self.execute(f"DROP TABLE {table}_strict")
            else:
                self.execute(f"DROP TABLE {table}")
                self.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
            self._insert(table, rows)


def _ambiguous(table: str, rows: Sequence[tuple[Any, ...]]) -> bool:
    """Two rows share a key, so that a key names no row."""
    at = [COLUMNS[table].index(name) for name in KEYS[table]]
    return len({tuple(row[n] for n in at) for row in rows}) < len(rows)


def copied_database(url: str) -> str:
    """A copy of a database, on the same server; nobody may be connected to it."""
    name = conninfo_to_dict(url)["dbname"]
    copied = f"{name}_{next(_numbers)}_{os.getpid()}"
    with psycopg.connect(with_parts(url, dbname="postgres"), autocommit=True) as connection:
        names = (sql.Identifier(copied), sql.Identifier(str(name)))
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*names))
    return with_parts(url, dbname=copied)


def drop_database(url: str) -> None:
    """Drops a database, whoever is connected to it."""
    name = sql.Identifier(str(conninfo_to_dict(url)["dbname"]))
    with psycopg.connect(with_parts(url, dbname="postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def open_content(backend: str, url: str) -> Content:
    """Opens a connection that waits for no disk: what it writes need not survive a crash."""
    if backend == "postgres":
        connection: Any = psycopg.connect(
            url, autocommit=True, options="-c synchronous_commit=off -c jit=off"
        )
        return Content(connection, postgres=True)
    path = url.removeprefix("sqlite:///")
    database = sqlite3.connect(path, timeout=30, isolation_level=None)
    database.execute("PRAGMA synchronous = OFF")
    return Content(database, postgres=False)
