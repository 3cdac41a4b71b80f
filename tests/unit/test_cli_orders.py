"""The commands of an operator at three in the morning, on real files."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import END, START, StateGraph
from typer.testing import CliRunner
from typing_extensions import TypedDict

from surefoot import Keyring, SurefootSaver, effect
from surefoot.cli import app
from surefoot.errors import EffectInDoubt
from surefoot.keys import ENV_KEYS
from surefoot.signing import ENV_REVIEWERS

pytestmark = pytest.mark.optimized
AT = {"configurable": {"thread_id": "inv-771"}}


class State(TypedDict, total=False):
    n: int


class Desk:
    """A machine with keys, two stores, an operator, and a thread of some steps."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.conn = f"sqlite:///{folder}/agents.db"
        self.marks = f"sqlite:///{folder}/marks.db"
        self.keys = folder / "keys.json"
        self.signing = folder / "op.json"
        Keyring.generate("first").to_file(self.keys)
        monkeypatch.setenv(ENV_KEYS, str(self.keys))
        public = json.loads(self.good("keys", "operator", "op-1", str(self.signing), "--json"))
        monkeypatch.setenv(ENV_REVIEWERS, json.dumps(public["reviewers"]))
        with self.open() as saver:
            saver.setup()

    def open(self) -> Any:
        return SurefootSaver.from_conn_string(self.conn, highwater=self.marks)

    def run(self, *arguments: str, stdin: str | None = None) -> Any:
        return CliRunner().invoke(app, list(arguments), input=stdin)

    def good(self, *arguments: str, stdin: str | None = None) -> str:
        result = self.run(*arguments, stdin=stdin)
        assert result.exit_code == 0, result.output
        return str(result.stdout)

    def on(self, command: str, *arguments: str) -> list[str]:
        return [command, self.conn, *arguments, "--highwater", self.marks]

    def work(self, node: Callable[[State], State] | None = None, *, steps: int = 3) -> None:
        """Runs a graph of some steps to its end."""
        builder = StateGraph(State)
        before = START
        for number in range(steps):
            builder.add_node(f"n{number}", node or (lambda s: {"n": s["n"] + 1}))
            builder.add_edge(before, f"n{number}")
            before = f"n{number}"
        builder.add_edge(before, END)
        with self.open() as saver:
            builder.compile(checkpointer=saver).invoke({"n": 0}, AT)

    def sql(self, statement: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self.folder / "agents.db")) as database:
            rows = database.execute(statement, values).fetchall()
            database.commit()
            return rows

    def cut_off_the_head(self) -> None:
        (seq,) = self.sql("SELECT max(last_seq) FROM surefoot_frame")[0]
        self.sql("DELETE FROM surefoot_frame WHERE last_seq = ?", seq)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path, monkeypatch)


# --- verify -------------------------------------------------------------------------------------


def test_verify_says_that_all_is_well(desk: Desk) -> None:
    desk.work()
    said = desk.good(*desk.on("verify", "--deep"))
    assert re.search(r"1 threads, \d+ records, \d+ values looked at; all of them verify", said)
    found = json.loads(desk.good(*desk.on("verify", "inv-771", "--json")))
    assert found["ok"] is True
    assert found["threads"] == 1
    assert found["records"] >= 4
    assert found["broken"] == []


def test_verify_names_what_is_wrong_and_what_can_be_gone_back_to(desk: Desk) -> None:
    desk.work()
    desk.cut_off_the_head()
    result = desk.run(*desk.on("verify"))
    assert result.exit_code == 10
    assert "thread 'inv-771' (live, head" in result.stdout
    assert "[ROLLBACK]" in result.stdout
    assert "`surefoot restore` goes back to it" in result.stdout
    found = json.loads(desk.run(*desk.on("verify", "--json")).stdout)
    assert found["ok"] is False
    (broken,) = found["broken"]
    assert broken["problems"][0]["code"] == "ROLLBACK"
    assert broken["last_good"] < broken["seq"]


def test_verify_of_a_store_that_is_not_there_is_no_success(desk: Desk) -> None:
    result = desk.run("verify", f"sqlite:///{desk.folder}/nothing.db", "--highwater", desk.marks)
    assert result.exit_code == 13
    assert "NOT_SET_UP" in result.stderr


# --- restore, review, resolve -------------------------------------------------------------------


