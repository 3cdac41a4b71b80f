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
        ("loop", ["n", "join:a+b:c"], KNOWN, False),
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
def test_at_rest(source: str, with_value: list[str], known: list[str], rest: bool) -> None:
    assert decide_at_rest(source, with_value, known) is rest
