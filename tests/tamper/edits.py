"""What may be edited, and what is promised about it.

Three promises, by column:

- *detected*: a read of the thread that rests on the row refuses, before anything of it is decoded.
- *harmless*: nothing that is served rests on the column. Every answer is as ever, or a refusal.
- *at setup*: no read looks at it; opening the store with `setup` refuses or changes nothing.

A row that lies beside or beyond the chain of published records is never needed; for it everything
is harmless, except that what lies beyond the head may be cut off.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tests.tamper.content import COLUMNS, Rows
from tests.tamper.reading import Reader, Thread

__all__ = ["PROMISES", "Cell", "Flip", "Place", "Promise", "Table", "cells", "flips", "sampled"]


class Promise(Enum):
    """What holds for an edit."""

    DETECTED = "detected"
    HARMLESS = "harmless"
    AT_SETUP = "at setup"


#: The promise for every column of every table, for rows that a published state rests on.
PROMISES: Mapping[str, Mapping[str, Promise]] = {
    "surefoot_thread": {
        "key": Promise.DETECTED,  # names the rows of the thread
        "tenant": Promise.DETECTED,  # part of every seal; its mark is elsewhere
        "thread": Promise.DETECTED,  # likewise
        "incarnation": Promise.HARMLESS,  # the mark says which life it is
        "head_seq": Promise.HARMLESS,  # a gate for writers; the mark says where the head is
        "head_epoch": Promise.HARMLESS,  # likewise
        "head_digest": Promise.HARMLESS,  # likewise
        "created_us": Promise.HARMLESS,  # for people
        "updated_us": Promise.HARMLESS,  # for people
        "has_open": Promise.HARMLESS,  # a hint for who looks for doubts, never trusted
    },
    "surefoot_frame": {
        "thread_key": Promise.DETECTED,
        "last_seq": Promise.DETECTED,  # sealed
        "epoch": Promise.DETECTED,  # sealed
        "checkpoint_hash": Promise.HARMLESS,  # says where to look first, never what is there
        "head": Promise.DETECTED,  # sealed
        "body": Promise.DETECTED,  # its digest is sealed
    },
    "surefoot_value": {
        "thread_key": Promise.DETECTED,
        "digest": Promise.DETECTED,  # named by a sealed body
        "body": Promise.DETECTED,  # must match its digest
    },
    "surefoot_chunk": {
        "thread_key": Promise.DETECTED,
        "log_id": Promise.DETECTED,  # named by a sealed body
        "ordinal": Promise.DETECTED,  # part of the running digest
        "body": Promise.DETECTED,  # likewise
    },
    "surefoot_run": {  # an index for `delete_for_runs`
        "run_digest": Promise.HARMLESS,
        "thread_key": Promise.HARMLESS,
    },
    "surefoot_migration": {
        "number": Promise.AT_SETUP,
        "name": Promise.AT_SETUP,
        "digest": Promise.AT_SETUP,
        "applied_us": Promise.AT_SETUP,
    },
}


class Place(Enum):
    """Where a row stands with regard to what is published."""

    NEEDED = "needed"
    BESIDE = "beside the chain"
    BEYOND = "beyond the head"


@dataclass(frozen=True)
class Cell:
    """One column of one row.

    Attributes:
        table: Its table.
        row: The whole row.
        column: The column's name.
        value: What it holds.
        thread: Whose row it is.
        place: Where it stands.
        bits: How many bits it has.
    """

    table: str
    row: tuple[Any, ...]
    column: str
    value: Any
    thread: Thread | None
    place: Place
    bits: int

    @property
    def promise(self) -> Promise:
        """What is promised for a change of it."""
        promise = PROMISES[self.table][self.column]
        if promise is Promise.DETECTED and self.place is not Place.NEEDED:
            return Promise.HARMLESS
        return promise

    def __str__(self) -> str:
        return f"{self.table}.{self.column} of {self.thread} ({self.place.value})"


@dataclass(frozen=True)
class Flip:
    """One bit of one cell."""

    cell: Cell
    bit: int

    @property
    def value(self) -> Any:
        """The cell's value with this bit turned."""
        value = self.cell.value
        if isinstance(value, int):
            turned = (value ^ (1 << self.bit)) & (2**self.cell.bits - 1)
            return turned - 2**self.cell.bits if turned >> (self.cell.bits - 1) else turned
        raw = bytearray(value.encode() if isinstance(value, str) else value)
        raw[self.bit // 8] ^= 1 << (self.bit % 8)
        return raw.decode("latin-1") if isinstance(value, str) else bytes(raw)


@dataclass(frozen=True)
class Table:
    """Knows whose row is whose, and which rows are needed."""

    reader: Reader
    threads: Mapping[int, Thread]

    @classmethod
    def of(cls, reader: Reader, rows: Rows) -> Table:
        """From the rows of the present."""
        return cls(
            reader,
            {row[0]: (row[1].decode(), row[2].decode()) for row in rows["surefoot_thread"]},
        )

    def thread_of(self, table: str, row: Sequence[Any]) -> Thread | None:
        """Whose row it is; None for the ledger of migrations."""
        if table == "surefoot_migration":
            return None
        key = dict(zip(COLUMNS[table], row, strict=True)).get("thread_key", row[0])
        return self.threads.get(key)

    def place_of(self, table: str, row: Sequence[Any]) -> Place:
        """Where a row stands."""
        thread = self.thread_of(table, row)
        if thread is None or table in ("surefoot_thread", "surefoot_run"):
            return Place.NEEDED
        needs = self.reader.needs[thread]
        if table == "surefoot_frame":
            mark = self.reader.world.snapshots[-1].marks[thread]
            if (row[1], row[2]) in needs.frames:
                return Place.NEEDED
            return Place.BEYOND if row[1] > mark.seq else Place.BESIDE
        published = self.reader.published.get(thread, needs)
        if table == "surefoot_value":
            held = row[1] in published.values, row[1] in needs.values
        else:
            held = row[2] < published.chunks.get(row[1], 0), row[2] < needs.chunks.get(row[1], 0)
        return {(True, True): Place.NEEDED, (False, True): Place.BEYOND}.get(held, Place.BESIDE)


def cells(table_of: Table, rows: Rows, *, postgres: bool) -> list[Cell]:
    """Every cell of every table that holds anything."""
    out: list[Cell] = []
    for table, found in rows.items():
        for row in found:
            thread, place = table_of.thread_of(table, row), table_of.place_of(table, row)
            for column, value in zip(COLUMNS[table], row, strict=True):
                if value is None:
                    continue
                bits = 64 if isinstance(value, int) else len(value) * 8
                if postgres and column in ("ordinal", "number"):
                    bits = 32
                if postgres and column == "has_open":
                    bits = 16
                out.append(Cell(table, row, column, value, thread, place, bits))
    return out


def flips(all_cells: Sequence[Cell], start: int = 0, stop: int | None = None) -> Iterator[Flip]:
    """Every bit of every cell, or those with a number from ``start`` up to ``stop``."""
    number = 0
    for cell in all_cells:
        if number + cell.bits > start and (stop is None or number < stop):
            last = cell.bits if stop is None else min(cell.bits, stop - number)
            for bit in range(max(0, start - number), last):
                yield Flip(cell, bit)
        number += cell.bits


def sampled(all_cells: Sequence[Cell], count: int, seed: int) -> list[Flip]:
    """Seeded bits: half of them by cell, so that small columns have their share, half by size."""
    chosen = random.Random(seed)
    by_size = chosen.choices(all_cells, weights=[c.bits for c in all_cells], k=count // 2)
    by_cell = [all_cells[n % len(all_cells)] for n in range(count - len(by_size))]
    found = [Flip(cell, chosen.randrange(cell.bits)) for cell in (*by_cell, *by_size)]
    chosen.shuffle(found)
    return found
