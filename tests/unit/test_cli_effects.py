"""`surefoot effects` and `surefoot resolve`: looking at doubts, and a person's word about them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.unit.test_cli_orders import AT, Desk, State
from tests.unit.test_cli_orders import desk as desk  # noqa: PLC0414 - a fixture

from surefoot import EffectCall, SurefootSaver, effect, recorded
from surefoot.cli.showing import columns, one_line, place, plain, shown_doubt
from surefoot.errors import EffectConflict, EffectInDoubt
from surefoot.keys import ENV_KEYS
from surefoot.rules.decisions import SignedDecision
from surefoot.rules.envelope import Kind
from surefoot.signing import ENV_REVIEWERS, SigningKey

pytestmark = pytest.mark.optimized
sent: list[str] = []


@effect(risk="critical", deadline=3_600)
def pay(payee: str, amount: int, *, call: EffectCall) -> str:
    """Reaches the bank, whose answer is lost the first time."""
    sent.append(call.key)
    call.note(payment="po-9")
    if len(sent) == 1:
        raise TimeoutError
    return "paid again"


@effect(risk="low")
def mail(to: str) -> None:
    raise ConnectionError


def unreachable(_: EffectCall) -> Any:
    raise ConnectionError


@effect(reconcile=unreachable, lookup="strong", compare=["amount"])
def wire(amount: int) -> int:
    raise ConnectionError


@recorded
def compose(text: str) -> int:
    return len(text)


def paying(_: State) -> Any:
    return {"n": len(pay("ACME \x1b[31m", 70))}


def mailing(_: State) -> Any:
    return {"n": mail("a@example.org") or 1}


def run(desk: Desk, node: Any, thread: str, given: Any = None) -> Any:
    from langgraph.graph import END, START, StateGraph

    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    with desk.open() as saver:
        graph = builder.compile(checkpointer=saver)
        return graph.invoke(given, {"configurable": {"thread_id": thread}})


@pytest.fixture
def doubtful(desk: Desk) -> Desk:
    """Two threads that stopped in doubt, and one that did not."""
    sent.clear()
    with pytest.raises(ConnectionError):
        run(desk, mailing, "mail-1", {"n": 0})
    with pytest.raises(TimeoutError):
        run(desk, paying, "inv-771", {"n": 0})
    run(desk, lambda _: {"n": 1}, "quiet", {"n": 0})
    return desk


def in_doubt(desk: Desk) -> list[Any]:
    with desk.open() as saver:
        return list(saver.in_doubt())


def decisions(desk: Desk, thread: str = "inv-771") -> list[SignedDecision]:
    """The decisions that a thread's journal holds."""
    from surefoot.flows.views import viewing
    from surefoot.rules.bodies import DecisionBody

    with desk.open() as saver:

        def look(chain: Any) -> list[SignedDecision]:
            return [
                SignedDecision.parse(DecisionBody.unpack(r.schema, r.body).document)
                for r in chain.walk()
                if r.kind is Kind.DECISION
            ]

        return viewing(saver.core.ports, thread, look)


