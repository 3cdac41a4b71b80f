"""``@effect``: a side effect that happens once, as a decorator for functions, nodes and tools.

The order of steps is one generator, `_steps`; a synchronous and an asynchronous shell carry
out what it asks for.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from types import UnionType
from typing import Any, Protocol, TypeVar, Union, get_args, get_origin, overload

from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore

from surefoot.errors import Misconfigured, Misuse, Refused, SurefootError
from surefoot.flows import effects as flow
from surefoot.flows import same_database
from surefoot.flows.compensation import Undo
from surefoot.flows.operations import close_operation, open_operation, request_of
from surefoot.flows.reads import store as store_reads
from surefoot.langgraph import observations, scope
from surefoot.langgraph.bubble import bubbling
from surefoot.langgraph.hooks import EffectCall, Hook, call_of, register, understood
from surefoot.langgraph.place import Here, here
from surefoot.ports import Ports, Serializer
from surefoot.rules.answers import Answer, Unknown
from surefoot.rules.doubts import RISKS
from surefoot.rules.effects import Receiver, Verdict
from surefoot.rules.fingerprint import fingerprint
from surefoot.session import Session
from surefoot.transport import OutcomeOf, declared, judged

__all__ = ["EffectCall", "current_call", "effect"]

R = TypeVar("R")
_POLL_MS = 200
_DEADLINE_MAX_S = 100 * 365 * 24 * 3600
_INJECTED = frozenset({"RunnableConfig", "Runtime", "ToolRuntime", "BaseStore", "StreamWriter"})
_TOOL = "surefoot_tool"
_SPEC = "__surefoot_effect__"


_running_call: ContextVar[EffectCall | None] = ContextVar("surefoot_call", default=None)


def current_call() -> EffectCall:
    """The call whose body is running, for code that gets no parameter ``call``, such as a tool.

    Raises:
        Misuse: No effect is running here.
    """
    call = _running_call.get()
    if call is None:
        raise Misuse(field="current_call()", reason="is used outside of the body of an effect")
    return call


# --- what a step may ask its shell for ---------------------------------------------------------


@dataclass(slots=True)
class _Flow:
    """Run a flow (I/O)."""

    run: Callable[[], Any]


@dataclass(slots=True)
class _User:
    """Run user code: the body or a hook; ``call`` names it."""

    run: Callable[[], Any]
    call: str


@dataclass(slots=True)
class _Published:
    """Wait for the checkpoint to be published; True when it was, in time."""

    timeout_ms: int
    until: Callable[[], bool]


@dataclass(slots=True)
class _Pause:
    """Wait a little."""

    milliseconds: int


_Steps = Generator["_Flow | _User | _Published | _Pause", Any, Any]


class _NeverRan(Misuse):
    """The body is a coroutine function in disguise: it was called, but none of it ran."""


# --- the definition ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Effect:
    """What the decorator was told."""

    fn: Callable[..., Any]
    name: str
    receiver: Receiver
    reconcile: Callable[[EffectCall], Answer | Any] | None
    compare: tuple[str, ...]
    inputs: Callable[..., Any] | tuple[str, ...] | None
    settling_ms: int | None
    strong: bool
    window_ms: int | None
    operation_id: Callable[..., str | int] | str | None
    signature: inspect.Signature
    takes_key: bool
    takes_call: bool
    hook: Hook | None
    inverse: _Effect | None
    risk: str | None
    deadline_ms: int | None
    depends_on: tuple[str, ...] = ()
    #: An error of the body stops the run, because whoever calls might turn it into a message.
    sealed: bool = False
    #: What an exception of the body proves.
    outcome_of: OutcomeOf | None = None

    @property
    def filled_in(self) -> frozenset[str]:
        """Parameters of the body that no caller passes."""
        same = self.receiver is Receiver.SAME_DATABASE
        return frozenset({"idempotency_key", "call", *(("conn",) if same else ())})

    def request(
        self, at: Here, bound: inspect.BoundArguments, call_id: str | None
    ) -> flow.CallRequest:
        arguments = self.semantic(bound)
        return flow.CallRequest(
            name=self.name,
            place=at.place,
            call_id=call_id,
            receiver=self.receiver,
            arguments=arguments,
            fingerprint=fingerprint(arguments, effect=self.name),
            compare=self.compare,
            settling_ms=self.settling_ms,
            strong=self.strong,
            window_ms=self.window_ms,
            can_ask=self.reconcile is not None,
            operation=self.operation(bound),
            risk=self.risk,
            deadline_ms=self.deadline_ms,
        )

    def operation(self, bound: inspect.BoundArguments) -> str:
        """The business operation that a call names (E4c); empty when it names none."""
        if self.operation_id is None:
            return ""
        named: Any
        if callable(self.operation_id):
            named = self.operation_id(**self.given(bound))
        else:
            named = bound.arguments[self.operation_id]
        if isinstance(named, bool) or not isinstance(named, (str, int)) or named == "":
            raise Misuse(
                field=f"effect {self.name!r}, operation_id",
                reason=f"must be a text or a whole number, not {type(named).__name__}",
            )
        return str(named)

    def semantic(self, bound: inspect.BoundArguments) -> dict[str, Any]:
        """The arguments that say what is meant."""
        given = self.given(bound)
        if self.inputs is None:
            return given
        if callable(self.inputs):
            chosen = self.inputs(**given)
            return dict(chosen) if isinstance(chosen, Mapping) else {"inputs": chosen}
        missing = [name for name in self.inputs if name not in given]
        if missing:
            raise Misconfigured(
                field=f"effect {self.name!r}, inputs", reason=f"no argument {missing[0]!r}"
            )
        return {name: given[name] for name in self.inputs}

    def taken(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What of the arguments of another call the function takes, by name."""
        if any(p.kind is p.VAR_KEYWORD for p in self.signature.parameters.values()):
            return dict(arguments)
        return {n: v for n, v in arguments.items() if n in self.signature.parameters}

    def undo(
        self, inverse: _Effect, at: Here, bound: inspect.BoundArguments, call_id: str | None
    ) -> flow.CallRequest:
        """A call of the inverse that undoes a call with these arguments."""
        arguments = self.semantic(bound)
        meant = {"undoes": self.name, "arguments": arguments}
        return replace(
            self.request(at, bound, call_id),
            name=inverse.name,
            receiver=inverse.receiver,
            fingerprint=fingerprint(meant, effect=inverse.name),
            compare=inverse.compare,
            settling_ms=inverse.settling_ms,
            strong=inverse.strong,
            window_ms=inverse.window_ms,
            can_ask=inverse.reconcile is not None,
            undo=Undo(self.name, fingerprint(arguments, effect=self.name)),
        )

    def given(self, bound: inspect.BoundArguments) -> dict[str, Any]:
        """The arguments without what is handed in beside them."""
        return {
            name: value
            for name, value in bound.arguments.items()
            if name not in self.filled_in
            and not _is_injected(self.signature.parameters[name], value)
        }


