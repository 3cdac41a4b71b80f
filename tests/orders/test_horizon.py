"""An order never narrows the horizon of an earlier one."""

from __future__ import annotations

import pytest

from surefoot.flows.orders import _widest
from surefoot.rules.envelope import Identity
from surefoot.session import NO_HORIZON, Session

pytestmark = pytest.mark.optimized


@pytest.mark.parametrize(
    ("before", "ordered", "widest"),
    [(None, -1, -1), (NO_HORIZON, -1, -1), (0, -1, 0), (7, 3, 7), (3, 7, 7)],
)
def test_the_widest_horizon_stands_also_when_it_ends_at_step_0(
    before: int | None, ordered: int, widest: int
) -> None:
    session = Session(Identity("tenant", "thread", 1), 1, "owner", None)
    session.horizon = before
    assert _widest(ordered, session) == widest
