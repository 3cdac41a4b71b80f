"""``effect_node``: a whole node as one effect."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from typing import Any, get_args, get_type_hints, overload

from langgraph.managed.base import is_managed_value
from pydantic import BaseModel

from surefoot.errors import Misconfigured
from surefoot.langgraph.definition import NOT_FOR_WRAPPERS, EffectSpec, define, show
from surefoot.langgraph.effects import DEFAULTS, EffectCall, drive, drive_async
from surefoot.langgraph.returns import as_returned, as_stored, with_stored_results

__all__ = ["effect_node"]

Node = Callable[..., Any]


@overload
def effect_node(
    fn: Node,
    /,
    *,
    name: str | None = ...,
    idempotent: bool = ...,
    reconcile: Callable[[EffectCall], Any] | None = ...,
    compare: Sequence[str] = ...,
    inputs: Callable[[Any], Any] | Sequence[str] | None = ...,
    settling: float | None = ...,
    lookup: str = ...,
    window: float | timedelta | None = ...,
    operation_id: Callable[[Any], str | int] | str | None = ...,
    **more: Any,
) -> Node: ...
@overload
def effect_node(
    *,
    name: str | None = ...,
    idempotent: bool = ...,
    reconcile: Callable[[EffectCall], Any] | None = ...,
    compare: Sequence[str] = ...,
    inputs: Callable[[Any], Any] | Sequence[str] | None = ...,
    settling: float | None = ...,
    lookup: str = ...,
    window: float | timedelta | None = ...,
    operation_id: Callable[[Any], str | int] | str | None = ...,
    **more: Any,
) -> Callable[[Node], Node]: ...


def effect_node(
    fn: Node | None = None,
    /,
    *,
    name: str | None = None,
    idempotent: bool = False,
    reconcile: Callable[[EffectCall], Any] | None = None,
    compare: Sequence[str] = (),
    inputs: Callable[[Any], Any] | Sequence[str] | None = None,
    settling: float | None = None,
    lookup: str = "settling",
    window: float | timedelta | None = None,
    operation_id: Callable[[Any], str | int] | str | None = None,
    **more: Any,
) -> Any:
    """Makes a whole node one effect: what it returned is recorded, and returned again on resume.

    The parameters are those of `effect`; only ``inputs=`` is about the state. What is meant is
    by default the state that the node gets (its input schema, without managed values such as
    ``remaining_steps``), so give a node a small input schema, or name what counts. The
    arguments of a lookup (``call.arguments``) and the names in ``compare=`` are keys of it.

    The function may take what a node may take (``config``, ``runtime``, ``writer``, ``store``),
    and ``idempotency_key`` or ``call``. It may return what a node may return: an update, a
    ``Command``, a ``Send``, a list of commands.

    Args:
        fn: The node's function, sync or async.
        name: Name of the effect; by default the function's. Part of its identity: keep it.
        idempotent: The receiver deduplicates on our key (class K).
        reconcile: Asks the receiver (class L); ``Committed(evidence, result=update)`` says what
            the node would have returned.
        compare: Keys that what the lookup found must equal.
        inputs: The semantic part of the state: names of its keys, or a function of the state.
        settling: Seconds after which "absent" counts.
        lookup: ``"strong"`` when the lookup never lags.
        window: For ``idempotent``: how long the receiver remembers a key.
        operation_id: Names the business operation: a key of the state, or a function of it.
        **more: Further parameters of `effect` (``risk``, ``deadline``, ``timeout_is``, …), except
            ``compensate`` and ``same_database``.

    Raises:
        Misconfigured: At definition: the settings contradict each other.
        StaleInput: In a run: the recorded result belongs to another input; says what moved.
        EffectConflict: In a run: it may have happened with another input.
        EffectInDoubt: In a run: nobody can prove whether it happened.
    """
    wrong = [key for key in more if key not in DEFAULTS or key in NOT_FOR_WRAPPERS]
    if wrong:
        raise Misconfigured(field="effect_node", reason=f"takes no {wrong[0]}=")
    settings = {
        **DEFAULTS,
        **more,
        "name": name,
        "idempotent": idempotent,
        "reconcile": reconcile,
        "compare": compare,
        "inputs": inputs,
        "settling": settling,
        "lookup": lookup,
        "window": window,
        "operation_id": operation_id,
    }
    if fn is None:
        return lambda function: _wrap(function, settings)
    return _wrap(fn, settings)


def _wrap(fn: Node, settings: Mapping[str, Any]) -> Node:
    spec = _define_node(fn, settings)
    if inspect.iscoroutinefunction(fn):

        async def body_async(*args: Any, **kwargs: Any) -> Any:
            return as_stored(await fn(*args, **kwargs))

        spec = replace(spec, fn=body_async)

        @functools.wraps(fn)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            return as_returned(await drive_async(spec, args, kwargs))

        show(run_async, spec)
        return run_async

    def body(*args: Any, **kwargs: Any) -> Any:
        return as_stored(fn(*args, **kwargs))

    spec = replace(spec, fn=body)

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        return as_returned(drive(spec, args, kwargs))

    show(run, spec)
    return run


def _define_node(fn: Node, settings: Mapping[str, Any]) -> EffectSpec:
    inputs = settings["inputs"]
    where = f"effect {settings['name'] or getattr(fn, '__name__', '')!r}"
    if isinstance(inputs, str):
        raise Misconfigured(field=where, reason="inputs= is a list of keys, not one text")
    first = _state_parameter(fn, where)
    schema = _schema(fn, first)
    keys = None if inputs is None or callable(inputs) else tuple(inputs)
    if schema is not None:
        known = keys if keys is not None else tuple(schema)
        wrong = [key for key in (keys or ()) if key not in schema]
        wrong += [n for n in [settings["operation_id"]] if isinstance(n, str) and n not in schema]
        wrong += [] if callable(inputs) else [n for n in settings["compare"] if n not in known]
        if wrong:
            raise Misconfigured(field=where, reason=f"the node's state has no key {wrong[0]!r}")
    managed = frozenset(key for key, kept in (schema or {}).items() if not kept)

    def read(**given: Any) -> Any:
        state = given[first]
        if callable(inputs):
            return inputs(state)
        whole = _as_map(state)
        if keys is None:
            return {key: value for key, value in whole.items() if key not in managed}
        return {key: whole[key] for key in keys if key in whole}

    named = settings["operation_id"]

    def operation(**given: Any) -> Any:
        return named(given[first]) if callable(named) else _as_map(given[first])[named]

    hook = settings["reconcile"]
    hook = with_stored_results(hook) if callable(hook) else hook
    settings = {
        **settings,
        "inputs": read,
        "reconcile": hook,
        "operation_id": None if named is None else operation,
    }
    return replace(define(fn, settings), is_step=True)


def _state_parameter(fn: Node, where: str) -> str:
    """Name of the parameter that gets the state: the first one, as LangGraph passes it."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise Misconfigured(field=where, reason="a node's first parameter is the state")
    return parameters[0].name


def _schema(fn: Node, first: str) -> dict[str, bool] | None:
    """Keys of the annotated state, and whether each is part of what is meant; None if unknown.

    Managed values (``remaining_steps``) depend on how the run was started, not on what it does.
    """
    try:
        state = get_type_hints(fn).get(first)
        hints = get_type_hints(state, include_extras=True) if isinstance(state, type) else {}
    except (NameError, TypeError):
        return None
    if not hints:
        return None
    return {key: not _is_managed(hint) for key, hint in hints.items()}


def _is_managed(hint: Any) -> bool:
    metadata = getattr(hint, "__metadata__", ())
    if metadata:
        return is_managed_value(metadata[-1])
    inner = get_args(hint)  # of Required[…] and NotRequired[…]
    return len(inner) == 1 and _is_managed(inner[0])


def _as_map(state: Any) -> dict[str, Any]:
    """The keys of a state, whatever kind of state it is."""
    if isinstance(state, Mapping):
        return dict(state)
    if isinstance(state, BaseModel):
        return {name: getattr(state, name) for name in type(state).model_fields}
    if is_dataclass(state) and not isinstance(state, type):
        return {f.name: getattr(state, f.name) for f in fields(state)}
    return {"state": state}
