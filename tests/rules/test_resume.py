"""Rules R1 to R6: every combination of facts that can occur, and what it leads to."""

from __future__ import annotations

from itertools import product

import pytest

from surefoot.rules.resume import (
    Finding,
    ResumeDecision,
    ResumeFacts,
    Verdict,
    _strictest,
    decide_resume,
)

pytestmark = pytest.mark.optimized

BROKEN = "a seal does not match"
#: (stored, witnessed, mark at, head found, sibling found, broken, missing below) -> rules
# Facts about the head exist only where there is a mark with a seq and the rows verified.
_SHAPES = [
    (stored, witnessed, seq, head, sibling, broken, missing)
    for stored, witnessed, seq, head, sibling, broken, missing in product(
        (False, True),
        (False, True),
        (0, 9),
        (False, True),
        (False, True),
        (None, BROKEN),
        (None, 4),
    )
    if (witnessed or not seq)
    and not (head and sibling)
    and (not (head or sibling) or (stored and witnessed and seq))
]


def expected(
    stored: bool,
    witnessed: bool,
    seq: int,
    head: bool,
    sibling: bool,
    broken: str | None,
    missing: int | None,
) -> set[str]:
    """The book, in words of its own."""
    rules = set()
    if broken or missing:
        rules.add("R6")
    if not witnessed:
        rules.add("R2" if stored else "R1")
    elif not seq:
        rules.add("R1")
    elif head:
        rules.add("R5")
    elif not broken:
        rules.add("R4" if sibling else "R3")
    return rules


@pytest.mark.parametrize("shape", _SHAPES, ids=repr)
def test_every_combination_of_facts(shape: tuple[object, ...]) -> None:
    stored, witnessed, seq, head, sibling, broken, missing = shape
    decision = decide_resume(
        ResumeFacts(
            stored=bool(stored),
            witnessed=bool(witnessed),
            mark_seq=int(str(seq)),
            highest_seq=9 if stored else 0,
            head_found=bool(head),
            sibling_found=bool(sibling),
            broken=broken,  # type: ignore[arg-type]
            missing_below=missing,  # type: ignore[arg-type]
        )
    )
    rules = expected(*shape)  # type: ignore[arg-type]
    assert {f.rule for f in decision.findings} == rules
    assert all(f.text for f in decision.findings)
    refusing = rules & {"R2", "R3", "R4", "R6"}
    if refusing:
        assert decision.verdict is Verdict.REFUSE
    else:
        assert decision.verdict is (Verdict.PROCEED if "R5" in rules else Verdict.FRESH)
    assert {f.rule for f in decision.refusals()} == refusing
    # Both reasons for R6 are told when both hold.
    assert len([f for f in decision.findings if f.rule == "R6"]) == bool(broken) + bool(missing)


def test_the_table_is_not_empty_and_covers_every_rule() -> None:
    seen = [expected(*shape) for shape in _SHAPES]
    assert len(seen) > 30
    assert set().union(*seen) == {"R1", "R2", "R3", "R4", "R5", "R6"}


@pytest.mark.parametrize(
    ("facts", "rule", "verdict", "words"),
    [
        (ResumeFacts(False, False), "R1", Verdict.FRESH, "nothing stored, nothing witnessed"),
        (ResumeFacts(False, True), "R1", Verdict.FRESH, "admitted"),
        (ResumeFacts(True, True), "R1", Verdict.FRESH, "admitted"),
        (ResumeFacts(True, False), "R2", Verdict.REFUSE, "never seen it"),
        (ResumeFacts(False, True, 5), "R3", Verdict.REFUSE, "record 5 was published"),
        (ResumeFacts(True, True, 5, 4), "R3", Verdict.REFUSE, "ends at 4"),
        (ResumeFacts(True, True, 5, 9), "R3", Verdict.REFUSE, "record 5 was published"),
        (
            ResumeFacts(True, True, 5, 5, sibling_found=True),
            "R4",
            Verdict.REFUSE,
            "another record 5",
        ),
        (
            ResumeFacts(True, True, 5, 9, head_found=True, adopted=2, orphans=1),
            "R5",
            Verdict.PROCEED,
            "2 tail records adopted, 1 unpublished",
        ),
        (ResumeFacts(True, True, 5, 5, broken=BROKEN), "R6", Verdict.REFUSE, BROKEN),
        (
            ResumeFacts(True, True, 5, 5, head_found=True, missing_below=3),
            "R6",
            Verdict.REFUSE,
            "record 3",
        ),
    ],
)
def test_each_rule_says_what_it_saw(
    facts: ResumeFacts, rule: str, verdict: Verdict, words: str
) -> None:
    found = [f for f in decide_resume(facts).findings if f.rule == rule]
    assert len(found) == 1
    assert found[0].verdict is verdict
    assert words in found[0].text


def test_a_tampered_row_hides_no_other_finding() -> None:
    decision = decide_resume(ResumeFacts(True, False, broken=BROKEN, missing_below=2))
    assert [f.rule for f in decision.findings] == ["R6", "R2", "R6"]
    assert decision.verdict is Verdict.REFUSE


def test_no_finding_never_means_go_on() -> None:
    with pytest.raises(ValueError, match="no rule"):
        _strictest([])


def test_the_strictest_verdict_counts() -> None:
    findings = [Finding("a", v, "") for v in (Verdict.FRESH, Verdict.PROCEED, Verdict.REFUSE)]
    assert _strictest(findings) is Verdict.REFUSE
    assert _strictest(findings[:2]) is Verdict.PROCEED
    assert _strictest(findings[:1]) is Verdict.FRESH
    assert ResumeDecision(Verdict.REFUSE, tuple(findings)).refusals() == findings[2:]