def test_restore_asks_and_then_goes_back(desk: Desk) -> None:
    desk.work()
    desk.cut_off_the_head()
    arguments = ["--signing-key", str(desk.signing), "--reason", "failover of the 29th"]
    refused = desk.run(*desk.on("restore", "inv-771", *arguments), stdin="n\n")
    assert refused.exit_code == 1
    assert "records are given up" in refused.stderr
    assert desk.run(*desk.on("verify")).exit_code == 10, "nothing was done"
    said = desk.good(*desk.on("restore", "inv-771", *arguments), stdin="y\n")
    assert "went back to record" in said
    desk.good(*desk.on("verify", "--deep"))
    with desk.open() as saver:
        assert saver.get_tuple(AT) is not None


def test_a_decision_is_made_by_one_and_carried_out_by_another(desk: Desk) -> None:
    desk.work()
    desk.cut_off_the_head()
    paper = desk.folder / "decision.json"
    desk.good(
        *desk.on("review", "inv-771", "restore"),
        *("--signing-key", str(desk.signing), "--reason", "x", "--out", str(paper)),
    )
    assert desk.run(*desk.on("verify")).exit_code == 10, "a review changes nothing"
    again = desk.run(
        *desk.on("review", "inv-771", "restore"),
        *("--signing-key", str(desk.signing), "--reason", "x", "--out", str(paper)),
    )
    assert again.exit_code == 13
    assert "--out" in again.stderr
    done = json.loads(desk.good(*desk.on("resolve", str(paper), "--json")))
    assert done["action"] == "restore"
    twice = desk.run(*desk.on("resolve", str(paper)))
    assert twice.exit_code == 10
    assert "DECISION_REFUSED" in twice.stderr
    desk.good(*desk.on("verify"))


def test_a_decision_of_nobody_known_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.work()
    paper = desk.good(
        *desk.on("review", "inv-771", "abort"),
        *("--signing-key", str(desk.signing), "--reason", "x"),
    )
    monkeypatch.delenv(ENV_REVIEWERS)
    result = desk.run(*desk.on("resolve", "-"), stdin=paper)
    assert result.exit_code == 10
    assert "op-1" in result.stderr
    assert ENV_REVIEWERS in result.stderr
    public = desk.folder / "reviewers.json"
    public.write_text('{"op-1": "' + "0" * 63 + '"}')
    result = desk.run(*desk.on("resolve", "-", "--reviewers", str(public)), stdin=paper)
    assert result.exit_code == 13
    assert "64 hex digits" in result.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "JSON"),
        ("[]", "decision"),
        ('{"decision": {}}', "decision.action"),
        ('{"a": 1, "a": 2}', "twice"),
        ("[" * 100_000, "JSON"),
    ],
)
def test_what_is_no_decision_is_named(desk: Desk, text: str, says: str) -> None:
    result = desk.run(*desk.on("resolve", "-"), stdin=text)
    assert result.exit_code == 13, result.output
    assert says in result.stderr


def test_an_effect_in_doubt_is_settled_from_the_command_line(desk: Desk) -> None:
    sent: list[str] = []

    @effect
    def ship(what: str) -> str:
        sent.append(what)
        raise TimeoutError

    with pytest.raises(TimeoutError):
        desk.work(lambda s: {"n": len(ship(what="parcel"))}, steps=1)
    builder = StateGraph(State)
    builder.add_node("n0", lambda s: {"n": len(ship(what="parcel"))})
    builder.add_edge(START, "n0")
    builder.add_edge("n0", END)
    with desk.open() as saver, pytest.raises(EffectInDoubt) as doubt:
        builder.compile(checkpointer=saver).invoke(None, AT)
    signed = desk.good(
        *desk.on("review", "inv-771", "approve"),
        *("--slot", doubt.value.slot, "--outcome", "succeeded", "--result", '"parcel"'),
        *("--signing-key", str(desk.signing), "--reason", "it arrived, says the carrier"),
    )
    said = desk.good(*desk.on("resolve", "-"), stdin=signed)
    assert "'ship' is succeeded by decision" in said
    with desk.open() as saver:
        assert builder.compile(checkpointer=saver).invoke(None, AT)["n"] == 6
    assert sent == ["parcel"]
    wrong = desk.run(
        *desk.on("review", "inv-771", "approve"),
        *("--slot", doubt.value.slot, "--outcome", "succeeded", "--result", "parcel"),
        *("--signing-key", str(desk.signing), "--reason", "x"),
    )
    assert wrong.exit_code == 13
    assert "--result" in wrong.stderr


