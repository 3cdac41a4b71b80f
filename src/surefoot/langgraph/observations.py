"""Observations: reads of the world that are looked at again before an effect depends on them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from surefoot.errors import Misuse
from surefoot.flows import reads as flow
from surefoot.langgraph.place import Here
from surefoot.rules.bodies import EffectBody
from surefoot.rules.reads import HAPPENED, ObservationFacts, decide_observation
from surefoot.session import Observation, Session

__all__ = ["define", "depending", "due", "reached", "spend", "verified"]

#: Functions that observe, by name, so that an observation of an earlier step can be made again.
_defined: dict[str, Callable[..., Any]] = {}
#: Names of the effects that depend on an observation, by its name.
_dependents: dict[str, set[str]] = {}


def define(name: str, fn: Callable[..., Any]) -> None:
    """Notes a function that observes."""
    _defined[name] = fn


def depending(effect: str, names: Sequence[str]) -> tuple[str, ...]:
    """Notes what an effect depends on: it may move that itself."""
    for name in names:
        _dependents.setdefault(name, set()).add(effect)
    return tuple(names)


def reached(
    at: Here, step: flow.ReadStep, record: EffectBody, value: Any, body: Callable[[], Any]
) -> None:
    """Notes that the run has reached an observation, by reading or by replaying it."""
    session, ports, serde = at.run, at.core.ports, at.run.serde

    def check(now: Any) -> None:
        if serde is None:
            return
        error = flow.moved(session, serde, record, value, now)
        if error is not None:
            # Recorded before it is refused: whoever resumes again starts out from what is there.
            flow.finish(ports, session, serde, step, now)
            raise error

    _note(
        at,
        Observation(
            name=step.request.name,
            task=at.place.task,
            replayed=step.body is not None and not step.fresh,
            slot=record.slot,
            is_async=inspect.iscoroutinefunction(body),
            again=body,
            check=check,
            at=session.reads.at.get(record.slot, 0),
        ),
    )


def _note(at: Here, seen: Observation) -> None:
    with at.run.queue_lock:
        reads = at.run.reads
        reads.observations = [
            one for one in reads.observations if one.replayed or one.name != seen.name
        ] + [seen]


def spend(at: Here, name: str) -> None:
    """Notes that an effect of this task has happened: it may have moved what was observed."""
    with at.run.queue_lock:
        _follow(at.run)
        for seen in at.run.reads.observations:
            if seen.task == at.place.task:
                seen.spent = True
                seen.followed.add(name)  # that of an operation stands in another journal


def _follow(run: Session) -> None:
    """Notes which effects have happened behind what was observed, before a checkpoint drops them.

    The caller holds the queue's lock.
    """
    for effect in list(run.effects.values()):
        if effect.state in HAPPENED:
            at = run.effect_at.get(effect.slot, 0)
            for seen in run.reads.observations:
                if at > seen.at:
                    seen.followed.add(effect.name)


def due(at: Here, names: Sequence[str]) -> list[Observation]:
    """What has to be read again before an effect starts.

    Args:
        at: Where the effect is called.
        names: Observations that it depends on; empty means those of its task.

    Raises:
        Misuse: A named one was never made in this thread, or its function is not imported.
    """
    with at.run.queue_lock:
        _follow(at.run)
        seen = list(at.run.reads.observations)
    known = {one.name for one in seen}
    seen += [_earlier(at, name) for name in names if name not in known]
    return [
        one
        for one in seen
        if decide_observation(
            ObservationFacts(
                replayed=one.replayed,
                spent=one.spent,
                named=one.name in names,
                names_any=bool(names),
                same_task=one.task == at.place.task,
                ours=not one.followed.isdisjoint(_dependents.get(one.name, ())),
            )
        )
    ]


def verified(seen: Observation) -> None:
    """Notes that an observation was found as it was; once in a run is enough."""
    seen.replayed = False


def _earlier(at: Here, name: str) -> Observation:
    """The newest observation of this name that an earlier step, or an earlier run, has made."""
    session, serde = at.run, at.run.serde
    fn = _defined.get(name)
    where = f"depends_on={name!r}"
    if fn is None or serde is None:
        raise Misuse(
            field=where,
            reason="no observation of this name is defined in this process; import its module",
        )
    found = flow.last_observation(at.core.ports, session, serde, name, at.place)
    if found is None:
        raise Misuse(field=where, reason="it was never observed on the way here")
    observed, value, recall = found
    record = observed.body

    def check(now: Any) -> None:
        error = flow.moved(session, serde, record, value, now)
        if error is not None:
            raise error

    made = Observation(
        name=name,
        task=("", 0, 0),
        replayed=True,
        slot=record.slot,
        is_async=inspect.iscoroutinefunction(fn),
        again=functools.partial(fn, **recall),
        check=check,
        at=observed.at,
        followed=observed.followed,
    )
    _note(at, made)
    return made
