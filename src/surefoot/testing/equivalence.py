"""Kill-test your own graph: a run that dies at any boundary must end like one that did not.

`assert_resume_equivalent` is for the tests of whoever builds a graph; docs/testing.md shows it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from surefoot.errors import EffectInDoubt
from surefoot.keys import Keyring
from surefoot.langgraph.saver import SurefootSaver
from surefoot.testing.comparing import differences, plain
from surefoot.testing.faults import Fault, Plan
from surefoot.testing.receivers import CountsEffects
from surefoot.testing.trial import Ended, Errand, Questions, Stores, drive, run_until_killed

__all__ = ["Equivalence", "NotEquivalent", "assert_resume_equivalent"]

_ALARMS = ("[ROLLBACK]", "[TAMPER]", "[MARK_CORRUPT]", "[FENCED]")
#: A folder in memory, where there is one: a process that dies takes no power away.
_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder made there is private
_NOISY = ("concurrent.futures", "asyncio")


@dataclass(frozen=True)
class Equivalence:
    """What was explored; everything held.

    Attributes:
        boundaries: Those of an uninterrupted run, in order.
        died: Where a run died, and went on in another saver.
        not_reached: Where none did, because that run came to fewer boundaries of the kind.
        in_doubt: Where the resumed run stopped for a person, as ``in_doubt=`` allows.
    """

    boundaries: tuple[str, ...]
    died: tuple[str, ...]
    not_reached: tuple[str, ...]
    in_doubt: tuple[str, ...]


class NotEquivalent(AssertionError):
    """A run that died and was resumed did not end like an uninterrupted one.

    Attributes:
        boundary: Where it died; None when two uninterrupted runs already differ.
        differences: What differs, one sentence each.
        reproduce: What to change in the call to see this one again.
    """

    def __init__(self, boundary: str | None, differences: Sequence[str], reproduce: str) -> None:
        """Says where, what and how to see it again."""
        super().__init__(boundary, tuple(differences), reproduce)
        self.boundary = boundary
        self.differences = tuple(differences)
        self.reproduce = reproduce

    def __str__(self) -> str:
        """Several lines."""
        if self.boundary is None:
            head = "two uninterrupted runs differ, so nothing can be compared:"
        else:
            head = f"a run that died at {self.boundary} and was resumed is not equivalent:"
        return "\n".join([head, *(f"  - {d}" for d in self.differences), self.reproduce])


def assert_resume_equivalent(
    graph_factory: Callable[[SurefootSaver], Any],
    inputs: Any,
    receiver: CountsEffects,
    *,
    answers: Callable[[Any], Any] | Sequence[Any] = (),
    is_async: bool = False,
    durability: str = "async",
    config: Mapping[str, Any] | None = None,
    context: Any = None,
    state: Callable[[Mapping[str, Any]], Any] | None = None,
    in_doubt: Collection[str] = (),
    boundaries: Collection[str] | None = None,
    every: int = 1,
    processes: bool = False,
    url: str | None = None,
    highwater: str | None = None,
    saver_settings: Mapping[str, Any] | None = None,
    progress: Callable[[str], object] | None = None,
) -> Equivalence:
    """Lets a graph die at every boundary and checks that each resume ends like an unbroken run.

    It is first run without a fault. That run names the boundaries: before and after every call
    of a store (``store.append.before#2``), of an effect's body (``effect.charge.after#1``) and
    of a lookup (``lookup.charge.before#1``). For each of them a new thread is started, dies
    there, and is driven on by a new saver on a new instance of the graph. Then its final state
    and what the receiver counted must be those of the unbroken run, and nothing may have raised
    an alarm.

    Without ``processes`` the death is simulated: from the boundary on, no store, body or lookup
    does anything more. Side effects outside of an effect are not stopped, so one that runs in a
    thread beside the boundary may still land.

    Args:
        graph_factory: Makes the compiled graph on the saver that it is given.
        inputs: First input of the graph.
        receiver: Counts what happened outside: `snapshot()`; `reset()` is called before each
            run if it has one. `CountingReceiver` is one.
        answers: Answers to interrupts: a function of the question (the interrupt's value), or
            one answer for each different question, in their order.
        is_async: Run with ``ainvoke``.
        durability: LangGraph's.
        config: Further config of the runs; the thread is chosen here.
        context: The graph's run-time context.
        state: What of the final values is compared; by default all. Ids of messages never are.
        in_doubt: Names of effects that may stop a resumed run for a person, because their
            receiver can neither deduplicate nor be asked. Twice is wrong for them as well.
        boundaries: Only these; for seeing one failure again.
        every: Only each how-many-eth boundary.
        processes: Kill real processes with SIGKILL. Everything given here must be picklable, and
            the factory a function that another process can import.
        url: Address of a throw-away PostgreSQL database; by default SQLite in a temporary
            folder. Rows are left there, under tenants of their own.
        highwater: Address of the high-water store; by default SQLite in the temporary folder.
        saver_settings: Further arguments of the savers, e.g. ``allowed_types``.
        progress: Is told each boundary before it is tried, e.g. ``print``.

    Returns:
        What was explored.

    Raises:
        NotEquivalent: At the first boundary that makes a difference.
        ValueError: The arguments cannot work.
        BaseException: Whatever the uninterrupted run raises.
    """
    if every < 1:
        raise ValueError("every= is 1 or more")
    if not callable(getattr(receiver, "snapshot", None)):
        raise ValueError("the receiver has no snapshot(), so nothing could be counted")
    with _folder() as folder, _quiet() as heard:
        stores = _opened(folder, url, highwater, saver_settings or {})
        errand = Errand(
            graph_factory=graph_factory,
            inputs=inputs,
            questions=Questions(answers if callable(answers) else list(answers)),
            is_async=is_async,
            durability=durability,
            config=config or {},
            context=context,
            stores=stores,
            tenant="",
        )
        lab = _Laboratory(errand, receiver, state or dict, frozenset(in_doubt), folder, heard)
        lab.run_uninterrupted()
        if processes:
            _require_picklable(lab.errand)
        names = [n for n in lab.trace if boundaries is None or n in boundaries]
        unknown = set(boundaries or ()) - set(lab.trace)
        if unknown:
            raise ValueError(f"no boundary of this run: {min(unknown)}")
        for number, name in enumerate(names[::every], start=1):
            if progress is not None:
                progress(f"{number}/{len(names[::every])} {name}")
            lab.explore(name, processes=processes)
        return lab.report()


class _Laboratory:
    """Runs trials and judges them by the uninterrupted one."""

    def __init__(
        self,
        errand: Errand,
        receiver: CountsEffects,
        state: Callable[[Mapping[str, Any]], Any],
        may_doubt: frozenset[str],
        folder: Path,
        heard: list[str],
    ) -> None:
        self.errand = errand
        self.trace: tuple[str, ...] = ()
        self._receiver = receiver
        self._state = state
        self._may_doubt = may_doubt
        self._folder = folder
        self._heard = heard
        self._wanted: Any = None
        self._counts: Counter[str] = Counter()
        self._tenants = f"trial-{uuid.uuid4().hex[:12]}"
        self._trials = 0
        self._died: list[str] = []
        self._not_reached: list[str] = []
        self._in_doubt: list[str] = []

    def run_uninterrupted(self) -> None:
        """Runs twice without a fault: what is compared must not differ by itself."""
        plan = Plan()
        self._begin()
        ended = self._unbroken(plan)
        self.trace = tuple(plan.trace)
        if not any(name.startswith("store.append") for name in self.trace):
            raise ValueError("graph_factory compiles the graph with another saver than the given")
        questions = self.errand.questions
        if not callable(questions.answers) and len(questions.known) != len(questions.answers):
            raise ValueError(
                f"answers= has {len(questions.answers)} answers, and the run asked "
                f"{len(questions.known)} different questions"
            )
        self.errand = replace(self.errand, questions=replace(questions, learning=False))
        self._wanted = plain(self._state(ended.values or {}))
        self._counts = self._counted()
        self._begin()
        again = self._unbroken(Plan())
        found = self._differences(again)
        if found:
            raise NotEquivalent(
                None, found, "compare what does not change by itself: state=lambda values: …"
            )

    def _unbroken(self, plan: Plan) -> Ended:
        ended = drive(self.errand, plan)
        if ended.error is not None:
            raise ended.error
        return ended

    def explore(self, name: str, *, processes: bool) -> None:
        """Dies at a boundary, goes on in another saver, and judges.

        Raises:
            NotEquivalent: It did not end like the uninterrupted run.
        """
        self._begin()
        first = self._killed(name) if processes else drive(self.errand, Plan({name: Fault.DIE}))
        if first.died:
            self._died.append(name)
            ended = drive(self.errand, Plan())
        else:
            self._not_reached.append(name)
            ended = first
        found = self._differences(ended)
        if first.died and self._stops_rightly(ended):
            self._in_doubt.append(name)
        if found:
            more = ", processes=True" if processes else ""
            raise NotEquivalent(
                name, found, f"see it again with boundaries=[{name!r}]{more} in the same call"
            )

    def report(self) -> Equivalence:
        """What was explored.

        Raises:
            ValueError: Nothing died, which proves nothing.
        """
        if not self._died:
            raise ValueError("no run died at its boundary, so nothing was proven")
        return Equivalence(
            self.trace, tuple(self._died), tuple(self._not_reached), tuple(self._in_doubt)
        )

    def _begin(self) -> None:
        """A tenant of its own for each trial, so that none meets what another one left."""
        self._trials += 1
        self.errand = replace(self.errand, tenant=f"{self._tenants}-{self._trials}")
        reset = getattr(self._receiver, "reset", None)
        if callable(reset):
            reset()
        self._before = Counter(self._receiver.snapshot())
        self._heard.clear()

    def _counted(self) -> Counter[str]:
        now = Counter(self._receiver.snapshot())
        now.subtract(self._before)
        return Counter({what: times for what, times in now.items() if times})

    def _killed(self, name: str) -> Ended:
        """Runs in a process of its own, and proves how that ended."""
        barrier = self._folder / f"barrier-{self._trials}"
        process = multiprocessing.get_context("spawn").Process(
            target=run_until_killed, args=(self.errand, name, str(barrier))
        )
        process.start()
        process.join()
        said = barrier.read_text(encoding="utf-8") if barrier.exists() else ""
        if process.exitcode == -signal.SIGKILL and said == f"AT {name}\n":
            return Ended(died=True)
        if process.exitcode == 0 and not said:
            return drive(self.errand, Plan())  # done already: this only reads its final state
        return Ended(
            error=ChildProcessError(
                f"the process to be killed at {name} ended with {process.exitcode} before "
                "(its error output says why)"
            )
        )

    def _stops_rightly(self, ended: Ended) -> bool:
        error = ended.error
        return isinstance(error, EffectInDoubt) and error.fields["effect"] in self._may_doubt

    def _differences(self, ended: Ended) -> list[str]:
        found = [f"an alarm: {text}" for text in self._heard]
        stopped = self._stops_rightly(ended)
        if ended.error is not None and not stopped:
            found.append(f"it raised {type(ended.error).__qualname__}: {ended.error}")
        counts = self._counted()
        for what in sorted(self._counts.keys() | counts.keys()):
            wanted, times = self._counts[what], counts[what]
            # Whoever stopped has more to do; more than wanted is wrong also then.
            if times > wanted or (times < wanted and ended.error is None):
                found.append(f"{what!r} happened {times} times instead of {wanted}")
        if ended.values is not None:
            found += differences(self._wanted, plain(self._state(ended.values)))
        return found


def _opened(
    folder: Path, url: str | None, highwater: str | None, settings: Mapping[str, Any]
) -> Stores:
    """Stores that are set up."""
    key_file = folder / "keys.json"
    Keyring.generate().to_file(key_file)
    stores = Stores(
        url=url or f"sqlite:///{folder}/threads.db",
        highwater=highwater or f"sqlite:///{folder}/highwater.db",
        key_file=str(key_file),
        settings=settings,
    )
    with stores.open("setup") as saver:
        saver.setup()
    return stores


def _require_picklable(errand: Errand) -> None:
    try:
        ForkingPickler.dumps(errand)
    except Exception as error:
        raise ValueError(
            "processes=True needs a factory that another process can import (a function of a "
            f"module, or functools.partial of one), and arguments that can be pickled: {error}"
        ) from error


@contextmanager
def _folder() -> Iterator[Path]:
    parent = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="surefoot-testing-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Alarms(logging.Handler):
    """Keeps alarms that only reach the log: an honest crash must cause none."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if any(code in text for code in _ALARMS):
            self.heard.append(text)


@contextmanager
def _quiet() -> Iterator[list[str]]:
    """Hears alarms, and keeps the threads of the dead from complaining."""
    alarms, ours = _Alarms(), logging.getLogger("surefoot")
    noisy = [logging.getLogger(name) for name in _NOISY]
    before = [logger.disabled for logger in noisy]
    ours.addHandler(alarms)
    for logger in noisy:
        logger.disabled = True
    try:
        yield alarms.heard
    finally:
        ours.removeHandler(alarms)
        for logger, disabled in zip(noisy, before, strict=True):
            logger.disabled = disabled
