"""The payment agent of the demo: one graph, compiled with the stock saver or with ours.

Run as ``python -m surefoot.demo.agent``; it prints one ``EVENT …`` line for each thing that it
does, and ``ANSWER …`` at the end. The demo kills it and starts it again with ``--resume``.
"""

from __future__ import annotations

import argparse
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypedDict

from langgraph.graph import END, START, StateGraph

from surefoot import Absent, Committed, Conflicting, EffectCall, SurefootSaver, Unknown, effect
from surefoot.demo import payments_client as payments
from surefoot.errors import EffectInDoubt

INVOICE = "INV-771"
AMOUNT = 4200
CURRENCY = "EUR"
BUDGET = 10_000
Charge: TypeAlias = Callable[..., dict[str, Any]]


class State(TypedDict):
    """State of the agent: what it was asked, and what it has done."""

    invoice: str
    amount: int
    log: Annotated[list[str], operator.add]
    charge: dict[str, Any]


def _say(what: str) -> None:
    print(f"EVENT {what}", flush=True)


def stock_charge(url: str, receiver: str) -> Charge:
    """The charge as it is written without this package."""

    def charge(invoice: str, amount: int, currency: str) -> dict[str, Any]:
        _say(f"POST /{receiver}/charges")
        return payments.charge(url, receiver, invoice, amount, currency)

    return charge


def sure_charge(url: str, receiver: str) -> Charge:
    """The same charge with one decorator; which one depends on what the receiver can do."""

    def charge(invoice: str, amount: int, currency: str, *, idempotency_key: str) -> dict[str, Any]:
        _say(f"POST /{receiver}/charges")
        return payments.charge(url, receiver, invoice, amount, currency, idempotency_key)

    def find(call: EffectCall) -> Committed | Absent | Conflicting | Unknown:
        _say("asks the service what happened")
        found = payments.find(url, key=call.key)
        if len(found) > 1:
            return Conflicting(found, "several charges under one key")
        return Committed(found[0]) if found else Absent()

    if receiver == "idempotent":
        return effect(name="charge", idempotent=True)(charge)
    if receiver == "lookup":
        return effect(name="charge", reconcile=find, compare=["amount", "currency"])(charge)
    return effect(name="charge")(charge)


def build(charge: Charge) -> StateGraph[Any, Any, Any, Any]:
    """The graph: read the invoice, check the budget, charge, write the receipt."""

    def read(state: State) -> dict[str, Any]:
        _say("reads the invoice")
        return {"log": [f"{state['invoice']} over {state['amount']}"]}

    def check(state: State) -> dict[str, Any]:
        _say("checks the budget")
        return {"log": ["within budget" if state["amount"] < BUDGET else "over budget"]}

    def pay(state: State) -> dict[str, Any]:
        _say("charges the card")
        paid = charge(state["invoice"], state["amount"], CURRENCY)
        return {"charge": {"invoice": paid["invoice"], "amount": paid["amount"]}, "log": ["paid"]}

    def receipt(state: State) -> dict[str, Any]:
        _say("writes the receipt")
        return {"log": [f"receipt for {state['charge']['amount']}"]}

    graph = StateGraph(State)
    names = ["read", "check", "pay", "receipt"]
    for name, node in zip(names, (read, check, pay, receipt), strict=True):
        graph.add_node(name, node)
    for before, after in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(before, after)
    return graph


def main(argv: list[str] | None = None) -> int:
    """Runs or resumes the agent once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--saver", choices=["stock", "surefoot"], required=True)
    parser.add_argument("--receiver", choices=["idempotent", "lookup", "neither"], required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--dir", required=True, type=Path)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args(argv)
    make = stock_charge if options.saver == "stock" else sure_charge
    graph = build(make(options.url, options.receiver))
    config: Any = {"configurable": {"thread_id": INVOICE}}
    inputs = None if options.resume else {"invoice": INVOICE, "amount": AMOUNT, "log": []}
    try:
        with _open_saver(options.saver, options.dir) as saver:
            saver.setup()
            final = graph.compile(checkpointer=saver).invoke(inputs, config, durability="sync")
    except EffectInDoubt as error:
        _say("stops: the charge is in doubt, a person decides")
        print(f"DOUBT {error.fields['key']}", flush=True)
        return 3
    print(f"ANSWER {final['log'][-1]}", flush=True)
    return 0


def _open_saver(kind: str, folder: Path) -> Any:
    if kind == "stock":
        from langgraph.checkpoint.sqlite import SqliteSaver

        return SqliteSaver.from_conn_string(str(folder / "stock.db"))
    return SurefootSaver.from_conn_string(
        f"sqlite:///{folder / 'agent.db'}", highwater=f"sqlite:///{folder / 'highwater.db'}"
    )


if __name__ == "__main__":
    sys.exit(main())