def cells_of(shown: str) -> list[list[str]]:
    """Cells of a listing, by where its columns begin."""
    head, *rows = shown.splitlines()
    starts = [0, *(found.end() for found in re.finditer(r" {2,}", head))]
    return [
        [row[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
        for row in (head, *rows)
    ]


def settled(desk: Desk, outcome: str, *more: str, thread: str = "inv-771") -> Any:
    return desk.run(
        *desk.on("resolve", "--thread", thread, "--outcome", outcome, *desk.signed("looked")),
        *more,
    )


# --- effects -------------------------------------------------------------------------------------


def test_effects_lists_what_is_urgent_first(doubtful: Desk) -> None:
    said = doubtful.good(*doubtful.on("effects"))
    lines = said.splitlines()
    assert "critical" in lines[1]
    assert "'inv-771'" in lines[1]
    assert sent[0] in lines[1], "the key stands there in one piece"
    assert "low" in lines[2]
    assert "'mail-1'" in lines[2]
    assert lines[-1].startswith("2 in doubt, 0 overdue")
    assert "quiet" not in said
    one = doubtful.good(*doubtful.on("effects", "--limit", "1"))
    assert "1 shown" in one
    assert "mail-1" not in one


def test_effects_in_doubt_says_by_its_exit_code_that_there_are_some(doubtful: Desk) -> None:
    result = doubtful.run(*doubtful.on("effects", "--in-doubt", "--json"))
    assert result.exit_code == 10
    found = json.loads(result.stdout)
    assert (found["count"], found["overdue"]) == (2, 0)
    first = found["in_doubt"][0]
    assert first["thread"] == "inv-771"
    assert first["arguments"] == {"payee": "ACME \x1b[31m", "amount": 70}
    assert first["receipt"] == {"payment": "po-9"}
    assert (first["risk"], first["key"]) == ("critical", sent[0])
    assert first["error"] == "TimeoutError (timeout)"
    assert doubtful.run(*doubtful.on("effects", "inv-771", "--in-doubt")).exit_code == 10
    quiet = doubtful.run(*doubtful.on("effects", "quiet", "--in-doubt", "--json"))
    assert quiet.exit_code == 0
    assert json.loads(quiet.stdout)["in_doubt"] == []


def test_effects_of_a_thread_are_its_history(doubtful: Desk) -> None:
    assert settled(doubtful, "absent", "--yes").exit_code == 0
    run(doubtful, paying, "inv-771")
    found = json.loads(doubtful.good(*doubtful.on("effects", "inv-771", "--json")))["effects"]
    assert [one["state"] for one in found] == [
        *("succeeded", "started", "started", "absent", "in_doubt", "started", "started"),
    ]
    assert [one["event"] for one in found] == [
        *("succeeded", "noted", "retried", "decided", "in_doubt", "noted", "started"),
    ]
    assert [one["source"] for one in found if one["state"] == "absent"] == ["decision"]
    assert {one["key"] for one in found} == {sent[0]}
    assert sent == [sent[0]] * 2
    said = doubtful.good(*doubtful.on("effects", "inv-771", "--limit", "3"))
    assert len(said.splitlines()) == 4
    assert "has no effects" in doubtful.good(*doubtful.on("effects", "quiet"))


def test_a_history_says_what_left_an_effect_as_it_was(
    doubtful: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note, a conflict and a lookup that settled nothing are no states; nothing is torn."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(EffectConflict):
        run(doubtful, lambda _: {"n": len(pay("ACME \x1b[31m", 71))}, "inv-771")
    head, *rows = cells_of(doubtful.good(*doubtful.on("effects", "inv-771")))
    assert head[:5] == ["seq", "when (UTC)", "what", "effect", "attempt"]
    assert [row[2] for row in rows] == ["conflict: amount", "in_doubt", "noted", "started"]
    (item,) = (one for one in in_doubt(doubtful) if one.thread == "inv-771")
    shown = shown_doubt(item)
    assert "  proposed   {'payee': 'ACME \\x1b[31m', 'amount': 71}   (by a later call)" in shown
    assert "  position   node, step 1, attempt 1\n" in shown
    with pytest.raises(ConnectionError):
        run(doubtful, lambda _: {"n": wire(7)}, "wire", {"n": 0})
    with pytest.raises(EffectInDoubt):
        run(doubtful, lambda _: {"n": wire(7)}, "wire")
    _, *rows = cells_of(doubtful.good(*doubtful.on("effects", "wire")))
    assert [row[2] for row in rows] == ["asked: unknown"] * 2 + ["in_doubt", "started"]
    assert rows[0][5] == "lookup"
    assert rows[0][6].startswith("the lookup raised ConnectionError")


def test_show_says_what_was_asked_read_and_decided(
    doubtful: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    node = lambda _: {"n": compose("x") + wire(7)}
    with pytest.raises(ConnectionError):
        run(doubtful, node, "wire", {"n": 0})
    with pytest.raises(EffectInDoubt):
        run(doubtful, node, "wire")
    result = settled(doubtful, "absent", "--evidence", "the bank's list", "--yes", thread="wire")
    assert result.exit_code == 0, result.output
    head, *rows = cells_of("\n".join(doubtful.good(*doubtful.on("show", "wire")).splitlines()[1:]))
    assert head == ["seq", "when (UTC)", "epoch", "what", "details"]
    said: dict[str, list[str]] = {}
    for row in rows:
        said.setdefault(row[3], []).append(row[4])
    assert said["read.recorded"] == ["compose, read at node, step 1"]
    assert len(said["effect.asked"]) == 2
    for one in said["effect.asked"]:
        assert one.startswith(
            "wire at node, step 1, attempt 1, asked: unknown (the lookup raised ConnectionError"
        )
    assert said["decision.carried_out"] == [
        "approve: absent of wire, by op-1, reason: looked, evidence: the bank's list"
    ]
    (started,) = said["effect.started"]
    with doubtful.open() as saver:
        assert started.endswith(f"key {saver.effects('wire')[0].key}"), "in one piece"


def test_an_operation_is_named_instead_of_a_place(doubtful: Desk) -> None:
    @effect(name="once", operation_id="invoice")
    def once(invoice: str) -> int:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        run(doubtful, lambda _: {"n": compose("x") + once("A1")}, "op", {"n": 0})
    (item,) = (one for one in in_doubt(doubtful) if one.operation)
    assert "  position   operation 'A1' of effect 'once', attempt 1\n" in shown_doubt(item)
    shown = doubtful.good(*doubtful.on("show", item.thread))
    assert "  operation 'A1' of effect 'once', attempt 1, class N" in shown
    assert "(root)" not in shown
    _, read = cells_of(doubtful.good(*doubtful.on("effects", "op")))
    assert read[2:4] == ["read", "compose (R)"]


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ("mail step 1 task ('p', 'mail') call 0", "mail, step 1"),
        ("a|b step 1.2 task ('p', 'b') call po 7", "a|b, step 1.2, call po 7"),
        ("x step 3 task y step -1 task t call 2", "x step 3 task y, step -1, call 2"),
        ("(root) step 0 task  call A1", "operation 'A1' of effect 'once'"),
        ("as no release writes it", "as no release writes it"),
    ],
)
def test_a_position_as_people_say_it(stored: str, shown: str) -> None:
    assert place(stored, "once") == shown


def test_columns_neither_tear_nor_cut() -> None:
    long = "k" * 300
    assert columns(("a", "key", "b"), [("漢", long, ""), ("wide", "\x1b", "z")]).splitlines() == [
        "a     " + "key".ljust(300) + "  b",
        "漢    " + long,
        "wide  " + "\\x1b".ljust(300) + "  z",
    ]


def test_effects_of_a_thread_that_nobody_knows_is_a_misuse(doubtful: Desk) -> None:
    result = doubtful.run(*doubtful.on("effects", "inv-772"))
    assert result.exit_code == 13
    assert "neither store knows a thread 'inv-772'" in result.stderr
    assert doubtful.run(*doubtful.on("effects", "--limit", "0")).exit_code == 13


def test_a_thread_that_does_not_verify_is_listed_and_refused(doubtful: Desk) -> None:
    doubtful.cut_off_the_head("mail-1")
    result = doubtful.run(*doubtful.on("effects", "--json"))
    assert result.exit_code == 10
    states = [(one["thread"], one["state"]) for one in json.loads(result.stdout)["in_doubt"]]
    assert sorted(states) == [("inv-771", "in_doubt"), ("mail-1", "unreadable")]
    assert doubtful.run(*doubtful.on("effects", "mail-1")).exit_code == 10


# --- resolve one ---------------------------------------------------------------------------------


def test_resolve_shows_the_evidence_and_signs_who_why_and_on_what(doubtful: Desk) -> None:
    result = settled(
        doubtful, "succeeded", "--result", '"paid"', "--evidence", "statement 12", "--yes"
    )
    assert result.exit_code == 0, result.output
    for shown in (sent[0], "'amount': 70", "'payment': 'po-9'", "TimeoutError", "critical"):
        assert shown in result.stderr
    assert "\x1b" not in result.stderr, "what is stored moves no cursor"
    assert "is succeeded by decision" in result.stdout
    (signed,) = decisions(doubtful)
    assert signed.key_id == "op-1"
    decided = signed.decision
    assert (decided.reason, decided.evidence) == ("looked", "statement 12")
    assert decided.recorded_intent == decided.proposed_intent
    assert decided.receipt_digest != "0" * 64
    assert decided.evidence_digest == "0" * 64, "no lookup had found anything"
    assert run(doubtful, paying, "inv-771") == {"n": len("paid")}
    assert len(sent) == 1


@pytest.mark.parametrize("outcome", ["absent", "abandoned", "compensated"])
def test_resolve_takes_every_outcome(doubtful: Desk, outcome: str) -> None:
    result = settled(doubtful, outcome, "--yes", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["effect"], found["outcome"], found["thread"]) == ("pay", outcome, "inv-771")
    assert found["decision"]["decision"]["reason"] == "looked"
    assert [item.thread for item in in_doubt(doubtful)] == ["mail-1"]
    if outcome == "absent":
        assert run(doubtful, paying, "inv-771") == {"n": len("paid again")}
    else:
        with pytest.raises(EffectInDoubt, match=outcome):
            run(doubtful, paying, "inv-771")


def test_resolve_asks_before_it_signs(doubtful: Desk) -> None:
    refused = doubtful.run(
        *doubtful.on("resolve", "--thread", "inv-771", "--outcome", "absent"),
        *doubtful.signed(),
        stdin="n\n",
    )
    assert refused.exit_code == 1
    nobody = settled(doubtful, "absent")
    assert nobody.exit_code == 13
    assert "--yes" in nobody.stderr
    assert len(in_doubt(doubtful)) == 2
    assert decisions(doubtful) == []


def test_resolve_by_slot(doubtful: Desk) -> None:
    (slot,) = (item.slot for item in in_doubt(doubtful) if item.thread == "inv-771")
    other = "0" * 8 if not slot.startswith("0" * 8) else "f" * 8
    wrong = settled(doubtful, "abandoned", "--slot", other, "--yes")
    assert wrong.exit_code == 13
    assert "nothing is in doubt" in wrong.stderr
    assert settled(doubtful, "abandoned", "--slot", slot[:7], "--yes").exit_code == 13
    assert settled(doubtful, "abandoned", "--slot", slot[:8].upper(), "--yes").exit_code == 0
    assert settled(doubtful, "abandoned", "--yes").exit_code == 13, "it is settled"


def test_what_was_abandoned_is_decided_anew_by_a_review(doubtful: Desk) -> None:
    (slot,) = (item.slot for item in in_doubt(doubtful) if item.thread == "inv-771")
    assert settled(doubtful, "abandoned", "--yes").exit_code == 0
    for more in ([], ["--slot", slot[:16]]):
        again = settled(doubtful, "absent", *more, "--yes")
        assert again.exit_code == 13
        assert "nothing of the thread is open" in again.stderr
        assert f"'pay' (slot {slot[:16]}) was abandoned: `surefoot review CONN" in again.stderr
    other = "0" * 8 if not slot.startswith("0" * 8) else "f" * 8
    elsewhere = settled(doubtful, "absent", "--slot", other, "--yes")
    assert "abandoned" not in elsewhere.stderr
    paper = doubtful.good(
        *doubtful.on("review", "inv-771", "approve", "--slot", slot[:16]),
        *("--outcome", "absent", *doubtful.signed("the bank has no such payment")),
    )
    doubtful.good(*doubtful.on("resolve", "-", "--yes"), stdin=paper)
    assert run(doubtful, paying, "inv-771") == {"n": len("paid again")}


def test_a_review_of_what_has_succeeded_is_refused_before_it_is_signed(doubtful: Desk) -> None:
    (slot,) = (item.slot for item in in_doubt(doubtful) if item.thread == "inv-771")
    done = settled(doubtful, "succeeded", "--result", "null", "--yes")
    assert done.exit_code == 0, done.output
    paper = doubtful.folder / "late.json"
    late = doubtful.run(
        *doubtful.on("review", "inv-771", "approve", "--slot", slot, "--out", str(paper)),
        *("--outcome", "absent", *doubtful.signed()),
    )
    assert late.exit_code == 13
    assert "'pay' has succeeded: there is nothing to settle" in late.stderr
    assert late.stdout == ""
    assert not paper.exists()


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        (["paper.json", "--outcome", "absent"], "--outcome"),
        (["--outcome", "perhaps", "--thread", "inv-771", "KEY", "--reason", "x"], "--outcome"),
        (["--outcome", "absent", "KEY", "--reason", "x"], "--thread"),
        (["--outcome", "absent", "--thread", "inv-771", "KEY"], "--reason"),
        (["--outcome", "absent", "--thread", "inv-771", "--reason", "x"], "--signing-key"),
        (["--json", "KEY"], "--outcome"),
        (["--yes", "KEY"], "--outcome"),
        (["--outcome", "succeeded", "--thread", "inv-771", "KEY", "--reason", "x"], "--result"),
    ],
)
def test_resolve_says_which_flag_is_missing(
    doubtful: Desk, arguments: list[str], about: str
) -> None:
    given: list[str] = []
    for word in arguments:
        given += ["--signing-key", str(doubtful.signing)] if word == "KEY" else [word]
    result = doubtful.run(*doubtful.on("resolve", *given))
    assert result.exit_code == 13, result.output
    assert about in result.stderr
    assert len(in_doubt(doubtful)) == 2


