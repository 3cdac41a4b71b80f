"""Events of a journal: what each record tells, what is refused, and what a fold makes of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.errors import Misuse, NotStorable, UnknownEvent
from surefoot.rules.bodies import (
    Batch,
    CheckpointBody,
    DecisionBody,
    EffectBody,
    EventBody,
    Inline,
    KeptFrame,
    KeyChangeBody,
    ProvenanceBody,
    PruneBody,
    RestoreBody,
    TombstoneBody,
    Typed,
    Write,
    WritesBody,
)
from surefoot.rules.envelope import Kind
from surefoot.rules.events import (
    BEARINGS,
    EVENT_UPCASTERS,
    EVENTS,
    OURS,
    Bearing,
    Before,
    Event,
    RecordFacts,
    Special,
    bearing_of,
    decide_event,
    decide_kind,
    decide_payload,
)
from surefoot.rules.folding import ThreadState, Trail, fold
from surefoot.rules.upcasting import UnknownSchema, Upcasters

pytestmark = pytest.mark.optimized

SMALL = Typed("msgpack", Inline(b"\0\x01"))
ANY = "00000000-0000-0000-0000-000000000000"
ROOT = Path(__file__).resolve().parent.parent.parent
#: What `STORY` told when its layouts were made; kept, like the stores beside it.
VECTORS = ROOT / "tests" / "golden" / "events-v1.json"


# --- a story that holds one of everything ------------------------------------------------------


def checkpoint(checkpoint_id: str, step: int, **more: Any) -> CheckpointBody:
    made = CheckpointBody("", checkpoint_id, None, step, b"", False, SMALL, SMALL, ())
    return replace(made, **more)


def effect(state: str, **more: Any) -> EffectBody:
    made = EffectBody(
        bytes(32), "charge", state, 1, "L", bytes(32), "key", "", "c1", "(root) step 1", SMALL
    )
    return replace(made, at_us=1_000, **more)


def writes(checkpoint_id: str, *batches: Batch, at_us: int = 0) -> WritesBody:
    return WritesBody("", checkpoint_id, batches, at_us)


def batch(task_id: str, *channels: str) -> Batch:
    special = {"__error__": -1, "__interrupt__": -3, "__resume__": -4}
    made = tuple(Write(special.get(c, i), c, SMALL) for i, c in enumerate(channels))
    return Batch(task_id, "", all(c in special for c in channels), made)


def decision(action: str = "approve", **more: Any) -> DecisionBody:
    inner = {"action": action, "reason": "seen", "nonce": "00" * 16, "slot": None, **more}
    signed = {"decision": inner, "key_id": "alice", "signature": "00" * 64}
    return DecisionBody(json.dumps(signed).encode())


#: (epoch, kind, body, further facts) of each record, oldest first.
STORY: list[tuple[int, Kind, Any, dict[str, Any]]] = [
    (1, Kind.FORK, ProvenanceBody("source", 1, 9, bytes(32)), {}),
    (1, Kind.CHECKPOINT, checkpoint("c0", -1), {"source": "input", "at_us": 10}),
    (1, Kind.WRITES, writes("c0", batch("t0", "a", "b"), batch("t1", "a"), at_us=20), {}),
    (1, Kind.CHECKPOINT, checkpoint("c1", 0, parent_id="c0"), {"source": "loop", "at_us": 30}),
    (1, Kind.EFFECT, effect("started"), {}),
    (1, Kind.EFFECT, effect("started", receipt=SMALL), {}),
    (3, Kind.EFFECT, effect("absent", source="reconcile", evidence=SMALL), {"value": {"n": 0}}),
    (3, Kind.EFFECT, effect("started", attempt=2), {}),
    (3, Kind.EFFECT, effect("in_doubt", attempt=2, error="TimeoutError"), {}),
    (4, Kind.EFFECT, effect("succeeded", attempt=2, source="decision", error="seen"), {}),
    (4, Kind.DECISION, decision(), {}),
    (
        5,
        Kind.WRITES,
        writes("c1", batch("t2", "__interrupt__"), at_us=2_000),
        {"specials": (Special("t2", ("i1",), answered=False),)},
    ),
    (
        6,
        Kind.WRITES,
        writes("c1", batch(ANY, "__resume__"), at_us=9_000),
        {"specials": (Special(ANY, (), answered=True),)},
    ),
    (6, Kind.EVENT, EventBody("guardrail.tripped", SMALL, 9_500, 2), {"value": {"why": "x"}}),
    (6, Kind.WRITES, writes("c1", batch("t2", "a"), at_us=9_600), {}),
    (
        6,
        Kind.CHECKPOINT,
        checkpoint("c2", 1, parent_id="c1", folds=(bytes(32),)),
        {"source": "loop", "rest": True, "at_us": 10_000},
    ),
    (7, Kind.PRUNE, PruneBody((KeptFrame(9, 2, 8, bytes(32)),), "keep_latest"), {}),
    (8, Kind.KEY_CHANGE, KeyChangeBody("old", 9, compromised=False), {}),
    (9, Kind.RESTORE, RestoreBody(16, bytes(32), 4), {}),
    (9, Kind.DECISION, decision("restore", to_seq=16), {}),
]


def facts_of(story: Iterable[tuple[int, Kind, Any, dict[str, Any]]]) -> list[RecordFacts]:
    return [
        RecordFacts(seq, epoch, bytes([seq]) * 32, kind, body, **more)
        for seq, (epoch, kind, body, more) in enumerate(story, 1)
    ]


def told(story: Iterable[tuple[int, Kind, Any, dict[str, Any]]]) -> list[Event]:
    trail = Trail()
    return [event for facts in facts_of(story) for event in trail.take(facts)]


def kinds(events: Sequence[Event]) -> list[str]:
    return [e.kind.removeprefix(OURS) for e in events]


def test_what_a_story_tells() -> None:
    assert kinds(told(STORY)) == [
        "epoch.began",
        "thread.copied",
        "checkpoint.saved",
        "writes.stored",
        "checkpoint.saved",
        "effect.started",
        "effect.noted",
        "epoch.began",
        "effect.reconciled",
        "effect.retried",
        "effect.in_doubt",
        "epoch.began",
        "effect.decided",
        "decision.carried_out",
        "epoch.began",
        "writes.stored",
        "approval.asked",
        "epoch.began",
        "writes.stored",
        "approval.answered",
        "guardrail.tripped",
        "writes.stored",
        "checkpoint.saved",
        "epoch.began",
        "thread.pruned",
        "epoch.began",
        "key.retired",
        "epoch.began",
        "thread.restored",
        "decision.carried_out",
    ]


def test_a_takeover_says_what_was_left() -> None:
    began = [e for e in told(STORY) if e.kind == OURS + "epoch.began"]
    assert [(e.epoch, dict(e.facts)) for e in began][:3] == [
        (1, {"before": 0, "silent": 0, "left_started": 0}),
        (3, {"before": 1, "silent": 1, "left_started": 1}),
        (4, {"before": 3, "silent": 0, "left_started": 0}),
    ]


def test_a_reconciliation_tells_its_evidence_and_its_rule() -> None:
    (found,) = [e for e in told(STORY) if e.kind == OURS + "effect.reconciled"]
    assert (found.facts["state"], found.facts["rule"], found.value) == ("absent", "E5", {"n": 0})
    assert found.at_us == 1_000


@pytest.mark.parametrize(("answer", "rule"), [("absent", "E5"), ("unknown", "E8")])
@pytest.mark.parametrize("recorded", [True, False])
def test_an_answer_that_settles_nothing_is_told_and_changes_nothing(
    answer: str, rule: str, recorded: bool
) -> None:
    """Also where the record of the start is lost: asking does not make the effect known."""
    story = [*STORY[:4], *([(1, Kind.EFFECT, effect("started"), {})] if recorded else [])]
    found = effect("started", asked_us=7_000, answer=answer, why="too early", evidence=SMALL)
    more = [*story, (1, Kind.EFFECT, found, {"value": {"n": 0}})]
    event = told(more)[-1]
    assert (event.kind, event.bearing) == (OURS + "effect.asked", Bearing.RECORD)
    assert (event.facts["answer"], event.facts["rule"]) == (answer, rule)
    assert (event.facts["why"], event.value, event.at_us) == ("too early", {"n": 0}, 7_000)
    assert fold(told(more)).graph == fold(told(story)).graph
    settled = (2, Kind.EFFECT, effect("absent", source="reconcile"), {})
    assert kinds(told([*more, settled]))[-1] == "effect.reconciled"


def test_not_found_after_a_lost_step_is_told_by_the_horizon() -> None:
    found = effect("needs_review", source="reconcile", answer="absent", why="")
    assert told([*STORY[:5], (1, Kind.EFFECT, found, {})])[-1].facts["rule"] == "E6"
    other = effect("needs_review", source="reconcile")
    assert told([*STORY[:5], (1, Kind.EFFECT, other, {})])[-1].facts["rule"] == "E8"


@pytest.mark.parametrize("source", ["body", "reconcile", "decision"])
def test_a_conflict_is_no_second_outcome(source: str) -> None:
    done = effect("succeeded", source=source)
    story = [*STORY[:5], (1, Kind.EFFECT, done, {})]
    more = [*story, (1, Kind.EFFECT, replace(done, conflict=SMALL), {})]
    event = told(more)[-1]
    assert (event.kind, event.facts["rule"]) == (OURS + "effect.conflicted", "E4")
    assert fold(told(more)).graph == fold(told(story)).graph


def test_the_state_of_a_story() -> None:
    state = fold(told(STORY))
    assert (state.status, state.step, state.epoch, state.seq) == ("done", 1, 9, len(STORY))
    assert state.effects_by_state() == {"succeeded": 1}
    assert state.horizon == 4
    assert state.facts == {"guardrail.tripped": 1}
    assert state.handovers == 7
    (approval,) = state.approvals
    assert (approval.id, approval.state, approval.latency_us) == ("i1", "answered", 7_000)


def test_statuses_along_the_way() -> None:
    trail = Trail()
    seen = []
    for facts in facts_of(STORY):
        trail.take(facts)
        seen.append(trail.state().status)
    assert seen == [
        *["empty"] + ["open"] * 7,
        "in_doubt",
        *["open"] * 2,
        "waiting",
        *["open"] * 3,
        *["done"] * 5,
    ]


def test_an_abort_freezes_and_a_tombstone_ends() -> None:
    frozen = [*STORY, (10, Kind.DECISION, decision("abort"), {})]
    assert fold(told(frozen)).status == "frozen"
    dead = [*STORY, (10, Kind.TOMBSTONE, TombstoneBody("delete_thread"), {})]
    assert fold(told(dead)).status == "deleted"
    lost = [(1, Kind.RESTORE, RestoreBody(0, bytes(32), 3, lost=True), {})]
    assert kinds(told(lost)) == ["epoch.began", "thread.adopted"]


def test_an_error_of_a_task_fails_the_thread_until_it_goes_on() -> None:
    story = [*STORY[:4], (1, Kind.WRITES, writes("c1", batch("t", "__error__")), {})]
    assert fold(told(story)).status == "failed"
    more = [*story, (1, Kind.CHECKPOINT, checkpoint("c2", 1, parent_id="c1"), {})]
    assert fold(told(more)).status == "open"


def test_an_adopted_effect_counts_once_and_is_not_left_started() -> None:
    begin = (1, Kind.CHECKPOINT, checkpoint("c1", 0), {})
    new = {"slot": b"n" * 32, "adopted": bytes(32)}
    story: list[Any] = [
        begin,
        (1, Kind.EFFECT, effect("started"), {}),
        (2, Kind.EFFECT, effect("started", **new), {}),
        (2, Kind.EFFECT, effect("succeeded", source="reconcile", **new), {}),
        (3, Kind.EVENT, EventBody("a", SMALL, 1), {}),
    ]
    events = told(story)
    assert kinds(events)[2:] == [
        *("effect.started", "epoch.began", "effect.adopted", "effect.reconciled"),
        *("epoch.began", "a"),
    ]
    adopted = next(e for e in events if e.kind == OURS + "effect.adopted")
    assert (adopted.facts["adopted"], adopted.facts["rule"]) == ("00" * 32, "E4b")
    assert [e.facts["left_started"] for e in events if e.kind.endswith("began")] == [0, 1, 0]
    assert fold(events).effects_by_state() == {"succeeded": 1}
    assert len(fold(events).effects) == 2, "on another branch the first place still stands"


@pytest.mark.parametrize("source", ["body", "observation"])
def test_a_recorded_read_is_no_effect(source: str) -> None:
    read = effect("succeeded", receiver="R", source=source, slot=b"r" * 32)
    story: list[Any] = [*STORY[:4], (1, Kind.EFFECT, read, {})]
    events = told(story)
    assert kinds(events)[-1] == "read.recorded"
    assert fold(events).effects == {}
    assert fold(events).graph == fold(told(story[:-1])).graph


def test_a_business_operation_has_effects_and_no_checkpoints() -> None:
    named = {"operation": "inv-771", "caller": "t", "checkpoint_id": ""}
    story: list[Any] = [(1, Kind.EFFECT, effect("started", **named), {})]
    assert fold(told(story)).status == "open"
    assert told(story)[1].facts["operation"] == "inv-771"
    story.append((1, Kind.EFFECT, effect("in_doubt", **named), {}))
    assert fold(told(story)).status == "in_doubt"
    story.append((1, Kind.EFFECT, effect("succeeded", source="reconcile", **named), {}))
    assert fold(told(story)).status == "done"


# --- approvals ---------------------------------------------------------------------------------


def asked(name: str, checkpoint_id: str, task: str, at_us: int = 1) -> Any:
    special = {"specials": (Special(task, (name,), answered=False),)}
    return (
        1,
        Kind.WRITES,
        writes(checkpoint_id, batch(task, "__interrupt__"), at_us=at_us),
        special,
    )


def answer(checkpoint_id: str, task: str, at_us: int = 5) -> Any:
    special = {"specials": (Special(task, (), answered=True),)}
    return (1, Kind.WRITES, writes(checkpoint_id, batch(task, "__resume__"), at_us=at_us), special)


def approvals(*story: Any) -> list[tuple[str, str, int | None]]:
    begin = (1, Kind.CHECKPOINT, checkpoint("c1", 0), {})
    found = fold(told([begin, *story])).approvals
    return [(a.id, a.state, a.latency_us) for a in found]


def test_a_question_asked_again_by_a_node_that_ran_again_is_one() -> None:
    assert approvals(asked("i", "c1", "t", 3), asked("i", "c1", "t", 7)) == [("i", "open", None)]
    story = (asked("i", "c1", "t", 3), asked("i", "c1", "t", 7), answer("c1", "t", 9))
    assert approvals(*story) == [("i", "answered", 6)]


def test_an_answer_is_for_its_own_task() -> None:
    two = (asked("i", "c1", "t"), asked("j", "c1", "u"))
    assert approvals(*two, answer("c1", "u")) == [("i", "open", None), ("j", "answered", 4)]
    assert approvals(*two, answer("c0", "t")) == [("i", "open", None), ("j", "open", None)]
    assert [a[1] for a in approvals(*two, answer("c1", ANY))] == ["answered", "answered"]


def test_a_question_of_a_subgraph_is_answered_at_the_root() -> None:
    inner = WritesBody("sub:x", "s1", (batch("deep", "__interrupt__"),), 2)
    special = {"specials": (Special("deep", ("i",), answered=False),)}
    below = (1, Kind.WRITES, inner, special)
    story = (below, asked("i", "c1", "t", 3), answer("c1", ANY, 8))
    assert approvals(*story) == [("i", "answered", 6)]
    begin = (1, Kind.CHECKPOINT, checkpoint("c1", 0), {})
    assert kinds(told([begin, *story]))[2:] == [
        "writes.stored",
        "approval.asked",
        "writes.stored",
        "approval.passed_up",
        "writes.stored",
        "approval.answered",
    ]


def test_the_second_question_of_a_node_is_another_even_under_the_same_id() -> None:
    both = WritesBody("", "c1", (batch("t", "__interrupt__", "__resume__"),), 9)
    again = {"specials": (Special("t", ("i",), answered=True),)}
    story = (asked("i", "c1", "t", 3), (1, Kind.WRITES, both, again))
    assert approvals(*story) == [("i", "answered", 6), ("i", "open", None)]


def test_a_question_that_the_thread_left_behind_may_still_be_answered() -> None:
    gone = (1, Kind.CHECKPOINT, checkpoint("c2", 1, parent_id="c1"), {})
    assert approvals(asked("i", "c1", "t"), gone) == [("i", "left", None)]
    back = (asked("i", "c1", "t"), gone, answer("c1", ANY, 8))
    assert approvals(*back) == [("i", "answered", 7)]


@pytest.mark.parametrize(("at", "then"), [(0, 5), (5, 0), (5, 4)])
def test_no_latency_is_made_up(at: int, then: int) -> None:
    assert approvals(asked("i", "c1", "t", at), answer("c1", "t", then)) == [
        ("i", "answered", None)
    ]


# --- folding -----------------------------------------------------------------------------------


def test_folding_twice_is_identical() -> None:
    events = told(STORY)
    assert fold(events) == fold(events) == fold(told(STORY))


def test_every_prefix_folds_to_what_the_trail_had_there() -> None:
    trail = Trail()
    events: list[Event] = []
    assert fold(events) == ThreadState()
    for facts in facts_of(STORY):
        events += trail.take(facts)
        assert fold(events) == trail.state()


def test_record_only_events_change_nothing_of_the_graph() -> None:
    events = told(STORY)
    only = [e for e in events if e.bearing is Bearing.RECORD]
    assert {e.kind for e in only} == {
        "guardrail.tripped",
        "surefoot.effect.noted",
        "surefoot.epoch.began",
        "surefoot.key.retired",
        "surefoot.thread.copied",
    }
    assert fold(e for e in events if e.bearing is Bearing.STATE).graph == fold(events).graph
    for number in range(len(events)):
        before, after = fold(events[:number]), fold(events[: number + 1])
        if events[number].bearing is Bearing.RECORD:
            assert before.graph == after.graph, events[number].kind


@given(st.lists(st.integers(0, len(STORY) - 1), max_size=5), st.data())
def test_facts_anywhere_leave_the_graph_as_it_is(at: list[int], data: st.DataObject) -> None:
    story = list(STORY)
    for place in sorted(at, reverse=True):
        kind = data.draw(st.sampled_from(["a", "b.c", "review"]))
        epoch = story[place][0]
        story.insert(place, (epoch, Kind.EVENT, EventBody(kind, SMALL, 1), {"value": None}))
    plain, more = fold(told(STORY)), fold(told(story))
    assert more.status == plain.status
    assert [replace(e, seq=0) for e in more.effects.values()] == [
        replace(e, seq=0) for e in plain.effects.values()
    ]
    assert more.approvals == plain.approvals
    assert {ns: h.checkpoint_id for ns, h in more.heads.items()} == {"": "c2"}
    assert sum(more.facts.values()) == len(at) + 1


def test_events_in_another_order_are_refused() -> None:
    events = told(STORY)
    with pytest.raises(Misuse, match="oldest first"):
        fold(reversed(events))
    late = next(n for n, e in enumerate(events) if e.kind == OURS + "approval.answered")
    with pytest.raises(Misuse, match="from the beginning"):
        fold(events[late:])


def test_documents_come_back() -> None:
    events = told(STORY)
    again = [Event.parse(json.loads(json.dumps(e.document()))) for e in events]
    assert again == events
    assert fold(again) == fold(events)


def test_the_same_in_another_process() -> None:
    """Hash seeds, locales and the like change nothing."""
    source = (
        "from tests.rules.test_events import STORY, told, fold\n"
        "import json\n"
        "events = told(STORY)\n"
        "print(json.dumps([e.document() for e in events]))\n"
        "print(repr(fold(events)))\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", source],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed},
            cwd=ROOT,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    events = told(STORY)
    assert outputs == {f"{json.dumps([e.document() for e in events])}\n{fold(events)!r}\n"}


def test_golden_vectors() -> None:
    """The same records tell the same in every release, and what was exported is still read."""
    kept = json.loads(VECTORS.read_text(encoding="utf-8"))
    events = told(STORY)
    assert [e.document() for e in events] == kept["events"]
    state = fold(Event.parse(document) for document in kept["events"])
    assert json.loads(json.dumps(asdict(state))) == kept["state"]


# --- what is not known -------------------------------------------------------------------------


def test_every_kind_of_record_is_classified_and_told() -> None:
    assert BEARINGS.keys() == {*Kind}
    for kind, bearing in BEARINGS.items():
        of_it = {b for record, b in EVENTS.values() if record is kind}
        if bearing is Bearing.RECORD:
            assert of_it <= {Bearing.RECORD}, f"{kind!r} tells something that changes the thread"
        else:
            assert Bearing.STATE in of_it, f"nothing that {kind!r} tells changes the thread"
    assert all(name.startswith(OURS) for name in EVENTS)


def test_the_story_tells_every_kind_that_a_chain_can_hold() -> None:
    more: list[Any] = [
        *STORY,
        (9, Kind.CHECKPOINT, checkpoint("c3", 2), {}),
        (9, Kind.EFFECT, effect("succeeded"), {}),
        (9, Kind.EFFECT, effect("failed", error="NotSent"), {}),
        (9, Kind.EFFECT, effect("needs_review"), {}),
        (9, Kind.EFFECT, effect("compensated"), {}),
        (9, Kind.EFFECT, effect("started", slot=b"s" * 32, adopted=bytes(32)), {}),
        (9, Kind.EFFECT, effect("succeeded", receiver="R", source="observation"), {}),
        (9, Kind.EFFECT, effect("compensated", asked_us=1, answer="unknown"), {}),
        (9, Kind.EFFECT, effect("compensated", conflict=SMALL), {}),
        asked("i", "c3", "t"),
        asked("i", "c3", "u"),
        (9, Kind.RESTORE, RestoreBody(0, bytes(32), 4, lost=True), {}),
        (9, Kind.TOMBSTONE, TombstoneBody("x"), {}),
    ]
    assert {e.kind for e in told(more) if e.kind.startswith(OURS)} == EVENTS.keys()


def test_a_record_of_a_kind_that_nobody_writes_is_refused() -> None:
    facts = RecordFacts(1, 1, bytes(32), Kind.ANCHORS, TombstoneBody("x"))
    with pytest.raises(UnknownEvent) as caught:
        decide_event(facts, Before())
    assert caught.value.kind == "N"
    wrong = replace(facts, kind=Kind.WRITES)
    with pytest.raises(UnknownEvent, match="WritesBody"):
        decide_event(wrong, Before())


@pytest.mark.parametrize(
    "body",
    [
        effect("frobnicated"),
        effect("succeeded", source="somebody"),
        effect("failed", source="reconcile"),
        effect("needs_review", source="decision"),
        effect("abandoned"),
        effect("in_doubt", asked_us=1, answer="maybe"),
    ],
    ids=lambda b: f"{b.state} by {b.source}",
)
def test_a_state_that_is_not_known_is_refused(body: EffectBody) -> None:
    with pytest.raises(UnknownEvent):
        decide_event(RecordFacts(4, 1, bytes(32), Kind.EFFECT, body), Before())


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"decision": 5}', b"\xff"])
def test_a_decision_of_another_layout_is_refused(document: bytes) -> None:
    facts = RecordFacts(4, 1, bytes(32), Kind.DECISION, DecisionBody(document))
    with pytest.raises(UnknownEvent, match="layout"):
        decide_event(facts, Before())
    with pytest.raises(UnknownEvent, match="action"):
        decide_event(replace(facts, body=decision("overthrow")), Before())


def test_unknown_events_are_refused_by_every_reader() -> None:
    event = Event("surefoot.thread.teleported", 1, 1, 0)
    for read in (lambda: fold([event]), lambda: event.bearing, lambda: bearing_of(event.kind)):
        with pytest.raises(UnknownEvent) as caught:
            read()
        assert (caught.value.code, caught.value.reaction) == ("UNKNOWN_EVENT", "refuse")
    with pytest.raises(UnknownEvent):
        Event.parse(event.document())
    newer = {**told(STORY)[0].document(), "schema": 2}
    with pytest.raises(UnknownEvent):
        Event.parse(newer)
    with pytest.raises(UnknownEvent, match="layout"):
        fold([Event("surefoot.checkpoint.saved", 1, 1, 0, {"namespace": ""})])


@pytest.mark.parametrize(
    "document", [{}, [], None, 5, {"kind": "a"}, {"kind": 5, "schema": 1, "facts": {}}]
)
def test_what_is_no_document_is_misuse(document: Any) -> None:
    with pytest.raises(Misuse):
        Event.parse(document)
    good = Event("a", 1, 1, 0).document()
    for name in ("schema", "seq", "epoch", "at_us"):
        with pytest.raises(Misuse):
            Event.parse({**good, name: "1"})
        with pytest.raises(Misuse):
            Event.parse({**good, name: True})


# --- upcasters ---------------------------------------------------------------------------------


def test_events_have_a_step_for_every_older_version() -> None:
    for kind in EVENTS:
        assert EVENT_UPCASTERS.knows(kind, 1)
        assert not EVENT_UPCASTERS.knows(kind, 0)


def test_upcasters_go_one_version_at_a_time() -> None:
    table = Upcasters(
        {"a": 3, "b": 1}, {("a", 1): lambda d: [*d, "2"], ("a", 2): lambda d: [*d, "3"]}
    )
    assert table.raised("a", 1, []) == ["2", "3"]
    assert table.raised("a", 2, []) == ["3"]
    assert table.raised("a", 3, []) == []
    for kind, schema in (("a", 4), ("a", 0), ("b", 2), ("c", 1)):
        assert not table.knows(kind, schema)
        with pytest.raises(UnknownSchema):
            table.raised(kind, schema, [])


@pytest.mark.parametrize("steps", [{}, {("a", 2): list}, {("a", 1): list, ("b", 1): list}])
def test_upcasters_with_a_hole_or_a_step_too_many_are_refused(steps: Any) -> None:
    with pytest.raises(ValueError, match="steps"):
        Upcasters({"a": 2, "b": 1}, steps)


# --- facts of the user's own -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["a", "A.b_c-9", "x" * 64, "surefootloose", "..", "-"])
def test_kinds_that_may_be_used(kind: str) -> None:
    assert decide_kind(kind) == kind


@pytest.mark.parametrize(
    "kind", ["", "x" * 65, "a b", "a\n", "é", "a/b", "\0", None, 5, b"a", "surefoot.", "surefoot.x"]
)
def test_kinds_that_may_not(kind: Any) -> None:
    with pytest.raises(Misuse):
        decide_kind(kind)


@pytest.mark.parametrize(
    "payload",
    [None, True, 2**70, -0.5, "\ud800", b"\0", [], {}, {"a": [1, (2, {"b": None})]}],
    ids=repr,
)
def test_plain_data_may_be_recorded(payload: Any) -> None:
    decide_payload(payload, kind="a")


class Text(str):
    """No plain text: what it is would be lost."""

    __slots__ = ()


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        (object(), "$"),
        ({"a": [1, object()]}, "$['a'][1]"),
        ({1: 2}, "$"),
        ({"a": {"b": {None: 1}}}, "$['a']['b']"),
        ([{1, 2}], "$[0]"),
        (Text("x"), "$"),
        ({Text("x"): 1}, "$"),
        ([Kind.EVENT], "$[0]"),
        (bytearray(b"x"), "$"),
    ],
)
def test_anything_else_may_not(payload: Any, path: str) -> None:
    with pytest.raises(NotStorable) as caught:
        decide_payload(payload, kind="a.b")
    assert caught.value.path == path
    assert caught.value.channel == "(payload of a.b)"


def test_a_payload_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(NotStorable, match="deeper"):
        decide_payload(loop, kind="a")


def test_a_stored_kind_that_is_no_users_is_refused() -> None:
    for kind in ("surefoot.effect.started", "a b"):
        facts = RecordFacts(3, 1, bytes(32), Kind.EVENT, EventBody(kind, SMALL, 1))
        with pytest.raises(UnknownEvent):
            decide_event(facts, Before())
