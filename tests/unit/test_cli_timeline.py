"""``surefoot show``: a thread's timeline, for people and as a document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typer.testing import CliRunner
from typing_extensions import TypedDict

import surefoot
from surefoot import Keyring, SurefootSaver, effect
from surefoot.cli import app
from surefoot.keys import ENV_KEYS

pytestmark = pytest.mark.optimized
AT = {"configurable": {"thread_id": "inv-771"}}


class State(TypedDict, total=False):
    n: int


@effect(idempotent=True)
def charge(n: int, *, idempotency_key: str) -> int:
    return n


def node(state: State) -> State:
    surefoot.record("guardrail.tripped", {"why": "\x1b[31mred\x1b[0m [bold]", "raw": b"\xff"})
    return {"n": charge(interrupt("SECRET-QUESTION"))}


class Place:
    """Two stores and a thread that was asked, answered and paid."""

    def __init__(self, folder: Path) -> None:
        self.conn, self.marks = f"sqlite:///{folder}/a.db", f"sqlite:///{folder}/b.db"
        built = StateGraph(State)
        built.add_node("node", node)
        built.add_edge(START, "node")
        built.add_edge("node", END)
        with self.open() as saver:
            saver.setup()
            graph = built.compile(checkpointer=saver)
            graph.invoke({"n": 0}, AT, durability="sync")
            graph.invoke(Command(resume=4711), AT, durability="sync")

    def open(self) -> Any:
        return SurefootSaver.from_conn_string(self.conn, highwater=self.marks)

    def show(self, *arguments: str) -> Any:
        command = ["show", self.conn, *arguments, "--highwater", self.marks]
        return CliRunner().invoke(app, command)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("COLUMNS", "220")
    monkeypatch.setenv("NO_COLOR", "1")
    keys = tmp_path / "keys.json"
    Keyring.generate().to_file(keys)
    monkeypatch.setenv(ENV_KEYS, str(keys))
    return Place(tmp_path)


def lines_of(result: Any) -> list[str]:
    """Lines with single spaces: columns are as wide as what stands in them."""
    assert result.exit_code == 0, result.output
    return [" ".join(line.split()) for line in str(result.stdout).splitlines()]


def test_a_timeline_for_people(place: Place) -> None:
    summary, head, *rows = lines_of(place.show("inv-771"))
    assert summary.startswith("thread 'inv-771': done; step 1; record ")
    assert "effects: 1 succeeded" in summary
    assert "approvals: 1 answered (longest answer took 0." in summary
    assert "facts: 2 guardrail.tripped" in summary
    assert head.split() == ["seq", "when", "(UTC)", "epoch", "what", "details"]
    whats = [row.split()[4] for row in rows]
    assert whats == [
        "epoch.began",
        "checkpoint.saved",
        "checkpoint.saved",
        "guardrail.tripped",
        "approval.asked",
        "epoch.began",
        "approval.answered",
        "guardrail.tripped",
        "effect.started",
        "effect.succeeded",
        "checkpoint.saved",
    ]
    text = "\n".join(rows)
    assert "taken over from epoch 1" in text
    assert "step 0 (loop)" in text
    assert " after 0." in next(row for row in rows if "approval.answered" in row)
    assert "charge at node, step 1, attempt 1" in text
    assert "SECRET-QUESTION" not in text, "values of the state are not shown"
    assert "4711" not in text


def test_what_is_stored_never_steers_the_terminal(place: Place) -> None:
    shown = place.show("inv-771").stdout
    assert "\x1b" not in shown
    assert "\\u001b[31mred" in shown
    assert "[bold]" in shown, "nor is it markup"
    with place.open() as saver:
        saver.record("odd\x1b[2J", "a", 1)
    assert "\x1b" not in place.show("odd\x1b[2J").stdout


def test_nothing_is_cut_off_in_a_pipe(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = "x" * 5_000
    with place.open() as saver:
        saver.record("inv-771", "long", long)
    last = lines_of(place.show("inv-771"))[-1]
    assert last.endswith(f' long "{long}"')


def test_more_or_less_of_it(place: Place) -> None:
    plain = lines_of(place.show("inv-771"))[2:]
    whole = lines_of(place.show("inv-771", "--all"))[2:]
    assert [row for row in whole if "writes.stored" not in row] == plain
    assert len(whole) > len(plain)
    assert lines_of(place.show("inv-771", "--newest-first"))[2:] == plain[::-1]
    assert lines_of(place.show("inv-771", "--limit", "2"))[2:] == plain[-2:]
    assert lines_of(place.show("inv-771", "--limit", "2", "--newest-first"))[2:] == plain[:-3:-1]
    assert place.show("inv-771", "--limit", "0").exit_code == 2


def test_as_a_document(place: Place) -> None:
    document = json.loads(place.show("inv-771", "--json").stdout)
    assert (document["thread"], document["status"], document["step"]) == ("inv-771", "done", 1)
    assert document["effects"] == {"succeeded": 1}
    assert document["handovers"] == 1
    assert document["facts"] == {"guardrail.tripped": 2}
    (approval,) = document["approvals"]
    assert approval["state"] == "answered"
    assert approval["latency_us"] == approval["answered_us"] - approval["asked_us"] > 0
    facts = [e for e in document["events"] if e["kind"] == "guardrail.tripped"]
    assert facts[0]["value"] == {"why": "\x1b[31mred\x1b[0m [bold]", "raw": {"bytes": "ff"}}
    with place.open() as saver:
        assert len(document["events"]) == len(saver.events("inv-771"))
    folded = surefoot.fold(surefoot.Event.parse(e) for e in document["events"])
    assert folded.status == "done"
    newest = json.loads(place.show("inv-771", "--json", "--limit", "1").stdout)
    assert newest["events"] == document["events"][-1:]


def test_a_thread_that_nobody_knows(place: Place) -> None:
    result = place.show("inv-772")
    assert result.exit_code == 13
    assert "inv-772" in result.output
    result = place.show("inv-771", "--tenant", "another", "--json")
    assert result.exit_code == 13
    assert json.loads(result.stdout)["error"]["code"] == "MISUSE"


def test_a_thread_that_was_cut_off(place: Place) -> None:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(place.conn.removeprefix("sqlite:///"))) as database:
        database.execute(
            "DELETE FROM surefoot_frame WHERE last_seq = (SELECT max(last_seq) FROM surefoot_frame)"
        )
        database.commit()
    result = place.show("inv-771")
    assert result.exit_code == 10
    assert "ROLLBACK" in result.output
