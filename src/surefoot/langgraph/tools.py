"""``wrap_tool_call``: the tool calls of a ``ToolNode`` as effects.

One object holds what is declared for each tool. It is called by the tool node around every
call, in both colours, and it answers calls that an interrupted turn left without a result.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import BaseTool
from langgraph.errors import GraphBubbleUp

from surefoot.errors import Misconfigured, Misuse
from surefoot.langgraph import orphans
from surefoot.langgraph.bubble import bubbling
from surefoot.langgraph.definition import NOT_FOR_WRAPPERS, SPEC, TOOL, EffectSpec, define
from surefoot.langgraph.effects import DEFAULTS, EffectCall, drive, drive_async
from surefoot.langgraph.read_tools import is_read, read_of, read_tool, read_tool_async
from surefoot.langgraph.reads import Read
from surefoot.langgraph.returns import answer_to_record, recorded_answer, with_stored_results
from surefoot.rules.answers import NotSent
from surefoot.rules.effects import Receiver

__all__ = ["ToolEffects", "wrap_tool_call"]

Policy = Mapping[str, Any] | Literal["pure", "recorded", "refuse"]

_KEY = "idempotency_key"
#: What a tool's author writes; the tool's ``invoke`` reads and checks arguments, and calls it.
_RUN, _ARUN = "_run", "_arun"


def wrap_tool_call(tools: Mapping[str, Policy] | None = None, *, default: Policy) -> ToolEffects:
    """Makes the tool calls of a ``ToolNode`` effects, by the name of the tool.

    ::

        effects = wrap_tool_call(
            {"charge_card": {"idempotent": True}, "send_mail": {}, "search": "pure"},
            default="refuse",
        )
        ToolNode(tools, wrap_tool_call=effects, awrap_tool_call=effects.on_loop)

    Args:
        tools: For each tool the parameters of `effect` (a mapping; an empty one is an effect whose
            receiver neither deduplicates nor can be asked), or ``"pure"``: run it as it is. A tool
            that only looks something up may be ``"recorded"``, as with `recorded`; with settings
            ``{"recorded": True, "freshness": 60}``, also ``name``, ``inputs`` and ``on_stale``.
        default: The same for every other tool; ``"refuse"`` stops the run instead.

    Raises:
        Misconfigured: The settings contradict each other.
    """
    return ToolEffects(tools or {}, default=default)


class ToolEffects:
    """What is declared for the tools of a graph; see `wrap_tool_call`.

    A call's identity is its position in the message that asks for it, never its id, which
    models mint anew. Its arguments are those of the model. The tool gets its idempotency key as
    ``surefoot.current_call().key``, or in a parameter ``idempotency_key`` that is hidden from the
    model (``Annotated[str, InjectedToolArg]``).

    An error of a tool proves nothing, so it is never handed to the model, which would call again
    under another key: the run stops with `EffectInDoubt`, whatever ``handle_tool_errors`` says,
    and the next run reconciles. `NotSent` says that nothing happened; it is an ordinary error.

    A tool whose function is an ``@effect`` already is left alone; to declare both is a misuse.
    """

    def __init__(self, tools: Mapping[str, Policy], *, default: Policy) -> None:
        self._tools = {name: _checked(name, policy) for name, policy in tools.items()}
        self._default = _checked("(default)", default)
        if isinstance(default, Mapping) and default.get("name"):
            raise Misconfigured(field="default=", reason="one name cannot be that of all tools")
        if is_read(default):
            read_of("(default)", default)
        elif isinstance(default, Mapping):
            _spec("(default)", default)
        # At once, so that a resumed run can ask their lookups before its first node (E7).
        self._specs: dict[str, EffectSpec] = {
            name: _spec(name, policy)
            for name, policy in self._tools.items()
            if isinstance(policy, Mapping) and not is_read(policy)
        }
        self._reads: dict[str, Read] = {
            name: read_of(name, policy) for name, policy in self._tools.items() if is_read(policy)
        }

    # --- around a call --------------------------------------------------------------------------

    def __call__(self, request: Any, execute: Callable[[Any], Any]) -> Any:
        """Runs a tool call once; ``wrap_tool_call=`` of a tool node.

        Raises:
            EffectConflict: Recorded at this place with other arguments.
            EffectInDoubt: Nobody can prove whether it happened.
            StaleInput: A read that was recorded at this place with other arguments.
            Misuse: The tool is declared twice, or not at all.
        """
        spec = self._spec_for(request)
        if isinstance(spec, Read):
            return read_tool(spec, request, execute)
        if spec is None:
            return execute(request)
        attempt = _Attempt(request, spec)
        spec = replace(spec, fn=functools.partial(attempt.run, execute))
        try:
            stored = drive(spec, (), attempt.arguments())
        except NotSent:
            if attempt.nothing is None:
                raise
            return attempt.nothing.told()
        return _recorded(stored, request)

    async def on_loop(self, request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
        """Async twin of `__call__`; ``awrap_tool_call=`` of a tool node."""
        spec = self._spec_for(request)
        if isinstance(spec, Read):
            return await read_tool_async(spec, request, execute)
        if spec is None:
            return await execute(request)
        attempt = _Attempt(request, spec)
        spec = replace(spec, fn=functools.partial(attempt.run_async, execute))
        try:
            stored = await drive_async(spec, (), attempt.arguments())
        except NotSent:
            if attempt.nothing is None:
                raise
            return attempt.nothing.told()
        return _recorded(stored, request)

    # --- calls without a result -----------------------------------------------------------------

    def orphans_node(self, messages_key: str = "messages") -> RunnableLambda[Any, Any]:
        """A node that answers the tool calls which an interrupted turn left without a result.

        New input on a thread that stopped between a model's message and its tools leaves calls
        without results behind, and models refuse such messages. Each gets what the ledger says:
        the recorded result, or that it was not carried out. What is open is asked about. Put the
        node before the model::

            builder.add_node("answer_orphans", effects.orphans_node())

        In a run it raises `EffectInDoubt` when nobody can prove whether a call happened.

        Args:
            messages_key: Where the state keeps its messages.
        """

        def answer_orphans(state: Any, config: RunnableConfig) -> Any:
            return self.answer_orphans(_messages(state, messages_key), messages_key, config)

        async def aanswer_orphans(state: Any, config: RunnableConfig) -> Any:
            messages = _messages(state, messages_key)
            return await self.aanswer_orphans(messages, messages_key, config)

        return RunnableLambda(answer_orphans, afunc=aanswer_orphans, name="answer_orphans")

    def answer_orphans(
        self, messages: Sequence[Any], messages_key: str = "messages", config: Any = None
    ) -> Any:
        """The update that gives every tool call its result, for a node of one's own.

        Args:
            messages: Of the state.
            messages_key: Where the state keeps them.
            config: Of the node, where LangGraph gives no ambient one (Python 3.10).

        Returns:
            All messages, and what commands of the tools update; None when nothing is missing.

        Raises:
            EffectInDoubt: Nobody can prove whether one of the calls happened.
        """
        return orphans.answer(self._declared, messages, messages_key, config)

    async def aanswer_orphans(
        self, messages: Sequence[Any], messages_key: str = "messages", config: Any = None
    ) -> Any:
        """Async twin of `answer_orphans`."""
        return await orphans.answer_async(self._declared, messages, messages_key, config)

    # --- what is declared -----------------------------------------------------------------------

    def _declared(self, name: str) -> EffectSpec | None:
        """The effect that is declared for a tool, if one is."""
        policy = self._tools.get(name, self._default)
        if not isinstance(policy, Mapping) or is_read(policy):
            return None
        found = self._specs.get(name)
        if found is None:
            found = self._specs.setdefault(name, _spec(name, policy))
        return found

    def _spec_for(self, request: Any) -> EffectSpec | Read | None:
        """The effect or read that a call is; None when it is to be run as it is."""
        name = str(request.tool_call["name"])
        policy = self._tools.get(name, self._default)
        inner = _inner_effect(request.tool)
        if inner is not None:
            if isinstance(self._tools.get(name), Mapping) or is_read(self._tools.get(name)):
                raise bubbling(
                    Misuse(
                        field=f"tool {name!r}",
                        reason=f"is the effect {inner!r} already; declare it in one place only",
                    )
                )
            return None
        if policy == "refuse":
            raise bubbling(
                Misuse(
                    field=f"tool {name!r}",
                    reason="nothing is declared for it; give its settings, or 'pure'",
                )
            )
        if is_read(policy):
            return self._reads.setdefault(name, read_of(name, policy))
        return self._declared(name)


def _recorded(stored: Any, request: Any) -> Any:
    call = request.tool_call
    return recorded_answer(stored, name=call["name"], call_id=call["id"])


def _messages(state: Any, key: str) -> Sequence[Any]:
    if isinstance(state, list):
        return state
    found = state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)
    return found or ()


def _checked(name: str, policy: Any) -> Policy:
    if policy in ("pure", "recorded", "refuse"):
        chosen: Policy = policy
        return chosen
    if is_read(policy):
        read: Policy = policy
        return read
    if not isinstance(policy, Mapping):
        raise Misconfigured(
            field=f"tool {name!r}",
            reason="is a mapping with the parameters of @effect, 'pure', 'recorded' or 'refuse'",
        )
    unknown = [key for key in policy if key not in DEFAULTS or key in NOT_FOR_WRAPPERS]
    if unknown:
        raise Misconfigured(field=f"tool {name!r}", reason=f"a tool's effect has no {unknown[0]!r}")
    return policy


def _spec(name: str, policy: Mapping[str, Any]) -> EffectSpec:
    settings = {**DEFAULTS, **policy}
    settings["name"] = settings["name"] or name
    inputs = settings["inputs"]
    if isinstance(inputs, str):
        raise Misconfigured(field=f"tool {name!r}", reason="inputs= is a list of names")

    def chosen(arguments: Mapping[str, Any]) -> Any:
        if inputs is None:
            return arguments
        if callable(inputs):
            return inputs(**arguments)
        return {key: arguments[key] for key in inputs if key in arguments}

    named = settings["operation_id"]

    def operation(arguments: Mapping[str, Any]) -> Any:
        return named(**arguments) if callable(named) else arguments.get(named, "")

    hook = settings["reconcile"]
    body = _body_async if inspect.iscoroutinefunction(hook) else _body
    if callable(hook):
        settings["reconcile"] = with_stored_results(hook)
    settings |= {"inputs": chosen, "operation_id": None if named is None else operation}
    return replace(define(body, settings), sealed=True)


def _body(arguments: Mapping[str, Any], call: EffectCall) -> Any:
    """Shape of what runs a tool; each call has its own."""


async def _body_async(arguments: Mapping[str, Any], call: EffectCall) -> Any:
    """The same for tools whose lookup is async."""


def _inner_effect(tool: BaseTool | None) -> str | None:
    """Name of the effect that a tool's function is, if it is one."""
    for attribute in ("func", "coroutine"):
        spec = getattr(getattr(tool, attribute, None), SPEC, None)
        if isinstance(spec, EffectSpec):
            return spec.name
    return None