# --- resolve walks the queue ---------------------------------------------------------------------


def walked(desk: Desk, stdin: str, *more: str) -> Any:
    return desk.run(*desk.on("resolve", "--signing-key", str(desk.signing), *more), stdin=stdin)


def test_resolve_walks_the_queue(doubtful: Desk) -> None:
    answers = ["x", "s", '"paid"', "statement 12", "called the bank", "y"]
    answers += ["n", "the outbox is empty", "asked the postmaster", "y"]
    result = walked(doubtful, "\n".join(answers) + "\n")
    assert result.exit_code == 0, result.output
    assert result.stdout.index("'inv-771'") < result.stdout.index("'mail-1'")
    assert "2 settled, 0 failed, 0 left" in result.stdout
    assert in_doubt(doubtful) == []
    (paid,), (mailed,) = decisions(doubtful), decisions(doubtful, "mail-1")
    assert (paid.decision.outcome, paid.decision.evidence) == ("succeeded", "statement 12")
    assert (mailed.decision.outcome, mailed.decision.reason) == ("absent", "asked the postmaster")
    assert "nothing is in doubt" in walked(doubtful, "").stdout


def test_a_person_who_may_not_decide_is_told_before_the_first_question(
    doubtful: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = doubtful.folder / "public.json"
    other = doubtful.folder / "other.json"
    public.write_text(doubtful.good("keys", "operator", "alice", str(other), "--json"))
    for command in (
        ["resolve", "--signing-key", str(other)],
        ["restore", "inv-771", "--signing-key", str(other), "--reason", "x"],
        ["adopt", "inv-771", "--signing-key", str(other), "--reason", "x"],
    ):
        result = doubtful.run(*doubtful.on(command[0], *command[1:]), stdin="k\nq\n")
        assert result.exit_code == 13, result.output
        assert "nobody known as 'alice' may decide here: put the public key into" in result.stderr
        assert '{"alice": "<64 hex>"}' in result.stderr
        assert ENV_REVIEWERS in result.stderr
        assert ENV_KEYS not in result.stderr
        assert "What happened" not in result.stdout
    decided = "a\ny\nq\n"
    said = ("--evidence", "none", "--reason", "x", "--reviewers", str(public))
    result = doubtful.run(
        *doubtful.on("resolve", "--signing-key", str(other), *said), stdin=decided
    )
    assert result.exit_code == 0, result.output
    (signed,) = decisions(doubtful)
    assert signed.key_id == "alice", "the document that keys operator printed will do"
    monkeypatch.setenv(
        ENV_REVIEWERS, json.dumps({"alice": SigningKey.from_file(doubtful.signing).public()})
    )
    result = doubtful.run(*doubtful.on("resolve", "--signing-key", str(other)), stdin=decided)
    assert result.exit_code == 13
    assert "'alice' is known by another key" in result.stderr


def test_a_result_that_is_no_json_is_asked_for_again_at_once(doubtful: Desk) -> None:
    answers = ["s", "sent", "{'id': 1}", '"sent"', "statement 12", "called the bank", "y", "q"]
    result = walked(doubtful, "\n".join(answers) + "\n")
    assert result.exit_code == 0, result.output
    assert result.stdout.count('not JSON; a text needs quotes: "sent"') == 2
    (signed,) = decisions(doubtful)
    assert (signed.decision.result, signed.decision.evidence) == ("sent", "statement 12")


def test_resolve_skips_and_stops(doubtful: Desk) -> None:
    skipped = walked(doubtful, "k\nq\n")
    assert skipped.exit_code == 0, skipped.output
    assert "0 settled, 0 failed, 2 left" in skipped.stdout
    silent = walked(doubtful, "")
    assert silent.exit_code == 13
    assert (
        "standard input: is no terminal; name the decision: "
        "--thread … --slot … --outcome … --reason … --yes"
    ) in silent.stderr
    assert len(in_doubt(doubtful)) == 2


@pytest.mark.parametrize(
    ("word", "outcome"),
    [
        *(("n", "absent"), ("nothing", "absent"), (" Absent ", "absent"), ("A", "abandoned")),
        *(("abandon", "abandoned"), ("abandoned", "abandoned"), ("compensated", "compensated")),
    ],
)
def test_an_answer_is_a_letter_or_the_whole_word(doubtful: Desk, word: str, outcome: str) -> None:
    result = walked(doubtful, f"{word}\ny\nquit\n", "--evidence", "none", "--reason", "x")
    assert result.exit_code == 0, result.output
    (signed,) = decisions(doubtful)
    assert signed.decision.outcome == outcome


@pytest.mark.parametrize("word", ["arrived", "ab", "sk", "no", "cancelled", "questionable"])
def test_an_answer_that_only_begins_like_one_is_asked_for_again(doubtful: Desk, word: str) -> None:
    result = walked(doubtful, f"{word}\nskip\nq\n", "--evidence", "none", "--reason", "x")
    assert result.exit_code == 0, result.output
    assert f"{word!r} is none of s, n, c, a, k, q." in result.stdout
    assert "0 settled, 0 failed, 2 left" in result.stdout
    assert len(in_doubt(doubtful)) == 2


def test_a_failure_stops_none_of_the_others(
    doubtful: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first is being decided about, its thread moves."""
    original = SurefootSaver.resolve

    def moved(self: SurefootSaver, decision: Any) -> Any:
        if decision.decision.thread == "inv-771":
            self.put_writes(self.get_tuple(AT).config, [("n", 1)], "task")  # type: ignore[union-attr]
            self.release("inv-771")
        return original(self, decision)

    monkeypatch.setattr(SurefootSaver, "resolve", moved)
    result = walked(doubtful, "a\ny\na\ny\n", "--evidence", "none", "--reason", "x")
    assert result.exit_code == 10, result.output
    assert "1 settled, 1 failed, 0 left" in result.stdout
    assert "it was made for head" in result.stderr
    assert [item.thread for item in in_doubt(doubtful)] == ["inv-771"]


def test_what_cannot_be_settled_says_what_helps(doubtful: Desk) -> None:
    doubtful.cut_off_the_head("mail-1")
    result = walked(doubtful, "k\n")
    assert "surefoot verify" in result.stdout
    assert "cannot be settled" in result.stdout


# --- showing -------------------------------------------------------------------------------------


def test_nothing_that_is_stored_moves_the_cursor() -> None:
    assert one_line("a\x1b[2Jb\nc\u202ed") == "a\\x1b[2Jb\\nc\\u202ed"
    assert one_line("ä€😀") == "ä€😀"


def test_values_as_documents() -> None:
    value = {1: (float("nan"), {"x"}), "b": b"raw", "c": [None, True, 1.5]}
    assert json.loads(json.dumps(plain(value))) == {
        "1": ["nan", ["x"]],
        "b": "b'raw'",
        "c": [None, True, 1.5],
    }
