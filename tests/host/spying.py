"""A saver that writes down who calls it, and small graphs for it."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

__all__ = ["Call", "Log", "SpySaver", "chain", "config"]


class Log(TypedDict, total=False):
    x: Annotated[list[Any], operator.add]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a saver.

    Attributes:
        method: Name, without the ``a`` of the asynchronous twin.
        namespace: Checkpoint namespace.
        thread: Thread id.
        control: Identity of the run's control object; None without a runtime.
        keys: Private keys of the config.
        durability: As the config tells it.
        channels: Of a `put_writes`.
        carrier: Operating system thread that carried out the call.
        checkpoint_id: As the config tells it.
    """

    method: str
    namespace: str
    thread: str
    control: int | None
    keys: frozenset[str]
    durability: str | None
    channels: tuple[str, ...]
    carrier: threading.Thread
    checkpoint_id: str | None


class SpySaver(InMemorySaver):
    """In memory; notes every call and may fail on order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.writers: list[weakref.ref[Any]] = []
        self.before: Callable[[str, int], None] = lambda method, number: None

    def of(self, method: str) -> list[Call]:
        """The calls of one method."""
        return [c for c in self.calls if c.method == method]

    def channels(self) -> list[tuple[str, ...]]:
        """Channels of each batch of writes."""
        return [c.channels for c in self.of("put_writes")]

    def _note(self, method: str, config: Any, writes: Sequence[Any] = ()) -> None:
        configurable = config["configurable"]
        runtime = configurable.get("__pregel_runtime")
        control = getattr(runtime, "control", None)
        if method == "get_tuple" and runtime is not None:
            self.writers.append(weakref.ref(runtime.stream_writer))
        self.calls.append(
            Call(
                method,
                configurable.get("checkpoint_ns", ""),
                configurable["thread_id"],
                None if control is None else id(control),
                frozenset(k for k in configurable if k.startswith("__pregel")),
                configurable.get("__pregel_durability"),
                tuple(channel for channel, _ in writes),
                threading.current_thread(),
                configurable.get("checkpoint_id"),
            )
        )
        self.before(method, len(self.of(method)))

    def get_tuple(self, config: Any) -> Any:
        self._note("get_tuple", config)
        return super().get_tuple(config)

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        self._note("put", config)
        return super().put(config, checkpoint, metadata, new_versions)

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        self._note("put_writes", config, writes)
        super().put_writes(config, writes, task_id, task_path)

    def list(self, config: Any, **more: Any) -> Any:
        self._note("list", config)
        return super().list(config, **more)

    # The asynchronous twins of the base class call these.


def config(thread: str = "t", **configurable: Any) -> Any:
    """A config of a thread."""
    return {"configurable": {"thread_id": thread, **configurable}}


def chain(saver: Any, *nodes: Any, **compiling: Any) -> Any:
    """A graph of nodes one after the other, named n0, n1, …"""
    builder = StateGraph(Log)
    for number, given in enumerate(nodes):
        node, options = given if isinstance(given, tuple) else (given, {})
        builder.add_node(f"n{number}", node, **options)
        builder.add_edge(f"n{number - 1}" if number else START, f"n{number}")
    return builder.compile(checkpointer=saver, **compiling)