def _is_injected(parameter: inspect.Parameter, value: Any) -> bool:
    """True for what LangGraph hands in beside the arguments: config, runtime, store, writer.

    An annotation decides by its exact type; without one only a value that really is such a
    thing counts, so that an argument that happens to be called ``store`` stays an argument.
    """
    annotation = parameter.annotation
    if annotation is not inspect.Parameter.empty:
        return bool(_type_names(annotation) & _INJECTED)
    if isinstance(value, (Runtime, BaseStore)):
        return True
    if parameter.name == "config":
        return isinstance(value, dict) and "configurable" in value
    return parameter.name == "writer" and inspect.isroutine(value)


def _type_names(annotation: Any) -> frozenset[str]:
    """Names of the types of an annotation, also of one that is text, without ``None``."""
    if isinstance(annotation, str):
        parts = annotation.replace("Optional[", "").replace("]", "").split("|")
        return frozenset(p.split("[")[0].strip().rpartition(".")[2] for p in parts)
    inner = get_args(annotation) if _is_union(annotation) else (annotation,)
    return frozenset(
        getattr(get_origin(part) or part, "__name__", "") or str(part) for part in inner
    )


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, UnionType)


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
    For a tool, put ``@effect`` below ``@tool``.

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


#: Those that only a function of one's own can have: they ask for parameters, or add a method.
NOT_FOR_WRAPPERS = frozenset({"compensate", "same_database"})


