"""Tools and models of an agent as recorded reads, for what stands around their calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from langchain_core.messages import ToolMessage
from pydantic import TypeAdapter

from surefoot.errors import Misconfigured
from surefoot.langgraph.bindings import model_id, tool_schemas
from surefoot.langgraph.definition import TOOL
from surefoot.langgraph.reads import READ_DEFAULTS, Read, define, drive, drive_async
from surefoot.langgraph.returns import answer_to_record, recorded_answer

__all__ = ["READ_SETTINGS", "ModelRead", "is_read", "read_of", "read_tool", "read_tool_async"]

#: What a tool that is a read may be told beside ``"recorded": True``.
READ_SETTINGS = frozenset({"name", "inputs", "freshness", "on_stale"})
_RECORDED = "recorded"


# --- tools -------------------------------------------------------------------------------------


def is_read(policy: Any) -> bool:
    """True when a tool is declared to be a recorded read."""
    if isinstance(policy, str):
        return policy == _RECORDED
    return isinstance(policy, Mapping) and bool(policy.get(_RECORDED))


def read_of(name: str, policy: Any) -> Read:
    """The read that a tool is.

    Raises:
        Misconfigured: The settings are none of a read, or contradict each other.
    """
    given = {} if isinstance(policy, str) else {k: v for k, v in policy.items() if k != _RECORDED}
    unknown = [key for key in given if key not in READ_SETTINGS]
    if unknown:
        raise Misconfigured(field=f"tool {name!r}", reason=f"a tool's read has no {unknown[0]!r}")
    inputs = given.get("inputs")
    if isinstance(inputs, str):
        raise Misconfigured(field=f"tool {name!r}", reason="inputs= is a list of names")

    def chosen(arguments: Mapping[str, Any]) -> Any:
        if inputs is None:
            return arguments
        if callable(inputs):
            return inputs(**arguments)
        return {key: arguments[key] for key in inputs if key in arguments}

    settings = {**READ_DEFAULTS, **given, "inputs": chosen}
    settings["name"] = settings["name"] or name
    return define(_look, settings)


def _look(arguments: Mapping[str, Any]) -> Any:
    """Shape of what runs a tool; each call has its own."""


class _Unrecorded(Exception):
    """The tool failed, and what surrounds it made an answer of that: nothing to replay."""

    def __init__(self, answer: Any) -> None:
        super().__init__("the tool failed")
        self.answer = answer


def read_tool(read: Read, request: Any, execute: Callable[[Any], Any]) -> Any:
    """Reads once, or gives the recorded answer under the call's present id."""

    def body(arguments: Mapping[str, Any]) -> Any:
        del arguments
        return _to_record(execute(request), request)

    try:
        stored = drive(replace(read, fn=body), (), _arguments(request))
    except _Unrecorded as failed:
        return failed.answer
    return _answer(stored, request)


async def read_tool_async(
    read: Read, request: Any, execute: Callable[[Any], Awaitable[Any]]
) -> Any:
    """Async twin of `read_tool`."""

    async def body(arguments: Mapping[str, Any]) -> Any:
        del arguments
        return _to_record(await execute(request), request)

    try:
        stored = await drive_async(replace(read, fn=body), (), _arguments(request))
    except _Unrecorded as failed:
        return failed.answer
    return _answer(stored, request)


def _arguments(request: Any) -> dict[str, Any]:
    asked = request.tool_call.get("args") or {}
    return {"arguments": dict(asked), TOOL: request.runtime}


def _to_record(answer: Any, request: Any) -> Any:
    if isinstance(answer, ToolMessage) and answer.status == "error":
        raise _Unrecorded(answer)
    return answer_to_record(answer, call_id=request.tool_call["id"])


def _answer(stored: Any, request: Any) -> Any:
    call = request.tool_call
    return recorded_answer(stored, name=call["name"], call_id=call["id"])


# --- models ------------------------------------------------------------------------------------

_MESSAGES, _STRUCTURED = "messages", "structured"


class ModelRead:
    """The model calls of an agent as recorded reads.

    Args:
        model: Id of the model; by default that of the model object of the call.
        settings: ``name``, ``binds``, ``freshness`` and ``on_stale`` of `recorded`.
    """

    def __init__(self, model: str | None, settings: Mapping[str, Any]) -> None:
        self._model = model
        self._read = define(_ask, {**READ_DEFAULTS, **settings, "inputs": _asked})

    def ask(self, request: Any, handler: Callable[[Any], Any], response: Callable[..., Any]) -> Any:
        """Asks the model once, or gives the recorded answer."""

        def body(asked: Mapping[str, Any]) -> Any:
            del asked
            return _said(handler(request))

        stored = drive(replace(self._read, fn=body), (), {"asked": self._question(request)})
        return response(result=stored[_MESSAGES], structured_response=stored[_STRUCTURED])

    async def ask_async(
        self,
        request: Any,
        handler: Callable[[Any], Awaitable[Any]],
        response: Callable[..., Any],
    ) -> Any:
        """Async twin of `ask`."""

        async def body(asked: Mapping[str, Any]) -> Any:
            del asked
            return _said(await handler(request))

        read = replace(self._read, fn=body)
        stored = await drive_async(read, (), {"asked": self._question(request)})
        return response(result=stored[_MESSAGES], structured_response=stored[_STRUCTURED])

    def _question(self, request: Any) -> dict[str, Any]:
        """What the answer depends on, by name."""
        where = f"read {self._read.name!r}"
        return {
            "bound model id": self._model or model_id(request.model, field=where),
            "bound tools": tool_schemas(request.tools or (), field=where),
            "system message": request.system_message,
            "messages": list(request.messages),
            "tool choice": request.tool_choice,
            "response format": _format(request.response_format),
            "model settings": dict(request.model_settings),
        }


def _ask(asked: Mapping[str, Any]) -> Any:
    """Shape of what asks a model; each call has its own."""


def _asked(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    return asked


def _said(answer: Any) -> dict[str, Any]:
    """A response as it is recorded: its messages, and what was parsed out of them."""
    return {_MESSAGES: list(answer.result), _STRUCTURED: answer.structured_response}


def _format(wanted: Any) -> Any:
    """The structured answer that is asked for, as plain data."""
    if wanted is None:
        return None
    schema = getattr(wanted, "schema", wanted)
    shown = schema if isinstance(schema, Mapping) else TypeAdapter(schema).json_schema()
    return {"strategy": type(wanted).__qualname__, "schema": shown}
