"""Ordered restores (rule E6): B is never lowered, and nothing lost is done twice unasked."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.orders.conftest import Place, Snapshot, at, whole

from surefoot import NotSent, ResumePolicy, Unknown
from surefoot.errors import (
    Busy,
    DecisionRefused,
    EffectInDoubt,
    KeyMissing,
    Misuse,
    RollbackDetected,
    TamperDetected,
)
from surefoot.signing import SigningKey
from surefoot.testing.faults import Died, Fault, Plan, bury, with_faults

pytestmark = pytest.mark.optimized


def lose(place: Place, classes: str, *, after: int = 2, thread: str = "t") -> None:
    """Runs to the end, then puts the database back to where step ``after`` had not begun."""
    place.graph(classes, stop=after).invoke({"done": []}, at(thread))
    before = Snapshot(place.backend)
    assert place.graph(classes).invoke(None, at(thread))["done"] == whole(classes)
    before.put_back()
    with pytest.raises(RollbackDetected) as refused:
        place.graph(classes).invoke(None, at(thread))
    assert refused.value.rules == ["R3"]


def mark_of(place: Place, thread: str = "t") -> Any:
    return place.saver.core.ports.marks.read(place.saver.core.ports.tenant, thread)


@pytest.mark.parametrize("classes", ["K", "L", "KL"])
def test_after_the_order_the_run_goes_on_and_no_effect_happens_twice(
    place: Place, classes: str
) -> None:
    lose(place, classes)
    sent = {c: place.world.distinct(c) for c in classes}
    lost = mark_of(place)
    done = place.decide("t", "restore")
    assert done.seq > lost.seq, "B is never lowered"
    asked = place.world.asked
    assert place.graph(classes, place.open()).invoke(None, at("t"))["done"] == whole(classes)
    assert {c: place.world.distinct(c) for c in classes} == sent
    if "L" in classes:
        assert len(place.world.sent["L"]) == 4
        assert place.world.asked > asked, "a lost effect was not looked up"
    assert [r.ok for r in place.saver.verify("t", deep=True)] == [True]


def test_a_lost_effect_that_nobody_can_be_asked_about_stops_the_run_until_a_decision(
    place: Place,
) -> None:
    lose(place, "N")
    place.decide("t", "restore")
    for step in (2, 3):
        with pytest.raises(EffectInDoubt) as doubt:
            place.graph("N", place.open()).invoke(None, at("t"))
        assert len(place.world.sent["N"]) == 4, "it was sent again"
        place.decide("t", "approve", slot=doubt.value.slot, outcome="succeeded", result=f"N{step}")
    assert place.graph("N", place.open()).invoke(None, at("t"))["done"] == whole("N")
    assert len(place.world.sent["N"]) == 4


def test_an_effect_that_is_approved_as_absent_runs_once(place: Place) -> None:
    lose(place, "N")
    place.world.sent["N"] = place.world.sent["N"][:2]  # the world was put back as well
    place.decide("t", "restore")
    for _ in (2, 3):
        with pytest.raises(EffectInDoubt) as doubt:
            place.graph("N", place.open()).invoke(None, at("t"))
        place.decide("t", "approve", slot=doubt.value.slot, outcome="absent")
    assert place.graph("N", place.open()).invoke(None, at("t"))["done"] == whole("N")
    assert [what for what, _ in place.world.sent["N"]] == whole("N")


def test_the_horizon_ends_with_the_steps_that_were_lost(place: Place) -> None:
    """What comes after the lost steps is fresh: nothing is asked, nothing is in doubt."""
    place.graph("N", stop=1).invoke({"done": []}, at("t"))
    early = Snapshot(place.backend)
    place.graph("N", stop=2).invoke(None, at("t"))
    early.put_back()
    place.decide("t", "restore")
    with pytest.raises(EffectInDoubt) as doubt:
        place.graph("N", place.open()).invoke(None, at("t"))
    assert "step 1" in doubt.value.position or "step" in doubt.value.position
    place.decide("t", "approve", slot=doubt.value.slot, outcome="succeeded", result="N1")
    # Step 2 ran under the lost head, so it is asked about as well; step 3 never began.
    with pytest.raises(EffectInDoubt) as doubt:
        place.graph("N", place.open()).invoke(None, at("t"))
    place.decide("t", "approve", slot=doubt.value.slot, outcome="absent")
    assert place.graph("N", place.open()).invoke(None, at("t"))["done"] == whole("N")
    assert [what for what, _ in place.world.sent["N"]] == whole("N")


def test_a_thread_that_is_gone_from_the_database_starts_anew_under_its_horizon(
    place: Place,
) -> None:
    empty = Snapshot(place.backend)
    place.graph("L").invoke({"done": []}, at("t"))
    empty.put_back()
    with pytest.raises(RollbackDetected):
        place.saver.get_tuple(at("t"))
    place.decide("t", "restore", to_seq=0)
    assert place.saver.get_tuple(at("t")) is None
    assert place.graph("L", place.open()).invoke({"done": []}, at("t"))["done"] == whole("L")
    assert len(place.world.sent["L"]) == 4, "a lost effect was sent again"


def test_rows_of_an_earlier_life_are_nothing_to_go_back_to(place: Place) -> None:
    place.graph("L", stop=2).invoke({"done": []}, at("t"))
    earlier = Snapshot(place.backend)
    place.saver.delete_thread("t")
    place.graph("L").invoke({"done": []}, at("t"))
    earlier.put_back()
    with pytest.raises((RollbackDetected, TamperDetected)):
        place.saver.get_tuple(at("t"))
    with pytest.raises(Misuse, match="to_seq=0"):
        place.saver.propose("t", "restore", reason="x")
    place.decide("t", "restore", to_seq=0)
    assert place.graph("L", place.open()).invoke({"done": []}, at("t"))["done"] == whole("L")
    assert [r.ok for r in place.open().verify("t", deep=True)] == [True]


def test_a_damaged_head_names_the_last_good_record_and_an_order_goes_back_to_it(
    place: Place,
) -> None:
    place.graph("L").invoke({"done": []}, at("t"))
    ((seq, body),) = place.backend.execute(
        "SELECT last_seq, body FROM surefoot_frame ORDER BY last_seq DESC LIMIT 1"
    )
    broken = bytes(body[:-1]) + bytes([body[-1] ^ 1])
    place.backend.execute("UPDATE surefoot_frame SET body = ? WHERE last_seq = ?", broken, seq)
    with pytest.raises(TamperDetected):
        place.saver.get_tuple(at("t"))
    (report,) = place.saver.verify("t")
    assert not report.ok
    assert {p.seq for p in report.problems} == {seq}
    assert report.last_good is not None
    assert report.last_good < seq
    place.decide("t", "restore")
    (report,) = place.saver.verify("t", deep=True)
    assert report.ok, report.problems
    assert place.graph("L", place.open()).invoke(None, at("t"))["done"] == whole("L")
    assert len(place.world.sent["L"]) == 4


def test_the_records_that_an_order_gave_up_are_gone_and_cannot_be_put_back(place: Place) -> None:
    place.graph("K", stop=2).invoke({"done": []}, at("t"))
    place.graph("K").invoke(None, at("t"))
    full = Snapshot(place.backend)
    kept = next(
        r.link.seq
        for r in _records(place)
        if r.link.seq < mark_of(place).seq and r.kind.name == "CHECKPOINT"
    )
    place.decide("t", "restore", to_seq=kept)
    assert place.backend.execute(
        "SELECT count(*) FROM surefoot_frame WHERE last_seq > ? AND last_seq <= ?",
        kept,
        mark_of(place).seq - 2,
    ) == [(0,)]
    full.put_back()
    with pytest.raises(RollbackDetected):
        place.saver.get_tuple(at("t"))


def _records(place: Place) -> list[Any]:
    from surefoot.flows.views import viewing

    return viewing(place.saver.core.ports, "t", lambda chain: list(chain.walk()))


# --- an order holds once, here and now ----------------------------------------------------------


def test_an_order_is_carried_out_once(place: Place) -> None:
    lose(place, "K")
    signed = place.operator.sign(place.saver.propose("t", "restore", reason="again"))
    place.saver.resolve(signed)
    with pytest.raises(DecisionRefused, match="head"):
        place.saver.resolve(signed)
    with pytest.raises(DecisionRefused, match="head"):
        place.open().resolve(signed.render())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"thread": "other"}, "head|thread"),
        ({"tenant": "elsewhere"}, "tenant"),
        ({"incarnation": 2}, "incarnation"),
        ({"head_seq": 99}, "head"),
        ({"head_digest": "ab" * 32}, "head"),
        ({"horizon": -1}, "horizon"),
    ],
)
def test_an_order_for_something_else_changes_nothing(
    place: Place, changes: dict[str, Any], reason: str
) -> None:
    lose(place, "K")
    place.graph("K", stop=1).invoke({"done": []}, at("other"))
    before = mark_of(place)
    wrong = place.saver.propose("t", "restore", reason="x").model_copy(update=changes)
    with pytest.raises(DecisionRefused, match=reason):
        place.saver.resolve(place.operator.sign(wrong))
    after = mark_of(place)
    assert (after.seq, after.digest) == (before.seq, before.digest)
    place.decide("t", "restore")  # and the right one still holds


def test_who_signed_is_checked_before_anything_else(place: Place) -> None:
    lose(place, "K")
    proposed = place.saver.propose("t", "restore", reason="x")
    before = mark_of(place)
    with pytest.raises(KeyMissing) as nobody:
        place.saver.resolve(SigningKey.generate("stranger").sign(proposed))
    assert nobody.value.key_id == "stranger"
    with pytest.raises(DecisionRefused, match="signature"):
        place.saver.resolve(SigningKey.generate("op-1").sign(proposed))
    signed = place.operator.sign(proposed)
    forged = signed.model_copy(
        update={"decision": proposed.model_copy(update={"horizon": proposed.horizon + 1})}
    )
    with pytest.raises(DecisionRefused, match="signature"):
        place.saver.resolve(forged)
    assert mark_of(place).epoch == before.epoch, "a bad signature took the lease"
    with pytest.raises(KeyMissing):
        place.open(reviewers=type(place.reviewers)()).resolve(signed)


def test_an_order_holds_from_its_start_to_its_end(place: Place) -> None:
    lose(place, "K")
    proposed = place.saver.propose("t", "restore", reason="x")
    hour = timedelta(hours=1)
    late = proposed.model_copy(
        update={
            "not_before": proposed.not_before - 3 * hour,
            "expires": proposed.expires - 2 * hour,
        }
    )
    with pytest.raises(DecisionRefused, match="expired"):
        place.saver.resolve(place.operator.sign(late))
    early = proposed.model_copy(
        update={"not_before": proposed.not_before + hour, "expires": proposed.expires + hour}
    )
    with pytest.raises(DecisionRefused, match="before"):
        place.saver.resolve(place.operator.sign(early))


def test_a_record_that_does_not_verify_is_nothing_to_go_back_to(place: Place) -> None:
    place.graph("K").invoke({"done": []}, at("t"))
    with pytest.raises(Misuse, match="to_seq"):
        place.saver.propose("t", "restore", reason="x", to_seq=10_000)
    proposed = place.saver.propose("t", "restore", reason="x", to_seq=2)
    forged = proposed.model_copy(update={"to_digest": "cd" * 32})
    with pytest.raises(TamperDetected):
        place.saver.resolve(place.operator.sign(forged))
    assert [r.ok for r in place.open().verify("t")] == [True]


def test_a_live_run_is_not_restored_under_its_feet(place: Place) -> None:
    stream = place.graph("K").stream({"done": []}, at("t"))
    next(stream)
    other = place.open(policy=ResumePolicy(handover_grace_ms=0))
    signed = place.operator.sign(other.propose("t", "restore", reason="x"))
    with pytest.raises((Busy, DecisionRefused)):
        other.resolve(signed)
    assert [*stream][-1] == {"n3": {"done": ["K3"]}}


@pytest.mark.parametrize(
    "boundary",
    [
        "store.append.before",
        "store.append.after",
        "marks.publish.before",
        "marks.publish.after",
        "store.collect.before",
        "store.collect.after",
        "marks.publish.before#2",
        "marks.publish.after#2",
    ],
)
def test_a_crash_while_an_order_is_carried_out_leaves_it_undone_or_done(
    place: Place, boundary: str
) -> None:
    lose(place, "L")
    signed = place.operator.sign(place.saver.propose("t", "restore", reason="x"))
    lost = mark_of(place)
    crashing = place.open()
    name = boundary if "#" in boundary else f"{boundary}#1"
    plan = Plan({name: Fault.DIE})
    with_faults(crashing, plan)
    with pytest.raises(Died):
        crashing.resolve(signed)
    bury(crashing, plan)
    assert plan.hit == [name]
    fresh = place.open()
    if mark_of(place).seq == lost.seq:
        fresh.resolve(signed)
    else:
        with pytest.raises(DecisionRefused, match="head"):
            fresh.resolve(signed)
    assert place.graph("L", fresh).invoke(None, at("t"))["done"] == whole("L")
    assert len(place.world.sent["L"]) == 4
    assert [r.ok for r in fresh.verify("t", deep=True)] == [True]


@pytest.mark.parametrize("side", ["before", "after"])
def test_an_order_that_dies_before_it_is_published_has_given_up_nothing(
    place: Place, side: str
) -> None:
    """P6: what an order gives up is deleted only after the order itself is published."""
    place.graph("K").invoke({"done": []}, at("t"))
    before = list(place.saver.list(at("t")))
    kept = next(
        r.link.seq
        for r in _records(place)
        if r.link.seq < mark_of(place).seq - 2 and r.kind.name == "CHECKPOINT"
    )
    signed = place.operator.sign(place.saver.propose("t", "restore", reason="x", to_seq=kept))
    dying = place.open()
    boundary = f"marks.publish.{side}#1"
    plan = Plan({boundary: Fault.DIE})
    with_faults(dying, plan)
    with pytest.raises(Died):
        dying.resolve(signed)
    bury(dying, plan)
    assert plan.hit == [boundary]
    found = list(place.open().list(at("t")))
    assert (found == before) == (side == "before")
    assert len(found) < len(before) or side == "before"
    assert [r.ok for r in place.open().verify("t", deep=True)] == [True]


def test_two_restores_in_a_row_keep_the_widest_horizon(place: Place) -> None:
    lose(place, "N", after=2)
    place.decide("t", "restore")
    again = Snapshot(place.backend)
    with pytest.raises(EffectInDoubt):
        place.graph("N", place.open()).invoke(None, at("t"))
    again.put_back()
    place.decide("t", "restore")
    with pytest.raises(EffectInDoubt):
        place.graph("N", place.open()).invoke(None, at("t"))
    assert len(place.world.sent["N"]) == 4


def test_the_horizon_covers_the_steps_of_a_branch_that_was_left(place: Place) -> None:
    """The lost head may stand at a lower step than an earlier branch had reached."""
    graph = place.graph("N")
    place.graph("N", stop=1).invoke({"done": []}, at("t"))
    early = Snapshot(place.backend)
    paused = place.saver.get_tuple(at("t"))
    assert paused is not None
    graph.invoke(None, at("t"))
    sent = len(place.world.sent["N"])
    assert sent == 4
    place.graph("N", stop=2).invoke(None, paused.config)  # a fork, at a lower step than before
    early.put_back()
    place.decide("t", "restore")
    for step in (1, 2, 3):
        with pytest.raises(EffectInDoubt) as doubt:
            place.graph("N", place.open()).invoke(None, at("t"))
        place.decide("t", "approve", slot=doubt.value.slot, outcome="succeeded", result=f"N{step}")
    assert place.graph("N", place.open()).invoke(None, at("t"))["done"] == whole("N")


def test_the_mark_keeps_the_highest_step(place: Place) -> None:
    graph = place.graph("K")
    place.graph("K", stop=1).invoke({"done": []}, at("t"))
    paused = place.saver.get_tuple(at("t"))
    assert paused is not None
    graph.invoke(None, at("t"))
    highest = mark_of(place).step
    place.graph("K", stop=2).invoke(None, paused.config)
    assert mark_of(place).step == highest
    assert replace(mark_of(place), lease_left_ms=0).seq > 0


# --- where the history since is not the lost one again ------------------------------------------


def settle(place: Place, classes: str, *, at_most: int = 12) -> Any:
    """Resumes, and has a person say "it happened" for each effect in doubt."""
    for _ in range(at_most):
        try:
            return place.graph(classes, place.open()).invoke(None, at("t"))
        except EffectInDoubt as doubt:
            place.decide("t", "approve", slot=doubt.slot, outcome="succeeded", result="settled")
    raise AssertionError("it never ends")


@pytest.mark.parametrize("classes", ["K", "L", "N"])
@pytest.mark.parametrize("updates", [1, 3])
def test_an_update_of_the_state_after_a_restore_moves_no_effect_out_of_sight(
    place: Place, classes: str, updates: int
) -> None:
    """The steps to come lie further on, so their slots are not those of the lost ones."""
    lose(place, classes)
    sent = len(place.world.sent[classes])
    place.decide("t", "restore")
    graph = place.graph(classes, place.open())
    for _ in range(updates):
        graph.update_state(at("t"), {"done": []}, as_node="n1")
    settle(place, classes)
    assert len(place.world.sent[classes]) == sent, "a lost effect was sent again unasked"


@pytest.mark.parametrize("classes", ["K", "L", "N"])
def test_a_fork_that_was_lost_and_is_made_again_sends_nothing_unasked(
    place: Place, classes: str
) -> None:
    """A fork that did everything anew; its records are lost, what it sent is not."""
    place.graph(classes, stop=1).invoke({"done": []}, at("t"))
    paused = place.saver.get_tuple(at("t"))
    assert paused is not None
    place.graph(classes).invoke(None, at("t"))
    before = Snapshot(place.backend)
    anew = place.open(policy=ResumePolicy(on_fork="execute", handover_grace_ms=10_000))
    place.graph(classes, anew).invoke(None, paused.config)
    sent = len(place.world.sent[classes])
    assert sent == 7
    before.put_back()
    place.decide("t", "restore")
    with pytest.raises(EffectInDoubt):
        place.graph(classes, place.open()).invoke(None, paused.config)
    assert len(place.world.sent[classes]) == sent


@pytest.mark.parametrize("before", [[], [Unknown("away")]], ids=["at once", "after no answer"])
def test_not_found_after_an_update_is_for_a_person_however_often_it_is_tried(
    place: Place, before: list[Any]
) -> None:
    """The receiver was asked under another key than was sent, so "absent" never lets it run (E6).

    An answer that says nothing is kept for the trail alone: it must not make the step look known.
    """
    lose(place, "L")
    sent = len(place.world.sent["L"])
    place.decide("t", "restore")
    place.graph("L", place.open()).update_state(at("t"), {"done": []}, as_node="n1")
    place.world.first = before
    for number in range(3):
        with pytest.raises(EffectInDoubt, match="away" if number < len(before) else "another key"):
            place.graph("L", place.open()).invoke(None, at("t"))
        assert len(place.world.sent["L"]) == sent, "a lost effect was sent again unasked"
    told = [e for e in place.saver.events("t") if ".effect." in e.kind][-1 - len(before) :]
    assert [(e.kind.rpartition(".")[2], e.facts["rule"]) for e in told] == [
        *([("asked", "E8")] * len(before)),
        ("reconciled", "E6"),
    ]


def test_new_input_at_a_lost_step_never_gets_the_lost_key(place: Place) -> None:
    """Another message at the step where something else was bought must not get its answer."""
    place.graph("K").invoke({"done": []}, at("t"))
    early = Snapshot(place.backend)
    place.graph("K").invoke({"done": ["second"]}, at("t"))
    sent = len(place.world.sent["K"])
    early.put_back()
    place.decide("t", "restore")
    with pytest.raises(EffectInDoubt):
        place.graph("K", place.open()).invoke({"done": ["another"]}, at("t"))
    assert len(place.world.sent["K"]) == sent


@pytest.mark.parametrize("classes", ["K", "L"])
def test_keys_sent_to_receivers_do_not_turn_with_the_sealing_key(
    place: Place, classes: str
) -> None:
    lose(place, classes)
    turned = place.backend.keys.with_new_key("new").with_primary("new")
    saver = place.open(keys=turned)
    place.decide("t", "restore", saver)
    assert place.graph(classes, saver).invoke(None, at("t"))["done"] == whole(classes)
    assert place.world.distinct(classes) == 4


@pytest.mark.parametrize("classes", ["L", "N"])
def test_a_copy_into_a_restored_thread_does_not_hide_the_horizon(
    place: Place, classes: str
) -> None:
    place.graph(classes, stop=2).invoke({"done": []}, at("source"))
    empty = Snapshot(place.backend)
    place.graph(classes, stop=2).invoke({"done": []}, at("t"))
    place.graph(classes).invoke(None, at("t"))
    sent = len(place.world.sent[classes])
    empty.put_back()
    place.decide("t", "restore", to_seq=0)
    place.saver.copy_thread("source", "t")
    for _ in range(2):
        try:
            place.graph(classes, place.open()).invoke(None, at("t"))
        except EffectInDoubt as doubt:
            place.decide("t", "approve", slot=doubt.slot, outcome="succeeded", result="x")
    assert len(place.world.sent[classes]) == sent


@pytest.mark.parametrize("classes", ["L", "N"])
@pytest.mark.parametrize("proof", ["failed", "absent"])
def test_a_proof_from_before_the_lost_history_proves_nothing(
    place: Place, classes: str, proof: str
) -> None:
    """What is stored says that nothing happened; a later attempt did, and was lost."""
    refusing = [True]
    real = place.world.sent[classes]

    class Refusing(list):  # type: ignore[type-arg]
        def append(self, item: Any) -> None:
            if refusing[0] and item[0].endswith("1"):
                raise NotSent if proof == "failed" else TimeoutError
            super().append(item)

    place.world.sent[classes] = Refusing(real)
    with pytest.raises((NotSent, TimeoutError)):
        place.graph(classes).invoke({"done": []}, at("t"))
    if proof == "absent":
        try:
            place.graph(classes, place.open()).invoke(None, at("t"))
        except (EffectInDoubt, TimeoutError) as doubt:
            if isinstance(doubt, EffectInDoubt):
                place.decide("t", "approve", slot=doubt.slot, outcome="absent")
    before = Snapshot(place.backend)
    refusing[0] = False
    assert place.graph(classes, place.open()).invoke(None, at("t"))["done"] == whole(classes)
    sent = len(place.world.sent[classes])
    before.put_back()
    place.decide("t", "restore")
    settle(place, classes)
    assert len(place.world.sent[classes]) == sent
