"""Real processes, real SIGKILLs, a real payment service, and a resume in another process.

``SUREFOOT_KILLS`` sets how many processes are killed (300 by default). Each kill is seeded, and
each proves that it hit its window: the worker prints a barrier line and waits there for its end,
or the service announces that it holds the worker's request. The total is asserted.
"""

from __future__ import annotations

import os
import random
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
from tests.crash.nursery import NotReached, Nursery
from tests.crash.shapes import MATRIX
from tests.crash.stores import BACKENDS, place
from tests.crash.worker import Order
from tests.crash.workloads import Workload

from surefoot.demo.payments_client import PaymentService

KILLS = int(os.environ.get("SUREFOOT_KILLS", "300"))
SIDE_BY_SIDE = max(2, (os.cpu_count() or 2) + 1)
#: Every resume comes to these, so a second kill there is certain to hit.
SECOND = (
    "marks.acquire.before#1",
    "marks.acquire.after#1",
    "store.read_newest.before#1",
    "store.read_newest.after#1",
)
HELD = ("before_commit abort", "before_commit commit", "after_commit")
pytestmark = pytest.mark.kill


@dataclass(frozen=True)
class Kill:
    """One process to be killed.

    Attributes:
        spec: What it runs.
        backend: On which stores.
        durability: LangGraph's.
        is_async: Colour.
        form: In which effects are called.
        where: A boundary, or how the service holds a request of the worker.
        what: Which payment is held.
        again: Boundary at which the resuming process is killed as well.
    """

    spec: Workload
    backend: str
    durability: str
    is_async: bool
    form: str
    where: str
    what: str | None
    again: str | None


class Killer:
    """Kills workers and judges what their successors make of it."""

    def __init__(self, nursery: Nursery, service: PaymentService) -> None:
        self.nursery = nursery
        self.service = service
        self._outcomes: dict[tuple[object, ...], tuple[Sequence[str], str]] = {}
        self._lock = threading.Lock()

    def order(self, workload: str, backend: str, **more: Any) -> Order:
        """An order on a fresh thread."""
        thread = f"{workload}-{uuid.uuid4().hex}"
        given = {"thread": thread, "workload": workload, **more}
        return Order(place=asdict(place(backend)), url=self.service.url, **given)

    def uninterrupted(
        self,
        workload: str,
        backend: str,
        is_async: bool,
        form: str = "function",
        durability: str = "sync",
    ) -> tuple[Sequence[str], str]:
        """Boundaries and outcome of a run that nobody kills."""
        case = (workload, backend, is_async, form, durability)
        with self._lock:
            if case not in self._outcomes:
                order = self.order(
                    workload, backend, is_async=is_async, form=form, durability=durability
                )
                said = self.nursery.fork(order).finish()
                assert "RAISED" not in said, said
                trace = [name for name in said["TRACE"] if "#" in name]
                self._outcomes[case] = trace, said["DONE"]
            return self._outcomes[case]

    def kill(self, kill: Kill) -> int:
        """Kills one worker, maybe its successor too, and judges. Gives the number of kills.

        How many commits a run has depends on how its writes ride together, so a boundary near
        the end may not come. Then another run is killed at an earlier one: a kill that does not
        hit is none.
        """
        while True:
            try:
                return self._kill(kill)
            except NotReached:
                name, _, number = kill.where.rpartition("#")
                if int(number) == 1:
                    raise
                kill = replace(kill, where=f"{name}#{int(number) * 3 // 4}")

    def _kill(self, kill: Kill) -> int:
        spec = kill.spec
        first = self.order(
            spec.name,
            kill.backend,
            durability=kill.durability,
            is_async=kill.is_async,
            form=kill.form,
            stops=(kill.where,) if kill.what is None else (),
        )
        if kill.what is None:
            child = self.nursery.fork(first)
            child.at(kill.where)
            child.kill()
        else:
            self._kill_while_held(first, kill)
        hits = 1
        later = Order(**{**asdict(first), "stops": ()})
        if kill.again is not None:
            child = self.nursery.fork(Order(**{**asdict(first), "stops": (kill.again,)}))
            # Writes may come after the last checkpoint; then there is nothing left to resume.
            if child.read("AT", "TRACE", "RAISED").startswith("AT"):
                assert child.lines[-1] == f"AT {kill.again}"
                child.kill()
                hits += 1
            else:
                child.finish()
        said = self.nursery.fork(later).finish()
        _, outcome = self.uninterrupted(
            spec.name, kill.backend, kill.is_async, kill.form, trace_mode(kill.durability)
        )
        self.judge(spec, first.thread, said, outcome)
        return hits

    def _kill_while_held(self, order: Order, kill: Kill) -> None:
        where, _, leaving = kill.where.partition(" ")
        hold = self.service.hold(
            where, invoice=f"{order.thread}/{kill.what}", on_disconnect=leaving or None
        )
        child = self.nursery.fork(order)
        held = self.service.wait_held(hold)
        assert (held.where, held.invoice) == (where, f"{order.thread}/{kill.what}")
        child.kill()
        gone = self.service.wait_gone(hold)
        wanted = {"before_commit abort": "aborted"}.get(kill.where, "landed")
        assert gone.outcome == wanted
        self.service.release(hold)

    def count(self, thread: str, what: str) -> int:
        """How often something of a thread was paid."""
        invoice = f"{thread}/{what}"
        return self.service.audit(invoice=invoice).count(invoice)

    def judge(self, spec: Workload, thread: str, said: dict[str, Any], outcome: str) -> None:
        """Classes K and L once, class N at most once; the same final state, or a real doubt."""
        raised = said.get("RAISED")
        counts = {what: self.count(thread, what) for _, what in spec.charges}
        wanted = {what: times for (_, what), times in spec.charges.items()}
        if raised is None:
            assert said.get("DONE") == outcome
            assert counts == wanted
            return
        assert raised["error"] == "EffectInDoubt", raised
        assert raised["effect"] == "pay_n", raised
        assert raised["intent"] is True, "in doubt without a published intent"
        assert all(counts[what] <= wanted[what] for what in wanted), counts