def _decorate(fn: Callable[..., Any], settings: Mapping[str, Any]) -> Callable[..., Any]:
    spec = _define(fn, settings)
    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            return await _drive_async(spec, args, kwargs)

        return _with_spec(_as_tool(run_async, spec), spec)

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        return _drive(spec, args, kwargs)

    return _with_spec(_as_tool(run, spec), spec)


def _with_spec(run: Callable[..., Any], spec: _Effect) -> Callable[..., Any]:
    """Hangs on the wrapper what it is, and how it is undone."""
    setattr(run, _SPEC, spec)
    if spec.inverse is not None:
        run.compensate = _compensate(spec, spec.inverse)  # type: ignore[attr-defined]
    return run


def _compensate(spec: _Effect, inverse: _Effect) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(inverse.fn):

        async def undo_async(*args: Any, **kwargs: Any) -> Any:
            return await _drive_async(spec, args, kwargs, inverse)

        return undo_async

    def undo(*args: Any, **kwargs: Any) -> Any:
        return _drive(spec, args, kwargs, inverse)

    return undo


class _Wrapped(Protocol):
    """What a wrapper has to know of its function to look like it."""

    @property
    def signature(self) -> inspect.Signature:
        """Of the function."""

    @property
    def filled_in(self) -> frozenset[str]:
        """Parameters that no caller passes."""


def _show(run: Callable[..., Any], spec: _Wrapped, *more: inspect.Parameter) -> None:
    """Gives a wrapper the signature of its function, without what is filled in at the call."""
    ours = spec.filled_in
    shown = [p for n, p in spec.signature.parameters.items() if n not in ours]
    if not any(p.kind is p.VAR_KEYWORD for p in shown):
        shown.extend(more)
    run.__signature__ = spec.signature.replace(parameters=shown)  # type: ignore[attr-defined]
    run.__annotations__ = {k: v for k, v in run.__annotations__.items() if k not in ours}


def _define(fn: Callable[..., Any], settings: Mapping[str, Any]) -> _Effect:
    if not hasattr(fn, "__name__"):
        raise Misconfigured(
            field="effect",
            reason=(
                f"decorates functions, not {type(fn).__name__}; for a tool put @effect below "
                "@tool, next to the function"
            ),
        )
    name = settings["name"] or fn.__name__
    where = f"effect {name!r}"
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise Misconfigured(field=where, reason="a generator cannot be one effect")
    signature = inspect.signature(fn)
    parameters = signature.parameters
    takes_key, takes_call = "idempotency_key" in parameters, "call" in parameters
    is_async = inspect.iscoroutinefunction(fn)
    _require_receiver(where, settings, parameters, is_async=is_async)
    window_ms = _milliseconds(settings["window"])
    if window_ms is not None and (window_ms <= 0 or not settings["idempotent"]):
        raise Misconfigured(
            field=where, reason="window= is a positive time, and belongs to idempotent=True"
        )
    if settings["same_database"]:
        _require_same_database(where, settings, parameters, is_async=is_async)
        receiver = Receiver.SAME_DATABASE
    elif settings["idempotent"]:
        receiver = Receiver.DEDUPLICATES
    else:
        receiver = Receiver.CAN_BE_ASKED if settings["reconcile"] else Receiver.NEITHER
    inputs = settings["inputs"]
    return _Effect(
        fn=fn,
        name=name,
        receiver=receiver,
        reconcile=settings["reconcile"],
        compare=tuple(settings["compare"]),
        inputs=inputs if inputs is None or callable(inputs) else tuple(inputs),
        settling_ms=None if settings["settling"] is None else int(settings["settling"] * 1000),
        strong=settings["lookup"] == "strong",
        window_ms=window_ms,
        operation_id=settings["operation_id"],
        signature=signature,
        takes_key=takes_key,
        takes_call=takes_call,
        risk=None if settings["risk"] == "normal" else settings["risk"],
        deadline_ms=_deadline_ms(settings["deadline"], where),
        hook=_hook(fn, name, settings),
        inverse=_inverse(where, parameters, settings["compensate"]),
        depends_on=_observed(settings["depends_on"], where),
        outcome_of=declared(where, settings),
    )


