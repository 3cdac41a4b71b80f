"""The schema as it is, and the road to it, meet."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import psycopg
import pytest
from tests.postgres import fresh_database
from tests.store.conftest import Place

from surefoot.store import migrate
from surefoot.store.statements import load_migrations

COLUMNS = """
    SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
           a.attidentity, a.attstorage, pg_get_expr(d.adbin, d.adrelid), c.reloptions
    FROM pg_class c
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relname LIKE 'surefoot%' AND c.relname <> 'surefoot_migration' AND c.relkind = 'r'
    ORDER BY 1, 2
"""
INDEXES = """
    SELECT tablename, indexname, indexdef FROM pg_indexes
    WHERE tablename LIKE 'surefoot%' AND tablename <> 'surefoot_migration' ORDER BY 1, 2
"""


def schema_text(dialect: str) -> str:
    return (files("surefoot.store") / "sql" / dialect / "schema.sql").read_text(encoding="utf-8")


def catalog(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return [*connection.execute(COLUMNS).fetchall(), *connection.execute(INDEXES).fetchall()]


@pytest.mark.postgres
def test_postgres_schema_is_the_sum_of_the_migrations() -> None:
    migrated, written = fresh_database(), fresh_database()
    Place("postgres", migrated, "public").ready().close()
    with psycopg.connect(written) as connection:
        connection.execute(schema_text("postgres").replace("{schema}", "public").encode())
    assert len(catalog(written)) > 30
    assert catalog(migrated) == catalog(written)


def test_sqlite_schema_is_the_sum_of_the_migrations(sqlite_place: Place, tmp_path: Any) -> None:
    import sqlite3

    sqlite_place.ready()
    query = (
        "SELECT type, name, tbl_name, sql FROM sqlite_master"
        " WHERE tbl_name <> 'surefoot_migration' ORDER BY 1, 2"
    )
    written = sqlite3.connect(tmp_path / "written.db")
    written.executescript(schema_text("sqlite"))
    expected = [(*row[:3], _words(row[3])) for row in written.execute(query).fetchall()]
    written.close()
    found = [(*row[:3], _words(row[3])) for row in sqlite_place.execute(query)]
    assert len(found) > 10
    assert found == expected


def _words(text: str | None) -> str:
    """Words and signs; `ALTER TABLE` puts a new column behind a space."""
    return re.sub(r"\s*([(),])\s*", r"\1", " ".join((text or "").split()))


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_user_values_are_bytes(dialect: str) -> None:
    text = re.sub("--.*", "", schema_text(dialect))
    assert not re.search(r"\b(?:text|json|jsonb|varchar)\b", text, re.IGNORECASE)
    assert set(re.findall(r"CREATE TABLE (?:\{schema\}\.)?(\w+)", text)) == migrate.TABLES


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_migrations_may_run_in_a_transaction(dialect: str) -> None:
    for step in load_migrations(dialect):
        assert not re.search(r"\b(?:CONCURRENTLY|VACUUM|COMMIT|BEGIN)\b", step.text)
