"""A row in the agent's own PostgreSQL database (class S): exactly once, nothing to look up.

    python examples/ledger_row.py postgresql://... --die-before   # killed before the commit
    python examples/ledger_row.py postgresql://... --die          # killed right after it
    python examples/ledger_row.py postgresql://...                # goes on, in either case

The row and the record of it are one commit. Killed before it there is neither, and the resumed run
writes the row; killed after it there are both, and the resumed run replays. Always: one row. The
script makes the table `ledger_example`; keys and the high-water store are in `ledger-example`.
"""

from __future__ import annotations

import operator
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

import psycopg
from langgraph.graph import END, START, StateGraph

from surefoot import Keyring, SurefootSaver, effect

FOLDER = Path("ledger-example")


class State(TypedDict):
    """What to book, and what was done."""

    account: str
    amount: int
    log: Annotated[list[str], operator.add]


def die_if(switch: str) -> None:
    """The kill switch."""
    if switch in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)


@effect(same_database=True)
def post(account: str, amount: int, *, conn: psycopg.Connection[Any]) -> int:
    """Books an amount; the caller passes no connection, and the body commits nothing."""
    row = conn.execute(
        "INSERT INTO ledger_example (account, amount) VALUES (%s, %s) RETURNING id",
        (account, amount),
    ).fetchone()
    die_if("--die-before")
    return int(row[0]) if row else 0


def book(state: State) -> dict[str, Any]:
    """The node; it may run again, its effect does not."""
    post(state["account"], state["amount"])
    die_if("--die")
    return {"log": [f"booked {state['amount']} on {state['account']}"]}


def main() -> None:
    """Runs the agent, or goes on where an earlier process stopped."""
    url = sys.argv[1]
    FOLDER.mkdir(exist_ok=True)
    keys = FOLDER / "keys.json"
    if not keys.exists():
        Keyring.generate().to_file(keys)
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(
            "CREATE TABLE IF NOT EXISTS ledger_example "
            "(id BIGINT GENERATED ALWAYS AS IDENTITY, account TEXT, amount BIGINT)"
        )
    builder = StateGraph(State)
    builder.add_node("book", book)
    builder.add_edge(START, "book")
    builder.add_edge("book", END)
    config: Any = {"configurable": {"thread_id": "INV-771"}}
    with SurefootSaver.from_conn_string(
        url, highwater=f"sqlite:///{FOLDER / 'highwater.db'}", keys=Keyring.from_file(keys)
    ) as saver:
        saver.setup()
        graph = builder.compile(checkpointer=saver)
        state = graph.get_state(config)
        if not state.values and not state.tasks:
            graph.invoke({"account": "rent", "amount": 4200, "log": []}, config)
        elif state.tasks:
            graph.invoke(None, config)
        print(*graph.get_state(config).values["log"], sep="\n")
    with psycopg.connect(url) as database:
        found = database.execute("SELECT count(*) FROM ledger_example").fetchone()
    print(f"rows in the table: {found[0] if found else 0}")


if __name__ == "__main__":
    main()
