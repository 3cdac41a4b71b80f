"""Is a run at rest after a checkpoint?"""

from __future__ import annotations

import pytest

from surefoot.rules.rest import decide_at_rest

KNOWN = ["__start__", "n", "branch:to:a", "join:a+b:c", "__pregel_tasks"]


@pytest.mark.parametrize(
    ("source", "with_value", "known", "rest"),
    [
        ("loop", [], KNOWN, True),
        ("loop", ["n", "messages"], KNOWN, True),
        ("loop", ["n", "branch:to:a"], KNOWN, False),
        ("loop", ["branch:to:"], KNOWN, False),
        ("loop", {"n": 1, "join:a+b:c": {"a", "b"}}, KNOWN, False),
        ("loop", {"n": 1, "join:a+b:c": {"a"}}, KNOWN, True),
        ("loop", {"n": 1, "join:a+b:c": set()}, KNOWN, True),
        ("loop", {"n": 1, "join:x+y+b:c": {"x+y", "b"}}, KNOWN, False),
        ("loop", {"n": 1, "join:a+b:c": ({"a", "b"}, False)}, KNOWN, False),
        ("loop", {"n": 1, "join:a+b:c": (set(), False)}, KNOWN, True),
        ("loop", {"n": 1, "join:a+b:c": "of another shape"}, KNOWN, False),
        ("loop", ["n", "__pregel_tasks"], KNOWN, False),
        ("loop", ["__start__"], KNOWN, False),
        ("loop", ["branch_to_a", "joined", "a branch:to:b"], KNOWN, True),
        ("input", ["n"], KNOWN, False),
        ("update", ["n"], KNOWN, False),
        ("fork", ["n"], KNOWN, False),
        ("None", ["n"], KNOWN, False),
        # Routed in some other way: nobody can tell, so the end of the run tells.
        ("loop", ["n"], ["n"], False),
        ("loop", [], [], False),
    ],
)
def test_at_rest(
    source: str, with_value: list[str] | dict[str, object], known: list[str], rest: bool
) -> None:
    values = with_value if isinstance(with_value, dict) else dict.fromkeys(with_value, 1)
    assert decide_at_rest(source, values, known) is rest
