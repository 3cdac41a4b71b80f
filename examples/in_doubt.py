"""A payment whose answer is lost, at a bank that cannot be asked: a person looks and decides.

    python examples/in_doubt.py

It talks to the payment service of the demo, which it starts itself, and keeps nothing.
"""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph

from surefoot import EffectCall, Keyring, Reviewers, SigningKey, SurefootSaver, effect
from surefoot.demo.payments_client import PaymentService
from surefoot.demo.payments_client import charge as post_charge


class State(TypedDict, total=False):
    """What is paid, and what came of it."""

    invoice: str
    paid: str


def agent(url: str) -> StateGraph[Any, Any, Any, Any]:
    """One node, one payment."""

    @effect(risk="critical", deadline=timedelta(hours=1))
    def pay(invoice: str, amount: int, *, call: EffectCall) -> str:
        post_charge(url, "neither", invoice, amount, "EUR", call.key)
        raise TimeoutError("the bank has it, and its answer never came")

    builder = StateGraph(State)
    builder.add_node("pay", lambda state: {"paid": pay(state["invoice"], 4200)})
    builder.add_edge(START, "pay")
    builder.add_edge("pay", END)
    return builder


def main() -> None:
    """The run stops; a person settles it; the run goes on, and nothing was paid twice."""
    operator = SigningKey.generate("alice")  # in earnest: `surefoot keys operator alice FILE`
    config: Any = {"configurable": {"thread_id": "INV-771"}}
    with (
        tempfile.TemporaryDirectory() as folder,
        PaymentService(Path(folder) / "payments.db") as service,
        SurefootSaver.from_conn_string(
            f"sqlite:///{folder}/agent.db",
            highwater=f"sqlite:///{folder}/highwater.db",
            keys=Keyring.generate(),
            reviewers=Reviewers({"alice": operator.public()}),
        ) as saver,
    ):
        saver.setup()
        graph = agent(service.url).compile(checkpointer=saver)
        try:
            graph.invoke({"invoice": "INV-771"}, config)
        except TimeoutError as error:
            print(f"stopped: {error}")
        (doubt,) = saver.in_doubt()
        print(f"in doubt: {doubt.effect} {dict(doubt.arguments or {})}, risk {doubt.risk}")
        print(f"because {doubt.reason}")
        decision = saver.propose(
            doubt.thread,
            "approve",
            slot=doubt.slot,
            outcome="succeeded",
            result="settled by hand",
            reason="the payment arrived",
            evidence="the bank's statement of Monday, line 12",
        )
        done = saver.resolve(operator.sign(decision))
        print(f"decided: {done.text}")
        final = graph.invoke(None, config)
        print(f"the run ended with: {final['paid']}; in doubt: {len(saver.in_doubt())}")
        print(f"charges at the service: {service.audit().count('INV-771')}")


if __name__ == "__main__":
    main()
