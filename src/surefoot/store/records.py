"""One typed function per SQL statement, shared by both dialects.

A driver gives a `Run`: it executes a named statement of its dialect and returns the rows. What
comes back is as little trusted as the database itself: a column of an unexpected type becomes
a value that verifies nowhere, so that the seals decide and nothing fails on the way to them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from surefoot.ports import (
    Append,
    FrameRow,
    HeadRow,
    Kept,
    LogRef,
    StoredValues,
    ThreadRow,
)
from surefoot.rules.envelope import tlv

__all__ = [
    "CHUNK_EXISTS",
    "FRAME_EXISTS",
    "Blobs",
    "Pairs",
    "Param",
    "Run",
    "append_whole",
    "collect",
    "collect_chunks",
    "collect_frames",
    "collect_values",
    "create_ledger",
    "create_schema",
    "delete_chunks",
    "delete_frames",
    "delete_runs",
    "delete_thread",
    "delete_values",
    "discard_frames",
    "find_checkpoint",
    "insert_frame",
    "is_head",
    "move_head",
    "read_durability",
    "read_frames",
    "read_heads",
    "read_ledger",
    "read_newest",
    "read_thread",
    "read_values",
    "record_migration",
    "run_digest",
    "schema_present",
    "tables_present",
    "threads",
    "threads_of_runs",
    "threads_with_open",
    "try_migration_lock",
]

CHUNK_EXISTS = "a list chunk with this number exists already"
FRAME_EXISTS = "a frame with this number exists already"
_MAX_SEQ = 2**63 - 1
#: Stands for a number that is none; no sequence number or epoch is negative.
_NO_NUMBER = -1


@dataclass(frozen=True, slots=True)
class Blobs:
    """A list of byte strings, as one parameter."""

    items: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Pairs:
    """A list of pairs of numbers, as one parameter."""

    items: Sequence[tuple[int, int]]


Param = str | int | bytes | Blobs | Pairs | None


class Run(Protocol):
    """Executes a named statement; text parameters become UTF-8 bytes, surrogates included.

    Several names, with spaces between them, are parts of one statement.
    """

    def __call__(self, name: str, /, **params: Param) -> Sequence[tuple[Any, ...]]:
        """Rows of the statement; none for a statement that gives none."""


def run_digest(tenant: str, run_id: str) -> bytes:
    """Key of a run in the table of runs."""
    return hashlib.sha256(tlv("run/v1", tenant, run_id)).digest()


def _number(value: object) -> int:
    return value if isinstance(value, int) else _NO_NUMBER


def _blob(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    return bytes(value) if isinstance(value, bytearray | memoryview) else b""


def _text(value: object) -> str:
    raw = _blob(value)
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "backslashreplace")


def _signed(checkpoint_hash: bytes | None) -> int | None:
    if checkpoint_hash is None:
        return None
    return int.from_bytes(checkpoint_hash, "big", signed=True)


def _thread(key: object, tenant: str, thread: str, columns: Sequence[object]) -> ThreadRow:
    incarnation, seq, epoch, digest, updated_us = columns
    head = HeadRow(_number(seq), _number(epoch), _blob(digest))
    return ThreadRow(_number(key), tenant, thread, _number(incarnation), head, _number(updated_us))


def _frame(row: Sequence[object]) -> FrameRow:
    last_seq, epoch, head, body = row
    return FrameRow(_number(last_seq), _number(epoch), _blob(head), _blob(body))


# --- reading -----------------------------------------------------------------------------------


def read_thread(run: Run, tenant: str, thread: str) -> ThreadRow | None:
    """The thread's row, or None."""
    rows = run("read_thread", tenant=tenant, thread=thread)
    return _thread(rows[0][0], tenant, thread, rows[0][1:]) if rows else None


def read_newest(
    run: Run, tenant: str, thread: str, *, limit: int, below_seq: int | None
) -> tuple[ThreadRow | None, Sequence[FrameRow]]:
    """The thread's row and its newest frames; see the port."""
    below = _MAX_SEQ if below_seq is None else below_seq
    rows = run("read_newest", tenant=tenant, thread=thread, limit=limit, below_seq=below)
    if not rows:
        return None, ()
    row = _thread(rows[0][0], tenant, thread, rows[0][1:6])
    return row, tuple(_frame(r[6:]) for r in rows if r[6] is not None)


def find_checkpoint(run: Run, key: int, checkpoint_hash: bytes) -> Sequence[tuple[int, int]]:
    """(last_seq, epoch) of frames that may hold a checkpoint, newest first."""
    rows = run("find_checkpoint", key=key, checkpoint_hash=_signed(checkpoint_hash))
    return tuple((_number(last_seq), _number(epoch)) for last_seq, epoch in rows)


