"""Recorded reads: when an outcome is replayed, and what a difference looks like."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.rules.fingerprint import Unfingerprintable
from surefoot.rules.reads import (
    ObservationFacts,
    OnStale,
    ReadFacts,
    ReadVerdict,
    decide_observation,
    decide_read,
    differences,
    outline,
    place_of_checkpoints,
)

pytestmark = pytest.mark.optimized

READ, REPLAY, STALE = ReadVerdict.READ, ReadVerdict.REPLAY, ReadVerdict.STALE
#: age, freshness -> verdict when the inputs are the same.
AGES = {
    (0, None): REPLAY,
    (10**15, None): REPLAY,
    (-1, None): REPLAY,
    (9, 10): REPLAY,
    (10, 10): READ,
    (11, 10): READ,
    (0, 0): READ,
    (-1, 10): READ,
    (-1, 0): READ,
}


@pytest.mark.parametrize(("age", "freshness"), AGES)
def test_an_outcome_is_replayed_while_it_is_fresh(age: int, freshness: int | None) -> None:
    facts = ReadFacts(recorded=True, age_us=age, freshness_us=freshness)
    assert decide_read(facts).verdict is AGES[age, freshness]


@pytest.mark.parametrize(("age", "freshness"), AGES)
@pytest.mark.parametrize(("on_stale", "verdict"), [(OnStale.REFUSE, STALE), (OnStale.READ, READ)])
def test_other_inputs_are_never_answered_by_the_record(
    age: int, freshness: int | None, on_stale: OnStale, verdict: ReadVerdict
) -> None:
    facts = ReadFacts(
        recorded=True, same_inputs=False, age_us=age, freshness_us=freshness, on_stale=on_stale
    )
    assert decide_read(facts).verdict is verdict
    assert decide_read(facts).reason


@pytest.mark.parametrize(("age", "freshness"), AGES)
def test_what_an_effect_is_made_of_has_no_age(age: int, freshness: int | None) -> None:
    facts = ReadFacts(recorded=True, used=True, age_us=age, freshness_us=freshness)
    assert decide_read(facts).verdict is REPLAY
    assert decide_read(replace(facts, same_inputs=False)).verdict is STALE


@pytest.mark.parametrize(("age", "freshness"), AGES)
@pytest.mark.parametrize("on_stale", OnStale)
def test_what_served_an_attempt_that_did_nothing_refuses_nothing(
    age: int, freshness: int | None, on_stale: OnStale
) -> None:
    facts = ReadFacts(
        recorded=True, void=True, age_us=age, freshness_us=freshness, on_stale=on_stale
    )
    assert decide_read(facts).verdict is AGES[age, freshness]
    assert decide_read(replace(facts, same_inputs=False)).verdict is READ


@pytest.mark.parametrize(
    ("freshness", "on_stale", "same"), list(product([None, 0, 5], OnStale, [True, False]))
)
def test_what_is_not_recorded_is_read(freshness: int | None, on_stale: OnStale, same: bool) -> None:
    facts = ReadFacts(recorded=False, same_inputs=same, freshness_us=freshness, on_stale=on_stale)
    assert decide_read(facts).verdict is READ


def test_a_record_without_an_age_is_not_fresh() -> None:
    assert decide_read(ReadFacts(recorded=True, freshness_us=5)).verdict is READ


@pytest.mark.parametrize(
    ("replayed", "spent", "named", "names_any", "same_task", "ours"),
    list(product([True, False], repeat=6)),
)
def test_an_observation_is_verified_where_an_effect_depends_on_it(
    replayed: bool, spent: bool, named: bool, names_any: bool, same_task: bool, ours: bool
) -> None:
    facts = ObservationFacts(replayed, spent, named, names_any, same_task, ours)
    depends = (named and not ours) if names_any else (same_task and not spent)
    assert decide_observation(facts) is (replayed and depends)


# --- what differs ------------------------------------------------------------------------------

BEFORE = {
    "q": "flights",
    "filters": {"from": "HAM", "to": "OSL", "days": [1, 2]},
    "messages": [{"role": "user", "content": "go"}],
}
MOVES: list[tuple[dict[str, Any], list[str]]] = [
    ({**BEFORE}, []),
    ({**BEFORE, "q": "trains"}, ["changed: q"]),
    ({**BEFORE, "limit": 5}, ["added: limit"]),
    ({k: v for k, v in BEFORE.items() if k != "q"}, ["removed: q"]),
    ({**BEFORE, "filters": {"from": "HAM", "to": "SVG", "days": [1, 2]}}, ["changed: filters.to"]),
    ({**BEFORE, "filters": {"from": "HAM", "to": "OSL"}}, ["removed: filters.days"]),
    (
        {**BEFORE, "messages": [*BEFORE["messages"], {"role": "ai", "content": "on my way"}]},
        ["added: messages[1]"],
    ),
    ({**BEFORE, "messages": [{"role": "user", "content": "no"}]}, ["changed: messages[0].content"]),
    (
        {**BEFORE, "filters": None},
        ["removed: filters.days", "removed: filters.from", "removed: filters.to"],
    ),
]


@pytest.mark.parametrize(("now", "told"), MOVES, ids=[str(i) for i in range(len(MOVES))])
def test_a_difference_names_paths_and_no_values(now: dict[str, Any], told: list[str]) -> None:
    found = differences(outline(BEFORE, effect="e"), outline(now, effect="e"))
    assert found == told


def test_an_outline_stays_small_and_still_tells_that_something_moved() -> None:
    long = {"messages": [{"content": f"message {n}"} for n in range(5_000)]}
    other = {"messages": [*long["messages"][:-1], {"content": "another"}]}
    before, now = outline(long, effect="e"), outline(other, effect="e")
    assert len(before) <= 96
    assert differences(before, now) == ["changed: messages"]


def test_many_differences_are_counted() -> None:
    before = outline({f"a{n:02}": 1 for n in range(30)}, effect="e")
    now = outline({f"a{n:02}": 2 for n in range(30)}, effect="e")
    assert differences(before, now)[-1] == "and 18 more"
    assert len(differences(before, now)) == 13


def test_what_has_no_canonical_form_has_no_outline() -> None:
    with pytest.raises(Unfingerprintable):
        outline({"x": object()}, effect="e")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
inputs = st.dictionaries(st.sampled_from(["a", "b", "c"]), plain, max_size=3)


@given(inputs, inputs)
def test_two_inputs_differ_where_their_outlines_do(one: Any, other: Any) -> None:
    before, now = outline(one, effect="e"), outline(other, effect="e")
    assert (differences(before, now) == []) is (before == now)
    assert differences(before, dict(before)) == []


@given(st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), max_size=3))
def test_a_place_is_named_by_all_its_checkpoints(levels: list[tuple[str, str]]) -> None:
    named = place_of_checkpoints(tuple(levels))
    assert len(named) == 32
    assert named != place_of_checkpoints((*levels, ("", "")))