def _require_receiver(
    where: str,
    settings: Mapping[str, Any],
    parameters: Mapping[str, inspect.Parameter],
    *,
    is_async: bool,
) -> None:
    """Refuses settings about the receiver and the call that contradict each other.

    Raises:
        Misconfigured: Says which.
    """
    if settings["idempotent"] and not {"idempotency_key", "call"} & parameters.keys():
        raise Misconfigured(
            field=where,
            reason="idempotent=True needs a parameter idempotency_key (or call) to send the key",
        )
    if isinstance(settings["compare"], str):
        raise Misconfigured(field=where, reason="compare= is a list of names, not one text")
    if settings["reconcile"] is not None and not callable(settings["reconcile"]):
        raise Misconfigured(field=where, reason="reconcile= is a function")
    if settings["compare"] and settings["reconcile"] is None:
        raise Misconfigured(field=where, reason="compare= needs reconcile=")
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [n for n in settings["compare"] if n not in parameters]
    if unknown and not open_ended and not callable(settings["inputs"]):
        raise Misconfigured(field=where, reason=f"compare= names no argument: {unknown[0]!r}")
    operation = settings["operation_id"]
    if isinstance(operation, str) and operation not in parameters:
        raise Misconfigured(field=where, reason=f"operation_id= names no argument: {operation!r}")
    if inspect.iscoroutinefunction(settings["reconcile"]) and not is_async:
        raise Misconfigured(
            field=where, reason="an async reconcile= needs an async function; make both alike"
        )
    _check_choices(settings, where)


def _inverse(where: str, parameters: Mapping[str, Any], declared: Any) -> _Effect | None:
    """The effect that undoes this one; what it needs has to be known of every call."""
    if declared is None:
        return None
    inverse = getattr(declared, _SPEC, None)
    if not isinstance(inverse, _Effect):
        raise Misconfigured(
            field=where, reason="compensate= is an effect of its own: decorate it with @effect"
        )
    if inverse.operation_id is not None:
        raise Misconfigured(
            field=where,
            reason="the effect of compensate= has no operation_id= of its own; what it undoes has",
        )
    known = {*parameters, "result", "receipt", "idempotency_key", "call"}
    for name, parameter in inverse.signature.parameters.items():
        fixed = parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if fixed and parameter.default is parameter.empty and name not in known:
            raise Misconfigured(
                field=where,
                reason=(
                    f"{inverse.name!r} needs {name!r}; compensate= is given the arguments of the "
                    "effect, its result and its receipt"
                ),
            )
    return inverse


def _hook(fn: Callable[..., Any], name: str, settings: Mapping[str, Any]) -> Hook | None:
    """Makes the lookup known to this process, so that a resumed run asks before its first node."""
    if settings["reconcile"] is None:
        return None
    home = (fn.__module__, fn.__qualname__)
    return register(Hook(name, home, settings["reconcile"], tuple(settings["compare"])))


def _milliseconds(time: float | timedelta | None) -> int | None:
    if isinstance(time, timedelta):
        time = time.total_seconds()
    return None if time is None else int(time * 1000)


