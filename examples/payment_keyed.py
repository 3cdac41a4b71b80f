"""A payment at a service that deduplicates on our key (class K): sent again, charged once.

    python examples/payment_keyed.py --die    # killed when the service has charged
    python examples/payment_keyed.py          # sends the same request with the same key: one charge

Nothing is looked up: the key is the same at every attempt and in every process, and the service
answers a key that it knows with its first answer. It talks to the payment service of the demo,
which it starts itself, and keeps its stores in the folder `payment-keyed-example`.
"""

from __future__ import annotations

import operator
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

from surefoot import Keyring, SurefootSaver, effect
from surefoot.demo.payments_client import NotExecuted, PaymentService
from surefoot.demo.payments_client import charge as post_charge

FOLDER = Path("payment-keyed-example")


class State(TypedDict):
    """What the agent was asked, and what it did."""

    invoice: str
    amount: int
    log: Annotated[list[str], operator.add]


def agent(url: str) -> StateGraph[Any, Any, Any, Any]:
    """The graph: check, charge, tell."""

    @effect(idempotent=True, failed_when=NotExecuted)
    def charge(invoice: str, amount: int, currency: str, *, idempotency_key: str) -> dict[str, Any]:
        charged = post_charge(url, "idempotent", invoice, amount, currency, idempotency_key)
        if "--die" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        return charged

    def check(state: State) -> dict[str, Any]:
        return {"log": [f"{state['invoice']} is within budget"]}

    def pay(state: State) -> dict[str, Any]:
        paid = charge(state["invoice"], state["amount"], "EUR")
        return {"log": [f"charged {paid['amount']} as {paid['id']}"]}

    graph = StateGraph(State)
    graph.add_node("check", check)
    graph.add_node("pay", pay)
    graph.add_edge(START, "check")
    graph.add_edge("check", "pay")
    graph.add_edge("pay", END)
    return graph


def main() -> None:
    """Runs the agent, or goes on where an earlier process stopped."""
    FOLDER.mkdir(exist_ok=True)
    keys = FOLDER / "keys.json"
    if not keys.exists():
        Keyring.generate().to_file(keys)
    config: Any = {"configurable": {"thread_id": "INV-771"}}
    with (
        PaymentService(FOLDER / "payments.db") as service,
        SurefootSaver.from_conn_string(
            f"sqlite:///{FOLDER / 'agent.db'}",
            highwater=f"sqlite:///{FOLDER / 'highwater.db'}",
            keys=Keyring.from_file(keys),
        ) as saver,
    ):
        saver.setup()
        graph = agent(service.url).compile(checkpointer=saver)
        state = graph.get_state(config)
        if state.tasks:  # an earlier process was killed: go on where it stopped
            final = graph.invoke(None, config)
        elif state.values:  # an earlier process finished; another input would be another payment
            final = state.values
        else:
            final = graph.invoke({"invoice": "INV-771", "amount": 4200, "log": []}, config)
        for line in final["log"]:
            print(line)
        print(f"charges at the service: {service.audit().count('INV-771')}")


if __name__ == "__main__":
    main()
