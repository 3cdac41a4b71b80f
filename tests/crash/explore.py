"""One crash after the other, in one process: run, fail at a boundary, go on, judge.

`explore` is a plain function of plain data, so that several processes can share the work.
"""

from __future__ import annotations

import logging
import random
import threading
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from langchain_core.runnables import RunnableConfig
from tests.crash.shapes import by_name
from tests.crash.stores import Place
from tests.crash.workloads import Pay, Stumble, Workload, make, shown

from surefoot import SurefootSaver
from surefoot.errors import EffectInDoubt, SurefootError
from surefoot.ports import HighWater, Publish
from surefoot.rules.intents import unpack_intents
from surefoot.testing.faults import Died, Fault, Plan, bury, with_faults

__all__ = ["Case", "Report", "explore", "explore_surely", "explore_twice", "trace_of"]

_RUNS_MAX = 9


@dataclass(frozen=True)
class Case:
    """A workload on a backend, in one durability mode, one colour and one form of effects."""

    workload: str
    place: Place
    durability: str
    is_async: bool
    form: str = "function"

    def __str__(self) -> str:
        colour = "ainvoke" if self.is_async else "invoke"
        return f"{self.workload} {self.form} {self.place.backend} {self.durability} {colour}"

    @property
    def spec(self) -> Workload:
        return by_name(self.workload)

    @property
    def sequential(self) -> bool:
        """No two effects at the same time; the calls of one message run at the same time."""
        return self.spec.sequential and self.form != "tool"

    def compile(self, receiver: Any, thread: str, saver: SurefootSaver) -> Any:
        """The graph of one process."""
        pay = Pay(receiver, thread, is_async=self.is_async, form=self.form)
        return self.spec.compile(pay, saver)


@dataclass
class Report:
    """What came of one exploration; no problems means that everything held.

    Attributes:
        hit: Boundaries at which a fault happened, in all processes.
        ended: How each run ended: ``done`` or the name of an error.
        problems: What did not hold.
        trace: Boundaries of the first process.
        resumed: Boundaries of the second one.
    """

    hit: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)

    @property
    def in_doubt(self) -> bool:
        return self.ended[-1] == "EffectInDoubt"


class World:
    """The receiver of all effects; it outlives every process.

    Attributes:
        landed: Charges, by (mode, invoice, key).
        intended: Slots whose intent was ever published.
        origins: Under which slot an effect was first recorded, when another one adopted it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.intended: set[bytes] = set()
        self.origins: dict[bytes, bytes] = {}
        self.landed: list[tuple[str, str, str]] = []
        self._answers: dict[tuple[str, str], dict[str, Any]] = {}

    def charge(self, mode: str, invoice: str, key: str) -> dict[str, Any]:
        """Lands a charge, or replays it where the mode deduplicates."""
        with self._lock:
            if mode == "idempotent" and (mode, key) in self._answers:
                return self._answers[mode, key]
            self.landed.append((mode, invoice, key))
            return self._answers.setdefault((mode, key), {"invoice": invoice, "amount": 700})

    def find(self, key: str) -> list[dict[str, Any]]:
        """What landed in the mode that can be asked."""
        with self._lock:
            return [
                {"invoice": invoice, "amount": 700}
                for mode, invoice, held in self.landed
                if mode == "lookup" and held == key
            ]

    def counts(self) -> Counter[str]:
        """How often each invoice was paid."""
        with self._lock:
            return Counter(invoice for _, invoice, _ in self.landed)


class Door:
    """The world as one process reaches it: with boundaries, and not after its death."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._world, self._plan = world, plan

    def charge(self, mode: str, invoice: str, key: str) -> dict[str, Any]:
        return self._plan.around("effect.charge", lambda: self._world.charge(mode, invoice, key))

    def find(self, key: str) -> list[dict[str, Any]]:
        return self._plan.around("effect.find", lambda: self._world.find(key))


class Witness:
    """A high-water store that remembers every intent that it was ever told."""

    def __init__(self, inner: HighWater, world: World) -> None:
        self.inner, self._world = inner, world

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def publish(self, tenant: str, thread: str, publish: Publish) -> bool:
        done = self.inner.publish(tenant, thread, publish)
        if done:
            self._world.intended.update(unpack_intents(publish.intents))
        return done


