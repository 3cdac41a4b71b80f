"""The commands of an operator at three in the morning, on real files."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
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
from surefoot.cli.asking import facts_of
from surefoot.errors import EffectInDoubt
from surefoot.flows.acquire import held
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

    def cut_off_the_head(self, thread: str = "inv-771") -> None:
        key = self.key_of(thread)
        ((seq,),) = self.sql("SELECT max(last_seq) FROM surefoot_frame WHERE thread_key = ?", key)
        self.sql("DELETE FROM surefoot_frame WHERE thread_key = ? AND last_seq = ?", key, seq)

    def cut_off_the_beginning(self, thread: str) -> None:
        """Nothing that is left reaches the beginning, so there is nothing to go back to."""
        key = self.key_of(thread)
        ((seq,),) = self.sql("SELECT min(last_seq) FROM surefoot_frame WHERE thread_key = ?", key)
        self.sql("DELETE FROM surefoot_frame WHERE thread_key = ? AND last_seq = ?", key, seq)

    def key_of(self, thread: str) -> int:
        ((key,),) = self.sql("SELECT key FROM surefoot_thread WHERE thread = ?", thread.encode())
        return int(key)

    def signed(self, reason: str = "x") -> tuple[str, ...]:
        return ("--signing-key", str(self.signing), "--reason", reason)

    def well(self) -> set[str]:
        """Threads that verify."""
        with self.open() as saver:
            return {report.thread for report in saver.verify(deep=True) if report.ok}


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
    assert re.search(r"1 thread, \d+ records, \d+ values looked at; all of them verify", said)
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
    assert "; 1 thread does not verify\n" in result.stdout


def test_verify_of_a_store_that_is_not_there_is_no_success(desk: Desk) -> None:
    result = desk.run("verify", f"sqlite:///{desk.folder}/nothing.db", "--highwater", desk.marks)
    assert result.exit_code == 13
    assert "NOT_SET_UP" in result.stderr


def test_verify_of_a_thread_that_nobody_knows_is_no_success(desk: Desk) -> None:
    desk.work()
    for arguments in (["inv-77l"], ["inv-771", "--tenant", "typo"]):
        result = desk.run(*desk.on("verify", *arguments))
        assert result.exit_code == 13
        assert repr(arguments[0]) in result.stderr
        assert ("'typo'" if "typo" in arguments else "'default'") in result.stderr
        assert "verify" not in result.stdout
    with desk.open() as saver:
        saver.delete_thread("inv-771")
    assert "all of them verify" in desk.good(*desk.on("verify", "inv-771")), "its mark is there"


def test_verify_of_a_thread_that_has_a_mark_and_no_record_is_no_success(desk: Desk) -> None:
    desk.work()
    with desk.open() as saver, held(saver.core.ports, "inv-77l"):
        pass
    result = desk.run(*desk.on("verify", "inv-77l"))
    assert result.exit_code == 13, result.output
    assert "no record of thread 'inv-77l' of tenant 'default' is stored" in result.stderr
    assert result.stdout == ""
    assert desk.good(*desk.on("verify")).startswith("2 threads, "), "it stands among the others"


def test_verify_of_a_tenant_without_threads_says_so(desk: Desk) -> None:
    desk.work()
    result = desk.run(*desk.on("verify", "--tenant", "typo"))
    assert result.exit_code == 0
    assert result.stdout == "0 threads of tenant 'typo'\n"
    assert "warning: neither store knows any thread of tenant 'typo'" in result.stderr
    result = desk.run(*desk.on("verify", "--tenant", "typo", "--json"))
    found = json.loads(result.stdout)
    assert (found["threads"], found["tenant"]) == (0, "typo")
    assert "warning" in result.stderr
    assert "warning" not in desk.run(*desk.on("verify")).stderr


def test_commands_for_every_thread_say_when_there_is_none(desk: Desk) -> None:
    """A mistyped tenant is no good news: nothing was put right, and no thread vouches for a key."""
    desk.work()
    retire = turned(desk)
    signed = ("--all", "--yes", *desk.signed())
    for command in ((*desk.on("restore"), *signed), (*desk.on("adopt"), *signed), retire):
        result = desk.run(*command, "--tenant", "typo", "--json")
        assert result.exit_code == 0
        assert "warning: neither store knows any thread of tenant 'typo'" in result.stderr
        json.loads(result.stdout)
    assert "warning" not in desk.run(*desk.on("restore"), *signed).stderr


# --- how errors are told ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "{conn}", "typo", "--highwater", "{marks}"],
        ["resolve", "{conn}", "{folder}/none.json", "--highwater", "{marks}"],
        ["restore", "{conn}", "typo", "--highwater", "{marks}", "--signing-key", "{signing}"],
        ["restore", "{conn}", "--highwater", "{marks}", "--signing-key", "{signing}"],
        ["adopt", "{conn}", "inv-771", "--highwater", "{marks}", "--signing-key", "{signing}"],
        ["keys", "list", "--keys", "{folder}/none.json"],
        ["keys", "rotate", "none"],
        ["keys", "generate", "--id", "first"],
        ["keys", "retire", "first", "{conn}", "--highwater", "{marks}"],
        ["keys", "operator", "op-2", "{signing}"],
        ["setup", "mysql://x", "--highwater", "{marks}"],
        ["init", "--keys", "sqlite:///x"],
    ],
    ids=lambda a: " ".join(a[:2]),
)
def test_with_json_an_error_is_one_document(desk: Desk, arguments: list[str]) -> None:
    desk.work()
    given = [a.format_map(vars(desk)) for a in arguments]
    if given[0] in ("restore", "adopt"):
        given += ["--reason", "x"]
    result = desk.run(*given, "--json")
    assert result.exit_code in (10, 13)
    error = json.loads(result.stdout)["error"]
    assert error["reaction"] == {10: "refuse", 13: "misuse"}[result.exit_code]
    assert error["message"] == result.stderr.strip()
    assert f"[{error['code']}]" in result.stderr
    assert desk.run(*given).stdout == "", "and none without --json"


def test_only_safe_fields_are_in_the_document(desk: Desk) -> None:
    desk.work()
    desk.cut_off_the_head()
    fields = facts_of(
        EffectInDoubt(
            effect="ship",
            thread="t",
            key="a key of the receiver",
            slot="s",
            state="started",
            position="p",
            reason="r",
        )
    )["fields"]
    assert fields == {"effect": "ship", "thread": "t", "slot": "s", "state": "started"}


def test_a_long_error_is_one_line(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    result = desk.run(*desk.on("verify", "a-thread-with-quite-a-long-name-that-nobody-knows"))
    assert len(result.stderr.strip()) > 80
    assert "\n" not in result.stderr.strip()


@pytest.mark.parametrize("minutes", ["99999999999999", "-1", "0", "44636"])
def test_a_life_out_of_range_is_named(desk: Desk, minutes: str) -> None:
    desk.work()
    review = [*desk.on("review", "inv-771", "abort"), *desk.signed()]
    result = desk.run(*review, "--valid-for", minutes)
    assert result.exit_code == 13, result.exception
    assert "--valid-for: must be 1 to 44635 minutes" in result.stderr
    assert result.stdout == ""
    for right in ("1", "44635"):
        desk.good(*review, "--valid-for", right)


def test_a_decision_on_file_is_for_its_owner_only(desk: Desk) -> None:
    desk.work()
    paper = desk.folder / "decision.json"
    before = os.umask(0)
    try:
        desk.good(*desk.on("review", "inv-771", "abort"), *desk.signed(), "--out", str(paper))
    finally:
        os.umask(before)
    assert stat.S_IMODE(paper.stat().st_mode) == 0o600


# --- restore, review, resolve -------------------------------------------------------------------


def test_a_decision_for_a_dash_goes_to_standard_output(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.work()
    monkeypatch.chdir(desk.folder)
    said = desk.good(*desk.on("review", "inv-771", "abort", "--out", "-"), *desk.signed())
    assert json.loads(said)["decision"]["action"] == "abort"
    assert not (desk.folder / "-").exists()


def test_restore_asks_and_then_goes_back(desk: Desk) -> None:
    desk.work()
    desk.cut_off_the_head()
    arguments = ["--signing-key", str(desk.signing), "--reason", "failover of the 29th"]
    refused = desk.run(*desk.on("restore", "inv-771", *arguments), stdin="n\n")
    assert refused.exit_code == 1
    assert "; 1 record is given up" in refused.stderr
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
    done = json.loads(desk.good(*desk.on("resolve", str(paper), "--yes", "--json")))
    assert done["action"] == "restore"
    twice = desk.run(*desk.on("resolve", str(paper), "--yes"))
    assert twice.exit_code == 10
    assert "DECISION_REFUSED" in twice.stderr
    desk.good(*desk.on("verify"))


def test_a_document_is_shown_and_asked_about_before_it_is_carried_out(desk: Desk) -> None:
    desk.work()
    desk.cut_off_the_head()
    paper = desk.folder / "decision.json"
    desk.good(*desk.on("review", "inv-771", "restore"), *desk.signed("disk"), "--out", str(paper))
    nobody = desk.run(*desk.on("resolve", str(paper)), stdin="")
    assert nobody.exit_code == 13
    assert "--yes" in nobody.stderr
    assert "because: disk" in nobody.stderr, "what it was about is shown first"
    piped = desk.run(*desk.on("resolve", "-"), stdin=paper.read_text())
    assert piped.exit_code == 13
    assert "--yes" in piped.stderr
    document = json.loads(desk.run(*desk.on("resolve", str(paper), "--json"), stdin="").stdout)
    assert document["error"]["fields"]["field"] == "--yes"
    declined = desk.run(*desk.on("resolve", str(paper)), stdin="n\n")
    assert declined.exit_code == 1
    assert desk.run(*desk.on("verify")).exit_code == 10, "nothing was carried out"
    assert "went back" in desk.good(*desk.on("resolve", str(paper)), stdin="y\n")
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
    review = (*desk.on("review", "inv-771", "approve"), "--slot", doubt.value.slot)
    forgotten = desk.run(*review, "--outcome", "succeeded", *desk.signed())
    assert forgotten.exit_code == 13
    assert "--result" in forgotten.stderr
    assert "null" in forgotten.stderr
    for wrong_slot, says in (
        (doubt.value.slot[:7], "at least 8"),
        ("0" * 12, "no effect of 'inv-771' has a slot that begins with '000000000000'"),
    ):
        missed = desk.run(
            *desk.on("review", "inv-771", "approve", "--slot", wrong_slot),
            *("--outcome", "absent", *desk.signed()),
        )
        assert missed.exit_code == 13
        assert says in missed.stderr
    short = (*desk.on("review", "inv-771", "approve"), "--slot", doubt.value.slot[:16].upper())
    made = desk.run(
        *(*short, "--outcome", "succeeded", "--result", '"parcel"'),
        *desk.signed("it arrived, says the carrier"),
    )
    assert made.exit_code == 0, made.output
    assert 'and returns to the run: "parcel"' in made.stderr
    signed = made.stdout
    said = desk.good(*desk.on("resolve", "-", "--yes"), stdin=signed)
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
    assert [d["thread"] for d in done.pop("done")] == ["lossy"]
    assert done == {"failed": [], "interrupted": None, "not_tried": []}
    desk.good(*desk.on("verify", "--deep"))


@pytest.fixture
def several(desk: Desk) -> Desk:
    """One thread that nothing can be done for, a frozen one, and two that can be put right."""
    desk.work()
    threads = ("a-hopeless", "b-frozen", "c-good", "d-good")
    with desk.open() as saver:
        for thread in threads:
            saver.copy_thread("inv-771", thread)
    paper = desk.good(*desk.on("review", "b-frozen", "abort"), *desk.signed())
    desk.good(*desk.on("resolve", "-", "--yes"), stdin=paper)
    desk.cut_off_the_beginning("a-hopeless")
    for thread in threads:
        desk.cut_off_the_head(thread)
    assert desk.well() == {"inv-771"}
    return desk


@pytest.mark.parametrize("as_json", [False, True])
def test_a_thread_that_cannot_be_restored_stops_no_other(several: Desk, as_json: bool) -> None:
    result = several.run(
        *several.on("restore"), "--all", "--yes", *several.signed(), *["--json"] * as_json
    )
    assert result.exit_code == 10, result.exception
    assert several.well() == {"inv-771", "c-good", "d-good"}
    for thread in ("a-hopeless", "b-frozen"):
        assert f"not done for thread '{thread}'" in result.stderr
    if as_json:
        found = json.loads(result.stdout)
        assert [one["thread"] for one in found["done"]] == ["c-good", "d-good"]
        failures = {one["thread"]: one["code"] for one in found["failed"]}
        assert failures == {"a-hopeless": "MISUSE", "b-frozen": "RESUME_REFUSED"}
        assert (found["interrupted"], found["not_tried"]) == (None, [])


def test_a_restore_that_is_declined_says_what_was_not_tried(several: Desk) -> None:
    result = several.run(*several.on("restore"), "--all", "--json", *several.signed(), stdin="n\n")
    assert result.exit_code == 1
    found = json.loads(result.stdout.removeprefix(" n\n"))  # the answer, as a terminal shows it
    assert found["done"] == []
    assert [one["thread"] for one in found["failed"]] == ["a-hopeless"]
    assert found["not_tried"] == ["b-frozen", "c-good", "d-good"]
    assert several.well() == {"inv-771"}


@pytest.mark.parametrize("blow", [KeyboardInterrupt, RuntimeError])
def test_a_restore_that_is_cut_short_says_what_was_done(
    several: Desk, monkeypatch: pytest.MonkeyPatch, blow: type[BaseException]
) -> None:
    resolve = SurefootSaver.resolve

    def cut(self: SurefootSaver, signed: Any) -> Any:
        if signed.decision.thread == "d-good":
            raise blow
        return resolve(self, signed)

    with monkeypatch.context() as patched:
        patched.setattr(SurefootSaver, "resolve", cut)
        result = several.run(*several.on("restore"), "--all", "--yes", "--json", *several.signed())
    assert result.exit_code != 0
    found = json.loads(result.stdout)
    assert [one["thread"] for one in found["done"]] == ["c-good"]
    assert [one["thread"] for one in found["failed"]] == ["a-hopeless", "b-frozen"]
    assert found["interrupted"] == "d-good"
    assert "interrupted at thread 'd-good'" in result.stderr
    assert several.well() == {"inv-771", "c-good"}


def test_a_thread_that_cannot_be_adopted_stops_no_other(desk: Desk) -> None:
    desk.work()
    with desk.open() as saver:
        saver.copy_thread("inv-771", "a-hopeless")
    ((key,),) = desk.sql("SELECT key FROM surefoot_thread WHERE thread = ?", b"a-hopeless")
    desk.sql("UPDATE surefoot_frame SET body = zeroblob(length(body)) WHERE thread_key = ?", key)
    desk.marks = f"sqlite:///{desk.folder}/new-marks.db"
    result = desk.run(*desk.on("adopt"), "--all", "--yes", "--json", *desk.signed())
    assert result.exit_code == 13, result.exception
    found = json.loads(result.stdout)
    assert [one["thread"] for one in found["done"]] == ["inv-771"]
    assert [one["thread"] for one in found["failed"]] == ["a-hopeless"]
    assert desk.well() == {"inv-771"}


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
    assert "1 thread written" in said
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
        assert "1 thread written, 0 need nothing, 1 is held:\n  'held'" in result.stdout
        assert Keyring.from_file(desk.keys).states()["first"] == "enabled"
        assert [*run][-1] == {"n1": {"n": 2}}
    found = json.loads(desk.good(*retire, "--json"))
    nobody: dict[str, Any] = {"busy": [], "refused": [], "failed": []}
    assert found == {"key": "first", "written": 1, "not_needed": 1, "retired": True, **nobody}
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


def test_a_secret_in_place_of_its_path_is_never_shown(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also JSON behind a byte order mark, which is no path either."""
    secret = json.loads(desk.keys.read_text())["keys"][0]["secret"]
    commands = (
        ["keys", "list"],
        ["keys", "generate"],
        ["keys", "rotate", "first"],
        ["keys", "retire", "first", desk.conn, "--highwater", desk.marks],
        desk.on("verify"),
    )
    for value in (secret, f"first:{secret}", "\ufeff" + desk.keys.read_text()):
        monkeypatch.setenv(ENV_KEYS, value)
        for command in commands:
            for more in ([], ["--json"]):
                result = desk.run(*command, *more)
                assert secret[:12] not in "".join(result.output.split())
                if command[0] == "keys":
                    assert result.exit_code in (10, 13)
                    assert ENV_KEYS in result.stderr