def _observed(names: Sequence[str], where: str) -> tuple[str, ...]:
    if isinstance(names, str):
        raise Misconfigured(field=where, reason="depends_on= is a list of names, not one text")
    return tuple(names)


def _check_choices(settings: Mapping[str, Any], where: str) -> None:
    if settings["lookup"] not in ("strong", "settling"):
        raise Misconfigured(field=where, reason="lookup is 'strong' or 'settling'")
    if settings["risk"] not in RISKS:
        raise Misconfigured(field=where, reason=f"risk is one of {', '.join(RISKS)}")
    if settings["settling"] is not None and settings["settling"] < 0:
        raise Misconfigured(field=where, reason="settling must not be negative")


def _deadline_ms(deadline: Any, where: str) -> int | None:
    if deadline is None:
        return None
    seconds = deadline.total_seconds() if isinstance(deadline, timedelta) else deadline
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise Misconfigured(field=where, reason="deadline= is seconds or a timedelta")
    if not 0 < seconds <= _DEADLINE_MAX_S:
        raise Misconfigured(field=where, reason="deadline= is more than 0 and at most 100 years")
    return int(seconds * 1_000)


def _require_same_database(
    where: str,
    settings: Mapping[str, Any],
    parameters: Mapping[str, inspect.Parameter],
    *,
    is_async: bool,
) -> None:
    """Refuses what does not go together with one transaction.

    Raises:
        Misconfigured: Another class is declared as well, or the body cannot take the connection.
    """
    reason = None
    if settings["idempotent"] or settings["reconcile"] is not None:
        reason = "same_database=True needs neither idempotent= nor reconcile=: it is exactly once"
    elif "conn" not in parameters:
        reason = "same_database=True needs a parameter conn, the connection to write through"
    elif is_async:
        reason = (
            "same_database=True takes a plain function, because its connection is synchronous; "
            "call it in a plain node, or from an async one with await asyncio.to_thread(...)"
        )
    if reason is not None:
        raise Misconfigured(field=where, reason=reason)


# --- tools -------------------------------------------------------------------------------------


def _as_tool(run: Callable[..., Any], spec: _Wrapped) -> Callable[..., Any]:
    """Gives the wrapper the signature of a tool.

    The key is no argument of it, and `ToolNode` is asked for the call's place in its message,
    because equal calls of one message run at the same time.
    """
    from langgraph.prebuilt import ToolRuntime

    keyword = inspect.Parameter.KEYWORD_ONLY
    _show(run, spec, inspect.Parameter(_TOOL, keyword, default=None, annotation=ToolRuntime))
    run.__annotations__ = {**run.__annotations__, _TOOL: ToolRuntime}
    return run


def _tool_place(at: Here, runtime: Any) -> str | None:
    """Which tool call of its task a call is; the ids that a model mints change, places do not.

    Its position in the message that asked for it, and which message of the task that is: a node
    may carry out the calls of several messages, one after the other.
    """
    call_id = getattr(runtime, "tool_call_id", None)
    state = getattr(runtime, "state", None)
    if call_id is None or state is None:
        return None
    for messages in _lists_of(state):
        for message in reversed(messages):
            calls = [call.get("id") for call in getattr(message, "tool_calls", None) or ()]
            if call_id in calls:
                turn = at.run.turn_of(at.place.task, tuple(calls))
                return f"tool:{calls.index(call_id)}" + (f"@{turn}" if turn else "")
    return None


def _lists_of(state: Any) -> list[list[Any]]:
    """The lists of a state, ``messages`` first: a graph may keep its messages under any key."""
    if isinstance(state, list):
        return [state]
    named = dict(state) if isinstance(state, Mapping) else dict(getattr(state, "__dict__", {}))
    first = named.pop("messages", getattr(state, "messages", None))
    return [value for value in (first, *named.values()) if isinstance(value, list)]


# --- the order of steps ------------------------------------------------------------------------


