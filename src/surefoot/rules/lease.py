"""May a thread be taken over now? (step P1, rule R12)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = [
    "Acquire",
    "HolderFacts",
    "ProcessFacts",
    "RunFacts",
    "decide_acquire",
    "decide_holder_dead",
    "decide_run_over",
]


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """Where a process runs and which one it is.

    Attributes:
        boot_id: Of the running kernel; empty when unknown.
        pid_namespace: Of the process; empty when unknown.
        pid: Process id within the namespace.
        start: Start time of the process in the kernel's ticks; 0 when unknown.
    """

    boot_id: str
    pid_namespace: str
    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class HolderFacts:
    """The lease's holder and what this host can say about it.

    Attributes:
        holder: As it described itself when it acquired; None when it cannot be read.
        here: Ourselves.
        start_now: Start time of the process that has the holder's pid now; None when there is
            no such process; 0 when it cannot be read.
    """

    holder: ProcessFacts | None
    here: ProcessFacts
    start_now: int | None


def decide_holder_dead(facts: HolderFacts) -> bool:
    """Decides whether the holder is proven dead.

    Only on the same boot of the same host and in the same pid namespace, and only when its pid
    is gone or belongs to a process that started at another time. Unknown is never dead.
    """
    holder = facts.holder
    if holder is None or not holder.boot_id or not holder.pid_namespace:
        return False
    if (holder.boot_id, holder.pid_namespace) != (facts.here.boot_id, facts.here.pid_namespace):
        return False
    if facts.start_now is None:
        return True
    return bool(holder.start and facts.start_now and holder.start != facts.start_now)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What this process can say about an earlier run of its own on the same thread.

    Attributes:
        collected: The object that lives as long as the run is gone.
        caller_done: The task that called it is done.
        executor_gone: The thread that carried out its last save belonged to the run's own
            executor, which is shut down when the run ends for whatever reason.
        caller_is_here: The task or thread that called it is making this very call.
        inside: This call is made from inside that run.
    """

    collected: bool = False
    caller_done: bool = False
    executor_gone: bool = False
    caller_is_here: bool = False
    inside: bool = False


def decide_run_over(facts: RunFacts) -> bool:
    """Decides whether an earlier run of this process is over, so that it may be superseded.

    Tracebacks keep a failed run's objects alive for as long as somebody holds its exception, so
    other signs count as well. A wrong "over" is kept safe by the fence.
    """
    if facts.collected or facts.caller_done or facts.executor_gone:
        return True
    return facts.caller_is_here and not facts.inside


class Acquire(Enum):
    """What an acquirer does next."""

    TAKE = "take"
    TAKE_OVER = "take over"
    WAIT = "wait"
    BUSY = "busy"


def decide_acquire(
    *, lease_left_ms: int, holder_dead: bool, waited_ms: int, may_wait_ms: int
) -> Acquire:
    """Decides how to go on when the lease was not free at the first try.

    A lease that ran out or was given back meanwhile is taken; a holder that is proven dead is
    taken over at once (the fence keeps it safe); otherwise wait as long as the policy says.
    """
    if lease_left_ms <= 0:
        return Acquire.TAKE
    if holder_dead:
        return Acquire.TAKE_OVER
    if waited_ms < may_wait_ms:
        return Acquire.WAIT
    return Acquire.BUSY
