"""An agent with a card-charging tool, stopped in the middle of its tools: the card is charged once.

    python examples/agent.py

It needs the extra `agents` (langchain). The model is scripted, so no key of a provider is needed;
everything else is what you would write. It talks to the payment service of the demo, which it
starts itself, and keeps its stores in the folder `agent-example` of the working directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

from surefoot import EffectMiddleware, Keyring, SurefootSaver, current_call
from surefoot.demo.payments_client import PaymentService
from surefoot.demo.payments_client import charge as post_charge

FOLDER = Path("agent-example")


class PowerCut(BaseException):
    """What stops the agent while its tools are at work."""


class ScriptedModel(BaseChatModel):
    """Stands for a real model: asks for two tools, then tells the user what came of it."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **more: Any) -> Any:
        """Knows its tools by heart."""
        del tools, more
        return self

    def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        results = [m for m in messages if isinstance(m, ToolMessage)]
        if results:
            said = AIMessage("; ".join(f"{m.name}: {m.content}" for m in results))
        else:
            said = AIMessage(
                "",
                tool_calls=[
                    {"name": "charge", "args": {"invoice": "INV-9", "amount": 900}, "id": "a"},
                    {"name": "notify", "args": {"whom": "accounting"}, "id": "b"},
                ],
            )
        return ChatResult(generations=[ChatGeneration(message=said)])


def agent(url: str, saver: SurefootSaver, *, cut: bool) -> Any:
    """The agent; with ``cut`` the power fails in its second tool."""

    @tool
    def charge(invoice: str, amount: int) -> str:
        """Charges the card on file."""
        paid = post_charge(url, "idempotent", invoice, amount, "EUR", current_call().key)
        return f"charged {paid['amount']}"

    @tool
    def notify(whom: str) -> str:
        """Notifies somebody in the building."""
        if cut:
            raise PowerCut
        return f"{whom} knows"

    return create_agent(
        ScriptedModel(),
        [charge, notify],
        middleware=[EffectMiddleware({"charge": {"idempotent": True}}, default="pure")],
        checkpointer=saver,
    )


def main() -> None:
    """Runs the agent into a power cut, and goes on from there."""
    FOLDER.mkdir(exist_ok=True)
    keys = FOLDER / "keys.json"
    if not keys.exists():
        Keyring.generate().to_file(keys)
    config: Any = {"configurable": {"thread_id": "INV-9"}}
    with (
        PaymentService(FOLDER / "payments.db") as service,
        SurefootSaver.from_conn_string(
            f"sqlite:///{FOLDER / 'agent.db'}",
            highwater=f"sqlite:///{FOLDER / 'highwater.db'}",
            keys=Keyring.from_file(keys),
        ) as saver,
    ):
        saver.setup()
        graph = agent(service.url, saver, cut=False)
        if not graph.get_state(config).values:
            try:
                cut = agent(service.url, saver, cut=True)
                cut.invoke({"messages": [HumanMessage("Charge INV-9.")]}, config)
            except PowerCut:
                pass
        if graph.get_state(config).next:  # stopped in the middle of its tools
            graph.invoke(None, config)
        print(graph.get_state(config).values["messages"][-1].content)
        print(f"charges at the service: {service.audit().count('INV-9')}")


if __name__ == "__main__":
    main()