def turned(desk: Desk) -> tuple[str, ...]:
    """The command that retires the first key, when another one seals."""
    desk.good("keys", "generate", "--id", "second")
    desk.good("keys", "rotate", "second")
    return ("keys", "retire", "first", desk.conn, "--highwater", desk.marks)


def meanwhile(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> list[str]:
    """Does something while threads are written to; gives which."""
    retire = SurefootSaver.retire_key
    seen: list[str] = []

    def slowly(self: SurefootSaver, thread_id: str, key_id: str, **more: Any) -> bool:
        if not seen:
            work()
        seen.append(thread_id)
        return retire(self, thread_id, key_id, **more)

    monkeypatch.setattr(SurefootSaver, "retire_key", slowly)
    return seen


def test_a_key_made_during_the_walk_is_not_lost(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.work()
    command = turned(desk)
    seen = meanwhile(
        monkeypatch,
        lambda: Keyring.change_file(
            desk.keys, lambda now: now.with_new_key("third").with_primary("third")
        ),
    )
    desk.good(*command)
    assert seen == ["inv-771"]
    states = {"first": "retired", "second": "enabled", "third": "primary"}
    assert Keyring.from_file(desk.keys).states() == states
    desk.good(*desk.on("verify", "--deep"))


def test_a_key_that_became_the_primary_during_the_walk_is_not_retired(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.work()
    command = turned(desk)
    seen = meanwhile(
        monkeypatch,
        lambda: Keyring.change_file(desk.keys, lambda now: now.with_primary("first")),
    )
    result = desk.run(*command)
    assert seen == ["inv-771"]
    assert result.exit_code == 13
    assert "became the primary again" in result.stderr
    assert Keyring.from_file(desk.keys).states() == {"first": "primary", "second": "enabled"}


def test_threads_that_refuse_do_not_keep_a_key_for_good(desk: Desk) -> None:
    desk.work()
    with desk.open() as saver:
        saver.copy_thread("inv-771", "a-lossy")
    desk.cut_off_the_head("a-lossy")
    command = turned(desk)
    result = desk.run(*command)
    assert result.exit_code == 10, result.exception
    assert "1 thread written, 0 need nothing, 1 refuses:" in result.stdout
    assert "--give-up" in result.stdout
    assert "'a-lossy': [ROLLBACK]" in result.stderr
    assert Keyring.from_file(desk.keys).states()["first"] == "enabled"
    result = desk.run(*command, "--json")
    assert result.exit_code == 10
    found = json.loads(result.stdout)
    assert [(one["thread"], one["code"]) for one in found["refused"]] == [("a-lossy", "ROLLBACK")]
    assert (found["written"], found["not_needed"], found["retired"]) == (0, 1, False)
    said = desk.good(*command, "--give-up")
    assert "nobody can read them until 'first' is enabled" in said
    assert Keyring.from_file(desk.keys).states()["first"] == "retired"
    assert desk.well() == {"inv-771"}
