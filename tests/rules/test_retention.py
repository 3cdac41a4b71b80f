"""What a prune keeps: the latest, and all that a DeltaChannel is rebuilt from (P6, case 40)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.rules.retention import CheckpointFacts, decide_cuts, decide_kept, decide_latest

pytestmark = pytest.mark.optimized


def fact(
    checkpoint_id: str,
    parent: str | None = None,
    *,
    order: int = 0,
    namespace: str = "",
    stored: str = "",
    delta: str = "",
    branch: bytes = b"",
) -> CheckpointFacts:
    return CheckpointFacts(
        (namespace, checkpoint_id), parent, order, frozenset(stored), frozenset(delta), None, branch
    )


def kept(facts: list[CheckpointFacts], *wanted: str) -> str:
    return "".join(sorted(i for _, i in decide_kept(facts, {("", w) for w in wanted})))


def test_the_latest_is_the_last_on_the_chain_not_the_largest_id() -> None:
    facts = [fact("z", order=1), fact("a", order=9), fact("m", order=5)]
    assert decide_latest(facts) == {("", "a")}
    assert decide_latest([]) == frozenset()


def test_each_namespace_has_a_latest() -> None:
    facts = [
        fact("a", order=1),
        fact("b", order=2),
        fact("c", order=3, namespace="sub"),
        fact("d", order=4, namespace="sub"),
        fact("e", order=5, namespace="sub|x"),
    ]
    assert decide_latest(facts) == {("", "b"), ("sub", "d"), ("sub|x", "e")}


def test_the_head_of_a_fork_that_was_left_stays() -> None:
    facts = [
        fact("a", order=1),
        fact("b", order=2),
        fact("x", order=3, branch=b"fork"),
        fact("y", order=4, branch=b"fork"),
        fact("z", order=5, branch=b"other"),
    ]
    assert decide_latest(facts) == {("", "b"), ("", "y"), ("", "z")}


def test_without_delta_channels_only_the_wanted_stay() -> None:
    facts = [fact("a"), fact("b", "a"), fact("c", "b")]
    assert kept(facts, "c") == "c"
    assert kept(facts) == ""
    assert kept(facts, "a", "c") == "ac"


def test_a_wanted_one_that_is_not_there_is_passed_over() -> None:
    assert kept([fact("a")], "a", "zzz") == "a"


def test_a_delta_channel_keeps_its_ancestors_down_to_the_stored_value() -> None:
    facts = [
        fact("a"),
        fact("b", "a", stored="m", delta="m"),
        fact("c", "b", delta="m"),
        fact("d", "c", delta="m"),
    ]
    assert kept(facts, "d") == "bcd"


def test_a_snapshot_of_its_own_needs_no_ancestor() -> None:
    facts = [fact("a", delta="m"), fact("b", "a", stored="m", delta="m")]
    assert kept(facts, "b") == "b"


def test_without_any_stored_value_the_whole_line_stays() -> None:
    facts = [fact("a", delta="m"), fact("b", "a", delta="m"), fact("c", "b", delta="m")]
    assert kept(facts, "c") == "abc"


def test_each_delta_channel_finds_its_own_end() -> None:
    facts = [
        fact("a", stored="m"),
        fact("b", "a", stored="n"),
        fact("c", "b", delta="mn"),
        fact("d", "c", delta="mn"),
    ]
    assert kept(facts, "d") == "abcd"
    assert kept([facts[0], facts[1], facts[2], fact("d", "c", delta="n")], "d") == "bcd"


def test_a_line_that_ends_early_ends_the_search() -> None:
    assert kept([fact("d", "gone", delta="m")], "d") == "d"


def test_ancestors_of_another_namespace_do_not_count() -> None:
    facts = [fact("a", namespace="sub", stored="m"), fact("b", "a", delta="m")]
    assert kept(facts, "b") == "b"


@pytest.mark.parametrize(
    ("kept_ids", "cuts"),
    [("", True), ("c", False), ("abc", False), ("b", True), ("ab", True), ("ac", False)],
)
def test_a_prune_cuts_when_a_later_root_checkpoint_goes(kept_ids: str, cuts: bool) -> None:
    """Step numbers come back then; checkpoints of other namespaces are no steps of the root."""
    facts = [fact(name, order=n) for n, name in enumerate("abc", start=1)]
    facts.append(fact("s", order=9, namespace="sub"))
    assert decide_cuts(facts, {("", name) for name in kept_ids}) is cuts
    assert decide_cuts([facts[-1]], set()) is False
    assert decide_cuts([], set()) is False


@given(
    st.lists(
        st.tuples(
            st.integers(-1, 8), st.sets(st.sampled_from("mn")), st.sets(st.sampled_from("mn"))
        ),
        min_size=1,
        max_size=9,
    ),
    st.data(),
)
def test_every_kept_one_can_be_rebuilt(
    shape: list[tuple[int, set[str], set[str]]], data: st.DataObject
) -> None:
    facts = [
        CheckpointFacts(
            ("", str(n)),
            None if not 0 <= parent < n else str(parent),
            n,
            frozenset(stored),
            frozenset(delta),
            None,
        )
        for n, (parent, stored, delta) in enumerate(shape)
    ]
    wanted = data.draw(st.sets(st.sampled_from([f.place for f in facts])))
    by_place = {f.place: f for f in facts}
    result = decide_kept(facts, wanted)
    assert wanted <= result
    for place in wanted:
        for channel in by_place[place].delta:
            at: CheckpointFacts | None = by_place[place]
            while at is not None:
                assert at.place in result
                if channel in at.stored:
                    break
                at = None if at.parent_id is None else by_place[("", at.parent_id)]
