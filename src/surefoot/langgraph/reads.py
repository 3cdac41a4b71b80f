"""``@recorded`` and ``@pure``: steps that change nothing outside; a clock and random numbers.

The order of steps is one generator, `_steps`; a synchronous and an asynchronous shell carry out
what it asks for, as with effects.
"""

from __future__ import annotations

import functools
import inspect
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from random import SystemRandom
from typing import Any, TypeVar, overload

from langchain_core.runnables import RunnableConfig

from surefoot.errors import Misconfigured, Misuse, SurefootError
from surefoot.flows import reads as flow
from surefoot.langgraph import observations, scope
from surefoot.langgraph.bindings import Bindings
from surefoot.langgraph.bubble import bubbling
from surefoot.langgraph.definition import TOOL, as_tool, is_injected
from surefoot.langgraph.effects import step_aside, tool_place
from surefoot.langgraph.place import Here, here
from surefoot.langgraph.shells import Flow, Steps, User, act_async, pump
from surefoot.rules.fingerprint import fingerprint
from surefoot.rules.reads import OnStale

__all__ = [
    "READ_DEFAULTS",
    "Read",
    "define",
    "drive",
    "drive_async",
    "now",
    "pure",
    "random",
    "recorded",
    "uuid4",
]

R = TypeVar("R")
_RESERVED = ("idempotency_key", "call")
_MICROSECONDS = 1_000_000


