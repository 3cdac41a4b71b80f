"""``@effect``: a side effect that happens once, as a decorator for functions, nodes and tools.

The order of steps is one generator, `_steps`; a synchronous and an asynchronous shell carry
out what it asks for.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar, overload

from langgraph.errors import GraphBubbleUp

from surefoot.errors import Busy, Misuse, SurefootError
from surefoot.flows import effects as flow
from surefoot.flows import same_database
from surefoot.flows.acquire import may_wait_ms
from surefoot.flows.operations import close_operation, open_operation, request_of
from surefoot.flows.reads import store as store_reads
from surefoot.langgraph import observations, scope, trail
from surefoot.langgraph.bubble import bubbling
from surefoot.langgraph.definition import (
    SPEC,
    TOOL,
    EffectSpec,
    as_tool,
    define,
)
from surefoot.langgraph.hooks import EffectCall, call_of, understood
from surefoot.langgraph.place import Here, here
from surefoot.langgraph.shells import (
    POLL_MS,
    Flow,
    NeverRan,
    Pause,
    Published,
    Steps,
    User,
    act,
    act_async,
    not_awaitable,
    pump,
    pump_async,
)
from surefoot.ports import Ports, Serializer
from surefoot.rules.answers import Answer, Unknown
from surefoot.rules.effects import Receiver, Verdict
from surefoot.session import Session
from surefoot.transport import OutcomeOf, judged

__all__ = [
    "DEFAULTS",
    "EffectCall",
    "asked",
    "current_call",
    "drive",
    "drive_async",
    "effect",
    "lists_of",
    "opened",
    "step_aside",
    "tool_place",
]

R = TypeVar("R")
#: Between the first tries to get the lease of an operation; twice as long each time.
_FIRST_PAUSE_MS = 10


_running_call: ContextVar[EffectCall | None] = ContextVar("surefoot_call", default=None)


def current_call() -> EffectCall:
    """The call whose body is running, for code that gets no parameter ``call``, such as a tool.

    Raises:
        Misuse: No effect is running here.
    """
    call = _running_call.get()
    if call is None:
        outside = Misuse(field="current_call()", reason="is used outside of the body of an effect")
        raise bubbling(outside)
    return call


@overload
def effect(fn: Callable[..., R], /) -> Callable[..., R]: ...
@overload
def effect(
    *,
    name: str | None = ...,
    idempotent: bool = ...,
    reconcile: Callable[[EffectCall], Any] | None = ...,
    compare: Sequence[str] = ...,
    inputs: Callable[..., Any] | Sequence[str] | None = ...,
    settling: float | None = ...,
    lookup: str = ...,
    window: float | timedelta | None = ...,
    operation_id: Callable[..., str | int] | str | None = ...,
    compensate: Callable[..., Any] | None = ...,
    depends_on: Sequence[str] = ...,
    risk: str = ...,
    deadline: float | timedelta | None = ...,
    timeout_is: str = ...,
    failed_when: Any = ...,
    outcome_of: OutcomeOf | None = ...,
    same_database: bool = ...,
) -> Callable[[Callable[..., R]], Callable[..., R]]: ...


def effect(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    idempotent: bool = False,
    reconcile: Callable[[EffectCall], Any] | None = None,
    compare: Sequence[str] = (),
    inputs: Callable[..., Any] | Sequence[str] | None = None,
    settling: float | None = None,
    lookup: str = "settling",
    window: float | timedelta | None = None,
    operation_id: Callable[..., str | int] | str | None = None,
    compensate: Callable[..., Any] | None = None,
    depends_on: Sequence[str] = (),
    risk: str = "normal",
    deadline: float | timedelta | None = None,
    timeout_is: str = "unknown",
    failed_when: Any = None,
    outcome_of: OutcomeOf | None = None,
    same_database: bool = False,
) -> Any:
    """Makes a function, node or tool a side effect that happens once.

    Inside a run with a `SurefootSaver`, a call waits until the checkpoint it runs under is
    published, records its start, runs, and records its outcome. When the run is resumed, a
    recorded result is returned without running again; a start without an outcome is sent again
    with the same key (``idempotent``), looked up (``reconcile``), or refused (neither).

    The function may take ``idempotency_key`` (str, the key to send) or ``call``
    (`EffectCall`). Two calls of one task that run at the same time need a ``call_id=`` each.
    For a tool, put ``@effect`` below ``@tool``; there an error that proves nothing stops the run
    with `EffectInDoubt`, so that no model is told of it and calls again.

    Args:
        fn: The function, sync or async.
        name: Name of the effect; by default the function's. Part of its identity: keep it.
        idempotent: The receiver deduplicates on our key (class K).
        reconcile: Asks the receiver; returns `Committed`, `Absent`, `Conflicting` or `Unknown`
            (class L). Sync, or async for an async effect.
        compare: Arguments that what the lookup found must equal.
        inputs: The semantic part of the arguments: their names, or a function of them.
        settling: Seconds after which "absent" counts: at least the longest time a request may
            be under way. By default the policy's (5 s).
        lookup: ``"strong"`` when the lookup never lags; else "absent" is read twice.
        window: For ``idempotent``: how long the receiver remembers a key (seconds, or a
            ``timedelta``); by default for ever. Later it is asked (``reconcile``), or a person is.
        operation_id: Names the business operation, e.g. an invoice: an argument's name, or a
            function of the arguments. It happens once per tenant, whatever thread or run calls
            it, and the same id with other arguments is a conflict.
        compensate: The inverse, an effect of its own. ``fn.compensate(…)``, called with the
            arguments of a call, undoes it once: the inverse gets those arguments that it takes,
            ``result`` and ``receipt``. Nothing to undo gives None.
        depends_on: Names of observations (``@recorded(observe=True)``), also of earlier steps,
            that are looked at again before a resumed run starts this effect. Without, those that
            its task made since its last effect.
        risk: What a doubt about it means: ``low``, ``normal``, ``high`` or ``critical``. Sorts
            `SurefootSaver.in_doubt`.
        deadline: Seconds (or a timedelta) from the start until which a doubt has to be settled;
            later it is overdue.
        timeout_is: Only ``"unknown"``: a request that timed out may have been carried out.
        failed_when: Exception classes that prove that nothing happened, as `NotSent` does.
        outcome_of: What an exception of the body proves: a function that returns ``"not_sent"``,
            ``"unknown"`` or None; `surefoot.transport` has those of httpx and requests.
        same_database: The effect is rows in the database of the content store, written through the
            parameter ``conn`` in one transaction with the record (class S). Sync functions only.

    Raises:
        Misconfigured: At decoration: the settings contradict each other.
        EffectConflict: At a call: recorded at this place with other arguments.
        EffectInDoubt: At a call: nobody can prove whether it happened.
        Fenced: At a call: another worker has the thread.
        BarrierTimeout: At a call: the checkpoint was not published in time.
        StaleInput: At a call: an observation that it depends on has moved.
    """
    settings = {
        "name": name,
        "idempotent": idempotent,
        "reconcile": reconcile,
        "compare": compare,
        "inputs": inputs,
        "settling": settling,
        "lookup": lookup,
        "window": window,
        "operation_id": operation_id,
        "compensate": compensate,
        "depends_on": depends_on,
        "risk": risk,
        "deadline": deadline,
        "timeout_is": timeout_is,
        "failed_when": failed_when,
        "outcome_of": outcome_of,
        "same_database": same_database,
    }
    if fn is None:
        return lambda function: _decorate(function, settings)
    return _decorate(fn, settings)


#: The parameters of `effect`, for what declares effects in other ways.
DEFAULTS: Mapping[str, Any] = {
    p.name: p.default
    for p in inspect.signature(effect).parameters.values()
    if p.kind is p.KEYWORD_ONLY
}


def _decorate(fn: Callable[..., Any], settings: Mapping[str, Any]) -> Callable[..., Any]:
    spec = define(fn, settings)
    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            return await drive_async(spec, args, kwargs)

        return _with_spec(as_tool(run_async, spec), spec)

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        return drive(spec, args, kwargs)

    return _with_spec(as_tool(run, spec), spec)


def _with_spec(run: Callable[..., Any], spec: EffectSpec) -> Callable[..., Any]:
    """Hangs on the wrapper what it is, and how it is undone."""
    setattr(run, SPEC, spec)
    if spec.inverse is not None:
        run.compensate = _compensate(spec, spec.inverse)  # type: ignore[attr-defined]
    return run


def _compensate(spec: EffectSpec, inverse: EffectSpec) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(inverse.fn):

        async def undo_async(*args: Any, **kwargs: Any) -> Any:
            return await drive_async(spec, args, kwargs, inverse)

        return undo_async

    def undo(*args: Any, **kwargs: Any) -> Any:
        return drive(spec, args, kwargs, inverse)

    return undo


def tool_place(at: Here, runtime: Any) -> str | None:
    """Which tool call of its task a call is; the ids that a model mints change, places do not.

    Its position in the message that asked for it, and which message of the task that is: a node
    may carry out the calls of several messages, one after the other.
    """
    call_id = getattr(runtime, "tool_call_id", None)
    state = getattr(runtime, "state", None)
    if call_id is None or state is None:
        return None
    for messages in lists_of(state):
        for index, message in reversed([*enumerate(messages)]):
            calls = [call.get("id") for call in getattr(message, "tool_calls", None) or ()]
            if call_id in calls:
                turn = at.run.turn_of(at.place.task, (index, *calls))
                return f"tool:{calls.index(call_id)}" + (f"@{turn}" if turn else "")
    return None


def lists_of(state: Any) -> list[list[Any]]:
    """The lists of a state, ``messages`` first: a graph may keep its messages under any key."""
    if isinstance(state, list):
        return [state]
    named = dict(state) if isinstance(state, Mapping) else dict(getattr(state, "__dict__", {}))
    first = named.pop("messages", getattr(state, "messages", None))
    return [value for value in (first, *named.values()) if isinstance(value, list)]


# --- the order of steps ------------------------------------------------------------------------


def _steps(spec: EffectSpec, at: Here, request: flow.CallRequest, args: Any, kwargs: Any) -> Steps:
    """Barrier, decision, then replay, lookup or send; the outcome is recorded before it counts."""
    ports, session = at.core.ports, at.session
    serde = session.serde
    if serde is None:
        raise Misuse(field=f"effect {spec.name!r}", reason="the run has not loaded its thread")
    if flow.require_barrier(session, request):
        timeout_ms = ports.policy.barrier_timeout_ms
        passed = yield Published(timeout_ms, lambda: flow.barrier_passed(session, request))
        if not passed:
            raise flow.barrier_timeout(session, request, timeout_ms)
    if request.operation:
        result = yield from _operation(spec, at, serde, request, args, kwargs)
    else:
        result = yield from _once(spec, at, serde, request, args, kwargs)
    return result


def _operation(
    spec: EffectSpec,
    at: Here,
    serde: Serializer,
    request: flow.CallRequest,
    args: Any,
    kwargs: Any,
) -> Steps:
    """The same in the journal of the operation that the call names (E4c)."""
    ports = at.core.ports
    made: list[Session] = []
    yield Flow(functools.partial(store_reads, ports, at.session))
    try:
        yield from opened(at, request, made)
        inside = Here(at.core, made[0], at.place, run=at.session)
        named = request_of(at.session, request)
        result = yield from _once(spec, inside, serde, named, args, kwargs)
    finally:
        for operation in made:
            yield Flow(functools.partial(close_operation, ports, operation))
    return result


def opened(at: Here, request: flow.CallRequest, made: list[Session]) -> Steps:
    """Waits for the lease of an operation without holding a thread, and adds its session.

    Raises:
        Busy: Another worker carries it out for longer than the policy waits.
    """
    ports = at.core.ports
    since_ms, pause_ms = ports.host.monotonic_ms(), _FIRST_PAUSE_MS
    while True:
        left_ms = since_ms + may_wait_ms(ports) - ports.host.monotonic_ms()
        try:
            yield Flow(lambda: made.append(open_operation(ports, at.session, request)))
        except Busy:
            if left_ms <= 0:
                raise
        else:
            return
        yield Pause(max(1, min(pause_ms, left_ms)))
        pause_ms = min(2 * pause_ms, POLL_MS)


def _once(
    spec: EffectSpec,
    at: Here,
    serde: Serializer,
    request: flow.CallRequest,
    args: Any,
    kwargs: Any,
) -> Steps:
    """Decision, then replay, lookup or send."""
    ports, session = at.core.ports, at.session
    step: flow.Step = yield from _decided(at, lambda: flow.begin(ports, session, serde, request))
    step = yield from asked(spec, at, serde, step, flow.answered)
    if step.verdict is Verdict.RUN and (at.run.reads.observations or spec.depends_on):
        yield from _verified(spec, at, step)
    if step.verdict is Verdict.REPLAY:
        result = step.result
    else:
        result = yield from _send(spec, at, serde, step, args, kwargs)
    observations.spend(at, spec.name)
    return result


def asked(
    spec: EffectSpec,
    at: Here,
    serde: Serializer,
    step: flow.Step,
    settle: Callable[[Ports, Session, Serializer, flow.Step, Answer], flow.Step],
) -> Steps:
    """Asks the receiver until its answers settle what happened; ``settle`` judges them."""
    while step.asks:
        left_ms = flow.settle_left_ms(at.core.ports, step)
        try:
            asked = functools.partial(_ask, spec, at, serde, step)
            answer = yield User(asked, f"lookup.{spec.name}")
        except Exception as error:  # noqa: BLE001 - a lookup that fails proves nothing
            answer = error
        except BaseException:
            at.session.running.discard(step.body.slot)
            raise
        take = functools.partial(_take_answer, at, serde, step, answer, settle)
        step = yield from _decided(at, take)
        if step.asks:
            yield Pause(max(min(left_ms, 1_000), POLL_MS))
    return step


def _verified(spec: EffectSpec, at: Here, step: flow.Step) -> Steps:
    """Looks again at what the effect depends on; what moved takes the start back."""
    try:
        seen = yield Flow(functools.partial(observations.due, at, spec.depends_on))
        for one in seen:
            if one.is_async and not inspect.iscoroutinefunction(spec.fn):
                raise Misuse(
                    field=f"effect {spec.name!r}",
                    reason=f"depends on {one.name!r}, which is async; make both alike",
                )
            one.check((yield User(one.again, f"read.{one.name}")))
            observations.verified(one)
    except BaseException as error:
        fail = functools.partial(flow.fail, at.core.ports, at.session, step, error, proven=True)
        yield Flow(fail)
        raise


def _decided(at: Here, decide: Callable[[], flow.Step]) -> Steps:
    """Carries out a decision; a cancellation that arrives meanwhile takes a start back.

    The flow has ended by then, so it is known that the start is recorded and nothing was sent.
    """
    made: list[flow.Step] = []
    try:
        yield Flow(lambda: made.append(decide()))
    except BaseException as error:
        for step in made:
            if step.started:
                yield Flow(
                    functools.partial(
                        flow.fail, at.core.ports, at.session, step, error, proven=True
                    )
                )
            else:
                at.session.running.discard(step.body.slot)
        raise
    return made[0]


def _send(
    spec: EffectSpec, at: Here, serde: Serializer, step: flow.Step, args: Any, kwargs: Any
) -> Steps:
    ports, session = at.core.ports, at.session
    call = call_of(at.core, session, serde, step)
    given = dict(kwargs)
    if step.request.undo is not None:
        args, given = (), spec.taken(step.request.arguments)
    if spec.takes_key:
        given["idempotency_key"] = call.key
    if spec.takes_call:
        given["call"] = call
    if spec.receiver is Receiver.SAME_DATABASE:
        done = yield Flow(_together(spec, at, serde, step, args, given))
        return done
    outer = _running_call.get()
    _running_call.set(call)
    try:
        body = functools.partial(spec.fn, *args, **given)
        inside = scope.inside(step.body.slot, body, since_us=_since_us(step))
        result = yield User(inside, f"effect.{spec.name}")
    except BaseException as error:
        seen = judged(spec.outcome_of, error)
        proven = seen.not_sent or isinstance(error, NeverRan)
        fail = functools.partial(flow.fail, ports, session, step, error, seen=seen.seen)
        yield Flow(functools.partial(fail, proven=proven))
        interrupts = isinstance(error, GraphBubbleUp) and not isinstance(error, SurefootError)
        if interrupts and spec.receiver is Receiver.NEITHER:
            raise Misuse(
                field=f"effect {spec.name!r}",
                reason=(
                    "its body interrupts the run; nobody can prove what it did before, so ask "
                    "before the effect, outside of it"
                ),
            ) from error
        # Not sent this time proves nothing of an earlier attempt; the record says what is proven.
        held = session.effects.get(step.body.slot)
        open_ = held is None or held.state != "failed"
        if spec.sealed and open_ and _is_ordinary(error):
            raise flow.raised(session, step, error) from error
        raise
    finally:
        _running_call.set(outer)
    returned = yield Flow(functools.partial(flow.finish, ports, session, serde, step, result))
    return returned


def _since_us(step: flow.Step) -> int:
    return step.body.since_us or step.body.at_us


def _is_ordinary(error: BaseException) -> bool:
    return isinstance(error, Exception) and not isinstance(error, GraphBubbleUp)


def _together(
    spec: EffectSpec, at: Here, serde: Serializer, step: flow.Step, args: Any, given: dict[str, Any]
) -> Callable[[], Any]:
    """The body and its record in one transaction of the content store."""

    def body(connection: Any) -> Any:
        run = functools.partial(spec.fn, *args, **given, conn=connection)
        with at.core.crossing(f"effect.{spec.name}"):
            return not_awaitable(scope.inside(step.body.slot, run, since_us=_since_us(step))())

    def seen(error: BaseException) -> str:
        return judged(None, error).seen

    return functools.partial(same_database.run, at.core.ports, at.session, serde, step, body, seen)


def _ask(spec: EffectSpec, at: Here, serde: Serializer, step: flow.Step) -> Any:
    if spec.reconcile is None:
        return Unknown("the effect has no reconcile= any more")
    return spec.reconcile(call_of(at.core, at.session, serde, step))


def _take_answer(
    at: Here, serde: Serializer, step: flow.Step, answer: Any, settle: Callable[..., flow.Step]
) -> flow.Step:
    return settle(at.core.ports, at.session, serde, step, understood(answer))


# --- shells ------------------------------------------------------------------------------------


def _prepare(
    spec: EffectSpec, args: Any, kwargs: dict[str, Any], inverse: EffectSpec | None
) -> tuple[Here, Steps]:
    scope.refuse_inside_pure(f"effect {spec.name!r}")
    tool = kwargs.pop(TOOL, None)
    call_id = None
    if "call_id" in kwargs and "call_id" not in spec.signature.parameters:
        given_id = kwargs.pop("call_id")
        call_id = None if given_id is None else str(given_id)
    ours = {"idempotency_key": spec.takes_key, "call": spec.takes_call}
    ours |= dict.fromkeys(spec.filled_in - ours.keys(), True)
    given = [name for name, taken in ours.items() if taken and name in kwargs]
    if given:
        raise Misuse(
            field=f"effect {spec.name!r}, {given[0]}",
            reason="is filled in at the call and must not be passed",
        )
    # Bound as the body will be: a call that cannot work is refused before anything is recorded.
    blanks = {name: None for name, taken in ours.items() if taken}
    bound = spec.signature.bind(*args, **kwargs, **blanks)
    bound.apply_defaults()
    at = here(spec.name, [*args, *kwargs.values(), tool])
    call_id = call_id or tool_place(at, tool)
    if inverse is not None:
        return at, _steps(inverse, at, spec.undo(inverse, at, bound, call_id), (), {})
    request = spec.request(at, bound, call_id)
    if tool is not None:
        # A tool node tells the model of errors, and a model that calls again gets another key.
        spec = replace(spec, sealed=True)
    return at, _steps(spec, at, request, args, kwargs)


def drive(
    spec: EffectSpec, args: Any, kwargs: dict[str, Any], inverse: EffectSpec | None = None
) -> Any:
    """The synchronous shell."""
    at: Here | None = None
    try:
        at, steps = _prepare(spec, args, dict(kwargs), inverse)
        _refuse_own_loop(spec, at)
        return pump(steps, functools.partial(act, at))
    except SurefootError as error:
        if at is not None:
            step_aside(at, error)
        raise bubbling(error) from error.__cause__


def step_aside(at: Here, error: SurefootError) -> None:
    """Gives the lease back where a refusal is about to end the run; nothing else would."""
    trail.step_aside(at.core, at.session, error)


def _refuse_own_loop(spec: EffectSpec, at: Here) -> None:
    """A synchronous effect on the loop that serves the run's saves would wait for itself."""
    try:
        running: object = asyncio.get_running_loop()
    except RuntimeError:
        return
    if running is at.session.loop:
        raise Misuse(
            field=f"effect {spec.name!r}",
            reason=(
                "is synchronous and is called on the event loop that serves the run; make it "
                "async (for a tool node pass awrap_tool_call= as well), or call it in a thread"
            ),
        )


async def drive_async(
    spec: EffectSpec, args: Any, kwargs: dict[str, Any], inverse: EffectSpec | None = None
) -> Any:
    """The asynchronous shell."""
    at: Here | None = None
    try:
        at, steps = _prepare(spec, args, dict(kwargs), inverse)
        return await pump_async(steps, functools.partial(act_async, at))
    except SurefootError as failed:
        if at is not None:
            await at.core.offload.run(step_aside, at, failed)
        raise bubbling(failed) from failed.__cause__
