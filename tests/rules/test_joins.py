"""What a join had seen when a checkpoint was made."""

from __future__ import annotations

import pytest

from surefoot.rules.joins import decide_join, is_join

JOIN = "join:a+b:c"


@pytest.mark.parametrize(
    ("live", "before", "ran", "expected"),
    [
        # a ran in this step; b only in the next one, which is already in the live set.
        ({"a", "b"}, set(), {"a"}, {"a"}),
        ({"a", "b"}, {"a"}, {"b"}, {"a", "b"}),
        ({"a"}, {"a"}, {"x"}, {"a"}),
        # Complete before, and c ran: consumed, so what is there is of this step or a later one.
        ({"a"}, {"a", "b"}, {"c"}, set()),
        ({"a", "b"}, {"a", "b"}, {"c", "a"}, {"a"}),
        # Complete before, but c did not run (it was interrupted): nothing is consumed.
        ({"a", "b"}, {"a", "b"}, {"x"}, {"a", "b"}),
        (set(), {"a", "b"}, {"c"}, set()),
    ],
)
def test_join(live: set[str], before: set[str], ran: set[str], expected: set[str]) -> None:
    nodes = {"a", "b", "c", "x"}
    earlier = {node: {"branch:to:" + node: 1} for node in nodes}
    now = {node: {"branch:to:" + node: 2 if node in ran else 1} for node in nodes}
    assert decide_join(JOIN, live, before, now, earlier) == expected


def test_a_node_without_a_trace_counts_only_when_it_was_sent() -> None:
    assert decide_join(JOIN, {"a", "b"}, set(), {}, {}, {"b"}) == {"b"}


def test_shapes() -> None:
    assert is_join(JOIN, {"a"})
    assert is_join(JOIN, ({"a"}, False))
    assert not is_join(JOIN, "text")
    assert not is_join("other", {"a"})
