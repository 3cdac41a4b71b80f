"""What a call that never got a result is worth (rule E7)."""

from __future__ import annotations

import itertools

import pytest

from surefoot.rules.effects import Position, call_in
from surefoot.rules.orphans import Fate, OrphanFacts, decide_orphan

pytestmark = pytest.mark.optimized

NOTHING = ["failed", "absent", "compensated"]
OPEN = ["started", "in_doubt"]
PERSON = ["needs_review", "abandoned"]
EVERY = [*NOTHING, *OPEN, *PERSON, "succeeded"]


@pytest.mark.parametrize(
    ("own", "loose", "askable", "fate"),
    [
        ([], [], True, Fate.NOTHING),
        (["failed"], [], True, Fate.NOTHING),
        (["absent", "compensated"], ["failed"], False, Fate.NOTHING),
        (["succeeded"], [], False, Fate.DONE),
        (["succeeded"], ["in_doubt"], False, Fate.DONE),
        (["failed", "succeeded"], [], False, Fate.DONE),
        (["succeeded", "succeeded"], [], True, Fate.PARTLY),
        ([], ["succeeded"], True, Fate.PARTLY),
        (["started"], [], True, Fate.OPEN),
        (["in_doubt"], [], True, Fate.OPEN),
        (["in_doubt"], [], False, Fate.DOUBT),
        (["in_doubt", "succeeded"], [], True, Fate.DOUBT),
        (["needs_review"], [], True, Fate.DOUBT),
        (["abandoned"], [], True, Fate.DOUBT),
        ([], ["started"], True, Fate.DOUBT),
        ([], ["succeeded", "needs_review"], True, Fate.DOUBT),
    ],
)
def test_the_fate_of_a_call(own: list[str], loose: list[str], askable: bool, fate: Fate) -> None:
    assert decide_orphan(OrphanFacts(own, loose, askable=askable)) is fate


def test_nothing_is_said_only_when_nothing_is_open_or_done() -> None:
    for own in itertools.product(EVERY, repeat=2):
        for loose in EVERY:
            for askable in (True, False):
                fate = decide_orphan(OrphanFacts(own, [loose], askable=askable))
                if fate is Fate.NOTHING:
                    assert {*own, loose} <= set(NOTHING)
                if fate is Fate.DONE:
                    assert sorted(set(own) - set(NOTHING)) == ["succeeded"]


@pytest.mark.parametrize("state", EVERY)
def test_what_may_belong_to_the_call_is_never_denied(state: str) -> None:
    """Also where something of its own is known: another attempt may lie in what is not readable."""
    for own in ([], ["succeeded"], ["failed"]):
        facts = OrphanFacts(own, [], askable=True, unread=[state])
        readable = decide_orphan(OrphanFacts(own, [], askable=True))
        assert decide_orphan(facts) is (readable if state in NOTHING else Fate.UNREAD)


@pytest.mark.parametrize("call", [0, 12, "tool:3", "orphan:a call b"])
def test_a_shown_position_names_its_call(call: int | str) -> None:
    at = Position("t", "thread", 1, b"", (3, 4), "node call x|sub", "(a,b)", "pay", call)
    expected = "b" if call == "orphan:a call b" else str(call)
    assert call_in(at.shown()) == expected
