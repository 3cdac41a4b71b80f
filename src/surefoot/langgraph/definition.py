"""What ``@effect`` was told, and which of its settings contradict each other."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from types import UnionType
from typing import Any, Protocol, Union, get_args, get_origin

from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore

from surefoot.errors import Misconfigured, Misuse
from surefoot.flows import effects as flow
from surefoot.flows.compensation import Undo
from surefoot.langgraph import observations, scope
from surefoot.langgraph.hooks import EffectCall, Hook, register
from surefoot.langgraph.place import Here
from surefoot.rules.answers import Answer
from surefoot.rules.doubts import RISKS
from surefoot.rules.effects import Receiver
from surefoot.rules.fingerprint import fingerprint
from surefoot.transport import OutcomeOf, declared

__all__ = [
    "NOT_FOR_WRAPPERS",
    "SPEC",
    "TOOL",
    "EffectSpec",
    "Wrapped",
    "as_tool",
    "define",
    "is_injected",
    "show",
]


_DEADLINE_MAX_S = 100 * 365 * 24 * 3600


_INJECTED = frozenset({"RunnableConfig", "Runtime", "ToolRuntime", "BaseStore", "StreamWriter"})


TOOL = "surefoot_tool"


SPEC = "__surefoot_effect__"


@dataclass(frozen=True)
class EffectSpec:
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
    inverse: EffectSpec | None
    risk: str | None
    deadline_ms: int | None
    depends_on: tuple[str, ...] = ()
    #: An error of the body stops the run, because whoever calls might turn it into a message.
    sealed: bool = False
    #: It is a whole node; what it is given is the node's input.
    is_step: bool = False
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
        """A call with these arguments, from where it is made."""
        arguments = self.semantic(bound)
        within = scope.enclosing()
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
            is_step=self.is_step,
            within=b"" if within is None else within.slot,
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
        self, inverse: EffectSpec, at: Here, bound: inspect.BoundArguments, call_id: str | None
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
            and not is_injected(self.signature.parameters[name], value)
        }


def is_injected(parameter: inspect.Parameter, value: Any) -> bool:
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


#: Those that only a function of one's own can have: they ask for parameters, or add a method.
NOT_FOR_WRAPPERS = frozenset({"compensate", "same_database"})


class Wrapped(Protocol):
    """What a wrapper has to know of its function to look like it."""

    @property
    def signature(self) -> inspect.Signature:
        """Of the function."""

    @property
    def filled_in(self) -> frozenset[str]:
        """Parameters that no caller passes."""


def show(run: Callable[..., Any], spec: Wrapped, *more: inspect.Parameter) -> None:
    """Gives a wrapper the signature of its function, without what is filled in at the call."""
    ours = spec.filled_in
    shown = [p for n, p in spec.signature.parameters.items() if n not in ours]
    if not any(p.kind is p.VAR_KEYWORD for p in shown):
        shown.extend(more)
    run.__signature__ = spec.signature.replace(parameters=shown)  # type: ignore[attr-defined]
    run.__annotations__ = {k: v for k, v in run.__annotations__.items() if k not in ours}


def define(fn: Callable[..., Any], settings: Mapping[str, Any]) -> EffectSpec:
    """What a function and its settings make; every contradiction is refused here.

    Raises:
        Misconfigured: Names the effect and what contradicts what.
    """
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
    return EffectSpec(
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
        depends_on=observations.depending(name, _observed(settings["depends_on"], where)),
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


def _inverse(where: str, parameters: Mapping[str, Any], declared: Any) -> EffectSpec | None:
    """The effect that undoes this one; what it needs has to be known of every call."""
    if declared is None:
        return None
    inverse = getattr(declared, SPEC, None)
    if not isinstance(inverse, EffectSpec):
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


def as_tool(run: Callable[..., Any], spec: Wrapped) -> Callable[..., Any]:
    """Gives the wrapper the signature of a tool.

    The key is no argument of it, and `ToolNode` is asked for the call's place in its message,
    because equal calls of one message run at the same time.
    """
    from langgraph.prebuilt import ToolRuntime

    keyword = inspect.Parameter.KEYWORD_ONLY
    show(run, spec, inspect.Parameter(TOOL, keyword, default=None, annotation=ToolRuntime))
    run.__annotations__ = {**run.__annotations__, TOOL: ToolRuntime}
    return run
