"""Case 44: forged payloads in every column, read in every way: none is ever decoded.

CVE-2026-28277, CVE-2025-64439, GHSA-fjqc-hq36-qh5p and CVE-2026-27794 are about stores whose
attacker can write rows, or have them written; see `tests/advisories/payloads.py`.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.advisories.conftest import HALVES
from tests.advisories.payloads import UNSEALED, Payload
from tests.advisories.thread_under_attack import (
    READS,
    Attacked,
    answers,
    check_honest,
    refusals,
)
from tests.frames import LAYOUTS, Body, OpenFrame

from surefoot.langgraph.serde import StrictSerializer
from surefoot.rules.bodies import (
    CheckpointBody,
    Inline,
    Row,
    Typed,
    WritesBody,
    pack_stored,
)
from surefoot.rules.envelope import Kind

pytestmark = pytest.mark.optimized

FULL = len(HALVES) > 1

#: Columns that tell rows apart, by table.
KEYS: Mapping[str, tuple[str, ...]] = {
    "surefoot_thread": ("key",),
    "surefoot_frame": ("thread_key", "last_seq", "epoch"),
    "surefoot_value": ("thread_key", "digest"),
    "surefoot_chunk": ("thread_key", "log_id", "ordinal"),
    "surefoot_run": ("run_digest", "thread_key"),
    "surefoot_migration": ("number",),
}
#: Columns whose change must be noticed by a list of the whole thread.
SEALED = {
    ("surefoot_frame", "head"),
    ("surefoot_frame", "body"),
    ("surefoot_frame", "last_seq"),
    ("surefoot_frame", "epoch"),
    ("surefoot_frame", "thread_key"),
    ("surefoot_value", "body"),
    ("surefoot_value", "digest"),
    ("surefoot_value", "thread_key"),
    ("surefoot_chunk", "body"),
    ("surefoot_chunk", "log_id"),
    ("surefoot_chunk", "ordinal"),
    ("surefoot_chunk", "thread_key"),
    ("surefoot_thread", "key"),
    ("surefoot_thread", "tenant"),
    ("surefoot_thread", "thread"),
}
#: Columns of numbers; a database with types takes no bytes there.
NUMBERS = {
    "applied_us",
    "checkpoint_hash",
    "created_us",
    "epoch",
    "has_open",
    "head_epoch",
    "head_seq",
    "incarnation",
    "key",
    "last_seq",
    "log_id",
    "number",
    "ordinal",
    "thread_key",
    "updated_us",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "markers"
    made.mkdir()
    return made


# --- the payloads are live ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", UNSEALED)
def test_the_stock_serialiser_does_what_the_payload_says(folder: Path, kind: str) -> None:
    payload = UNSEALED[kind](folder)
    assert payload.markers
    assert payload.fired() == []
    payload.stock.loads_typed((payload.tag, payload.raw))
    assert payload.fired() == [marker.name for marker in payload.markers]
    payload.clear()
    assert payload.fired() == []


def test_the_strict_serialiser_would_build_the_data_class(folder: Path) -> None:
    payload = UNSEALED["dataclass"](folder)
    StrictSerializer().loads_typed((payload.tag, payload.raw))
    assert payload.fired() == ["dataclass"]


# --- planting -------------------------------------------------------------------------------------


def columns_of(attacked: Attacked, table: str) -> list[str]:
    store = attacked.store
    if store.dialect == "sqlite":
        return [row[1] for row in store.execute(f"PRAGMA table_info({table})")]
    return [
        row[0]
        for row in store.execute(
            "SELECT column_name FROM information_schema.columns"
            " WHERE table_schema = ? AND table_name = ? ORDER BY ordinal_position",
            store.schema,
            table,
        )
    ]


def plant(attacked: Attacked, table: str, column: str, planted: Any) -> int:
    """Puts something into a column: of one row where it tells rows apart, else of all."""
    keys = KEYS[table]
    names = ", ".join(keys)
    rows = attacked.store.execute(f"SELECT {names} FROM {table} ORDER BY {names}")
    chosen = rows[-1:] if column in (*keys, "tenant", "thread") else rows
    where = " AND ".join(f"{name} = ?" for name in keys)
    for row in chosen:
        cells = [bytes(c) if isinstance(c, memoryview) else c for c in row]
        attacked.store.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", planted, *cells)
    return len(chosen)


def forms(attacked: Attacked, column: str, made: list[Payload]) -> list[Any]:
    """What goes into a column: bytes as they are, as a stored form, as a chunk, as text."""
    first, *others = made
    stored = pack_stored(first.raw)
    found: list[Any] = [first.raw, stored]
    if attacked.store.dialect == "sqlite":  # which takes anything anywhere
        found.append(first.raw.decode("latin-1"))
    if column in ("head", "body"):
        found += [(1).to_bytes(4, "big") + stored, *(pack_stored(p.raw) for p in others)]
        found += [p.raw for p in others]
    return found


@pytest.mark.parametrize("table", KEYS)
async def test_case_44_in_every_column(
    attacked: Attacked, folder: Path, table: str, other: bool
) -> None:
    made = [make(folder) for make in UNSEALED.values()]

    def fired() -> list[str]:
        return [name for payload in made for name in payload.fired()]

    is_async = (attacked.store.dialect == "postgres") is not other
    honest = await answers(attacked, fired, is_async=is_async)
    check_honest(honest)
    columns = columns_of(attacked, table)
    assert set(KEYS[table]) < {*columns, "also"}
    hits, by_the_database = 0, set[str]()
    for column in columns:
        planted_forms = forms(attacked, column, made)
        for planted in planted_forms if FULL else planted_forms[:2]:
            attacked.put_back()
            try:
                hits += plant(attacked, table, column, planted)
            except (psycopg.errors.DatatypeMismatch, sqlite3.IntegrityError):
                by_the_database.add(column)
                continue
            given = await answers(attacked, fired, is_async=is_async)
            where = f"{table}.{column}"
            if (table, column) in SEALED:
                assert "list" in refusals(given), where
            for name in set(READS) - refusals(given):
                assert given[name] == honest[name], f"{name} believes {where}"
    assert hits
    assert by_the_database <= NUMBERS
    if attacked.store.dialect == "sqlite":  # which has no types, but for the number of a row
        assert by_the_database <= {"key", "number"}


# --- planting where values are --------------------------------------------------------------------


def with_payload(body: Body, typed: Typed) -> Body:
    """The body with every value in it replaced."""
    if isinstance(body, CheckpointBody):
        values = tuple(replace(v, value=typed) for v in body.values)
        return replace(body, skeleton=typed, metadata=typed, values=values)
    if isinstance(body, WritesBody):
        batches = [
            replace(b, writes=tuple(replace(w, value=typed) for w in b.writes))
            for b in body.batches
        ]
        return replace(body, batches=tuple(batches))
    return replace(body, arguments=typed, result=typed, receipt=typed, evidence=typed)


def in_frames(attacked: Attacked, kind: type[Body], typed: Typed, *, repair: bool) -> int:
    """Replaces the values in all frames of the thread; gives the number of frames changed."""
    store, changed = attacked.store, 0
    rows = store.execute("SELECT thread_key, last_seq, epoch, head, body FROM surefoot_frame")
    for key, last_seq, epoch, head, body in rows:
        frame = OpenFrame(last_seq, epoch, bytes(head), bytes(body))
        if not any(isinstance(b, kind) for b in frame.bodies()):
            continue
        frame.change(lambda b: with_payload(b, typed) if isinstance(b, kind) else b)
        store.execute(
            "UPDATE surefoot_frame SET head = ?, body = ?"
            " WHERE thread_key = ? AND last_seq = ? AND epoch = ?",
            frame.head() if repair else bytes(head), frame.body(), key, last_seq, epoch,
        )  # fmt: skip
        changed += 1
    return changed


def padded(payload: Payload, size: int) -> bytes:
    """The stored form in as many bytes as the value had that it replaces, where that can be."""
    stored = pack_stored(payload.raw)
    if payload.tag != "msgpack" or len(stored) + 8 > size:
        return stored
    # [payload, filler], as it is and not compressed.
    filler = bytes(size - len(payload.raw) - 5)
    return b"\0\x92" + payload.raw + b"\xc5" + len(filler).to_bytes(2, "big") + filler


def in_values(attacked: Attacked, payload: Payload, *, repair: bool) -> int:
    """Replaces large values; repaired, records refer to the new bytes under the payload's tag."""
    store, body = attacked.store, pack_stored(payload.raw)
    digest = hashlib.sha256(body).digest()
    rows = store.execute("SELECT thread_key, digest FROM surefoot_value")
    if not repair:
        for key, name, old in store.execute("SELECT thread_key, digest, body FROM surefoot_value"):
            store.execute(
                "UPDATE surefoot_value SET body = ? WHERE thread_key = ? AND digest = ?",
                padded(payload, len(old)), key, name,
            )  # fmt: skip
        return len(rows)
    store.execute("DELETE FROM surefoot_value")
    for key in {key for key, _ in rows}:
        store.execute("INSERT INTO surefoot_value VALUES (?, ?, ?)", key, digest, body)
    typed = Typed(payload.tag, Row(digest, len(body)))
    return in_frames(attacked, CheckpointBody, typed, repair=True)


