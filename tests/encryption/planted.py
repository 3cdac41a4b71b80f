"""A small world of graphs with a secret planted in every place that users fill."""

from __future__ import annotations

import operator
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from tests.graphs.playing import plain, seen

from surefoot import Committed, EffectCall, SurefootSaver, effect

__all__ = ["PLACES", "Planted"]

#: Where secrets are planted; each place has one of its own.
PLACES = (
    "channel value",
    "value of more than 1 KB",
    "list of messages",
    "list that grew later",
    "delta channel",
    "metadata",
    "metadata value of more than 1 KB",
    "interrupt",
    "resume",
    "error text",
    "pending write",
    "state of a subgraph",
    "effect argument",
    "effect result",
    "effect receipt",
    "effect evidence",
    "effect name",
    "node name",
    "channel name",
    "update from outside",
    "input",
    "a thread of its own",
)
#: So that two plays store in the same order.
_SYNC: dict[str, Any] = {"durability": "sync"}


def _apply(value: list[Any], writes: Sequence[Any]) -> list[Any]:
    return [*value, *(item for write in writes for item in write)]


class Planted:
    """Plays on a saver, and writes down what it saw, without ids and times.

    Args:
        saver: Where the graphs store.
        words: Secret by place; made anew when none are given.
    """

    def __init__(self, saver: SurefootSaver, words: Mapping[str, str] | None = None) -> None:
        self.saver = saver
        self.words = dict(words or {place: secrets.token_hex(12) for place in PLACES})
        self.log: list[tuple[str, Any]] = []

    def play(self) -> None:
        """Runs everything once."""
        self._values()
        self._fails()
        self._doubt()
        self._moves()

    def _note(self, what: str, value: Any) -> None:
        self.log.append((what, plain(value)))

    @staticmethod
    def config(thread: str) -> dict[str, Any]:
        """Config of one of the threads."""
        return {"configurable": {"thread_id": thread}}

    def _look(self, graph: Any, thread: str) -> None:
        config = self.config(thread)
        self._note(f"{thread} state", seen(graph.get_state(config, subgraphs=True)))
        for snapshot in graph.get_state_history(config):
            self._note(f"{thread} history", seen(snapshot))
        for found in self.saver.list(config):
            self._note(
                f"{thread} list",
                (found.checkpoint["channel_values"], found.metadata, found.pending_writes),
            )

    # --- one turn of each kind ------------------------------------------------------------------

    def _values(self) -> None:
        word = self.words
        graph = self.graph()
        config = {**self.config("values"), "metadata": self._metadata()}
        self._note("asks", graph.invoke({"small": f"in {word['input']}", "x": []}, config, **_SYNC))
        self._look(graph, "values")
        self._note("answered", graph.invoke(Command(resume=word["resume"]), config, **_SYNC))
        more = [HumanMessage(f"{word['list that grew later']} {n}") for n in range(20)]
        graph.update_state(config, {"messages": more}, as_node="take")
        graph.update_state(config, {"small": word["update from outside"]}, as_node="take")
        # A fork from the middle of the history.
        older = [*graph.get_state_history(config)][3]
        self._note("forked", graph.update_state(older.config, {"small": "fork"}, as_node="take"))
        self._look(graph, "values")
        note = self._metadata()["note"]
        found = [*self.saver.list(config, filter={"note": note})]
        self._note("filtered", len(found))
        if not found:
            raise AssertionError("the metadata of the run was not stored")

    def _metadata(self) -> dict[str, Any]:
        word = self.words
        padding = secrets.token_hex(1_000) if "padding" not in word else word["padding"]
        word["padding"] = padding
        return {
            "note": word["metadata"],
            "essay": f"{word['metadata value of more than 1 KB']} {padding}",
        }

    def graph(self) -> Any:
        """State of every kind, a subgraph, an effect and a question."""
        word = self.words
        delta = DeltaChannel(_apply, list, snapshot_frequency=4)
        state: Any = TypedDict(
            "state",
            {
                "small": str,
                "large": str,
                "messages": Annotated[list[AnyMessage], add_messages],
                "x": Annotated[list, delta],
                "paid": str,
                "answer": str,
                word["channel name"]: str,
            },
            total=False,
        )
        inner: Any = TypedDict("inner", {"private": str, "small": str}, total=False)

        @effect(name=f"pay {word['effect name']}", idempotent=True)
        def pay(invoice: str, *, call: EffectCall) -> str:
            call.note(charge=word["effect receipt"])
            return f"{len(invoice)} {word['effect result']}"

        def fill(_: Any) -> dict[str, Any]:
            said = [HumanMessage(f"{word['list of messages']} {n}") for n in range(12)]
            return {
                "small": word["channel value"],
                "large": f"{word['value of more than 1 KB']} {word['padding']}",
                "messages": said,
                "x": [word["delta channel"]],
                word["channel name"]: "set",
            }

        def keep(_: Any) -> dict[str, Any]:
            return {"private": word["state of a subgraph"]}

        def take(_: Any) -> dict[str, Any]:
            got = interrupt({"question": word["interrupt"]})
            return {"answer": got, "paid": pay(word["effect argument"]), "x": ["end"]}

        below = StateGraph(inner)
        below.add_node("keep", keep)
        below.add_node("twice", keep)
        below.add_edge(START, "keep")
        below.add_edge("keep", "twice")
        node = f"fill {word['node name']}"
        builder = StateGraph(state)
        builder.add_node(node, fill)
        builder.add_node("sub", below.compile(checkpointer=True))
        builder.add_node("take", take)
        for one, other in ((START, node), (node, "sub"), ("sub", "take"), ("take", END)):
            builder.add_edge(one, other)
        return builder.compile(checkpointer=self.saver)

    def _fails(self) -> None:
        word = self.words

        def bad(_: Any) -> Any:
            raise RuntimeError(f"it broke: {word['error text']}")

        graph = self._of({"good": lambda _: {"log": [word["pending write"]]}, "bad": bad})
        config = self.config("fails")
        try:
            graph.invoke({"log": []}, config, **_SYNC)
        except RuntimeError as error:
            self._note("failed", error)
        else:
            raise AssertionError("the node was to fail")
        self._look(graph, "fails")

    def _doubt(self) -> None:
        word = self.words
        sent: list[str] = []

        def ask(_: EffectCall) -> Any:
            return Committed({"proof": word["effect evidence"]}, result="found")

        @effect(name="send", reconcile=ask)
        def send(what: str) -> str:
            sent.append(what)
            raise ConnectionError

        graph = self._of({"send": lambda _: {"log": [send(word["a thread of its own"])]}})
        config = self.config("doubt")
        try:
            graph.invoke({"log": []}, config)
        except ConnectionError:
            self._note("sent", len(sent))
        else:
            raise AssertionError("the effect was to lose its answer")
        self._note("reconciled", graph.invoke(None, config))
        self._note("sent", len(sent))
        self._look(graph, "doubt")

    def _of(self, nodes: Mapping[str, Callable[[Any], Any]]) -> Any:
        state: Any = TypedDict("state", {"log": Annotated[list, operator.add]}, total=False)
        builder = StateGraph(state)
        for name, node in nodes.items():
            builder.add_node(name, node)
            builder.add_edge(START, name)
        return builder.compile(checkpointer=self.saver)

    def _moves(self) -> None:
        graph = self.graph()
        self.saver.copy_thread("values", "copied")
        self._look(graph, "copied")
        more = [HumanMessage(f"{self.words['list that grew later']} again {n}") for n in range(9)]
        graph.update_state(self.config("copied"), {"messages": more}, as_node="take")
        self._look(graph, "copied")
        self.saver.prune(["copied"])
        self._look(graph, "copied")
        self.saver.copy_thread("fails", "alone")
        self.saver.delete_thread("alone")
        self._note("deleted", self.saver.get_tuple(self.config("alone")))
        self._note("threads", sorted({f.config["configurable"]["thread_id"] for f in self.all()}))
        history = self.saver.get_delta_channel_history(config=self.config("values"), channels=["x"])
        self._note("delta", history)

    def all(self) -> list[Any]:
        """All checkpoints of all threads."""
        return [*self.saver.list(None)]