def _steps(spec: _Effect, at: Here, request: flow.CallRequest, args: Any, kwargs: Any) -> _Steps:
    """Barrier, decision, then replay, lookup or send; the outcome is recorded before it counts."""
    ports, session = at.core.ports, at.session
    serde = session.serde
    if serde is None:
        raise Misuse(field=f"effect {spec.name!r}", reason="the run has not loaded its thread")
    if flow.require_barrier(session, request):
        timeout_ms = ports.policy.barrier_timeout_ms
        passed = yield _Published(timeout_ms, lambda: flow.barrier_passed(session, request))
        if not passed:
            raise flow.barrier_timeout(session, request, timeout_ms)
    if request.operation:
        result = yield from _operation(spec, at, serde, request, args, kwargs)
    else:
        result = yield from _once(spec, at, serde, request, args, kwargs)
    return result


def _operation(
    spec: _Effect,
    at: Here,
    serde: Serializer,
    request: flow.CallRequest,
    args: Any,
    kwargs: Any,
) -> _Steps:
    """The same in the journal of the operation that the call names (E4c)."""
    ports = at.core.ports
    made: list[Session] = []
    yield _Flow(functools.partial(store_reads, ports, at.session))
    try:
        yield _Flow(lambda: made.append(open_operation(ports, at.session, request)))
        inside = Here(at.core, made[0], at.place, run=at.session)
        named = request_of(at.session, request)
        result = yield from _once(spec, inside, serde, named, args, kwargs)
    finally:
        for operation in made:
            yield _Flow(functools.partial(close_operation, ports, operation))
    return result


def _once(
    spec: _Effect,
    at: Here,
    serde: Serializer,
    request: flow.CallRequest,
    args: Any,
    kwargs: Any,
) -> _Steps:
    """Decision, then replay, lookup or send."""
    ports, session = at.core.ports, at.session
    step: flow.Step = yield from _decided(at, lambda: flow.begin(ports, session, serde, request))
    step = yield from _asked(spec, at, serde, step, flow.answered)
    if step.verdict is Verdict.RUN and (at.run.reads.observations or spec.depends_on):
        yield from _verified(spec, at, step)
    if step.verdict is Verdict.REPLAY:
        result = step.result
    else:
        result = yield from _send(spec, at, serde, step, args, kwargs)
    observations.spend(at)
    return result


def _asked(
    spec: _Effect,
    at: Here,
    serde: Serializer,
    step: flow.Step,
    settle: Callable[[Ports, Session, Serializer, flow.Step, Answer], flow.Step],
) -> _Steps:
    """Asks the receiver until its answers settle what happened; ``settle`` judges them."""
    while step.asks:
        left_ms = flow.settle_left_ms(at.core.ports, step)
        try:
            asked = functools.partial(_ask, spec, at, serde, step)
            answer = yield _User(asked, f"lookup.{spec.name}")
        except Exception as error:  # noqa: BLE001 - a lookup that fails proves nothing
            answer = error
        except BaseException:
            at.session.running.discard(step.body.slot)
            raise
        take = functools.partial(_take_answer, at, serde, step, answer, settle)
        step = yield from _decided(at, take)
        if step.asks:
            yield _Pause(max(min(left_ms, 1_000), _POLL_MS))
    return step


def _verified(spec: _Effect, at: Here, step: flow.Step) -> _Steps:
    """Looks again at what the effect depends on; what moved takes the start back."""
    try:
        seen = yield _Flow(functools.partial(observations.due, at, spec.depends_on))
        for one in seen:
            if one.is_async and not inspect.iscoroutinefunction(spec.fn):
                raise Misuse(
                    field=f"effect {spec.name!r}",
                    reason=f"depends on {one.name!r}, which is async; make both alike",
                )
            one.check((yield _User(one.again, f"read.{one.name}")))
            observations.verified(one)
    except BaseException as error:
        fail = functools.partial(flow.fail, at.core.ports, at.session, step, error, proven=True)
        yield _Flow(fail)
        raise


