"""What a writer concludes from "no" or from silence (P3, P4), over all facts."""

from __future__ import annotations

from itertools import product

import pytest

from surefoot.rules.publish import (
    GateFacts,
    PublishFacts,
    Then,
    decide_gate,
    decide_publish,
)

pytestmark = pytest.mark.optimized

OURS, OLD, NEW, LATER, STRANGE = 5, b"old", b"new", b"later", b"strange"


@pytest.mark.parametrize(
    ("mark_epoch", "first", "stored_epoch", "ours", "parent"),
    [
        *product((None, 4, 5, 6), (False, True), (None, 3, 4, 5, 6), (False,), (False, True)),
        *product((None, 4, 5, 6), (False, True), (5,), (True,), (True,)),
    ],
)
def test_every_answer_of_the_gate(
    mark_epoch: int | None, first: bool, stored_epoch: int | None, ours: bool, parent: bool
) -> None:
    then = decide_gate(GateFacts(OURS, mark_epoch, first, stored_epoch, ours, parent))
    if mark_epoch is None:
        assert then is Then.ROLLBACK
    elif mark_epoch != OURS:
        assert then is Then.FENCED
    elif ours:
        assert then is Then.COMMITTED
    elif first and stored_epoch in (3, 4) and parent:
        assert then is Then.RELOAD
    else:
        assert then is Then.ROLLBACK


@pytest.mark.parametrize(
    ("facts", "then"),
    [
        # An orphan of an earlier epoch moved the head row before our first write.
        (GateFacts(5, 5, True, 4, False, True), Then.RELOAD),
        # The same, but what our record follows is gone: a failover has lost it.
        (GateFacts(5, 5, True, 4, False, False), Then.ROLLBACK),
        # The same after we have written: nobody may do that.
        (GateFacts(5, 5, False, 4, False, True), Then.ROLLBACK),
        # The row is gone.
        (GateFacts(5, 5, True, None, False, True), Then.ROLLBACK),
        # A row of our own epoch that is not ours: somebody has edited it.
        (GateFacts(5, 5, True, 5, False, True), Then.ROLLBACK),
        # A row of a later epoch than the mark knows.
        (GateFacts(5, 5, True, 6, False, True), Then.ROLLBACK),
        # The reply was lost, the record is there; a fence goes before it.
        (GateFacts(5, 5, False, 5, True, True), Then.COMMITTED),
        (GateFacts(5, 6, False, 5, True, True), Then.FENCED),
        # A lower epoch in the mark is no way forward either.
        (GateFacts(5, 4, False, 5, True, True), Then.FENCED),
    ],
)
def test_the_gate_case_by_case(facts: GateFacts, then: Then) -> None:
    assert decide_gate(facts) is then


@pytest.mark.parametrize(
    ("mark_epoch", "digest", "later"),
    [*product((None, 4, 5, 6), (OLD, NEW, LATER, STRANGE, b""), ((), (LATER,)))],
)
def test_every_mark_after_a_compare_and_set(
    mark_epoch: int | None, digest: bytes, later: tuple[bytes, ...]
) -> None:
    then = decide_publish(PublishFacts(OURS, mark_epoch, digest, OLD, NEW, later))
    if mark_epoch is None:
        assert then is Then.ROLLBACK
    elif mark_epoch != OURS:
        assert then is Then.FENCED
    elif digest == OLD:
        assert then is Then.AGAIN
    elif digest == NEW or digest in later:
        assert then is Then.COMMITTED
    else:
        assert then is Then.ROLLBACK


def test_intents_alone_are_sent_again_and_never_taken_for_committed() -> None:
    """Head unchanged: the digest cannot prove that the new intents have arrived."""
    assert decide_publish(PublishFacts(5, 5, OLD, OLD, OLD)) is Then.AGAIN
