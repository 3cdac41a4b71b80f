"""Messages of one node whose tool calls have equal ids, as models mint them that count from 0."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.prebuilt import ToolNode
from tests.effects.conftest import Bench, State

from surefoot import effect

pytestmark = pytest.mark.optimized


@pytest.mark.parametrize("invoices", [("a", "a"), ("a", "b")], ids=["equal", "different"])
def test_each_message_is_carried_out(either: Bench, invoices: tuple[str, str]) -> None:
    """Cases 10 and 18: an id says nothing, so two equal ones do not make two calls one."""

    @tool
    @effect(idempotent=True)
    def refund(invoice: str, *, idempotency_key: str) -> str:
        """Refunds an invoice."""
        either.world.send(invoice, idempotency_key)
        return f"refunded {invoice}"

    tools = ToolNode([refund])

    def agent(state: State) -> State:
        messages: list[Any] = []
        for invoice in invoices:
            call = {"name": "refund", "args": {"invoice": invoice}, "id": "call_0"}
            messages.append(AIMessage("", tool_calls=[call]))
            messages += tools.invoke({"messages": messages})["messages"]
        return {"log": [m.content for m in messages if m.type == "tool"]}

    either.graph(agent).invoke({"log": []}, either.config())
    assert either.world.sent == [*invoices]
