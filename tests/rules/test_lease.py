"""May a thread be taken over now? Unknown is never dead (P1, R12)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from surefoot.rules.lease import (
    Acquire,
    HolderFacts,
    ProcessFacts,
    decide_acquire,
    decide_holder_dead,
)

pytestmark = pytest.mark.optimized

HERE = ProcessFacts("boot", "ns", 100, 1_000)
HOLDER = ProcessFacts("boot", "ns", 200, 2_000)


@pytest.mark.parametrize(
    ("boot", "namespace", "start", "start_now"),
    [*product(("boot", "other", ""), ("ns", "other", ""), (2_000, 0), (None, 0, 2_000, 3_000))],
)
def test_every_holder(boot: str, namespace: str, start: int, start_now: int | None) -> None:
    holder = replace(HOLDER, boot_id=boot, pid_namespace=namespace, start=start)
    dead = decide_holder_dead(HolderFacts(holder, HERE, start_now))
    here = (boot, namespace) == ("boot", "ns")
    gone = start_now is None
    reused = start == 2_000 and start_now == 3_000
    assert dead == (here and (gone or reused))


def test_a_holder_that_cannot_be_read_is_not_dead() -> None:
    for start_now in (None, 0, 5):
        assert not decide_holder_dead(HolderFacts(None, HERE, start_now))


def test_a_host_that_knows_nothing_of_itself_proves_nothing() -> None:
    blank = ProcessFacts("", "", 200, 0)
    assert not decide_holder_dead(HolderFacts(blank, blank, None))
    half = ProcessFacts("boot", "", 200, 0)
    assert not decide_holder_dead(HolderFacts(half, half, None))


@pytest.mark.parametrize(
    ("left", "dead", "waited", "may_wait"),
    [*product((-5, 0, 1, 60_000), (False, True), (0, 9, 10, 11), (0, 10))],
)
def test_every_acquirer(left: int, dead: bool, waited: int, may_wait: int) -> None:
    then = decide_acquire(
        lease_left_ms=left, holder_dead=dead, waited_ms=waited, may_wait_ms=may_wait
    )
    if left <= 0:
        assert then is Acquire.TAKE
    elif dead:
        assert then is Acquire.TAKE_OVER
    elif waited < may_wait:
        assert then is Acquire.WAIT
    else:
        assert then is Acquire.BUSY
