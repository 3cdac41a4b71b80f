"""Finds two mistakes in an agent by letting it die everywhere, then passes on the repaired one.

    python examples/kill_test.py

The careless agent books an invoice and sends a mail. It looks right and works every day: the
booking carries an idempotency key, and so does the mail. But it makes the booking's key itself,
anew at each attempt, and it sends the mail beside the effect.
"""

from __future__ import annotations

import operator
import tempfile
import uuid
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

from surefoot import SurefootSaver, effect
from surefoot.testing import CountingReceiver, NotEquivalent, assert_resume_equivalent


class State(TypedDict):
    """What was done."""

    log: Annotated[list[str], operator.add]


def graph(book: Any, tell: Any, saver: SurefootSaver) -> Any:
    """Book, then tell."""
    builder = StateGraph(State)
    builder.add_node("book", book)
    builder.add_node("tell", tell)
    builder.add_edge(START, "book")
    builder.add_edge("book", "tell")
    builder.add_edge("tell", END)
    return builder.compile(checkpointer=saver)


def careless(receiver: CountingReceiver, saver: SurefootSaver) -> Any:
    """Both mistakes."""

    @effect(idempotent=True)
    def book(invoice: str, *, idempotency_key: str) -> str:
        receiver.send(invoice, key=str(uuid.uuid4()), once=True)  # a key per attempt
        return f"booked {invoice}"

    def tell(state: State) -> dict[str, Any]:
        receiver.send("mail", key="INV-771")  # no effect, and nobody deduplicates
        return {"log": ["told"]}

    return graph(lambda state: {"log": [book("INV-771")]}, tell, saver)


def half_repaired(receiver: CountingReceiver, saver: SurefootSaver) -> Any:
    """The booking sends the key that it is given; the mail is as it was."""

    @effect(idempotent=True)
    def book(invoice: str, *, idempotency_key: str) -> str:
        receiver.send(invoice, key=idempotency_key, once=True)
        return f"booked {invoice}"

    def tell(state: State) -> dict[str, Any]:
        receiver.send("mail", key="INV-771")
        return {"log": ["told"]}

    return graph(lambda state: {"log": [book("INV-771")]}, tell, saver)


def repaired(receiver: CountingReceiver, saver: SurefootSaver) -> Any:
    """The mail is an effect too; its receiver cannot be asked, so a person may have to decide."""

    @effect(idempotent=True)
    def book(invoice: str, *, idempotency_key: str) -> str:
        receiver.send(invoice, key=idempotency_key, once=True)
        return f"booked {invoice}"

    @effect
    def send_mail(about: str) -> str:
        receiver.send("mail", about=about)
        return "told"

    return graph(
        lambda state: {"log": [book("INV-771")]},
        lambda state: {"log": [send_mail("INV-771")]},
        saver,
    )


def main() -> None:
    """Tries all three."""
    with tempfile.TemporaryDirectory() as folder:
        receiver = CountingReceiver(Path(folder) / "receiver.jsonl")
        for agent in (careless, half_repaired, repaired):
            try:
                report = assert_resume_equivalent(
                    partial(agent, receiver),
                    {"log": []},
                    receiver,
                    in_doubt=["send_mail"],
                    every=2,
                )
            except NotEquivalent as found:
                print(f"{agent.__name__}: {', '.join(found.differences)}")
            else:
                print(f"{agent.__name__}: the same end, wherever it died")
                if "effect.send_mail.after#1" in report.in_doubt:
                    print("  (a person decides if it died right after the mail)")


if __name__ == "__main__":
    main()
