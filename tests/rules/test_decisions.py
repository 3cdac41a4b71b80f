"""Does a decision hold here and now? Whatever has moved since it was signed makes it void."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from surefoot.rules.decisions import Decision, DecisionFacts, decide_decision, signed_bytes

pytestmark = pytest.mark.optimized

NOW = datetime(2030, 1, 31, 12, 0, tzinfo=timezone.utc)
HEAD = b"h" * 32
FACTS = DecisionFacts(
    tenant="tenant",
    thread="thread",
    incarnation=2,
    head_seq=9,
    head_digest=HEAD,
    now=NOW,
    consumed=False,
)


def decision(**changes: Any) -> Decision:
    return Decision.model_validate(
        {
            "action": "abort",
            "tenant": "tenant",
            "thread": "thread",
            "incarnation": 2,
            "head_seq": 9,
            "head_digest": HEAD.hex(),
            "reason": "for the test",
            "nonce": "0" * 32,
            "not_before": NOW - timedelta(minutes=5),
            "expires": NOW + timedelta(hours=1),
            **changes,
        }
    )


def test_a_decision_about_this_thread_as_it_is_holds() -> None:
    assert decide_decision(decision(), FACTS) == []
    assert decide_decision(decision(), replace(FACTS, now=NOW - timedelta(minutes=5))) == []
    late = replace(FACTS, now=NOW + timedelta(minutes=59, seconds=59))
    assert decide_decision(decision(), late) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tenant": "another"}, "tenant"),
        ({"thread": "another"}, "thread"),
        ({"incarnation": 3}, "incarnation"),
        ({"head_seq": 10}, "head 9"),
        ({"head_seq": 8}, "head 9"),
        ({"head_digest": b"o" * 32}, "head 9"),
        ({"now": NOW - timedelta(minutes=5, seconds=1)}, "not hold before"),
        ({"now": NOW + timedelta(hours=1)}, "expired"),
        ({"now": NOW + timedelta(days=1)}, "expired"),
        ({"consumed": True}, "nonce is consumed"),
    ],
)
def test_whatever_has_moved_makes_it_void(changes: dict[str, Any], words: str) -> None:
    (against,) = decide_decision(decision(), replace(FACTS, **changes))
    assert words in against


def test_every_reason_is_told_not_the_first_one() -> None:
    facts = DecisionFacts("a", "b", 3, 1, b"x" * 32, NOW + timedelta(hours=2), consumed=True)
    assert len(decide_decision(decision(), facts)) == 6


def test_what_is_signed_names_the_key_and_every_field() -> None:
    one = signed_bytes(decision(), "op-1")
    assert one == signed_bytes(decision(), "op-1")
    others = [
        signed_bytes(decision(), "op-2"),
        *(
            signed_bytes(decision(**changes), "op-1")
            for changes in (
                {"tenant": "other"},
                {"thread": "other"},
                {"incarnation": 3},
                {"head_seq": 8},
                {"head_digest": "ab" * 32},
                {"nonce": "1" * 32},
                {"reason": "another"},
                {"expires": NOW + timedelta(hours=2)},
            )
        ),
    ]
    assert len({one, *others}) == len(others) + 1