def _decided(at: Here, decide: Callable[[], flow.Step]) -> _Steps:
    """Carries out a decision; a cancellation that arrives meanwhile takes a start back.

    The flow has ended by then, so it is known that the start is recorded and nothing was sent.
    """
    made: list[flow.Step] = []
    try:
        yield _Flow(lambda: made.append(decide()))
    except BaseException as error:
        for step in made:
            if step.started:
                yield _Flow(
                    functools.partial(
                        flow.fail, at.core.ports, at.session, step, error, proven=True
                    )
                )
            else:
                at.session.running.discard(step.body.slot)
        raise
    return made[0]


def _send(
    spec: _Effect, at: Here, serde: Serializer, step: flow.Step, args: Any, kwargs: Any
) -> _Steps:
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
        done = yield _Flow(_together(spec, at, serde, step, args, given))
        return done
    outer = _running_call.get()
    _running_call.set(call)
    try:
        body = functools.partial(spec.fn, *args, **given)
        inside = scope.inside(step.body.slot, body, sends=True)
        result = yield _User(inside, f"effect.{spec.name}")
    except BaseException as error:
        seen = judged(spec.outcome_of, error)
        proven = seen.not_sent or isinstance(error, _NeverRan)
        fail = functools.partial(flow.fail, ports, session, step, error, seen=seen.seen)
        yield _Flow(functools.partial(fail, proven=proven))
        interrupts = isinstance(error, GraphBubbleUp) and not isinstance(error, SurefootError)
        if interrupts and spec.receiver is Receiver.NEITHER:
            raise Misuse(
                field=f"effect {spec.name!r}",
                reason=(
                    "its body interrupts the run; nobody can prove what it did before, so ask "
                    "before the effect, outside of it"
                ),
            ) from error
        if spec.sealed and not proven and _is_ordinary(error):
            raise flow.raised(session, step, error) from error
        raise
    finally:
        _running_call.set(outer)
    returned = yield _Flow(functools.partial(flow.finish, ports, session, serde, step, result))
    return returned


def _is_ordinary(error: BaseException) -> bool:
    return isinstance(error, Exception) and not isinstance(error, GraphBubbleUp)


def _together(
    spec: _Effect, at: Here, serde: Serializer, step: flow.Step, args: Any, given: dict[str, Any]
) -> Callable[[], Any]:
    """The body and its record in one transaction of the content store."""

    def body(connection: Any) -> Any:
        run = functools.partial(spec.fn, *args, **given, conn=connection)
        with at.core.crossing(f"effect.{spec.name}"):
            return _not_awaitable(scope.inside(step.body.slot, run, sends=True)())

    def seen(error: BaseException) -> str:
        return judged(None, error).seen

    return functools.partial(same_database.run, at.core.ports, at.session, serde, step, body, seen)


def _ask(spec: _Effect, at: Here, serde: Serializer, step: flow.Step) -> Any:
    if spec.reconcile is None:
        return Unknown("the effect has no reconcile= any more")
    return spec.reconcile(call_of(at.core, at.session, serde, step))


def _take_answer(
    at: Here, serde: Serializer, step: flow.Step, answer: Any, settle: Callable[..., flow.Step]
) -> flow.Step:
    return settle(at.core.ports, at.session, serde, step, understood(answer))


# --- shells ------------------------------------------------------------------------------------


def _prepare(
    spec: _Effect, args: Any, kwargs: dict[str, Any], inverse: _Effect | None
) -> tuple[Here, _Steps]:
    scope.refuse_inside_pure(f"effect {spec.name!r}")
    tool = kwargs.pop(_TOOL, None)
    call_id = None
    if "call_id" in kwargs and "call_id" not in spec.signature.parameters:
        call_id = str(kwargs.pop("call_id"))
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
    call_id = call_id or _tool_place(at, tool)
    if inverse is not None:
        return at, _steps(inverse, at, spec.undo(inverse, at, bound, call_id), (), {})
    request = spec.request(at, bound, call_id)
    return at, _steps(spec, at, request, args, kwargs)


