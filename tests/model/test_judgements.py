"""A judgement of `surefoot.rules` that goes wrong is caught by the model.

This also proves that the model asks the product's own functions: each is replaced by one that
answers wrongly in a single respect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple

import pytest
from tests.model import records
from tests.model.configurations import QUICK
from tests.model.explorer import explore
from tests.model.state import Config

from surefoot.rules import chain, effects, lease, publish, resume
from surefoot.rules.effects import Barrier, Call, Verdict
from surefoot.rules.envelope import Kind
from surefoot.rules.publish import Then

pytestmark = pytest.mark.timeout(600)

LIMIT = 60_000
Wrong = Callable[..., Any]


class Mutant(NamedTuple):
    """One wrong judgement: which function, what it does, and where and how it shows."""

    text: str
    name: str
    wrong: Wrong
    config: str
    harms: frozenset[str]


def answers(right: Wrong, instead: dict[Enum, Enum]) -> Wrong:
    """The right function, but one answer is another."""

    def wrong(facts: Any) -> Any:
        answer = right(facts)
        if isinstance(answer, Call):
            return replace(answer, verdict=instead.get(answer.verdict, answer.verdict))
        return instead.get(answer, answer)

    return wrong


def blind(right: Wrong, **facts: Any) -> Wrong:
    """The right function over facts that are not the true ones."""
    return lambda given: right(replace(given, **facts))


def adopting(*kinds: Kind) -> Wrong:
    """The tail as if these kinds were adopted."""

    def wrong(head: Any, frames: Any) -> Any:
        kept = chain.ADOPTED_KINDS
        chain.ADOPTED_KINDS = frozenset(kinds)
        try:
            return chain.decide_tail(head, frames)
        finally:
            chain.ADOPTED_KINDS = kept

    return wrong


GATE, PUBLISH = publish.decide_gate, publish.decide_publish
CALL, ABSENT, RESUME = effects.decide_call, effects.decide_absent, resume.decide_resume
HONEST, LOST, FAILOVER = "honest N, looked at", "lost replies", "failover"


def mutant(text: str, name: str, wrong: Wrong, config: str, *harms: str) -> Mutant:
    return Mutant(text, name, wrong, config, frozenset(harms))


MUTANTS = (
    mutant(
        "a fenced write is an alarm",
        "decide_gate",
        answers(GATE, {Then.FENCED: Then.ROLLBACK}),
        HONEST,
        "false alarm",
    ),
    mutant(
        "a fenced write is tried again",
        "decide_gate",
        answers(GATE, {Then.FENCED: Then.RELOAD}),
        LOST,
        "false alarm",
    ),
    mutant(
        "an orphan is an alarm",
        "decide_gate",
        answers(GATE, {Then.RELOAD: Then.ROLLBACK}),
        HONEST,
        "false alarm",
    ),
    mutant(
        "a lost reply is an alarm",
        "decide_gate",
        answers(GATE, {Then.COMMITTED: Then.ROLLBACK}),
        LOST,
        "false alarm",
    ),
    mutant(
        "a rollback is re-based",
        "decide_gate",
        answers(GATE, {Then.ROLLBACK: Then.RELOAD}),
        FAILOVER,
        "hole",
    ),
    mutant(
        "the lost predecessor is not seen",
        "decide_gate",
        blind(GATE, parent_stored=True),
        FAILOVER,
        "hole",
    ),
    mutant(
        "every write is the first",
        "decide_gate",
        blind(GATE, first_write=True),
        FAILOVER,
        "hole",
    ),
    mutant(
        "a fenced publish counts",
        "decide_publish",
        answers(PUBLISH, {Then.FENCED: Then.COMMITTED}),
        HONEST,
        "unwitnessed",
    ),
    mutant(
        "a fenced publish is an alarm",
        "decide_publish",
        answers(PUBLISH, {Then.FENCED: Then.ROLLBACK}),
        HONEST,
        "false alarm",
    ),
    mutant(
        "a lost publish counts",
        "decide_publish",
        answers(PUBLISH, {Then.AGAIN: Then.COMMITTED}),
        LOST,
        "unwitnessed",
    ),
    mutant(
        "a lost reply of B is an alarm",
        "decide_publish",
        answers(PUBLISH, {Then.COMMITTED: Then.ROLLBACK}),
        LOST,
        "false alarm",
    ),
    mutant("no intent is seen", "decide_call", blind(CALL, intent=False), HONEST, "twice"),
    mutant(
        "everything has an intent",
        "decide_call",
        blind(CALL, intent=True),
        HONEST,
        "false refusal",
    ),
    mutant("no record is seen", "decide_call", blind(CALL, state=None), HONEST, "false refusal"),
    mutant(
        "a doubt is run",
        "decide_call",
        answers(CALL, {Verdict.REFUSE: Verdict.RUN}),
        HONEST,
        "twice",
    ),
    mutant(
        "nobody is asked",
        "decide_call",
        answers(CALL, {Verdict.RECONCILE: Verdict.RUN}),
        "honest L then N",
        "twice",
    ),
    mutant(
        "a doubt counts as done",
        "decide_call",
        answers(CALL, {Verdict.RECONCILE: Verdict.REPLAY}),
        "honest L then N",
        "lost effect",
    ),
    mutant(
        "what succeeded is run again",
        "decide_call",
        answers(CALL, {Verdict.REPLAY: Verdict.RUN}),
        HONEST,
        "twice",
    ),
    mutant(
        "absent before it is settled",
        "decide_absent",
        lambda *, strong, reads, settled: ABSENT(strong=strong, reads=reads + 1, settled=True),
        "honest L then N",
        "twice",
    ),
    mutant(
        "absent after one weak read",
        "decide_absent",
        lambda *, strong, reads, settled: ABSENT(strong=True, reads=reads, settled=settled),
        "weak lookup",
        "twice",
    ),
    mutant(
        "no barrier under exit",
        "decide_barrier",
        lambda facts: Barrier.PASS,
        "exit refuses",
        "unpublished base",
    ),
    mutant(
        "a missing head is found",
        "decide_resume",
        blind(RESUME, head_found=True),
        "failover",
        "lost checkpoint",
        "wrong state",
    ),
    mutant(
        "a hole in the chain is not seen",
        "decide_resume",
        blind(RESUME, missing_below=None),
        "adversary L, any subset",
        "wrong state",
    ),
    mutant(
        "a checkpoint in the tail is adopted",
        "decide_tail",
        adopting(Kind.WRITES, Kind.EFFECT, Kind.CHECKPOINT),
        "honest K twice in a step",
        "unpublished base",
    ),
    mutant("no tail", "decide_tail", adopting(), HONEST, "lost outcome"),
    mutant("no writes in the tail", "decide_tail", adopting(Kind.EFFECT), LOST, "lost outcome"),
)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """What was judged rightly, or wrongly, is not remembered from one test to the next."""
    records.forget_judgements()
    yield
    records.forget_judgements()


def named(name: str) -> Config:
    return next(config for config in QUICK if config.name == name)


@pytest.mark.optimized
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.text)
def test_wrong_judgement_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, mutant.name, mutant.wrong)
    found = explore(named(mutant.config), limit=LIMIT)
    assert found.invariant in mutant.harms, (found.states, found.violation)


def test_every_judgement_is_put_to_the_test() -> None:
    judged = {name for name in vars(records) if name.startswith("decide_")}
    # A wrong "free" of the lease is no harm by itself: the fence keeps it safe.
    assert judged - {mutant.name for mutant in MUTANTS} == {lease.decide_acquire.__name__}
