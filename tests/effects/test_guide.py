"""The graphs of the guide's section on tools and agents, as they stand there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from tests.effects.conftest import Bench
from tests.effects.conftest import State as Plain
from tests.effects.test_middleware import scripted
from tests.effects.test_tools import calls, is_valid

import surefoot

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide.md"


@pytest.fixture
def blocks() -> Iterator[str]:
    """The code of the section, in order."""
    text = GUIDE.read_text(encoding="utf-8")
    section = text.split("## Tools and agents")[1].split("\n## ")[0]
    return iter(re.findall(r"```python\n(.*?)```", section, re.DOTALL))


class State(Plain, total=False):
    invoice: str
    amount: int


class Payments:
    """What the guide calls its payment service."""

    def __init__(self, bench: Bench) -> None:
        self._world = bench.world

    def post(self, path: str, *, json: Any, key: str) -> Any:
        self._world.send(json["amount"], key)
        return {"id": f"{path} {json['amount']}"}


def test_the_section_runs(bench: Bench, blocks: Iterator[str]) -> None:
    """A node, a tool node with its orphans, and an agent."""
    from langchain.agents import create_agent

    @tool
    def charge_card(amount: int) -> str:
        """Charges."""
        bench.world.send(amount, surefoot.current_call().key)
        return f"charged {amount}"

    names: dict[str, Any] = {
        "State": State,
        "builder": StateGraph(State),
        "payments": Payments(bench),
        "START": START,
        "ToolNode": ToolNode,
        "create_agent": create_agent,
        "tools": [charge_card],
        "saver": bench.saver,
    }
    exec(next(blocks), names)
    names["builder"].add_edge(START, "charge")
    graph = names["builder"].compile(checkpointer=bench.saver)
    given = {"invoice": "a", "amount": 7, "log": []}
    assert graph.invoke(given, bench.config())["log"] == ["/charges 7"]

    builder = names["builder"] = StateGraph(MessagesState)
    message = calls(("charge_card", {"amount": 8}))

    def model(state: MessagesState) -> Any:
        assert is_valid(list(state["messages"]))
        first = not any(isinstance(m, AIMessage) for m in state["messages"])
        return {"messages": [message if first else AIMessage("the end")]}

    builder.add_node("model", model)
    tool_node, agent_of_langchain, orphans = blocks
    exec(tool_node, names)
    exec(orphans, names)
    builder.add_conditional_edges(
        "model", lambda s: "tools" if s["messages"][-1].tool_calls else END, ["tools", END]
    )
    builder.add_edge("tools", "answer_orphans")
    stops = builder.compile(checkpointer=bench.saver, interrupt_before=["tools"])
    config = bench.config()
    stops.invoke({"messages": [HumanMessage("go")]}, config)
    done = builder.compile(checkpointer=bench.saver).invoke(
        {"messages": [HumanMessage("well?")]}, config
    )
    assert (
        "Not carried out" in next(m for m in done["messages"] if isinstance(m, ToolMessage)).content
    )

    names["model"] = scripted(calls(("charge_card", {"amount": 9})))
    exec(agent_of_langchain.replace(", ...]", "]"), names)
    done = names["agent"].invoke({"messages": [HumanMessage("go")]}, bench.config())
    assert [m.content for m in done["messages"] if isinstance(m, ToolMessage)] == ["charged 9"]
    assert bench.world.sent == [7, 9]