def _drive(spec: _Effect, args: Any, kwargs: dict[str, Any], inverse: _Effect | None = None) -> Any:
    """The synchronous shell."""
    at: Here | None = None
    try:
        at, steps = _prepare(spec, args, dict(kwargs), inverse)
        _refuse_own_loop(spec, at)
        return _pump(steps, functools.partial(_act, at))
    except SurefootError as error:
        if at is not None:
            _step_aside(at, error)
        raise bubbling(error) from None


def _step_aside(at: Here, error: SurefootError) -> None:
    if not isinstance(error, Refused):
        return
    with contextlib.suppress(SurefootError):  # the refusal is what the caller has to see
        flow.step_aside(at.core.ports, at.session)


def _pump(steps: _Steps, act: Callable[[Any], Any]) -> Any:
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            wanted = steps.throw(error) if error is not None else steps.send(value)
        except StopIteration as done:
            return done.value
        value, error = None, None
        try:
            value = act(wanted)
        except BaseException as raised:  # noqa: BLE001 - handed to the steps, which re-raise
            error = raised


def _act(at: Here, wanted: _Flow | _User | _Published | _Pause) -> Any:
    if isinstance(wanted, _Flow):
        return wanted.run()
    if isinstance(wanted, _User):
        with at.core.crossing(wanted.call):
            return _not_awaitable(wanted.run())
    if isinstance(wanted, _Published):
        return at.session.wait_change(wanted.timeout_ms / 1000, wanted.until)
    at.core.ports.host.pause(wanted.milliseconds)
    return None


def _not_awaitable(result: Any) -> Any:
    if not inspect.isawaitable(result):
        return result
    if inspect.iscoroutine(result):
        result.close()
    raise _NeverRan(
        field="effect",
        reason="a synchronous effect returned an awaitable, so it has not run; make it async def",
    )


def _refuse_own_loop(spec: _Effect, at: Here) -> None:
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


async def _drive_async(
    spec: _Effect, args: Any, kwargs: dict[str, Any], inverse: _Effect | None = None
) -> Any:
    """The asynchronous shell."""
    at: Here | None = None
    try:
        at, steps = _prepare(spec, args, dict(kwargs), inverse)
        return await _pump_async(steps, functools.partial(_act_async, at))
    except SurefootError as failed:
        if at is not None:
            await at.core.offload.run(_step_aside, at, failed)
        raise bubbling(failed) from None


async def _pump_async(steps: _Steps, act: Callable[[Any], Any]) -> Any:
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            wanted = steps.throw(error) if error is not None else steps.send(value)
        except StopIteration as done:
            return done.value
        value, error = None, None
        try:
            value = await act(wanted)
        except BaseException as raised:  # noqa: BLE001 - handed to the steps, which re-raise
            error = raised


async def _act_async(at: Here, wanted: _Flow | _User | _Published | _Pause) -> Any:
    if isinstance(wanted, _Flow):
        return await at.core.offload.run(wanted.run)
    if isinstance(wanted, _User):
        with at.core.crossing(wanted.call):
            value = wanted.run()
            return await value if inspect.isawaitable(value) else value
    if isinstance(wanted, _Published):
        return await _published(at, wanted)
    await asyncio.sleep(wanted.milliseconds / 1000)
    return None


async def _published(at: Here, wanted: _Published) -> bool:
    """Waits without holding a thread of the saver's pool; the latch wakes it as well."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wanted.timeout_ms / 1000
    while True:
        changed = asyncio.Event()

        def wake(event: asyncio.Event = changed) -> None:
            with contextlib.suppress(RuntimeError):  # a loop that closed has nobody waiting
                loop.call_soon_threadsafe(event.set)

        forget = at.session.on_change(wake)
        try:
            if wanted.until():
                return True
            left = deadline - loop.time()
            if left <= 0:
                return False
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(changed.wait(), left)
        finally:
            forget()
