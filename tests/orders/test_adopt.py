"""A lost high-water store (R2), a frozen thread (R13), and effects that a person settles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import END, START, StateGraph
from tests.orders.conftest import Place, State, at, whole
from tests.postgres import fresh_database

from surefoot import SurefootSaver, effect
from surefoot.errors import DecisionRefused, EffectInDoubt, Misuse, ResumeRefused
from surefoot.testing.faults import Died, Fault, Plan, bury, with_faults

pytestmark = pytest.mark.optimized


def with_new_marks(place: Place, tmp_path: Path, name: str = "new") -> dict[str, Any]:
    """Settings of savers whose high-water store is another, empty one."""
    if place.backend.name == "sqlite":
        return {"highwater": f"sqlite:///{tmp_path}/{name}.db"}
    return {"highwater": fresh_database()}


@pytest.mark.parametrize("classes", ["K", "L"])
def test_a_thread_is_adopted_under_an_order_and_goes_on(
    place: Place, tmp_path: Path, classes: str
) -> None:
    place.graph(classes, stop=2).invoke({"done": []}, at("t"))
    before = place.saver.get_tuple(at("t"))
    place.saver.close()
    settings = with_new_marks(place, tmp_path)
    saver = place.open(**settings)
    with pytest.raises(ResumeRefused) as refused:
        saver.get_tuple(at("t"))
    assert refused.value.rules == ["R2"]
    with pytest.raises(ResumeRefused):
        place.graph(classes, saver).invoke(None, at("t"))
    place.decide("t", "adopt", saver)
    after = saver.get_tuple(at("t"))
    assert before is not None
    assert after is not None
    assert (after.checkpoint, after.metadata) == (before.checkpoint, before.metadata)
    fresh = place.open(**settings)
    assert place.graph(classes, fresh).invoke(None, at("t"))["done"] == whole(classes)
    assert place.world.distinct(classes) == 4
    assert [r.ok for r in fresh.verify(deep=True)] == [True]


def crash_inside_an_effect(place: Place) -> Any:
    """A run of class N dies after the world took it and before its outcome is stored."""
    world = place.world

    @effect
    def unasked(what: str, *, idempotency_key: str) -> str:
        world.sent["N"].append((what, idempotency_key))
        return what

    def node(state: State) -> State:
        return {"done": [unasked(what="N0")]}

    def graph(saver: SurefootSaver) -> Any:
        builder = StateGraph(State)
        builder.add_node("n0", node)
        builder.add_edge(START, "n0")
        builder.add_edge("n0", END)
        return builder.compile(checkpointer=saver)

    dying = place.open()
    plan = Plan()
    with_faults(dying, plan)
    graph(dying).invoke({"done": []}, at("dry"))
    appends = [b for b in plan.trace if b.startswith("store.append.before")]
    world.sent["N"].clear()
    # The last append but one carries the outcome; the one after it the next checkpoint.
    plan = Plan({appends[-2]: Fault.DIE})
    dying = place.open()
    with_faults(dying, plan)
    with pytest.raises(Died):
        graph(dying).invoke({"done": []}, at("t"))
    bury(dying, plan)
    assert plan.hit == [appends[-2]]
    assert len(world.sent["N"]) == 1, "the crash did not land inside the effect"
    return graph


def test_an_open_effect_of_an_adopted_thread_may_have_happened(
    place: Place, tmp_path: Path
) -> None:
    """Its intent went with the mark; started without an intent must not mean never sent."""
    graph = crash_inside_an_effect(place)
    saver = place.open(**with_new_marks(place, tmp_path))
    place.decide("t", "adopt", saver)
    with pytest.raises(EffectInDoubt):
        graph(saver).invoke(None, at("t"))
    assert len(place.world.sent["N"]) == 1


@pytest.mark.parametrize(
    "boundary",
    ["store.append.before", "store.append.after", "marks.admit.before", "marks.admit.after"],
)
def test_a_crash_while_a_thread_is_adopted_never_forgets_that_intents_were_lost(
    place: Place, tmp_path: Path, boundary: str
) -> None:
    graph = crash_inside_an_effect(place)
    settings = with_new_marks(place, tmp_path)
    dying = place.open(**settings)
    signed = place.operator.sign(dying.propose("t", "adopt", reason="x"))
    plan = Plan({f"{boundary}#1": Fault.DIE})
    with_faults(dying, plan)
    with pytest.raises(Died):
        dying.resolve(signed)
    bury(dying, plan)
    assert plan.hit == [f"{boundary}#1"]
    saver = place.open(**settings)
    marks, tenant = saver.core.ports.marks, saver.core.ports.tenant
    if marks.read(tenant, "t") is None:
        with pytest.raises(ResumeRefused):
            saver.get_tuple(at("t"))
        saver.resolve(signed)
    with pytest.raises(EffectInDoubt):
        graph(saver).invoke(None, at("t"))
    assert len(place.world.sent["N"]) == 1


def test_the_reply_of_an_admission_may_be_lost(place: Place, tmp_path: Path) -> None:
    place.graph("K", stop=2).invoke({"done": []}, at("t"))
    saver = place.open(**with_new_marks(place, tmp_path))
    plan = Plan({"marks.admit.after#1": Fault.LOST})
    with_faults(saver, plan)
    place.decide("t", "adopt", saver)
    assert plan.hit == ["marks.admit.after#1"]
    assert place.graph("K", saver).invoke(None, at("t"))["done"] == whole("K")


def test_two_operators_adopt_at_the_same_moment(place: Place, tmp_path: Path) -> None:
    """One mark comes of it, and the records of the other order lie beside the chain."""
    place.graph("K", stop=2).invoke({"done": []}, at("t"))
    settings = with_new_marks(place, tmp_path)
    first, second = place.open(**settings), place.open(**settings)
    one = place.operator.sign(first.propose("t", "adopt", reason="one"))
    two = place.operator.sign(second.propose("t", "adopt", reason="two"))
    plan = Plan({"marks.admit.before#1": Fault.DIE})
    with_faults(first, plan)
    with pytest.raises(Died):
        first.resolve(one)
    bury(first, plan)
    second.resolve(two)
    with pytest.raises(DecisionRefused, match="has a mark"):
        place.open(**settings).resolve(one)
    saver = place.open(**settings)
    assert place.graph("K", saver).invoke(None, at("t"))["done"] == whole("K")
    assert [r.ok for r in saver.verify("t")] == [True]


def test_an_adoption_is_bound_to_what_was_found(place: Place, tmp_path: Path) -> None:
    place.graph("K", stop=2).invoke({"done": []}, at("t"))
    with pytest.raises(Misuse, match="has a mark"):
        place.saver.propose("t", "adopt", reason="x")
    saver = place.open(**with_new_marks(place, tmp_path))
    with pytest.raises(Misuse, match="not stored"):
        saver.propose("never", "adopt", reason="x")
    proposed = saver.propose("t", "adopt", reason="x")
    for changes in (
        {"head_digest": "ab" * 32},
        {"head_seq": proposed.head_seq + 1},
        {"incarnation": 2},
        {"horizon": -1},
        {"tenant": "elsewhere"},
    ):
        with pytest.raises((DecisionRefused, Misuse)):
            saver.resolve(place.operator.sign(proposed.model_copy(update=changes)))
    ports = saver.core.ports
    assert ports.marks.read(ports.tenant, "t") is None
    saver.resolve(place.operator.sign(proposed))


def test_an_adopted_thread_keeps_its_life_and_its_fence(place: Place, tmp_path: Path) -> None:
    place.graph("K").invoke({"done": []}, at("t"))
    place.saver.delete_thread("t")
    place.graph("K", stop=2).invoke({"done": []}, at("t"))
    ports = place.saver.core.ports
    old = ports.marks.read(ports.tenant, "t")
    assert old is not None
    assert old.incarnation == 2
    newest = "SELECT epoch FROM surefoot_frame ORDER BY last_seq DESC, epoch DESC LIMIT 1"
    ((before,),) = place.backend.execute("SELECT max(epoch) FROM surefoot_frame")
    saver = place.open(**with_new_marks(place, tmp_path))
    place.decide("t", "adopt", saver)
    new = saver.core.ports.marks.read(saver.core.ports.tenant, "t")
    assert new is not None
    assert new.incarnation == 2
    assert new.epoch > old.epoch, "a fence never restarts"
    assert place.backend.execute(newest)[0][0] > before, "the order's records count as older"
    assert place.graph("K", saver).invoke(None, at("t"))["done"] == whole("K")


# --- abort and approve --------------------------------------------------------------------------


def test_an_aborted_thread_can_be_looked_at_and_not_resumed(place: Place) -> None:
    place.graph("K", stop=2).invoke({"done": []}, at("t"))
    before = place.saver.get_tuple(at("t"))
    place.decide("t", "abort")
    with pytest.raises(ResumeRefused) as refused:
        place.graph("K", place.open()).invoke(None, at("t"))
    assert refused.value.rules == ["R13"]
    assert place.saver.get_tuple(at("t")) == before
    (report,) = place.saver.verify("t")
    assert report.ok
    assert report.state == "frozen"
    assert report.records["D"] == 1
    with pytest.raises(ResumeRefused):
        place.saver.delete_thread("t")


def test_an_approval_is_bound_to_the_effect_as_it_was_looked_at(place: Place) -> None:
    graph = crash_inside_an_effect(place)
    with pytest.raises(EffectInDoubt) as doubt:
        graph(place.saver).invoke(None, at("t"))
    slot = doubt.value.slot
    proposed = place.saver.propose("t", "approve", reason="x", slot=slot, outcome="absent")
    for changes, reason in (
        ({"recorded_intent": "ab" * 32, "proposed_intent": "ab" * 32}, "arguments"),
        ({"receipt_digest": "ab" * 32}, "receipt"),
        ({"slot": "ab" * 32}, "slot"),
        ({"outcome": "abandoned", "proposed_intent": "ab" * 32}, "other arguments"),
    ):
        wrong = proposed.model_copy(update=changes)
        with pytest.raises(DecisionRefused, match=reason):
            place.saver.resolve(place.operator.sign(wrong))
    with pytest.raises(Misuse, match="slot"):
        place.saver.propose("t", "approve", reason="x", slot="ab" * 32, outcome="absent")
    with pytest.raises(Misuse, match="result"):
        place.saver.propose(
            "t", "approve", reason="x", slot=slot, outcome="absent", result="never mind"
        )
    place.decide("t", "approve", slot=slot, outcome="succeeded", result="N0")
    assert graph(place.open()).invoke(None, at("t"))["done"] == ["N0"]
    assert len(place.world.sent["N"]) == 1
    with pytest.raises(DecisionRefused, match="nothing to settle"):
        place.decide("t", "approve", slot=slot, outcome="absent")


def test_an_effect_may_have_returned_nothing(place: Place) -> None:
    graph = crash_inside_an_effect(place)
    with pytest.raises(EffectInDoubt) as doubt:
        graph(place.saver).invoke(None, at("t"))
    slot = doubt.value.slot
    with pytest.raises(Misuse, match="result"):
        place.saver.propose("t", "approve", reason="x", slot=slot, outcome="succeeded")
    place.decide("t", "approve", slot=slot, outcome="succeeded", result=None)
    assert graph(place.open()).invoke(None, at("t"))["done"] == [None]


def test_replan_is_said_to_be_unknown_here(place: Place) -> None:
    place.graph("K", stop=2).invoke({"done": []}, at("t"))
    with pytest.raises(Misuse, match="replan"):
        place.decide("t", "replan")
