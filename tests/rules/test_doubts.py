"""What is in doubt, whoever holds the thread (rule E8)."""

from __future__ import annotations

import pytest

from surefoot.rules.doubts import DoubtFacts, decide_doubt

pytestmark = pytest.mark.optimized

CLOSED = ["succeeded", "failed", "absent", "compensated", "abandoned"]
OPEN = ["in_doubt", "needs_review", "a state of a later release"]


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("intent", [True, False])
@pytest.mark.parametrize("state", [None, "started", *OPEN, *CLOSED])
def test_what_is_in_doubt(state: str | None, intent: bool, live: bool) -> None:
    reason = decide_doubt(DoubtFacts(state, intent, live))
    if state is None:
        expected = intent
    elif state == "started":
        expected = not live
    else:
        expected = state in OPEN
    assert (reason is not None) is expected
    assert reason != ""


def test_the_reason_says_what_went_wrong() -> None:
    told = decide_doubt(DoubtFacts("in_doubt", intent=True, live=True, error="ReadTimeout"))
    assert "ReadTimeout" in (told or "")