class Alarms(logging.Handler):
    """Alarms that only reach the log: an honest crash must cause none."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if any(code in text for code in ("[ROLLBACK]", "[TAMPER]", "[MARK_CORRUPT]", "[FENCED]")):
            self.heard.append(text)


@cache
def console(place: Place) -> SurefootSaver:
    """A saver that only looks."""
    return place.open()


@cache
def onlooker(case: Case) -> Any:
    """The graph on the saver that only looks; its effects are never called."""
    return case.compile(World(), "nobody", console(case.place))


class Process:
    """A simulated process: a saver of its own, the graph on it, and the plan of its faults."""

    def __init__(
        self, case: Case, world: World, thread: str, faults: Mapping[str, Fault] | None = None
    ) -> None:
        self.case, self.thread = case, thread
        self.plan = Plan({**(faults or {})})
        self.saver = with_faults(case.place.open(), self.plan)
        marks: Any = self.saver.core.ports.marks
        marks.inner = Witness(marks.inner, world)
        self._world = world
        self.graph = case.compile(Door(world, self.plan), thread, self.saver)
        self.config: RunnableConfig = {
            **case.spec.config,  # type: ignore[typeddict-item]
            "configurable": {"thread_id": thread},
        }
        self.values: dict[str, Any] = {}

    def run(self) -> BaseException | None:
        """Runs until nothing is left to do, or until the first error."""
        for _ in range(_RUNS_MAX):
            looking = onlooker(self.case)
            move = self.case.spec.next_move(looking, self.config)
            if move is None:
                self.values = looking.get_state(self.config).values
                return None
            self.plan.note("invoke")
            try:
                make(
                    move,
                    self.graph,
                    self.config,
                    durability=self.case.durability,
                    is_async=self.case.is_async,
                )
            except Stumble:
                pass
            except (Died, Exception) as error:
                if not self.plan.dead:
                    self.plan.note("raised")
                for session in self.saver.core.sessions.all():
                    found = {slot: body.origin for slot, body in session.effects.items()}
                    self._world.origins.update(found)
                return error
            if self.plan.dead:
                return None
            self.plan.note("returned")
        return RuntimeError(f"not done after {_RUNS_MAX} runs")

    def close(self, report: Report) -> None:
        """Closes in order, or buries the dead."""
        if not self.plan.dead:
            try:
                self.saver.close()
            except Died:
                pass
            except Exception as error:
                report.problems.append(f"close() raised {error!r}")
        if self.plan.dead:
            bury(self.saver, self.plan)


def _ended(error: BaseException | None) -> str:
    return "done" if error is None else type(error).__name__


def trace_of(case: Case) -> list[str]:
    """Boundaries of an uninterrupted run."""
    report = explore(case, {})
    if report.problems:
        raise AssertionError(f"{case}: {report.problems}")
    return [name for name in report.trace if "#" in name]


def explore_surely(case: Case, name: str, fault: Fault) -> Report:
    """One fault at this boundary, or at an earlier one of its kind when a run has fewer.

    How many commits a run has depends on how its writes ride together, so a boundary near the
    end may not come; a fault that does not hit proves nothing.
    """
    while True:
        report = explore(case, {name: fault})
        call, _, number = name.rpartition("#")
        missed = [f"meant {[name]}, hit []"]
        if report.problems != missed or int(number) == 1:
            return report
        name = f"{call}#{int(number) * 3 // 4}"


def explore_twice(case: Case, first: str, seed: str) -> Report:
    """Dies at a boundary, and a second time at a seeded one of those that its resume came to."""
    once = explore_surely(case, first, Fault.DIE)
    first = once.hit[0] if once.hit else first
    if once.problems:
        return once
    names = [name for name in once.resumed if "#" in name]
    if not names:
        return once
    return explore(case, {first: Fault.DIE}, {random.Random(seed).choice(names): Fault.DIE})


def explore(
    case: Case, first: Mapping[str, Fault], second: Mapping[str, Fault] | None = None
) -> Report:
    """Runs a case with faults, goes on until it is done, and judges.

    Args:
        case: What is run.
        first: Faults of the first process.
        second: Faults of the second process, when the first one has died.
    """
    report = Report()
    alarms = Alarms()
    logging.getLogger("surefoot").addHandler(alarms)
    logging.getLogger("surefoot").propagate = False
    logging.getLogger("concurrent.futures").disabled = True  # threads of the dead end noisily
    logging.getLogger("asyncio").disabled = True
    try:
        _explore(case, dict(first), dict(second or {}), report)
    finally:
        logging.getLogger("surefoot").removeHandler(alarms)
        report.problems += [f"alarm in the log: {text}" for text in alarms.heard]
    return report


def _explore(case: Case, first: dict[str, Fault], second: dict[str, Fault], report: Report) -> None:
    world, thread = World(), f"{case.workload}-{uuid.uuid4().hex}"
    plans: list[Plan] = []
    error: BaseException | None = None
    for faults in (first, second, {}):
        process = Process(case, world, thread, faults)
        plans.append(process.plan)
        for _ in range(_RUNS_MAX):
            error = process.run()
            report.ended.append(_ended(error))
            _judge_error(error, process.plan, report)
            if error is None or process.plan.dead or isinstance(error, EffectInDoubt):
                break
            process.plan.mend()
        process.close(report)
        if not process.plan.dead and not isinstance(error, Died):
            break
    report.trace = plans[0].trace
    report.resumed = plans[1].trace if len(plans) > 1 else []
    report.hit = [name for plan in plans for name in plan.hit]
    if plans[0].hit != [*first]:
        report.problems.append(f"meant {[*first]}, hit {plans[0].hit}")
    for plan in plans:
        if plan.dead and plan.trace[-1] != plan.hit[-1]:
            report.problems.append(f"died at {plan.hit[-1]}, but went on to {plan.trace[-1]}")
    _judge_world(case, world, thread, report, error, process.values)
    _judge_no_effect_after_failure(case, plans[0], report)


def _judge_error(error: BaseException | None, plan: Plan, report: Report) -> None:
    if error is None or isinstance(error, Died):
        return
    if not isinstance(error, SurefootError):
        report.problems.append(f"no error of ours: {error!r}")
        return
    if plan.dead:
        return  # whoever waited in the dead process was woken by its latch
    if not plan.hit and not isinstance(error, EffectInDoubt):
        report.problems.append(f"an error without a fault: {error!r}")
    if error.code in ("ROLLBACK", "TAMPER", "MARK_CORRUPT", "FENCED", "BUSY", "BARRIER_TIMEOUT"):
        report.problems.append(f"not the error of this fault: {error!r}")


def _judge_no_effect_after_failure(case: Case, plan: Plan, report: Report) -> None:
    """After a save that failed, no effect starts in that run (rule E10)."""
    if not case.sequential or not plan.hit or plan.dead:
        return
    at = plan.trace.index(plan.hit[0])
    rest = plan.trace[at + 1 :]
    end = next((n for n, name in enumerate(rest) if name in ("raised", "returned")), len(rest))
    if end < len(rest) and rest[end] == "raised":
        started = [name for name in rest[:end] if name.startswith("effect.charge.before")]
        if started:
            report.problems.append(f"effects after a failed save: {started}")


def _judge_world(
    case: Case,
    world: World,
    thread: str,
    report: Report,
    error: BaseException | None,
    values: Mapping[str, Any],
) -> None:
    counts = world.counts()
    for (kind, what), times in case.spec.charges.items():
        landed = counts.pop(f"{thread}/{what}", 0)
        exact = error is None
        if landed > times or (exact and landed != times):
            report.problems.append(f"class {kind}, {what}: {landed} charges instead of {times}")
    if counts:
        report.problems.append(f"charges that nobody wanted: {dict(counts)}")
    if isinstance(error, EffectInDoubt):
        slot = bytes.fromhex(error.fields["slot"])
        if not {slot, world.origins.get(slot, slot)} & world.intended:
            report.problems.append("in doubt, but its intent was never published")
        if error.fields["effect"] != "pay_n":
            report.problems.append(f"in doubt: {error!r}")
        return
    if error is not None:
        report.problems.append(f"never done: {error!r}")
        return
    state = _final(case, thread, values)
    wanted = _expected(case) if report.hit else state
    if state != wanted:
        report.problems.append(f"final state {state} instead of {wanted}")


def _final(case: Case, thread: str, values: Mapping[str, Any]) -> str:
    """Values and steps of the history, without the thread's name."""
    config: RunnableConfig = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    steps = [found.metadata.get("step") for found in console(case.place).list(config)]
    return shown(values, steps, thread)


@cache
def _expected(case: Case) -> str:
    """Final state of a run without a crash."""
    world, thread = World(), f"{case.workload}-{uuid.uuid4().hex}"
    process = Process(case, world, thread)
    error = process.run()
    process.close(Report())
    if error is not None:
        raise error
    return _final(case, thread, process.values)
