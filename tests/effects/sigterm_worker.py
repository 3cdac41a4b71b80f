"""A worker that is told to stop while a node is at work; run by test_places.

    python sigterm_worker.py FOLDER MODE

Modes: ``node`` is an effect node, ``drain`` asks the run to drain when SIGTERM comes. It prints
``AT effect`` from inside of the effect, and waits for a line there.
"""

from __future__ import annotations

import operator
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import RunControl

from surefoot import Keyring, ResumePolicy, SurefootSaver, effect_node


class State(TypedDict, total=False):
    """What the nodes did."""

    n: int
    log: Annotated[list[Any], operator.add]


def say(line: str) -> None:
    """A barrier: one whole line."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(folder: Path, mode: str) -> None:
    """Runs, or goes on where an earlier worker stopped."""
    control = RunControl()
    if mode == "drain":
        signal.signal(signal.SIGTERM, lambda *_: control.request_drain("deploy"))

    @effect_node(idempotent=True)
    def charge(state: State, *, idempotency_key: str) -> State:
        with (folder / "sent").open("a", encoding="utf-8") as sent:
            sent.write(idempotency_key + "\n")
        say("AT effect")
        sys.stdin.readline()
        return {"log": ["charged"]}

    def after(state: State) -> State:
        return {"log": ["after"]}

    builder = StateGraph(State)
    builder.add_node("charge", charge)
    builder.add_node("after", after)
    builder.add_edge(START, "charge")
    builder.add_edge("charge", "after")
    builder.add_edge("after", END)
    config: Any = {"configurable": {"thread_id": "t"}}
    with SurefootSaver(
        (folder / "conn").read_text(encoding="utf-8"),
        highwater=(folder / "highwater").read_text(encoding="utf-8"),
        keys=Keyring.from_file(folder / "keys.json"),
        tenant=(folder / "tenant").read_text(encoding="utf-8"),
        policy=ResumePolicy(settling_ms=0, handover_grace_ms=10_000),
    ) as saver:
        saver.setup()
        graph = builder.compile(checkpointer=saver)
        given = None if graph.get_state(config).next else {"n": 1, "log": []}
        try:
            done = graph.invoke(given, config, control=control)
        except BaseException as error:
            say(f"RAISED {type(error).__name__}")
            raise SystemExit(3) from error
        say(f"DONE {','.join(done['log'])}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
