"""Plays the same scenario on any saver, sync or async, and writes down what was seen.

What is seen is made comparable: ids and times differ between two plays of a scenario, so they
are replaced by a sign; everything else, types included, has to be equal.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import Interrupt, StateSnapshot
from pydantic import BaseModel

__all__ = ["Config", "Player", "Scenario", "differences", "plain"]

Config = dict[str, Any]
THREAD = "thread-1"

_ID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(\+00:00|Z)?")
#: Carried along by LangGraph in streamed configs and of no interest here.
_NOISE = {"callbacks", "created_at", "langgraph_step_duration", "ls_integration"}


def plain(value: Any) -> Any:
    """A value without ids and times, in which types show."""
    if isinstance(value, BaseMessage):
        return (type(value).__name__, plain(value.content))
    if isinstance(value, Interrupt):
        return ("Interrupt", plain(value.value))
    if isinstance(value, StateSnapshot):
        return seen(value)
    if isinstance(value, BaseException):
        return (type(value).__name__, _anonymous(str(value)))
    if isinstance(value, enum.Enum):
        return (type(value).__name__, value.name)
    if isinstance(value, BaseModel):
        return (type(value).__name__, {k: plain(v) for k, v in value})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return (type(value).__name__, named)
    if isinstance(value, str):
        return _anonymous(value)
    if isinstance(value, Mapping):
        kept = {k: v for k, v in value.items() if k not in _NOISE and not str(k).startswith("__p")}
        found = {plain(k): plain(v) for k, v in kept.items()}
        if "__interrupt__" in found:  # of parallel tasks: in whatever order they came
            found["__interrupt__"] = sorted(found["__interrupt__"], key=repr)
        return found
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value)) if type(value) in {list, tuple} else [*value]
    if isinstance(value, (set, frozenset)):
        return (type(value).__name__, sorted(map(repr, value)))
    return value


def _anonymous(text: str) -> str:
    return _TIME.sub("TIME", _ID.sub("ID", text))


def seen(snapshot: StateSnapshot) -> dict[str, Any]:
    """What a snapshot shows."""
    metadata = snapshot.metadata or {}
    return {
        "values": plain(snapshot.values),
        "next": snapshot.next,
        "step": metadata.get("step"),
        "source": metadata.get("source"),
        "has_parent": snapshot.parent_config is not None,
        "interrupts": sorted(map(repr, map(plain, snapshot.interrupts))),
        "tasks": [
            {
                "name": task.name,
                "path": plain(task.path),
                "error": None if task.error is None else _anonymous(str(task.error)),
                "interrupts": plain(task.interrupts),
                "result": plain(task.result),
                "state": _state_of(task.state),
            }
            for task in snapshot.tasks
        ],
    }


def differences(want: Any, got: Any, path: str = "") -> Iterator[str]:
    """Where two logs differ, one line each."""
    if isinstance(want, dict) and isinstance(got, dict):
        for key in {**want, **got}:
            yield from differences(want.get(key, "-"), got.get(key, "-"), f"{path}.{key}")
    elif isinstance(want, (list, tuple)) and type(want) is type(got) and len(want) == len(got):
        for number, (one, other) in enumerate(zip(want, got, strict=True)):
            yield from differences(one, other, f"{path}[{number}]")
    elif want != got or type(want) is not type(got):
        yield f"{path}: in memory {want!r}, ours {got!r}"


def _state_of(state: Any) -> Any:
    if isinstance(state, StateSnapshot):
        return seen(state)
    if isinstance(state, dict):
        return plain({**state["configurable"], "checkpoint_map": None})
    return state


class Player:
    """Drives graphs on one saver and keeps the log of what was seen."""

    def __init__(
        self,
        saver: BaseCheckpointSaver[Any],
        *,
        asynchronous: bool = False,
        durability: str = "async",
    ) -> None:
        self.saver = saver
        self.asynchronous = asynchronous
        self.durability = durability
        self.log: list[Any] = []
        self._loop = asyncio.new_event_loop() if asynchronous else None

    def close(self) -> None:
        """Ends the event loop."""
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    def note(self, what: str, value: Any = None) -> None:
        """Writes something down."""
        self.log.append((what, plain(value)))

    def config(self, thread: str = THREAD, **configurable: Any) -> Config:
        """A config of a thread."""
        return {"configurable": {"thread_id": thread, **configurable}}

    def run(self, coroutine: Any) -> Any:
        """Runs a coroutine on this player's loop."""
        assert self._loop is not None
        return self._loop.run_until_complete(coroutine)

    def invoke(self, graph: Any, given: Any, config: Config | None = None, **more: Any) -> Any:
        """Invokes and notes the result, or the error."""
        config = config or self.config()
        more.setdefault("durability", self.durability)
        with self._noting("raised"):
            if self.asynchronous:
                result = self.run(graph.ainvoke(given, config, **more))
            else:
                result = graph.invoke(given, config, **more)
            self.note("result", result)
            return result
        return None

    def stream(
        self, graph: Any, given: Any, config: Config | None = None, **more: Any
    ) -> list[Any]:
        """Streams to the end and notes every chunk."""
        config = config or self.config()
        more.setdefault("durability", self.durability)
        chunks: list[Any] = []

        async def collect() -> None:
            async for chunk in graph.astream(given, config, **more):
                chunks.append(chunk)  # noqa: PERF401 - what came before an error counts too

        with self._noting("raised"):
            if self.asynchronous:
                self.run(collect())
            else:
                chunks.extend(graph.stream(given, config, **more))
        self.note("chunks", chunks)
        return chunks

    def state(self, graph: Any, config: Config | None = None, *, subgraphs: bool = False) -> Any:
        """Looks at a thread and notes what it shows."""
        config = config or self.config()
        if self.asynchronous:
            snapshot = self.run(graph.aget_state(config, subgraphs=subgraphs))
        else:
            snapshot = graph.get_state(config, subgraphs=subgraphs)
        self.log.append(("state", seen(snapshot)))
        return snapshot

    def history(self, graph: Any, config: Config | None = None, **more: Any) -> list[Any]:
        """Reads the history and notes it, with the place of each parent in it."""
        config = config or self.config()

        async def collect() -> list[Any]:
            return [s async for s in graph.aget_state_history(config, **more)]

        if self.asynchronous:
            found = self.run(collect())
        else:
            found = list(graph.get_state_history(config, **more))
        place = {_id(s.config): n for n, s in enumerate(found)}
        parents = [place.get(_id(s.parent_config)) for s in found]
        self.log.append(("history", [seen(s) for s in found], parents))
        return found

    def update(self, graph: Any, values: Any, config: Config | None = None, **more: Any) -> Config:
        """Updates the state; returns the new config."""
        config = config or self.config()
        if self.asynchronous:
            after = self.run(graph.aupdate_state(config, values, **more))
        else:
            after = graph.update_state(config, values, **more)
        return dict(after)

    def bulk_update(self, graph: Any, steps: Sequence[Any], config: Config | None = None) -> Config:
        """Updates the state in several steps; returns the new config."""
        config = config or self.config()
        if self.asynchronous:
            return dict(self.run(graph.abulk_update_state(config, steps)))
        return dict(graph.bulk_update_state(config, steps))

    @contextmanager
    def _noting(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.note(what, error)


def _id(config: Any) -> str | None:
    return None if config is None else config["configurable"]["checkpoint_id"]


Scenario = Callable[[Player], None]
