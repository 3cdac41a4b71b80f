"""Edits one cell after the other, reads through the saver, undoes the edit, and keeps count.

As a program it turns every bit of every stored column, in several processes and on both
backends, and writes a report::

    python -m tests.tamper.campaign --json report.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.tamper.content import Blocked
from tests.tamper.edits import Cell, Flip, Place, Promise, Table, cells, flips
from tests.tamper.reading import Reader, Thread
from tests.tamper.world import Stores, World, build, opened

from surefoot.errors import SurefootError

__all__ = ["Campaign", "Report"]


@dataclass
class Report:
    """What was tried and what came of it.

    Attributes:
        edits: Number of edits that hit, by column and promise.
        refused: How many of them were refused, by column.
        blocked: Edits that the database's own schema did not let through.
        controls: Reads of untouched threads in between.
        watched: Calls of decoders that the tripwire judged.
        codes: How often each error was the answer.
        problems: What did not hold; empty means that all bars are kept.
    """

    edits: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    blocked: int = 0
    controls: int = 0
    watched: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, other: Report) -> None:
        """Adds another report's counts."""
        self.edits.update(other.edits)
        self.refused.update(other.refused)
        self.codes.update(other.codes)
        self.blocked += other.blocked
        self.controls += other.controls
        self.watched += other.watched
        self.problems += other.problems

    def shown(self) -> dict[str, Any]:
        """For a JSON document."""
        columns = {
            name: {"edits": count, "refused": self.refused[name]}
            for name, count in sorted(self.edits.items())
        }
        return {
            "edits": self.edits.total(),
            "detected": self.refused.total(),
            "blocked by the schema": self.blocked,
            "controls": self.controls,
            "decodes watched": self.watched,
            "codes": dict(self.codes),
            "columns": columns,
            "problems": self.problems[:100],
        }


class Campaign:
    """Edits the content of one world.

    Args:
        world: The stores; nobody else works on them.
        seed: With which of the further questions to begin.
        every: One in so many edits is read by `list` and one other way too, not by walking alone.
        control: After one in so many edits the untouched thread is read in full.
    """

    def __init__(self, world: World, *, seed: int, every: int = 4, control: int = 20) -> None:
        self.world = world
        self.reader = Reader(world)
        self.content = world.stores.content()
        self.content.allow_keys()
        self.rows = self.content.dump()
        self.table = Table.of(self.reader, self.rows)
        self.report = Report()
        self._watched_before = world.wire.watched
        self._every, self._control = every, control
        self._number = 0
        self._others = dict.fromkeys(world.threads(), seed)
        self._learn_cuts()
        self.cells = cells(self.table, self.rows, postgres=self.content.postgres)

    def close(self) -> Report:
        """Compares the tables with what they were, and gives the report."""
        if self.content.dump() != self.rows:
            self.report.problems.append("the edits were not undone")
        for thread in self.world.threads():
            self.reader.unharmed(thread)
            self.report.controls += 1
        self.content.close()
        self.reader.close()
        self.report.problems += self.reader.problems
        self.report.codes = self.reader.refusals
        self.report.watched = self.reader.wire.watched - self._watched_before
        return self.report

    def _learn_cuts(self) -> None:
        """What is served when records beyond the published head are cut off, one by one."""
        frames = self.rows["surefoot_frame"]
        beyond = [
            row for row in frames if self.table.place_of("surefoot_frame", row) is Place.BEYOND
        ]
        present = frames
        for row in sorted(beyond, key=lambda row: -row[1]):
            thread = self.table.thread_of("surefoot_frame", row)
            if thread is None:
                continue
            kept = [r for r in frames if r[0] != row[0] or r not in beyond or r[1] < row[1]]
            self.content.put_back({"surefoot_frame": kept}, {"surefoot_frame": present})
            present = kept
            self.reader.learn_cut(thread)
        self.content.put_back({"surefoot_frame": frames}, {"surefoot_frame": present})

    # --- one edit ---------------------------------------------------------------------------------

    def run(self, edits: Iterable[Flip]) -> None:
        """Makes these edits, one after the other."""
        for flip in edits:
            self.turn(flip.cell, flip.value)

    def turn(self, cell: Cell, value: Any) -> None:
        """Changes one cell, reads, and undoes the change."""
        self._number += 1
        try:
            changed = self.content.change(cell.table, cell.row, cell.column, value)
        except Blocked:
            self.report.blocked += 1
            return
        try:
            refused = self._read(cell, value)
        finally:
            back = self.content.change(cell.table, changed, cell.column, cell.value)
        if back != cell.row:
            raise AssertionError(f"{cell}: the edit was not undone")
        name = f"{cell.table}.{cell.column}: {cell.promise.value}"
        if cell.place is not Place.NEEDED:
            name += f" ({cell.place.value})"
        self.report.edits[name] += 1
        self.report.refused[name] += refused
        if cell.thread is not None and self._number % self._control == 0:
            self.reader.unharmed(cell.thread)
            self.report.controls += 1

    def _read(self, cell: Cell, value: Any) -> bool:
        if cell.promise is Promise.AT_SETUP:
            return self.at_setup(cell)
        if cell.thread is None:
            raise AssertionError(f"{cell} is of no thread")
        if cell.place is Place.BEYOND:
            return self.reader.refused_or_cut(cell.thread)
        deep = self._number % self._every == 0
        if (
            deep
            or cell.promise is Promise.HARMLESS
            or cell.table in ("surefoot_value", "surefoot_chunk")
        ):
            refused = self.reader.all_refused_or_equal(cell.thread)
        else:
            refused = self.reader.refused_or_equal(self.reader.walks[cell.thread])
        if cell.promise is Promise.DETECTED and not refused:
            self.report.problems.append(f"{cell}: changed to {str(value)[:40]!r} and not detected")
        if deep:
            self.other(cell.thread, hint=cell.column == "checkpoint_hash")
        self._hit_by(cell, value)
        return refused

    def other(self, thread: Thread, *, hint: bool = False) -> None:
        """Asks one further question, one after the other in turn.

        Args:
            thread: Of whom.
            hint: What says where to look first was edited: verified records may be read in
                another order, or twice.
        """
        questions = self.reader.other[thread]
        self._others[thread] += 1
        question = questions[self._others[thread] % len(questions)]
        self.reader.refused_or_equal(replace(question, pieces=None) if hint else question)

    def _hit_by(self, cell: Cell, value: Any) -> None:
        """A row that has moved to another thread: that one refuses, or does not care."""
        key = cell.column in ("thread_key", "key")
        if key and value in self.table.threads and self.table.threads[value] != cell.thread:
            self.reader.all_refused_or_equal(self.table.threads[value])

    def at_setup(self, cell: Cell) -> bool:
        """Opening the store refuses, or changes nothing; reading does not care."""
        saver = self.world.savers["acme"]
        refused = False
        try:
            saver.setup(verify_only=True)
        except SurefootError as error:
            self.reader.refusals[error.code] += 1
            refused = True
        if cell.column in ("number", "digest") and not refused:
            self.report.problems.append(f"{cell}: not detected by setup")
        self.reader.unharmed(("acme", "values"))
        return refused


