"""What docs/effects.md shows runs as it stands, and its tables are those of the code."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph.graph import END, START, StateGraph
from tests.effects.conftest import Bench, State, bench  # noqa: F401 - a fixture
from tests.effects.receiver_server import ReceiverServer

from surefoot.errors import EffectInDoubt
from surefoot.rules.transport import REJECTED

PAGE = (Path(__file__).resolve().parent.parent / "docs/effects.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def shown(number: int) -> dict[str, Any]:
    """What a block of the page defines."""
    names: dict[str, Any] = {"__name__": "shown"}
    exec(compile(BLOCKS[number], "docs/effects.md", "exec", dont_inherit=True), names)
    return names


def test_every_block_is_used_here() -> None:
    assert len(BLOCKS) == 2


def test_the_statuses_are_those_of_the_code() -> None:
    (listed,) = re.findall(r"a status that says so \(([\d, ]+)\)", PAGE)
    assert {int(status) for status in listed.split(", ")} == REJECTED


def test_the_errors(bench: Bench) -> None:  # noqa: F811
    notify = shown(0)["notify"]
    server = ReceiverServer()
    try:
        for path, error in (("/status/422", httpx.HTTPStatusError), ("/half", EffectInDoubt)):
            graph = bench.graph(lambda s, path=path: {"log": [notify(server.url(path), "hi")]})
            config = bench.config()
            with pytest.raises(httpx.HTTPError):
                graph.invoke({"log": []}, config)
            with pytest.raises(error):  # refused again, or not sent again
                graph.invoke(None, config)
        assert server.landed == ["/half"]
    finally:
        server.close()


def test_the_row(bench: Bench) -> None:  # noqa: F811
    """On SQLite, whose parameters are spelled otherwise."""
    names: dict[str, Any] = {"__name__": "shown"}
    exec(BLOCKS[1].replace("(%s, %s)", "(?, ?)"), names)
    assert bench.saver
    with sqlite3.connect(bench.conn.removeprefix("sqlite:///")) as database:
        database.execute("CREATE TABLE ledger (account TEXT, amount INTEGER)")
    builder = StateGraph(State)
    builder.add_node("n", lambda s: {"log": [names["book"]("rent", 7)]})
    builder.add_edge(START, "n")
    builder.add_edge("n", END)
    builder.compile(checkpointer=bench.saver).invoke({"log": []}, bench.config())
    with sqlite3.connect(bench.conn.removeprefix("sqlite:///")) as database:
        assert database.execute("SELECT * FROM ledger").fetchall() == [("rent", 7)]
