"""A node that carries out the tool calls of several messages, one after the other."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.prebuilt import ToolNode
from tests.effects.conftest import Bench, State

from surefoot import effect


@pytest.mark.optimized
@pytest.mark.parametrize("history", [True, False], ids=["all-messages", "last-message"])
@pytest.mark.parametrize("invoices", [("a", "a"), ("a", "b")], ids=["equal", "different"])
def test_each_message_of_a_loop_inside_one_node_is_carried_out(
    either: Bench, history: bool, invoices: tuple[str, str]
) -> None:
    """Case 10: both calls are the first of their message, and both are meant."""

    @tool
    @effect(idempotent=True)
    def refund(invoice: str, *, idempotency_key: str) -> str:
        """Refunds an invoice."""
        either.world.send(invoice, idempotency_key)
        return f"refunded {invoice}"

    tools = ToolNode([refund])

    def agent(state: State) -> State:
        messages: list[Any] = []
        for number, invoice in enumerate(invoices):
            call = {"name": "refund", "args": {"invoice": invoice}, "id": f"call-{number}"}
            messages.append(AIMessage("", tool_calls=[call]))
            given = messages if history else messages[-1:]
            messages += tools.invoke({"messages": given})["messages"]
        return {"log": [m.content for m in messages if m.type == "tool"]}

    done = either.graph(agent).invoke({"log": []}, either.config())
    if done["log"] != [f"refunded {invoice}" for invoice in invoices]:
        raise AssertionError(done)
    if either.world.sent != [*invoices] or len(set(either.world.keys)) != 2:
        raise AssertionError(either.world.sent)