# --- one attempt -------------------------------------------------------------------------------


class _Nothing(NotSent):
    """The tool was not entered: its arguments are wrong, or there is no such tool."""

    def __init__(self, answer: Any, error: Exception | None) -> None:
        super().__init__("the tool was not entered")
        self._answer, self._error = answer, error

    def told(self) -> Any:
        """What the tool node gets instead."""
        if self._error is not None:
            raise self._error
        return self._answer


class _Attempt:
    """Runs a tool once, and knows whether it was entered and how it ended.

    What surrounds the tool (the tool's own error handling, the tool node's, middleware) may turn
    an error into a message; only the tool itself knows whether it failed.
    """

    def __init__(self, request: Any, spec: EffectSpec) -> None:
        self._request, self._spec = request, spec
        self._asked = self._entered = False
        self._raised: BaseException | None = None
        self.nothing: _Nothing | None = None

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of the effect's call."""
        asked = self._request.tool_call.get("args") or {}
        return {"arguments": dict(asked), TOOL: self._request.runtime}

    def run(
        self, execute: Callable[[Any], Any], arguments: Mapping[str, Any], call: EffectCall
    ) -> Any:
        """The body of the effect."""
        del arguments
        try:
            answer = execute(self._watched(call))
        except Exception as error:
            failed = self._failed(error)
            if failed is error:
                raise
            raise failed from error
        return self._returned(answer)

    async def run_async(
        self,
        execute: Callable[[Any], Awaitable[Any]],
        arguments: Mapping[str, Any],
        call: EffectCall,
    ) -> Any:
        """Async twin of `run`."""
        del arguments
        try:
            answer = await execute(self._watched(call))
        except Exception as error:
            failed = self._failed(error)
            if failed is error:
                raise
            raise failed from error
        return self._returned(answer)

    def _failed(self, error: Exception) -> Exception:
        if isinstance(error, GraphBubbleUp):
            return error
        if self._asked and not self._entered:
            self.nothing = _Nothing(None, error)
            return self.nothing
        # Something around the tool may have replaced its error by another one.
        return self._raised if isinstance(self._raised, Exception) else error

    def _returned(self, answer: Any) -> Any:
        if self._asked and not self._entered:
            self.nothing = _Nothing(answer, None)
            raise self.nothing
        if isinstance(self._raised, NotSent):
            self.nothing = _Nothing(answer, None)
            raise self.nothing from self._raised
        if self._raised is not None:
            raise self._raised
        return answer_to_record(answer, call_id=self._request.tool_call["id"])

    # --- watching the tool ----------------------------------------------------------------------

    def _watched(self, call: EffectCall) -> Any:
        """The request with a copy of the tool that says when it is entered, and how it ends."""
        tool = self._request.tool
        if not isinstance(tool, BaseTool):
            return self._request  # no such tool, or one that middleware puts in
        key = call.key if _takes_key(tool) else None
        clone = copy.copy(tool)
        watched = {
            "invoke": self._ask(clone.invoke, key),
            "ainvoke": self._ask_async(clone.ainvoke, key),
            # Of the tool itself: where one falls back on the other, it is entered once.
            _RUN: self._enter(getattr(tool, _RUN)),
        }
        if getattr(type(tool), _ARUN) is not getattr(BaseTool, _ARUN):
            watched[_ARUN] = self._enter_async(getattr(tool, _ARUN))
        for name, method in watched.items():
            object.__setattr__(clone, name, method)  # a tool is a model; these are no fields
        return self._request.override(tool=clone)

    def _ask(self, invoke: Callable[..., Any], key: str | None) -> Callable[..., Any]:
        @functools.wraps(invoke)
        def asked(given: Any, *args: Any, **kwargs: Any) -> Any:
            self._asked = True
            return invoke(_with_key(given, key), *args, **kwargs)

        return asked

    def _ask_async(self, invoke: Callable[..., Any], key: str | None) -> Callable[..., Any]:
        @functools.wraps(invoke)
        async def asked(given: Any, *args: Any, **kwargs: Any) -> Any:
            self._asked = True
            return await invoke(_with_key(given, key), *args, **kwargs)

        return asked

    def _enter(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def entered(*args: Any, **kwargs: Any) -> Any:
            self._note_entry()
            try:
                return run(*args, **kwargs)
            except BaseException as error:
                self._raised = error
                raise

        return entered

    def _enter_async(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        async def entered(*args: Any, **kwargs: Any) -> Any:
            self._note_entry()
            try:
                return await run(*args, **kwargs)
            except BaseException as error:
                self._raised = error
                raise

        return entered

    def _note_entry(self) -> None:
        """Refuses to enter the tool again while nobody knows what the first entry did.

        Raises:
            Misuse: Something between the effect and the tool retries it.
        """
        again = self._entered and not isinstance(self._raised, NotSent)
        if again and self._spec.receiver is not Receiver.DEDUPLICATES:
            raise bubbling(
                Misuse(
                    field=f"tool {self._request.tool_call['name']!r}",
                    reason=(
                        "a retry inside of the effect would send it twice; put the retry outside, "
                        "or declare idempotent=True"
                    ),
                )
            )
        self._entered, self._raised = True, None


def _takes_key(tool: BaseTool) -> bool:
    """Whether a tool has a parameter for the key.

    Raises:
        Misconfigured: It is shown to the model, which would make a key up.
    """
    function = getattr(tool, "func", None) or getattr(tool, "coroutine", None)
    function = function or getattr(tool, _RUN)
    if _KEY not in inspect.signature(function).parameters:
        return False
    shown: Any = tool.tool_call_schema
    names = shown.get("properties", {}) if isinstance(shown, dict) else shown.__annotations__
    if _KEY in names:
        raise bubbling(
            Misconfigured(
                field=f"tool {tool.name!r}, {_KEY}",
                reason="is shown to the model; annotate it Annotated[str, InjectedToolArg]",
            )
        )
    return True


def _with_key(given: Any, key: str | None) -> Any:
    if key is None or not isinstance(given, dict):
        return given
    return {**given, "args": {**given.get("args", {}), _KEY: key}}