def read_heads(run: Run, key: int, *, from_seq: int, to_seq: int | None) -> Sequence[FrameRow]:
    """Heads of frames in a range, newest first."""
    to = _MAX_SEQ if to_seq is None else to_seq
    rows = run("read_heads", key=key, from_seq=from_seq, to_seq=to)
    return tuple(
        FrameRow(_number(last_seq), _number(epoch), _blob(head), None)
        for last_seq, epoch, head in rows
    )


def read_frames(run: Run, key: int, keys: Sequence[tuple[int, int]]) -> Sequence[FrameRow]:
    """The named frames with bodies, newest first."""
    wanted = tuple(dict.fromkeys(keys))
    if not wanted:
        return ()
    return tuple(_frame(row) for row in run("read_frames", key=key, keys=Pairs(wanted)))


def read_values(
    run: Run, key: int, digests: Sequence[bytes], logs: Sequence[LogRef]
) -> StoredValues:
    """Values and list chunks; a log named twice is read as far as the longer one says."""
    counts: dict[int, int] = {}
    for log in logs:
        counts[log.log_id] = max(log.count, counts.get(log.log_id, 0))
    if not digests and not counts:
        return StoredValues({}, {}, {})
    rows = run(
        "read_values",
        key=key,
        digests=Blobs(tuple(dict.fromkeys(digests))),
        logs=Pairs(tuple(counts.items())),
    )
    values: dict[bytes, bytes] = {}
    pieces: dict[int, dict[int, bytes]] = {log_id: {} for log_id in counts}
    tips: dict[int, int] = {}
    for part, log_id, ordinal, digest, body in rows:
        if part == 0:
            values[_blob(digest)] = _blob(body)
        elif part == 1:
            pieces[log_id][ordinal] = _blob(body)
        else:
            tips[log_id] = _number(ordinal)
    chunks = {log_id: _unbroken(found) for log_id, found in pieces.items()}
    return StoredValues(values, chunks, tips)


def _unbroken(found: Mapping[int, bytes]) -> Sequence[bytes]:
    """Chunks from ordinal 0 up to the first that is missing."""
    chunks: list[bytes] = []
    while (chunk := found.get(len(chunks))) is not None:
        chunks.append(chunk)
    return tuple(chunks)


def threads(run: Run, tenant: str, *, after_key: int, limit: int) -> Sequence[ThreadRow]:
    """A page of a tenant's threads in the order of their keys."""
    rows = run("threads", tenant=tenant, after_key=after_key, limit=limit)
    return tuple(_thread(row[0], tenant, _text(row[1]), row[2:]) for row in rows)


def threads_with_open(run: Run, tenant: str, *, after_key: int, limit: int) -> Sequence[ThreadRow]:
    """A page of the threads that may have an open effect, in the order of their keys."""
    rows = run("threads_with_open", tenant=tenant, after_key=after_key, limit=limit)
    return tuple(_thread(row[0], tenant, _text(row[1]), row[2:]) for row in rows)


def threads_of_runs(run: Run, tenant: str, run_ids: Sequence[str]) -> Sequence[str]:
    """Ids of threads in which these runs have stored something."""
    if not run_ids:
        return ()
    digests = Blobs([run_digest(tenant, run_id) for run_id in dict.fromkeys(run_ids)])
    return tuple(
        _text(row[0]) for row in run("threads_of_runs", tenant=tenant, run_digests=digests)
    )


# --- appending ---------------------------------------------------------------------------------


def _gate_parameters(append: Append) -> dict[str, Param]:
    """Parameters of the gate."""
    params: dict[str, Param] = {
        "tenant": append.tenant,
        "thread": append.thread,
        **_head_parameters(append.head),
        "has_open": int(append.has_open),
    }
    if append.expected is None:
        params["incarnation"] = append.incarnation
    else:
        params["expected_seq"] = append.expected.seq
        params["expected_epoch"] = append.expected.epoch
        params["expected_digest"] = append.expected.digest
    return params


def _frame_parameters(append: Append) -> dict[str, Param]:
    return {
        "last_seq": append.frame.last_seq,
        "epoch": append.frame.epoch,
        "checkpoint_hash": _signed(append.checkpoint_hash),
        "frame_head": append.frame.head,
        "frame_body": append.frame.body or b"",
    }


def move_head(run: Run, append: Append) -> int | None:
    """The gate alone: gives the thread's key if the head row was as expected."""
    name = "append_first" if append.expected is None else "append_next"
    rows = run(name, **_gate_parameters(append))
    return _number(rows[0][0]) if rows else None


def insert_frame(run: Run, key: int, append: Append) -> None:
    """Stores the frame behind the gate."""
    run("insert_frame", key=key, **_frame_parameters(append))


