"""What nodes and tools return, as it is recorded and as a replay gives it back.

The serialiser stores a ``Command`` and a ``Send`` as they are, except that tuples come back as
lists, and LangGraph tells a sequence of updates from a value by its tuples.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.types import Command

from surefoot.rules.answers import Committed

__all__ = [
    "answer_to_record",
    "as_returned",
    "as_stored",
    "as_tool_message",
    "rebound",
    "recorded_answer",
    "updates_of",
    "with_stored_results",
]

_PAIRS = "__surefoot_pairs__"


def as_stored(returned: Any) -> Any:
    """What a node or tool returned, in a form that survives the serialiser."""
    if isinstance(returned, (list, tuple)) and type(returned) in (list, tuple):
        return [as_stored(part) for part in returned]
    if isinstance(returned, Command) and _is_pairs(returned.update):
        pairs = [[key, value] for key, value in updates_of(returned)]
        return replace(returned, update={_PAIRS: pairs})
    return returned


def as_returned(stored: Any) -> Any:
    """The opposite of `as_stored`."""
    if isinstance(stored, list):
        return [as_returned(part) for part in stored]
    if isinstance(stored, Command) and isinstance(stored.update, dict) and _PAIRS in stored.update:
        pairs = [(key, value) for key, value in stored.update[_PAIRS]]
        return replace(stored, update=pairs)
    return stored


def updates_of(command: Command[Any]) -> list[tuple[str, Any]]:
    """The updates of a command, one by one, as LangGraph applies them."""
    update: Any = command.update
    if isinstance(update, dict):
        return list(update.items())
    return list(update) if _is_pairs(update) else []


def _is_pairs(update: Any) -> bool:
    """True for updates that LangGraph applies one by one (``Command._update_as_tuples``)."""
    return isinstance(update, (list, tuple)) and all(
        isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], str) for part in update
    )


def with_stored_results(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A lookup whose results are in the form that is stored."""

    def answered(answer: Any) -> Any:
        if not isinstance(answer, Committed):
            return answer
        return Committed(answer.evidence, as_stored(answer.returned()))

    if inspect.iscoroutinefunction(hook):

        async def ask_async(call: Any) -> Any:
            return answered(await hook(call))

        return ask_async
    return lambda call: answered(hook(call))


# --- tools -------------------------------------------------------------------------------------

#: Fields of a recorded answer: the id that the call had, and what the tool node got.
_CALL_ID, _RETURNED = "tool_call_id", "returned"


def answer_to_record(returned: Any, *, call_id: str) -> Any:
    """A tool's answer as it is recorded: with the id that its messages carry."""
    return {_CALL_ID: call_id, _RETURNED: as_stored(returned)}


def recorded_answer(stored: Any, *, name: str, call_id: str) -> Any:
    """What the tool node gets for a recorded answer: with the call's present id.

    Other values than those of `answer_to_record` come from lookups and decisions.
    """
    if isinstance(stored, dict) and set(stored) == {_CALL_ID, _RETURNED}:
        return rebound(as_returned(stored[_RETURNED]), before=stored[_CALL_ID], now=call_id)
    if isinstance(stored, ToolMessage):
        return stored.model_copy(update={"tool_call_id": call_id})
    return as_tool_message(stored, name=name, call_id=call_id)


def as_tool_message(value: Any, *, name: str, call_id: str) -> ToolMessage:
    """A message with a value that did not come from a tool: a lookup's, or a person's."""
    if isinstance(value, str):
        content = value
    else:
        try:
            content = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError):
            content = str(value)
    return ToolMessage(content, name=name, tool_call_id=call_id)


def rebound(returned: Any, *, before: str, now: str) -> Any:
    """A tool's recorded answer for the call's present id.

    Args:
        returned: A message, a command, or a list of them.
        before: Id of the call when the answer was recorded; models mint new ones.
        now: Its present id.
    """
    if before == now:
        return returned
    if isinstance(returned, list):
        return [rebound(part, before=before, now=now) for part in returned]
    if isinstance(returned, ToolMessage) and returned.tool_call_id == before:
        return returned.model_copy(update={"tool_call_id": now})
    if isinstance(returned, Command):
        return replace(returned, update=_rebound_update(returned.update, before, now))
    return returned


def _rebound_update(update: Any, before: str, now: str) -> Any:
    if isinstance(update, dict):
        return {key: rebound(value, before=before, now=now) for key, value in update.items()}
    if _is_pairs(update):
        return [(key, rebound(value, before=before, now=now)) for key, value in update]
    return rebound(update, before=before, now=now)