# --- the definition ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Read:
    """What the decorator was told."""

    fn: Callable[..., Any]
    name: str
    inputs: Callable[..., Any] | tuple[str, ...] | None
    bindings: Bindings
    freshness_us: int | None
    on_stale: OnStale
    observes: bool
    signature: inspect.Signature
    filled_in: frozenset[str] = frozenset()

    def request(
        self, at: Here, bound: inspect.BoundArguments, call_id: str | None
    ) -> flow.ReadRequest:
        """A read with these arguments, from where it is made."""
        given = {
            name: value
            for name, value in bound.arguments.items()
            if not is_injected(self.signature.parameters[name], value)
        }
        bound_to = self.bindings.inputs(given, field=f"read {self.name!r}")
        inputs = {**self.semantic(given), **bound_to}
        within = scope.enclosing()
        return flow.ReadRequest(
            name=self.name,
            place=at.place,
            call_id=call_id,
            scope=b"" if within is None else within.slot,
            since_us=None if within is None else within.since_us,
            runnable=at.runnable,
            inputs=inputs,
            fingerprint=fingerprint(inputs, effect=self.name),
            freshness_us=self.freshness_us,
            on_stale=self.on_stale,
            observes=self.observes,
            recall=given if self.observes else {},
        )

    def semantic(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that say what is asked."""
        if self.inputs is None:
            return dict(given)
        if callable(self.inputs):
            chosen = self.inputs(**given)
            return dict(chosen) if isinstance(chosen, Mapping) else {"inputs": chosen}
        missing = [name for name in self.inputs if name not in given]
        if missing:
            raise Misconfigured(
                field=f"read {self.name!r}, inputs", reason=f"no argument {missing[0]!r}"
            )
        return {name: given[name] for name in self.inputs}


@overload
def recorded(fn: Callable[..., R], /) -> Callable[..., R]: ...
@overload
def recorded(
    *,
    name: str | None = ...,
    inputs: Callable[..., Any] | Sequence[str] | None = ...,
    model: Any = ...,
    prompt: Any = ...,
    tools: Any = ...,
    binds: Any = ...,
    freshness: float | timedelta | None = ...,
    on_stale: str = ...,
    observe: bool = ...,
) -> Callable[[Callable[..., R]], Callable[..., R]]: ...


def recorded(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    inputs: Callable[..., Any] | Sequence[str] | None = None,
    model: Any = None,
    prompt: Any = None,
    tools: Any = None,
    binds: Any = None,
    freshness: float | timedelta | None = None,
    on_stale: str = "refuse",
    observe: bool = False,
) -> Any:
    """Makes a function, node or tool a read whose outcome is recorded.

    For what changes nothing outside but may answer otherwise the next time: a model call, a
    search, a lookup. The outcome is replayed when the step runs again (a resume, a retry). The
    same place with other inputs is `StaleInput`: an old answer never stands for a new question.
    A read that was under way when the process died simply runs again.

    Two reads of one task that run at the same time need a ``call_id=`` each. For a tool, put
    ``@recorded`` below ``@tool``.

    Args:
        fn: The function, sync or async.
        name: Name of the read; by default the function's. Part of its identity: keep it.
        inputs: The semantic part of the arguments: their names, or a function of them.
        model: The model that answers: its id, a model object, or a function of the arguments.
            With another one, a recorded answer is stale; so with each of the next three.
        prompt: Prompt text, messages or template, or a function of the arguments.
        tools: Tools or schemas that the model is given, or a function of the arguments.
        binds: Whatever else the answer depends on, by name, or a function of the arguments.
        freshness: Age (seconds, or a timedelta) from which on a recorded outcome is not replayed
            but read anew. By default it never ages.
        on_stale: ``"refuse"``, or ``"read"``: with other inputs, read again and record that.
        observe: The outcome is an observation of the world: before the next effect of a resumed
            run starts, it is read again, and `StaleInput` is raised if it moved.

    Raises:
        Misconfigured: At decoration: the settings contradict each other.
        StaleInput: At a call: recorded at this place with other inputs.
        NotStorable: At a call: the outcome cannot be stored.
        Fenced: At a call: another worker has the thread.
    """
    settings = {
        "name": name,
        "inputs": inputs,
        "model": model,
        "prompt": prompt,
        "tools": tools,
        "binds": binds,
        "freshness": freshness,
        "on_stale": on_stale,
        "observe": observe,
    }
    if fn is None:
        return lambda function: _decorate(function, settings)
    return _decorate(fn, settings)


#: The parameters of `recorded`, for what declares reads in other ways.
READ_DEFAULTS: Mapping[str, Any] = {
    p.name: p.default
    for p in inspect.signature(recorded).parameters.values()
    if p.kind is p.KEYWORD_ONLY
}


def _decorate(fn: Callable[..., Any], settings: Mapping[str, Any]) -> Callable[..., Any]:
    spec = define(fn, settings)
    if spec.observes:
        observations.define(spec.name, fn)
    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            return await drive_async(spec, args, kwargs)

        return as_tool(run_async, spec)

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        return drive(spec, args, kwargs)

    return as_tool(run, spec)


def define(fn: Callable[..., Any], settings: Mapping[str, Any]) -> Read:
    """What a function and its settings make; every contradiction is refused here.

    Raises:
        Misconfigured: Names the read and what contradicts what.
    """
    _require_function(fn, "recorded")
    name = settings["name"] or fn.__name__
    where = f"read {name!r}"
    signature = inspect.signature(fn)
    taken = [n for n in _RESERVED if n in signature.parameters]
    if taken:
        raise Misconfigured(
            field=where, reason=f"the argument name {taken[0]!r} is kept for effects; rename it"
        )
    if settings["on_stale"] not in {one.value for one in OnStale}:
        raise Misconfigured(field=where, reason="on_stale is 'refuse' or 'read'")
    odd = {p.kind for p in signature.parameters.values()} & {
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    }
    if settings["observe"] and odd:
        raise Misconfigured(
            field=where, reason="an observation is made again by name: no *args, **kwargs or /"
        )
    inputs = settings["inputs"]
    return Read(
        fn=fn,
        name=name,
        inputs=inputs if inputs is None or callable(inputs) else tuple(inputs),
        bindings=Bindings(
            **{part: settings[part] for part in ("model", "prompt", "tools", "binds")}
        ),
        freshness_us=_microseconds(settings["freshness"], where),
        on_stale=OnStale(settings["on_stale"]),
        observes=bool(settings["observe"]),
        signature=signature,
    )


def _require_function(fn: Any, decorator: str) -> None:
    if not hasattr(fn, "__name__"):
        raise Misconfigured(
            field=decorator,
            reason=(
                f"decorates functions, not {type(fn).__name__}; for a tool put @{decorator} below "
                "@tool, next to the function"
            ),
        )
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise Misconfigured(
            field=f"{decorator} {fn.__name__!r}", reason="a generator is not one step"
        )


def _microseconds(freshness: object, where: str) -> int | None:
    if freshness is None:
        return None
    seconds = freshness.total_seconds() if isinstance(freshness, timedelta) else freshness
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise Misconfigured(field=where, reason="freshness is a number of seconds, 0 or more")
    return int(seconds * _MICROSECONDS)


# --- the order of steps ------------------------------------------------------------------------


def _steps(spec: Read, at: Here, request: flow.ReadRequest, body: Callable[[], Any]) -> Steps:
    """Look up, then replay or read; what was read is recorded before it counts."""
    ports, session = at.core.ports, at.session
    serde = session.serde
    if serde is None:
        raise Misuse(field=f"read {spec.name!r}", reason="the run has not loaded its thread")
    step = flow.begin(ports, session, serde, request)
    with flow.reading(session, step):
        record = step.body
        if record is not None:
            value = yield Flow(functools.partial(flow.load, ports, session, serde, step))
        else:
            inside = scope.inside(step.slot, body)
            result = yield User(inside, f"read.{spec.name}")
            value, record = flow.finish(ports, session, serde, step, result)
            at.core.nudge()
            within = scope.enclosing()
            if within is not None and within.sends:
                yield Flow(functools.partial(flow.store, ports, session))
        if spec.observes:
            observations.reached(at, step, record, value, body)
        return value


def _prepare(spec: Read, args: Any, kwargs: dict[str, Any]) -> tuple[Here, Steps]:
    scope.refuse_inside_pure(f"read {spec.name!r}")
    tool = kwargs.pop(TOOL, None)
    call_id = None
    if "call_id" in kwargs and "call_id" not in spec.signature.parameters:
        given = kwargs.pop("call_id")
        call_id = None if given is None else str(given)
    bound = spec.signature.bind(*args, **kwargs)
    bound.apply_defaults()
    at = here(spec.name, [*args, *kwargs.values(), tool], kind="read")
    call_id = call_id or tool_place(at, tool)
    request = spec.request(at, bound, call_id)
    return at, _steps(spec, at, request, functools.partial(spec.fn, *args, **kwargs))


# --- shells ------------------------------------------------------------------------------------


def drive(spec: Read, args: Any, kwargs: dict[str, Any]) -> Any:
    """The synchronous shell; it waits for nothing that the run's own loop would have to do."""
    at: Here | None = None
    try:
        at, steps = _prepare(spec, args, dict(kwargs))
        return pump(steps, functools.partial(_act, spec))
    except SurefootError as error:
        if at is not None:
            step_aside(at, error)
        raise bubbling(error) from error.__cause__


def _act(spec: Read, wanted: Any) -> Any:
    result = wanted.run()
    if isinstance(wanted, User) and inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise Misuse(
            field=f"read {spec.name!r}",
            reason="a synchronous function returned an awaitable; make it async def",
        )
    return result


async def drive_async(spec: Read, args: Any, kwargs: dict[str, Any]) -> Any:
    """The asynchronous shell."""
    at: Here | None = None
    try:
        at, steps = _prepare(spec, args, dict(kwargs))
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                wanted = steps.throw(error) if error is not None else steps.send(value)
            except StopIteration as done:
                return done.value
            value, error = None, None
            try:
                value = await act_async(at, wanted)
            except BaseException as raised:  # noqa: BLE001 - handed to the steps, which re-raise
                error = raised
    except SurefootError as failed:
        if at is not None:
            await at.core.offload.run(step_aside, at, failed)
        raise bubbling(failed) from failed.__cause__


# --- pure steps --------------------------------------------------------------------------------


@overload
def pure(fn: Callable[..., R], /) -> Callable[..., R]: ...
@overload
def pure(*, name: str | None = ...) -> Callable[[Callable[..., R]], Callable[..., R]]: ...


def pure(fn: Callable[..., Any] | None = None, /, *, name: str | None = None) -> Any:
    """Declares that a function or node only computes: nothing of it is recorded.

    It runs again on every resume. An `effect` or a `recorded` call inside is a `Misuse`.

    Args:
        fn: The function, sync or async.
        name: For messages; by default the function's.

    Raises:
        Misconfigured: At decoration: it is no plain function.
    """
    if fn is None:
        return lambda function: _decorate_pure(function, name)
    return _decorate_pure(fn, name)


def _decorate_pure(fn: Callable[..., Any], name: str | None) -> Callable[..., Any]:
    _require_function(fn, "pure")
    shown = name or fn.__name__
    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            return await scope.pure_step(shown, functools.partial(fn, *args, **kwargs))()

        return run_async

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        return scope.pure_step(shown, functools.partial(fn, *args, **kwargs))()

    return run


# --- clock and chance --------------------------------------------------------------------------

_chance = SystemRandom()


@recorded(name="surefoot.now")
def _now(config: RunnableConfig | None = None) -> datetime:  # noqa: ARG001 - says where it is
    return datetime.now(timezone.utc)


@recorded(name="surefoot.random")
def _number(config: RunnableConfig | None = None) -> float:  # noqa: ARG001 - says where it is
    return _chance.random()


@recorded(name="surefoot.uuid4")
def _uuid4(config: RunnableConfig | None = None) -> uuid.UUID:  # noqa: ARG001 - says where it is
    return uuid.uuid4()


def now(*, call_id: str | None = None, config: RunnableConfig | None = None) -> datetime:
    """The time, in UTC, as it was when this place was first reached; the same after a resume.

    Args:
        call_id: Tells calls apart whose order does not (see `recorded`).
        config: The node's config, needed in async nodes on Python 3.10.

    Raises:
        Misuse: Outside a run with a `SurefootSaver`.
    """
    drawn: datetime = _now(config, call_id=call_id)
    return drawn


def random(*, call_id: str | None = None, config: RunnableConfig | None = None) -> float:
    """A random number from 0 to below 1; the same after a resume.

    Args:
        call_id: Tells calls apart whose order does not (see `recorded`).
        config: The node's config, needed in async nodes on Python 3.10.

    Raises:
        Misuse: Outside a run with a `SurefootSaver`.
    """
    drawn: float = _number(config, call_id=call_id)
    return drawn


def uuid4(*, call_id: str | None = None, config: RunnableConfig | None = None) -> uuid.UUID:
    """A random UUID; the same after a resume.

    Args:
        call_id: Tells calls apart whose order does not (see `recorded`).
        config: The node's config, needed in async nodes on Python 3.10.

    Raises:
        Misuse: Outside a run with a `SurefootSaver`.
    """
    drawn: uuid.UUID = _uuid4(config, call_id=call_id)
    return drawn
