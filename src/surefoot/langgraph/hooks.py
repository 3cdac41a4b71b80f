"""``reconcile=`` hooks: what they get, how their answers are taken, and asking them first (E7)."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import weakref
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from surefoot.assembly import Core
from surefoot.errors import Misuse
from surefoot.flows import effects as flow
from surefoot.ports import Serializer
from surefoot.rules.answers import Absent, Answer, Committed, Conflicting, Unknown
from surefoot.session import Session

__all__ = [
    "EffectCall",
    "Hook",
    "ask_first",
    "ask_first_async",
    "call_of",
    "register",
    "understood",
]

log = logging.getLogger("surefoot")


@dataclass
class EffectCall:
    """What a body (parameter ``call``) or a ``reconcile`` hook gets.

    Attributes:
        effect: Name of the effect.
        key: Idempotency key: the same at every attempt, worker and process.
        arguments: Semantic arguments by name.
        attempt: From 1.
        started_us: When this attempt was recorded, microseconds since the epoch.
        receipt: What was noted so far.
        operation_id: Name of the business operation; empty when the effect has none.
    """

    effect: str
    key: str
    arguments: Mapping[str, Any]
    attempt: int
    started_us: int
    receipt: dict[str, Any]
    _store: Callable[[Mapping[str, Any]], None] = field(repr=False)
    operation_id: str = ""

    def note(self, **facts: Any) -> None:
        """Stores a provider's id or the like at once, so that it survives a crash.

        Raises:
            NotStorable: A fact is no plain data.
            Fenced: Another worker has the thread.
        """
        self.receipt.update(facts)
        self._store(self.receipt)


def call_of(core: Core, session: Session, serde: Serializer, step: flow.Step) -> EffectCall:
    """What a body or a hook is told about a step."""
    return EffectCall(
        effect=step.request.name,
        key=step.body.key,
        arguments=step.request.arguments,
        attempt=step.body.attempt,
        started_us=step.body.at_us,
        receipt=flow.receipt_of(core.ports, session, serde, step),
        _store=functools.partial(flow.note, core.ports, session, serde, step),
        operation_id=step.body.operation,
    )


def understood(answer: Any) -> Answer:
    """A hook's answer; what it raised, or what is none of the four, proves nothing."""
    if isinstance(answer, BaseException):
        return Unknown(f"the lookup raised {type(answer).__qualname__}; repair it and run again")
    if not isinstance(answer, (Committed, Absent, Conflicting, Unknown)):
        return Unknown(
            f"the lookup returned {type(answer).__qualname__} instead of Committed, Absent, "
            "Conflicting or Unknown; repair it and run again"
        )
    return answer


# --- the hooks of this process -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Hook:
    """A lookup that an effect declares.

    Attributes:
        name: Name of the effect.
        home: Module and qualified name of its function.
        ask: The function.
        compare: Fields that its evidence must match.
    """

    name: str
    home: tuple[str, str]
    ask: Callable[[EffectCall], Any]
    compare: tuple[str, ...]


_known: dict[str, weakref.WeakSet[Hook]] = {}
_gate = threading.Lock()


def register(hook: Hook) -> Hook:
    """Makes a hook known by the name of its effect, for as long as the effect is alive."""
    with _gate:
        _known.setdefault(hook.name, weakref.WeakSet()).add(hook)
    return hook


def _find(name: str) -> Hook | None:
    """The hook of an effect; None when this process has none, or several functions of one name."""
    with _gate:
        alive = [*_known.get(name, ())]
    return alive[0] if len({hook.home for hook in alive}) == 1 and len(alive) == 1 else None


# --- before the first node (E7) ------------------------------------------------------------------

_NOT_ASKED = object()


def _questions(core: Core, session: Session) -> Generator[Callable[[], Any], Any, None]:
    """Yields what is to be asked, takes what was answered or raised, records what that proves."""
    serde = session.serde
    if serde is None:
        raise Misuse(field="run", reason="has not loaded its thread")
    for body in flow.questions(session):
        hook = _find(body.name)
        if hook is None:
            log.warning(
                "thread %r: effect %r (%s) may have happened, and this process has no one "
                "reconcile= of that name yet; it is asked where the run calls it",
                session.identity.thread,
                body.name,
                body.position,
            )
            continue
        step = flow.question(core.ports, session, serde, body, hook.compare)
        answer = yield functools.partial(hook.ask, call_of(core, session, serde, step))
        if answer is _NOT_ASKED:
            continue  # an async lookup of a synchronous run is asked where the run calls the effect
        flow.answered_early(core.ports, session, serde, step, understood(answer))


def ask_first(core: Core, session: Session) -> None:
    """Asks the receivers of what is in doubt, before any node of a resumed run (rule E7).

    Raises:
        SurefootError: An answer could not be recorded.
    """
    asking = _questions(core, session)
    ask = next(asking, None)
    while ask is not None:
        try:
            answer = ask()
        except Exception as error:  # noqa: BLE001 - a lookup that fails proves nothing
            answer = error
        if inspect.iscoroutine(answer):
            answer.close()
            answer = _NOT_ASKED
        ask = _next(asking, answer)


async def ask_first_async(core: Core, session: Session) -> None:
    """The same on the run's own loop, where an async hook belongs."""
    asking = _questions(core, session)
    ask = await core.offload.run(next, asking, None)
    while ask is not None:
        try:
            answer = ask()
            if inspect.isawaitable(answer):
                answer = await answer
        except Exception as error:  # noqa: BLE001 - a lookup that fails proves nothing
            answer = error
        ask = await core.offload.run(_next, asking, answer)


def _next(
    asking: Generator[Callable[[], Any], Any, None], answer: object
) -> Callable[[], Any] | None:
    try:
        return asking.send(answer)
    except StopIteration:
        return None
