"""A crash at every boundary: each run is interrupted once at each call of its ports.

For each boundary a fresh thread is run, the fault happens, another process goes on, and the
outcome is compared with an uninterrupted run: the same final state and history, classes K and L
paid exactly once, class N at most once (in doubt only when its intent was published), and no
alarm. ``SUREFOOT_CRASHES=all`` explores every boundary in all four modes; without it, two modes
are explored in full and the other two at every third boundary.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import pytest
from tests.crash.explore import Case, Report, explore, trace_of
from tests.crash.stores import BACKENDS, place
from tests.crash.workloads import WORKLOADS

from surefoot.testing.faults import WRITES, Fault

ALL = os.environ.get("SUREFOOT_CRASHES") == "all"
MODES = (("sync", False), ("async", True), ("sync", True), ("async", False))
IN_FULL = MODES if ALL else MODES[:2]
DOUBLE = 12
#: Where the second process is killed; not every resume comes to each of these.
SECOND = (
    "marks.acquire.before#1",
    "marks.acquire.after#1",
    "store.read_newest.after#1",
    "effect.charge.before#1",
    "effect.charge.after#1",
    "store.append.before#1",
    "store.append.after#1",
    "store.append.after#2",
    "marks.publish.before#1",
    "marks.publish.after#1",
    "marks.publish.after#2",
)


def cases(modes: Sequence[tuple[str, bool]]) -> list[object]:
    """Every workload on every backend in these modes."""
    return [
        pytest.param(
            (spec.name, backend, durability, is_async),
            id=f"{spec.name}-{backend}-{durability}-{'ainvoke' if is_async else 'invoke'}",
            marks=[pytest.mark.postgres] if backend == "postgres" else [],
        )
        for backend in BACKENDS
        for spec in WORKLOADS
        for durability, is_async in modes
    ]


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    workload, backend, durability, is_async = request.param
    return Case(workload, place(backend), durability, is_async)


def explored(
    pool: ProcessPoolExecutor,
    case: Case,
    plans: Sequence[tuple[dict[str, Fault], dict[str, Fault]]],
) -> list[Report]:
    """Explores all plans and fails with everything that did not hold."""
    futures = [pool.submit(explore, case, first, second) for first, second in plans]
    reports = [future.result() for future in futures]
    problems = [
        f"{first} then {second}, ended {report.ended}: {problem}"
        for (first, second), report in zip(plans, reports, strict=True)
        for problem in report.problems
    ]
    assert not problems, f"{case}:\n" + "\n".join(problems)
    assert reports, "nothing was explored"
    return reports


def once(names: Sequence[str], fault: Fault) -> list[tuple[dict[str, Fault], dict[str, Fault]]]:
    return [({name: fault}, {}) for name in names]


def thinned(case: Case, names: Sequence[str]) -> Sequence[str]:
    """All boundaries, or a third of them in the modes that are not explored in full."""
    if (case.durability, case.is_async) in IN_FULL:
        return names
    return names[zlib.crc32(str(case.workload).encode()) % 3 :: 3]


@pytest.mark.parametrize("case", cases(MODES), indirect=True)
def test_death_at_every_boundary(case: Case, explorers: ProcessPoolExecutor) -> None:
    trace = trace_of(case)
    assert len(trace) > 40
    names = thinned(case, trace)
    reports = explored(explorers, case, once(names, Fault.DIE))
    assert [report.hit for report in reports] == [[name] for name in names]
    assert all(len(report.ended) > 1 for report in reports), "a dead process went on"


@pytest.mark.optimized
@pytest.mark.parametrize("case", cases(MODES[:2])[:2], indirect=True)
def test_death_at_every_boundary_also_without_asserts(
    case: Case, explorers: ProcessPoolExecutor
) -> None:
    names = trace_of(case)[::4]
    reports = explored(explorers, case, once(names, Fault.DIE))
    assert [report.hit for report in reports] == [[name] for name in names]


@pytest.mark.parametrize("case", cases(IN_FULL), indirect=True)
def test_lost_reply_of_every_write(case: Case, explorers: ProcessPoolExecutor) -> None:
    """The call was made, its answer was lost: read back, go on, or fail and resume."""
    names = [n for n in trace_of(case) if n.split(".after#")[0] in WRITES]
    reports = explored(explorers, case, once(names, Fault.LOST))
    assert [report.hit for report in reports] == [[name] for name in names]


@pytest.mark.parametrize("case", cases(IN_FULL), indirect=True)
@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.OUTAGE], ids=["once", "outage"])
def test_store_that_does_not_answer(
    case: Case, fault: Fault, explorers: ProcessPoolExecutor
) -> None:
    """A typed error, no further effect in that run, and the thread goes on afterwards."""
    names = [n for n in trace_of(case) if ".before#" in n and not n.startswith("effect.")]
    reports = explored(explorers, case, once(names, fault))
    assert [report.hit for report in reports] == [[name] for name in names]


@pytest.mark.parametrize("case", cases(MODES), indirect=True)
def test_second_death_during_the_resume(case: Case, explorers: ProcessPoolExecutor) -> None:
    """Seeded: each pair dies once in the first run and once while that is resumed."""
    chance = random.Random(str((case.workload, case.durability, case.is_async)))
    # What dies before its last boundaries leaves something to resume.
    trace = trace_of(case)[:-8]
    count = DOUBLE * 4 if ALL else DOUBLE
    plans = [
        ({chance.choice(trace): Fault.DIE}, {chance.choice(SECOND): Fault.DIE})
        for _ in range(count)
    ]
    reports = explored(explorers, case, plans)
    twice = sum(len(report.hit) == 2 for report in reports)
    assert twice > count // 3, f"only {twice} of {count} pairs died twice"
