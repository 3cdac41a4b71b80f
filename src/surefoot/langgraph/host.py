"""What LangGraph tells a saver about the run that calls it.

The only place that reads its private keys; tests/host checks every fact against the lowest
and the newest version.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from surefoot.errors import Misuse
from surefoot.offload import calling_task
from surefoot.rules.effects import OPERATION_PREFIX
from surefoot.session import Caller, RunHandle

__all__ = [
    "Target",
    "caller",
    "checkpoint_id_of",
    "own_thread_id",
    "path_text",
    "run_of",
    "target_of",
    "thread_id",
]

_RUNTIME = "__pregel_runtime"
_DURABILITY = "__pregel_durability"


@dataclass(frozen=True, slots=True)
class Target:
    """What a config points at."""

    thread: str
    namespace: str
    checkpoint_id: str | None


def target_of(config: Mapping[str, Any] | None, *, field: str = "config") -> Target:
    """Reads thread, namespace and checkpoint id from a config.

    Raises:
        Misuse: The thread id is missing or something has the wrong type.
    """
    configurable = (config or {}).get("configurable") or {}
    thread = configurable.get("thread_id")
    if thread is None:
        raise Misuse(
            field=f"{field}['configurable']['thread_id']",
            reason="is missing; pass {'configurable': {'thread_id': …}}",
        )
    thread = own_thread_id(thread, field=f"{field}['configurable']['thread_id']")
    namespace = configurable.get("checkpoint_ns") or ""
    if not isinstance(namespace, str):
        raise _not_text(field, "checkpoint_ns", namespace)
    return Target(thread, namespace, checkpoint_id_of(config, field=field))


def thread_id(value: object, *, field: str) -> str:
    """A thread id: text, or a whole number (LangGraph takes both).

    Raises:
        Misuse: It is anything else. Nothing is ever turned into text silently: a call that
            deletes would delete the wrong thread.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise Misuse(field=field, reason=f"must be a text, not {type(value).__name__}")
    return str(value)


def own_thread_id(value: object, *, field: str) -> str:
    """The id of a thread of the user's own, for calls that write to it or delete of it.

    The journal of a business operation is read like a thread's and settled like one, but what has
    happened is known from it for all threads: without it, it would happen again.

    Raises:
        Misuse: It is none, or that of an operation.
    """
    thread = thread_id(value, field=field)
    if thread.startswith(OPERATION_PREFIX):
        raise Misuse(
            field=field,
            reason=f"must not begin with {OPERATION_PREFIX!r}, which is for operation ids",
        )
    return thread


def checkpoint_id_of(config: Mapping[str, Any] | None, *, field: str = "config") -> str | None:
    """The checkpoint id of a config, or None.

    Raises:
        Misuse: It is no string.
    """
    found = ((config or {}).get("configurable") or {}).get("checkpoint_id") or None
    if found is not None and not isinstance(found, str):
        raise _not_text(field, "checkpoint_id", found)
    return found


def path_text(path: Any, *, counters: bool = True) -> str:
    """A task path as text; only names and indexes.

    Args:
        path: As LangGraph gives it: ``(push, (…path of the caller…), counter, …)`` for a call of
            a task, names and indexes of ``Send`` otherwise.
        counters: Keep the counters of calls.
    """
    if isinstance(path, (list, tuple)):
        parts = list(path)
        is_call = len(parts) > 2 and isinstance(parts[1], (list, tuple))
        if is_call and not counters:
            del parts[2]
        return "(" + ",".join(path_text(part, counters=counters) for part in parts) + ")"
    if isinstance(path, (str, int)):
        return str(path)
    return ""


def _not_text(field: str, name: str, value: object) -> Misuse:
    return Misuse(
        field=f"{field}['configurable'][{name!r}]",
        reason=f"must be a string, not {type(value).__name__}",
    )


def caller() -> Caller:
    """Who makes the present call, also when it was handed to a thread of the saver's pool."""
    ambient = (var_child_runnable_config.get() or {}).get("configurable") or {}
    inside = getattr(ambient.get(_RUNTIME), "control", None)
    task = calling_task.get()
    if task is not None:
        return Caller(task, inside, is_task=True)
    return Caller(threading.current_thread(), inside, is_task=False)


def run_of(
    config: RunnableConfig | Mapping[str, Any] | None, *, loop: object | None = None
) -> RunHandle | None:
    """The run that makes a call, or None when somebody only looks or calls directly.

    A run's loads and saves carry its ``Runtime`` in the config; ``get_state``,
    ``get_state_history`` and ``update_state`` do not. Absent or of another shape means "look".

    Args:
        config: Config of the call.
        loop: The event loop that serves the run's saves, when the run is asynchronous.
    """
    configurable = (config or {}).get("configurable") or {}
    runtime = configurable.get(_RUNTIME)
    control = getattr(runtime, "control", None)
    if control is None:
        return None
    durability = configurable.get(_DURABILITY) or "async"
    info = getattr(runtime, "execution_info", None)
    path = ((config or {}).get("metadata") or {}).get("langgraph_path")
    task = None
    if info is not None:
        task = (str(info.task_id), int(info.node_attempt or 1), path_text(path))
    return RunHandle(control, getattr(runtime, "stream_writer", None), str(durability), loop, task)