def in_chunks(attacked: Attacked, payload: Payload) -> int:
    """Replaces the pieces of lists."""
    body = (1).to_bytes(4, "big") + pack_stored(payload.raw)
    attacked.store.execute("UPDATE surefoot_chunk SET body = ?", body)
    return len(attacked.store.execute("SELECT ordinal FROM surefoot_chunk"))


def places(attacked: Attacked, payload: Payload) -> Iterator[tuple[str, Callable[[], int]]]:
    """Every place of a value, and how to plant there."""
    typed = Typed(payload.tag, Inline(pack_stored(payload.raw)))
    for kind in LAYOUTS.values():
        for repair in (False, True):
            yield (
                f"{kind.__name__}, {repair=}",
                lambda kind=kind, repair=repair: in_frames(attacked, kind, typed, repair=repair),
            )
    for repair in (False, True):
        yield (
            f"values, {repair=}",
            lambda repair=repair: in_values(attacked, payload, repair=repair),
        )
    yield "chunks", lambda: in_chunks(attacked, payload)


@pytest.mark.parametrize("kind", UNSEALED)
async def test_case_44_in_place_of_values(
    attacked: Attacked, folder: Path, kind: str, other: bool
) -> None:
    payload = UNSEALED[kind](folder)
    is_async = (attacked.store.dialect == "postgres") is not other
    honest = await answers(attacked, payload.fired, is_async=is_async)
    check_honest(honest)
    planted = [*places(attacked, payload)]
    assert len(planted) == 9
    for where, do in planted:
        attacked.put_back()
        sent = [*attacked.sent]
        assert do() > 0, where
        given = await answers(attacked, payload.fired, is_async=is_async)
        assert {"list", "list of all threads", "resume"} <= refusals(given), where
        assert attacked.sent == sent, where
        for name in set(READS) - refusals(given):
            assert given[name] == honest[name], f"{name} believes {where}"
    assert {*LAYOUTS} == {Kind.CHECKPOINT, Kind.WRITES, Kind.EFFECT}
