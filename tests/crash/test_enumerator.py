"""A crash at every boundary: each run is interrupted once at each call of its ports.

For each boundary a fresh thread is run, the fault happens, another process goes on, and the
outcome is compared with an uninterrupted run: the same final state and history, classes K and L
paid exactly once, class N at most once (in doubt only when its intent was published), and no
alarm. Without more, the plain workloads are explored in full on SQLite in two modes and on
PostgreSQL in one, and at every third boundary in the other modes; the whole matrix (every shape,
every form of an effect, both backends) is explored at a seeded share of its boundaries.
``SUREFOOT_CRASHES=all`` (``make campaign-crash``) explores everything in all modes.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
from tests.crash.explore import Case, Report, explore, explore_surely, explore_twice, trace_of
from tests.crash.shapes import MATRIX
from tests.crash.stores import place
from tests.crash.workloads import WORKLOADS

from surefoot.testing.faults import WRITES, Fault

ALL = os.environ.get("SUREFOOT_CRASHES") == "all"
#: Durability, and whether the nodes are async.
MODES = (("sync", False), ("async", True), ("sync", True), ("async", False))
DOUBLES = 12
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

#: Of each case of the matrix, unless everything is explored: deaths, other faults, double deaths.
SHARE = {"sqlite": (10, 3, 3), "postgres": (5, 2, 2)}

Faults = dict[str, Fault]


def in_full(number: int, backend: str) -> Sequence[tuple[str, bool]]:
    """The modes in which the workload of this number is explored in full."""
    if ALL:
        return MODES
    return MODES[:2] if backend == "sqlite" else (MODES[number % 2],)


def cases(*, thinned: bool = False) -> list[Any]:
    """Every workload on every backend, in the modes of `in_full`, or also in the others."""
    found = []
    for backend in ("sqlite", "postgres"):
        for number, spec in enumerate(WORKLOADS):
            full = in_full(number, backend)
            others = MODES if backend == "sqlite" else MODES[:2]
            for durability, is_async in others if thinned else full:
                every = 1 if (durability, is_async) in full else 3
                colour = "ainvoke" if is_async else "invoke"
                found.append(
                    pytest.param(
                        (spec.name, backend, durability, is_async, every),
                        id=f"{spec.name}-{backend}-{durability}-{colour}",
                        marks=[pytest.mark.postgres] if backend == "postgres" else [],
                    )
                )
    return found


@pytest.fixture
def every(request: pytest.FixtureRequest) -> int:
    """How many boundaries lie between two that are explored."""
    return int(request.node.callspec.params["case"][4])


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    workload, backend, durability, is_async, _ = request.param
    return Case(workload, place(backend), durability, is_async)


def explored(
    pool: ProcessPoolExecutor, case: Case, plans: Sequence[tuple[Faults, Faults]]
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
    for (first, _), report in zip(plans, reports, strict=True):
        assert report.hit[: len(first)] == [*first], "a fault that did not hit proves nothing"
    return reports


def once(names: Sequence[str], *faults: Fault) -> list[tuple[Faults, Faults]]:
    """One fault per boundary; several kinds take turns."""
    return [({name: faults[n % len(faults)]}, {}) for n, name in enumerate(names)]


@pytest.mark.parametrize("case", cases(thinned=True), indirect=True)
def test_death_at_every_boundary(case: Case, every: int, explorers: ProcessPoolExecutor) -> None:
    trace = trace_of(case)
    assert len(trace) > 40
    first = zlib.crc32(case.workload.encode()) % every
    reports = explored(explorers, case, once(trace[first::every], Fault.DIE))
    assert all(len(report.ended) > 1 for report in reports), "a dead process went on"


@pytest.mark.optimized
@pytest.mark.parametrize("case", cases()[:2], indirect=True)
def test_death_at_some_boundaries_also_without_asserts(
    case: Case, explorers: ProcessPoolExecutor
) -> None:
    explored(explorers, case, once(trace_of(case)[::4], Fault.DIE))


@pytest.mark.parametrize("case", cases(), indirect=True)
def test_lost_reply_of_every_write(case: Case, explorers: ProcessPoolExecutor) -> None:
    """The call was made, its answer was lost: read back, go on, or fail and resume."""
    names = [n for n in trace_of(case) if n.split(".after#")[0] in WRITES]
    explored(explorers, case, once(names, Fault.LOST))


@pytest.mark.parametrize("case", cases(), indirect=True)
def test_store_that_does_not_answer(case: Case, explorers: ProcessPoolExecutor) -> None:
    """A typed error, no further effect in that run, and the thread goes on afterwards."""
    names = [n for n in trace_of(case) if ".before#" in n and not n.startswith("effect.")]
    plans = once(names, Fault.UNAVAILABLE, Fault.OUTAGE)
    explored(explorers, case, plans + once(names, Fault.OUTAGE, Fault.UNAVAILABLE) * ALL)


@pytest.mark.parametrize("case", cases(), indirect=True)
def test_second_death_during_the_resume(case: Case, explorers: ProcessPoolExecutor) -> None:
    """Seeded: each pair dies once in the first run and once while that is resumed."""
    chance = random.Random(str((case.workload, case.durability, case.is_async)))
    # What dies at its last boundaries leaves nothing to resume.
    trace = trace_of(case)[:-12]
    count = DOUBLES * 4 if ALL else DOUBLES
    plans = [
        ({chance.choice(trace): Fault.DIE}, {chance.choice(SECOND): Fault.DIE})
        for _ in range(count)
    ]
    reports = explored(explorers, case, plans)
    twice = sum(len(report.hit) == 2 for report in reports)
    assert twice > count // 3, f"only {twice} of {count} pairs died twice"


# --- the whole matrix ---------------------------------------------------------------------------


def matrix() -> list[Any]:
    """Every workload in every form on both backends; the modes take turns unless all are run."""
    found = []
    turn = 0
    for spec in MATRIX:
        modes = [(m, a) for m in spec.durabilities for a in (False, True)] or list(MODES)
        for form in spec.forms:
            for backend in ("sqlite", "postgres"):
                turn += 1
                for durability, is_async in modes if ALL else [modes[turn // 2 % len(modes)]]:
                    colour = "ainvoke" if is_async else "invoke"
                    found.append(
                        pytest.param(
                            (spec.name, backend, durability, is_async, form),
                            id=f"{spec.name}-{form}-{backend}-{durability}-{colour}",
                            marks=[pytest.mark.postgres] if backend == "postgres" else [],
                        )
                    )
    return found


@pytest.fixture
def cell(request: pytest.FixtureRequest) -> Case:
    workload, backend, durability, is_async, form = request.param
    return Case(workload, place(backend), durability, is_async, form)


def share(names: Sequence[str], count: int, seed: str) -> list[str]:
    """All of them, or a seeded share in their order."""
    if ALL or count >= len(names):
        return list(names)
    chosen = set(random.Random(seed).sample(range(len(names)), count))
    return [name for n, name in enumerate(names) if n in chosen]


def require_none(cell: Case, reports: Sequence[Report]) -> None:
    """Fails with everything that did not hold."""
    problems = [
        f"{report.hit}, ended {report.ended}: {problem}"
        for report in reports
        for problem in report.problems
    ]
    assert not problems, f"{cell}:\n" + "\n".join(problems)


@pytest.mark.timeout(3600 if ALL else 120)
@pytest.mark.parametrize("cell", matrix(), indirect=True)
def test_the_matrix(cell: Case, explorers: ProcessPoolExecutor) -> None:
    """Death, a lost reply and a store that does not answer, each at every boundary or a share."""
    deaths, others, _ = SHARE[cell.place.backend]
    trace = trace_of(cell)
    written = [n for n in trace if n.split(".after#")[0] in WRITES]
    asked = [n for n in trace if ".before#" in n and not n.startswith("effect.")]
    plans = [(name, Fault.DIE) for name in share(trace, deaths, f"die {cell}")]
    plans += [(name, Fault.LOST) for name in share(written, others, f"lose {cell}")]
    outages = (Fault.UNAVAILABLE, Fault.OUTAGE)
    plans += [(name, outages[n % 2]) for n, name in enumerate(share(asked, others, f"fail {cell}"))]
    futures = [explorers.submit(explore_surely, cell, *plan) for plan in plans]
    reports = [future.result() for future in futures]
    require_none(cell, reports)
    for (_, fault), report in zip(plans, reports, strict=True):
        assert len(report.hit) == 1, "a fault that did not hit proves nothing"
        assert len(report.ended) > 1 or fault is not Fault.DIE, "a dead process went on"


@pytest.mark.timeout(3600 if ALL else 120)
@pytest.mark.parametrize("cell", matrix(), indirect=True)
def test_the_matrix_dies_twice(cell: Case, explorers: ProcessPoolExecutor) -> None:
    """In order: at a boundary of the run, then at one that its resume really comes to."""
    trace = trace_of(cell)[:-12]  # what dies at its last boundaries leaves nothing to resume
    names = share(trace, SHARE[cell.place.backend][2], f"twice {cell}")
    futures = [explorers.submit(explore_twice, cell, name, f"{cell} {name}") for name in names]
    reports = [future.result() for future in futures]
    require_none(cell, reports)
    # A run in doubt stops early, and threads take turns, so that a few pairs die once only.
    twice = sum(len(report.hit) == 2 for report in reports)
    assert twice * 2 >= len(names) > 0, f"only {twice} of {len(names)} pairs died twice"
