"""Records beyond the published head may be cut off: no alarm, and no effect twice.

A real graph with effects of every class dies at each boundary that leaves such records; they are
cut off; it is resumed in another process, and its receiver has counted.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.crash.explore import (
    Alarms,
    Case,
    Process,
    Report,
    World,
    _judge_error,
    _judge_world,
    console,
    trace_of,
)
from tests.crash.stores import place
from tests.tamper.content import Content, open_content

from surefoot.errors import EffectInDoubt
from surefoot.testing.faults import Died, Fault

pytestmark = pytest.mark.optimized

#: (workload, backend, async, what is cut). Each dies at every boundary of these kinds.
CASES = [
    ("linear", "sqlite", False, "all"),
    ("linear", "sqlite", True, "the newest"),
    ("interrupt", "sqlite", True, "all"),
    ("interrupt", "sqlite", False, "the newest"),
    ("subgraph", "sqlite", False, "all"),
    ("subgraph", "sqlite", True, "the newest"),
    pytest.param("linear", "postgres", True, "all", marks=pytest.mark.postgres),
]
KINDS = ("store.append.after", "effect.charge.before", "effect.charge.after")


@pytest.fixture
def alarms() -> Iterator[Alarms]:
    """Alarms that only reach the log."""
    heard = Alarms()
    logging.getLogger("surefoot").addHandler(heard)
    yield heard
    logging.getLogger("surefoot").removeHandler(heard)


def beyond(content: Content, case: Case, thread: str) -> Sequence[tuple[Any, ...]]:
    """Frames beyond the published head, newest first."""
    mark = console(case.place).core.ports.marks.read("default", thread)
    row = console(case.place).core.ports.store.read_thread("default", thread)
    if row is None or mark is None:
        return ()
    statement = "SELECT thread_key, last_seq, epoch FROM surefoot_frame"
    where = "WHERE thread_key = ? AND last_seq > ? ORDER BY last_seq DESC"
    found: Sequence[tuple[Any, ...]] = content.execute(
        f"{statement} {where}", (row.key, mark.seq)
    ).fetchall()
    return found


def died(case: Case, boundary: str) -> tuple[World, str] | None:
    """A process that died there; its receiver lives on.

    None when it ended before: how many commits a run has depends on how its writes ride together.
    """
    world, thread = World(), f"tail-{case.workload}-{uuid.uuid4().hex}"
    process = Process(case, world, thread, {boundary: Fault.DIE})
    error = process.run()
    process.close(Report())
    if not process.plan.hit:
        return None
    assert process.plan.hit == [boundary]
    assert isinstance(error, Died) or process.plan.dead
    return world, thread


def cut(content: Content, rows: Sequence[tuple[Any, ...]]) -> None:
    for row in rows:
        gone = "DELETE FROM surefoot_frame WHERE thread_key = ? AND last_seq = ? AND epoch = ?"
        assert content.execute(gone, row).rowcount == 1


@pytest.mark.parametrize(("workload", "backend", "is_async", "share"), CASES)
def test_case_43_records_beyond_the_head_cut_off(
    workload: str, backend: str, is_async: bool, share: str, alarms: Alarms
) -> None:
    case = Case(workload, place(backend), "sync", is_async)
    content = open_content(backend, case.place.url)
    problems: list[str] = []
    hits = 0
    for boundary in [b for b in trace_of(case) if b.startswith(KINDS)]:
        dead = died(case, boundary)
        if dead is None:
            continue
        world, thread = dead
        rows = beyond(content, case, thread)
        if not rows:
            continue
        hits += 1
        cut(content, rows if share == "all" else rows[:1])
        landed = world.counts()
        resumed = Process(case, world, thread)
        error = resumed.run()
        report = Report(hit=[boundary])
        _judge_error(error, resumed.plan, report)
        _judge_world(case, world, thread, report, error, resumed.values)
        resumed.close(report)
        if isinstance(error, EffectInDoubt) and not landed:
            report.problems.append("in doubt, although nothing was ever sent")
        problems += [f"{boundary}, {len(rows)} cut: {problem}" for problem in report.problems]
    content.close()
    assert problems == []
    assert alarms.heard == []
    assert hits >= 4


@pytest.mark.parametrize(
    "backend", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
)
def test_case_43_a_published_record_cut_off_as_well_is_refused(backend: str) -> None:
    """The honest twin's dishonest twin: one record more, and it is a rollback."""
    case = Case("linear", place(backend), "sync", False)
    boundary = "effect.charge.after#2"
    dead = died(case, boundary)
    assert dead is not None
    world, thread = dead
    content = open_content(backend, case.place.url)
    saver = console(case.place)
    mark = saver.core.ports.marks.read("default", thread)
    row = saver.core.ports.store.read_thread("default", thread)
    assert mark is not None
    assert row is not None
    gone = "DELETE FROM surefoot_frame WHERE thread_key = ? AND last_seq >= ?"
    assert content.execute(gone, (row.key, mark.seq)).rowcount >= 1
    content.close()
    before = world.counts()
    resumed = Process(case, world, thread)
    error: BaseException | None = None
    try:
        error = resumed.run()
    except Exception as refused:
        error = refused
    assert getattr(error, "code", None) == "ROLLBACK", repr(error)
    assert world.counts() == before
    resumed.close(Report())
