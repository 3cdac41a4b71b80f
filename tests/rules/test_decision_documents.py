"""Decisions: the object and its document say the same, and nothing is left to be guessed."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from surefoot.errors import Misuse
from surefoot.rules.decisions import Decision, SignedDecision

pytestmark = pytest.mark.optimized

ZEROS = "0" * 64
BASE = {
    "tenant": "tenant",
    "thread": "thread",
    "incarnation": 1,
    "head_seq": 7,
    "head_digest": "0a" * 32,
    "reason": "r",
    "nonce": "0f" * 16,
    "not_before": "2030-01-31T12:00:00Z",
    "expires": "2030-01-31T13:00:00Z",
}
RESTORE = {**BASE, "action": "restore", "to_seq": 3, "to_digest": "0b" * 32, "horizon": 2}
APPROVE = {
    **BASE,
    "action": "approve",
    "outcome": "succeeded",
    **dict.fromkeys(("slot", "recorded_intent", "proposed_intent", "receipt_digest"), "0c" * 32),
}


def read(fields: dict[str, Any]) -> Decision:
    document = {"decision": fields, "key_id": "ops", "signature": "00" * 64}
    return SignedDecision.parse(json.dumps(document)).decision


def by_document(made: Decision) -> Decision:
    return read(json.loads(made.canonical()))


# --- restore: nothing is nothing ---------------------------------------------------------------


@pytest.mark.parametrize(("seq", "digest"), [(3, "0b" * 32), (0, ZEROS)])
def test_a_restore_names_a_record_or_nothing(seq: int, digest: str) -> None:
    made = read({**RESTORE, "to_seq": seq, "to_digest": digest})
    assert (made.to_seq, made.to_digest) == (seq, digest)


@pytest.mark.parametrize(("seq", "digest"), [(0, "ab" * 32), (3, ZEROS), (7, ZEROS)])
def test_a_restore_to_nothing_has_no_digest_and_any_other_has(seq: int, digest: str) -> None:
    with pytest.raises(Misuse, match="to_digest is 64 zeros for to_seq 0"):
        read({**RESTORE, "to_seq": seq, "to_digest": digest})


# --- approve: the result -----------------------------------------------------------------------


def test_a_forgotten_result_is_none() -> None:
    with pytest.raises(Misuse, match="approve needs result"):
        read(APPROVE)
    with pytest.raises(ValidationError, match="approve needs result"):
        Decision.model_validate(APPROVE)


def test_none_is_a_result_when_it_is_given() -> None:
    made = Decision.model_validate({**APPROVE, "result": None})
    assert json.loads(made.canonical())["result"] is None
    assert by_document(made) == made
    assert by_document(made).canonical() == made.canonical()


@pytest.mark.parametrize("outcome", ["absent", "abandoned", "compensated"])
def test_only_a_success_has_a_result(outcome: str) -> None:
    assert "result" not in json.loads(read({**APPROVE, "outcome": outcome}).canonical())
    with pytest.raises(Misuse, match="result does not belong"):
        read({**APPROVE, "outcome": outcome, "result": 1})


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ((1, 2), [1, 2]),
        ({"a": (1, ("b",))}, {"a": [1, ["b"]]}),
        ([None, True, 1.5, "x"], [None, True, 1.5, "x"]),
        ({"a": None}, {"a": None}),
        (2**70, 2**70),
        ("", ""),
    ],
)
def test_a_result_is_what_json_gives_back(given: Any, kept: Any) -> None:
    made = Decision.model_validate({**APPROVE, "result": given})
    assert made.result == kept
    assert type(made.result) is type(kept)
    assert by_document(made).result == made.result


def circle() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def deep() -> list[Any]:
    made: list[Any] = []
    for _ in range(100_000):
        made = [made]
    return made


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({1: "a"}, "name of type int"),
        ({1: "a", "1": "b"}, "name of type int"),
        ([{"a": {None: 1}}], "name of type NoneType"),
        ({(1, 2): 3}, "names that are no text"),
        (datetime(2026, 1, 1, tzinfo=timezone.utc), "datetime"),
        ([{1, 2}], "set"),
        ({"a": b"x"}, "bytes"),
        (float("nan"), "JSON"),
        (10**5_000, "digits"),
        (circle(), "(?i)circular"),
        (object(), "object"),
        (deep(), "too deeply"),
    ],
    ids=lambda v: v if isinstance(v, str) else type(v).__name__,
)
def test_a_result_that_json_would_change_is_refused_by_name(given: Any, says: str) -> None:
    with pytest.raises(ValidationError, match=says) as caught:
        Decision.model_validate({**APPROVE, "result": given})
    assert [e["loc"] for e in caught.value.errors(include_input=False)] == [("result",)]


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(result=plain)
def test_the_object_and_its_document_are_one(result: Any) -> None:
    made = Decision.model_validate({**APPROVE, "result": result})
    again = by_document(made)
    assert again.result == made.result
    assert again.canonical() == made.canonical()