def test_a_lost_high_water_store_is_adopted_for_every_thread(desk: Desk) -> None:
    desk.work()
    with desk.open() as saver:
        saver.copy_thread("inv-771", "inv-772")
    desk.marks = f"sqlite:///{desk.folder}/new-marks.db"
    signed = ("--signing-key", str(desk.signing), "--reason", "the disk died")
    both = desk.run(*desk.on("adopt", "inv-771", "--all"), *signed)
    assert both.exit_code == 13
    assert "--all" in both.stderr
    said = desk.good(*desk.on("adopt"), "--all", "--yes", *signed)
    assert said.count("has a mark again") == 2
    desk.good(*desk.on("verify", "--deep"))
    again = desk.run(*desk.on("adopt"), "--all", "--yes", *signed)
    assert again.exit_code == 0
    assert "no thread needs it" in again.stderr


def test_every_thread_that_lost_records_goes_back(desk: Desk) -> None:
    desk.work()
    with desk.open() as saver:
        saver.copy_thread("inv-771", "lossy")
        saver.copy_thread("inv-771", "whole")
    ((key,),) = desk.sql("SELECT key FROM surefoot_thread WHERE thread = ?", b"lossy")
    desk.sql("DELETE FROM surefoot_frame WHERE thread_key = ? AND last_seq > 3", key)
    signed = ("--signing-key", str(desk.signing), "--reason", "failover")
    done = json.loads(desk.good(*desk.on("restore"), "--all", "--yes", "--json", *signed))
    assert [d["thread"] for d in done] == ["lossy"]
    desk.good(*desk.on("verify", "--deep"))


# --- keys ---------------------------------------------------------------------------------------


def test_a_key_is_made_turned_and_retired(desk: Desk) -> None:
    desk.work()
    assert json.loads(desk.good("keys", "list", "--json"))["keys"] == {"first": "primary"}
    said = desk.good("keys", "generate", "--id", "second")
    assert "surefoot keys rotate second" in said
    early = desk.run("keys", "retire", "first", desk.conn, "--highwater", desk.marks)
    assert early.exit_code == 13
    assert "rotate" in early.stderr
    said = desk.good("keys", "rotate", "second")
    assert "'second' seals from now on" in said
    said = desk.good("keys", "retire", "first", desk.conn, "--highwater", desk.marks)
    assert "1 threads written" in said
    assert Keyring.from_file(desk.keys).states() == {"first": "retired", "second": "primary"}
    desk.good(*desk.on("verify", "--deep"))
    secret = json.loads(desk.keys.read_text())["keys"][0]["secret"]
    for command in (["list"], ["list", "--json"]):
        assert secret not in desk.good("keys", *command)


def test_a_held_thread_keeps_its_key_from_being_retired(desk: Desk) -> None:
    desk.work()
    builder = StateGraph(State)
    builder.add_node("n0", lambda s: {"n": 1})
    builder.add_node("n1", lambda s: {"n": 2})
    builder.add_edge(START, "n0")
    builder.add_edge("n0", "n1")
    builder.add_edge("n1", END)
    held = {"configurable": {"thread_id": "held"}}
    retire = ("keys", "retire", "first", desk.conn, "--highwater", desk.marks)
    with desk.open() as saver:
        run = builder.compile(checkpointer=saver).stream({"n": 0}, held)
        next(run)
        desk.good("keys", "generate", "--id", "second")
        desk.good("keys", "rotate", "second")
        result = desk.run(*retire)
        assert result.exit_code == 11, result.output
        assert "1 threads written, 0 need nothing, 1 are held:\n  'held'" in result.stdout
        assert Keyring.from_file(desk.keys).states()["first"] == "enabled"
        assert [*run][-1] == {"n1": {"n": 2}}
    found = json.loads(desk.good(*retire, "--json"))
    assert found == {"key": "first", "written": 1, "not_needed": 1, "busy": [], "retired": True}
    desk.good(*desk.on("verify", "--deep"))
    assert desk.run("keys", "retire", "none", desk.conn, "--highwater", desk.marks).exit_code == 10


def test_keys_in_the_environment_are_no_file_to_change(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_KEYS, desk.keys.read_text())
    result = desk.run("keys", "generate")
    assert result.exit_code == 13
    assert "--keys" in result.stderr
    assert Keyring.from_file(desk.keys).states() == {"first": "primary"}