def append_whole(run: Run, append: Append) -> int | None:
    """The gate and everything behind it in one statement; gives the key or None."""
    parts = ["append_first" if append.expected is None else "append_next", "append_frame"]
    params = _gate_parameters(append) | _frame_parameters(append)
    if append.values:
        parts.append("append_values")
        values = dict(append.values)
        params["value_digests"] = Blobs(tuple(values))
        params["value_bodies"] = Blobs(tuple(values.values()))
    if append.chunks:
        parts.append("append_chunks")
        params["chunks"] = Pairs([(chunk.log_id, chunk.ordinal) for chunk in append.chunks])
        params["chunk_bodies"] = Blobs([chunk.body for chunk in append.chunks])
    if append.run_ids:
        parts.append("append_runs")
        params["run_digests"] = Blobs(
            [run_digest(append.tenant, run_id) for run_id in dict.fromkeys(append.run_ids)]
        )
    rows = run(" ".join((*parts, "append_answer")), **params)
    return _number(rows[0][0]) if rows else None


# --- deleting ----------------------------------------------------------------------------------


def is_head(run: Run, key: int, head: HeadRow) -> bool:
    """True when a thread's head row is this one."""
    return bool(run("is_head", key=key, **_head_parameters(head)))


def _head_parameters(head: HeadRow) -> dict[str, Param]:
    return {"head_seq": head.seq, "head_epoch": head.epoch, "head_digest": head.digest}


def collect(run: Run, key: int, kept: Kept) -> bool:
    """Deletes everything that is not kept, in one statement; False when the head row moved."""
    rows = run(
        "collect",
        key=key,
        **_head_parameters(kept.head),
        above_seq=kept.above_seq,
        frames=Pairs(kept.frames),
        digests=Blobs(kept.values),
        logs=Pairs(tuple(kept.logs.items())),
    )
    return bool(rows)


def collect_frames(run: Run, key: int, kept: Kept) -> None:
    """Deletes frames that are not kept."""
    run("collect_frames", key=key, above_seq=kept.above_seq, frames=Pairs(kept.frames))


def collect_values(run: Run, key: int, kept: Kept) -> None:
    """Deletes values that are not kept."""
    run("collect_values", key=key, digests=Blobs(kept.values))


def collect_chunks(run: Run, key: int, kept: Kept) -> None:
    """Deletes chunks beyond what is kept of their log."""
    run("collect_chunks", key=key, logs=Pairs(tuple(kept.logs.items())))


def discard_frames(run: Run, key: int, keys: Sequence[tuple[int, int]]) -> None:
    """Deletes the named frames of a thread."""
    if keys:
        run("discard_frames", key=key, keys=Pairs(tuple(dict.fromkeys(keys))))


def delete_thread(run: Run, key: int) -> None:
    """Deletes the row of a thread, and where one statement can, everything of it."""
    run("delete_thread", key=key)


def delete_frames(run: Run, key: int) -> None:
    """Deletes the frames of a thread."""
    run("delete_frames", key=key)


def delete_values(run: Run, key: int) -> None:
    """Deletes the values of a thread."""
    run("delete_values", key=key)


def delete_chunks(run: Run, key: int) -> None:
    """Deletes the list chunks of a thread."""
    run("delete_chunks", key=key)


def delete_runs(run: Run, key: int) -> None:
    """Deletes what runs have stored about a thread."""
    run("delete_runs", key=key)


# --- the schema --------------------------------------------------------------------------------


def read_durability(run: Run) -> Mapping[str, str]:
    """Server settings that decide whether an acknowledged commit survives a crash."""
    return {_text(name): _text(setting) for name, setting in run("read_durability")}


def server_identity(run: Run, statement: str) -> str:
    """Text that names the server; ``statement`` is system_identity or started_identity."""
    return _text(run(statement)[0][0])


def tables_present(run: Run, schema: str | None) -> frozenset[str]:
    """Names of our tables that exist."""
    rows = run("tables_present") if schema is None else run("tables_present", schema=schema)
    return frozenset(_text(row[0]) for row in rows)


def read_ledger(run: Run) -> Mapping[int, bytes]:
    """Digests of the applied migrations by number."""
    return {_number(number): _blob(digest) for number, digest in run("read_ledger")}


def try_migration_lock(run: Run, lock: int) -> bool:
    """Takes the migration lock until the transaction ends, if it is free."""
    return bool(run("try_migration_lock", lock=lock)[0][0])


def schema_present(run: Run, schema: str) -> bool:
    """Whether the schema exists."""
    return bool(run("schema_present", schema=schema))


def create_schema(run: Run) -> None:
    """Creates the schema."""
    run("create_schema")


def create_ledger(run: Run) -> None:
    """Creates the record of applied migrations if it is not there."""
    run("create_ledger")


def record_migration(run: Run, *, number: int, name: str, digest: bytes) -> None:
    """Records an applied migration."""
    run("record_migration", number=number, name=name, digest=digest)