@pytest.fixture(scope="session")
def killer(nursery: Nursery, service: PaymentService) -> Killer:
    return Killer(nursery, service)


def trace_mode(durability: str) -> str:
    """The mode whose boundaries stand for this one's: ``async`` comes to those of ``sync``."""
    return "exit" if durability == "exit" else "sync"


def resumable(trace: Sequence[str]) -> Sequence[str]:
    """Boundaries at which a run cannot end behind the back of the thread that is stopped there."""
    last = max(n for n, name in enumerate(trace) if name.startswith("marks.publish.before#"))
    return [n for n in trace[:last] if n.startswith(("store.append", "marks.publish", "effect."))]


def planned(killer: Killer, backend: str, count: int) -> list[Kill]:
    """Seeded kills: four of five at a boundary, the others while the service holds a payment."""
    chance = random.Random(f"{backend} {count}")
    kills = []
    for _ in range(count):
        spec = chance.choice(MATRIX)
        form = chance.choice(spec.forms)
        is_async = chance.random() < 0.5
        durability = chance.choice(spec.durabilities or ("sync", "async"))
        trace, _ = killer.uninterrupted(spec.name, backend, is_async, form, trace_mode(durability))
        held = chance.random() < 0.2
        what = chance.choice([what for _, what in spec.charges]) if held else None
        again = chance.choice(SECOND) if chance.random() < 0.15 else None
        where = chance.choice(HELD) if held else chance.choice(resumable(trace) if again else trace)
        kills.append(Kill(spec, backend, durability, is_async, form, where, what, again))
    return kills


@pytest.mark.timeout(120 + 3 * KILLS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_kills_at_seeded_boundaries(backend: str, killer: Killer) -> None:
    count = max(1, KILLS // 2)
    kills = planned(killer, backend, count)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        futures = [pool.submit(killer.kill, kill) for kill in kills]
    failed = [
        f"{kill}: {error}"
        for kill, future in zip(kills, futures, strict=True)
        if (error := future.exception()) is not None
    ]
    assert not failed, f"{len(failed)} of {count}:\n" + "\n".join(failed[:20])
    proven = sum(future.result() for future in futures)
    again = sum(kill.again is not None for kill in kills)
    assert count + again * 4 // 5 <= proven <= count + again
    print(f"{proven} kills proven on {backend}")