# --- the program --------------------------------------------------------------------------------


def _shard(stores: Stores, folder: str, start: int, stop: int, seed: int) -> Report:
    """One process: turns the bits of a range, on a copy of the stores."""
    world = opened(stores.copy(Path(tempfile.mkdtemp(dir=folder))))
    content = world.stores.content()
    world.note(content, "present")
    content.close()
    with world.wire.set():
        campaign = Campaign(world, seed=seed, every=16, control=200)
        campaign.run(flips(campaign.cells, start, stop))
        report = campaign.close()
    world.close()
    world.stores.drop()
    return report


def _prepared(backend: str, folder: Path) -> tuple[Stores, int]:
    """The stores, made once or found in the folder of an earlier run, and their number of bits."""
    known = folder / f"{backend}.json"
    if backend == "sqlite" and known.exists():
        stores = Stores(**json.loads(known.read_text(encoding="utf-8")))
        world = opened(stores)
    else:
        (folder / backend).mkdir(parents=True, exist_ok=True)
        world = build(backend, folder / backend)
        stores = world.stores
        known.write_text(json.dumps(vars(stores)), encoding="utf-8")
    content = stores.content()
    content.allow_keys()
    world.note(content, "present")
    with world.wire.set():
        reader = Reader(world)
        table = Table.of(reader, content.dump())
        bits = sum(c.bits for c in cells(table, content.dump(), postgres=content.postgres))
        reader.close()
    content.close()
    world.close()
    return stores, bits


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.tamper.campaign", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument("--backend", choices=["sqlite", "postgres"], action="append")
    parser.add_argument("--start", type=int, default=0, help="number of the first bit")
    parser.add_argument("--stop", type=int, help="number of the bit to stop before")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep the SQLite stores here, to go on later")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--shard", type=int, default=20_000, help="bits per piece of work")
    return parser.parse_args(given)


def main(given: Sequence[str]) -> int:
    """Turns every bit, and gives 0 when every bar is kept."""
    options = _arguments(given)
    memory = Path("/dev/shm")
    parent = memory if os.access(memory, os.W_OK) else None
    folder = options.folder or Path(tempfile.mkdtemp(prefix="surefoot-tamper-", dir=parent))
    started = time.monotonic()
    document: dict[str, Any] = {"seed": options.seed, "backends": {}}
    total, problems = 0, 0
    spawn = multiprocessing.get_context("spawn")
    for backend in options.backend or ["sqlite", "postgres"]:
        stores, bits = _prepared(backend, folder)
        stop = min(options.stop or bits, bits)
        report = Report()
        with ProcessPoolExecutor(options.workers, spawn) as pool:
            work = [
                pool.submit(_shard, stores, str(folder), at, min(at + options.shard, stop), at)
                for at in range(options.start, stop, options.shard)
            ]
            for done in as_completed(work):
                report.add(done.result())
                count, seconds = report.edits.total(), time.monotonic() - started
                print(
                    f"{backend}: {count:,} of {stop - options.start:,} bits, "
                    f"{len(report.problems)} problems, {seconds:.0f} s",
                    flush=True,
                )
        document["backends"][backend] = {"bits": [options.start, stop, bits], **report.shown()}
        total += report.edits.total()
        problems += len(report.problems)
    document |= {"edits": total, "problems": problems, "seconds": time.monotonic() - started}
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({k: v for k, v in document.items() if k != "backends"}))
    return 1 if problems or not total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
