"""Class S in `decide_call`: rows and record are one commit, so nothing is ever open."""

from __future__ import annotations

import itertools

import pytest

from surefoot.rules.effects import (
    Barrier,
    BarrierFacts,
    CallFacts,
    Receiver,
    Verdict,
    decide_barrier,
    decide_call,
)

pytestmark = pytest.mark.optimized

TABLE = {
    None: Verdict.RUN,
    "failed": Verdict.RUN,
    "absent": Verdict.RUN,
    "succeeded": Verdict.REPLAY,
    "started": Verdict.REFUSE,  # by another class: this one records no start
    "in_doubt": Verdict.REFUSE,
    "needs_review": Verdict.REFUSE,
    "abandoned": Verdict.REFUSE,
}


@pytest.mark.parametrize("state", TABLE)
def test_every_state(state: str | None) -> None:
    """Whatever was lost or given up came back, or went, together with the rows."""
    for tainted, lost, apart in itertools.product([True, False], repeat=3):
        facts = CallFacts(
            receiver=Receiver.SAME_DATABASE,
            state=state,
            same_arguments=True,
            intent=False,
            tainted=tainted,
            lost=lost,
            apart=apart,
        )
        assert decide_call(facts).verdict is TABLE[state]


@pytest.mark.parametrize("state", ["succeeded", "started", "in_doubt"])
def test_other_arguments_are_a_conflict(state: str) -> None:
    facts = CallFacts(Receiver.SAME_DATABASE, state, False, False, False)
    assert decide_call(facts).verdict is Verdict.CONFLICT


def test_an_intent_is_of_another_class() -> None:
    facts = CallFacts(Receiver.SAME_DATABASE, None, True, True, True)
    assert decide_call(facts).verdict is Verdict.REFUSE


def test_it_needs_its_checkpoint() -> None:
    for durability, then in (
        ("sync", Barrier.WAIT),
        ("async", Barrier.WAIT),
        ("exit", Barrier.REFUSE),
    ):
        assert decide_barrier(BarrierFacts(durability, Receiver.SAME_DATABASE)) is then
