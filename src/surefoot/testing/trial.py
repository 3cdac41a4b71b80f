"""One thread of a graph in one process: driven on by what is stored, until it is done or dead.

An `Errand` is plain data, so that another process can take it up.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langgraph.types import Command

from surefoot.config import Limits, ResumePolicy
from surefoot.keys import Keyring
from surefoot.langgraph.saver import SurefootSaver
from surefoot.testing.comparing import text
from surefoot.testing.faults import Died, Fault, Plan, bury, with_faults

__all__ = ["Ended", "Errand", "Questions", "Stores", "drive", "run_until_killed"]

_RUNS_MAX = 100
_NEVER_MS = 10**9
_HOUR_MS = 3_600_000
_THREAD = "resume-equivalence"


@dataclass(frozen=True)
class Stores:
    """Where trials are kept, and how a saver on it is opened.

    Attributes:
        url: Of the content store.
        highwater: Of the high-water store.
        key_file: Keys.
        settings: Further arguments of the savers.
    """

    url: str
    highwater: str
    key_file: str
    settings: Mapping[str, Any]

    def open(self, tenant: str) -> SurefootSaver:
        """A saver; nothing happens by the clock, so that each run comes to the same boundaries."""
        given: dict[str, Any] = {
            "limits": Limits(flush_after_ms=_NEVER_MS),
            "policy": ResumePolicy(lease_ttl_ms=_HOUR_MS, settling_ms=0, handover_grace_ms=0),
            **self.settings,
        }
        keys = Keyring.from_file(self.key_file)
        return SurefootSaver(self.url, highwater=self.highwater, keys=keys, tenant=tenant, **given)


@dataclass
class Questions:
    """Answers to interrupts: of a function, or one per different question in their order.

    The same question gets the same answer in every run and process, however often it is asked.
    """

    answers: Callable[[Any], Any] | Sequence[Any]
    known: dict[str, Any] = field(default_factory=dict)
    learning: bool = True

    def answer(self, question: Any) -> Any:
        """The answer.

        Raises:
            LookupError: There is none.
        """
        if callable(self.answers):
            return self.answers(question)
        asked = text(question)
        if asked not in self.known:
            if not self.learning:
                raise LookupError(f"a question that the uninterrupted run did not ask: {asked}")
            if len(self.known) == len(self.answers):
                raise LookupError(f"answers= has no answer to {asked}")
            self.known[asked] = self.answers[len(self.known)]
        return self.known[asked]


@dataclass(frozen=True)
class Errand:
    """What is run: one thread under a tenant of its own.

    Attributes:
        graph_factory: Makes the graph on a saver.
        inputs: First input.
        questions: Answers to interrupts.
        is_async: Runs with ``ainvoke``.
        durability: LangGraph's.
        config: Further settings of the runs.
        context: Run-time context of the graph.
        stores: Where.
        tenant: Whose.
    """

    graph_factory: Callable[[SurefootSaver], Any]
    inputs: Any
    questions: Questions
    is_async: bool
    durability: str
    config: Mapping[str, Any]
    context: Any
    stores: Stores
    tenant: str

    def run_config(self) -> dict[str, Any]:
        """The config of every run."""
        configurable = {**self.config.get("configurable", {}), "thread_id": _THREAD}
        return {**self.config, "configurable": configurable}

    def invoke(self, graph: Any, given: Any) -> None:
        """One run in its colour."""
        settings: dict[str, Any] = {"durability": self.durability}
        if self.context is not None:
            settings["context"] = self.context
        if not self.is_async:
            graph.invoke(given, self.run_config(), **settings)
            return

        def on_a_loop() -> None:
            asyncio.run(graph.ainvoke(given, self.run_config(), **settings))

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            on_a_loop()
            return
        with ThreadPoolExecutor(1) as aside:  # in an async test: its loop cannot run another one
            aside.submit(on_a_loop).result()


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        values: Final values, when it is done.
        error: What it raised.
        died: It died as planned.
    """

    values: Mapping[str, Any] | None = None
    error: BaseException | None = None
    died: bool = False


def drive(errand: Errand, plan: Plan, *, real_process: bool = False) -> Ended:
    """Runs an errand as one process until it is done, dies or fails."""
    with errand.stores.open(errand.tenant) as console:
        looking = errand.graph_factory(console)
        saver = with_faults(
            errand.stores.open(errand.tenant), plan, bodies=True, real_process=real_process
        )
        try:
            ended = _until_done(errand, errand.graph_factory(saver), looking, plan)
        finally:
            if plan.dead:
                bury(saver, plan)
            else:
                try:
                    saver.close()  # its last writes are boundaries as well
                except Died:
                    bury(saver, plan)
        return Ended(died=True) if plan.dead else ended


def _until_done(errand: Errand, graph: Any, looking: Any, plan: Plan) -> Ended:
    if not looking.checkpointer or not graph.checkpointer:
        raise ValueError("graph_factory did not compile the graph with the saver it was given")
    for _ in range(_RUNS_MAX):
        snapshot = looking.get_state(errand.run_config())
        if snapshot.config["configurable"].get("checkpoint_id") is None:
            given = errand.inputs
        elif not snapshot.tasks:  # `next` leaves out tasks whose writes wait to be applied
            return Ended(values=snapshot.values)
        else:
            given = None
        try:
            if snapshot.interrupts:
                answers = {i.id: errand.questions.answer(i.value) for i in snapshot.interrupts}
                given = Command(resume=answers)
            errand.invoke(graph, given)
        except (Died, Exception) as error:  # noqa: BLE001 - judged by whoever started it
            return Ended(error=error, died=plan.dead)
        if plan.dead:
            return Ended(died=True)
    return Ended(error=RuntimeError(f"not done after {_RUNS_MAX} runs"))


def run_until_killed(errand: Errand, boundary: str, barrier: str) -> None:
    """In a process of its own: runs until it kills itself at a boundary.

    Args:
        errand: What is run.
        boundary: Where; the process writes its name into the barrier before it is killed.
        barrier: Path of a file.
    """
    with Path(barrier).open("w", encoding="utf-8") as out:
        plan = Plan({boundary: Fault.KILL}, out=out)
        ended = drive(errand, plan, real_process=True)
    if ended.error is not None:
        sys.exit(f"{type(ended.error).__qualname__}: {ended.error}")
