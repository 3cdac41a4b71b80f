"""The table of mutants is whole, and a seeded share of it is killed; the rest is a campaign."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.mutants.mutant import RULES, Mutant, findings, needed_twice
from tests.mutants.run import ROOT, Run, judge, mutated, run_all, run_tests
from tests.mutants.table import MUTANTS

SEED = os.environ.get("SUREFOOT_MUTANTS_SEED", "surefoot")
SHARE = 3
#: Tests of these folders need no store, so a share of their mutants is quick.
QUICK = "tests/rules/"


def test_every_mutant_applies_and_every_rule_has_two() -> None:
    assert [*findings(MUTANTS, ROOT)] == []
    assert len(MUTANTS) >= 60
    assert {m.rule for m in MUTANTS} == {*RULES}


def test_every_rule_of_a_mutant_stands_in_the_book() -> None:
    book = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    for rule in RULES:
        assert f"| {rule} |" in book, rule


def test_every_test_that_is_named_exists() -> None:
    nodes = sorted({node for m in MUTANTS for node in m.killed_by})
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", *nodes],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert collected.returncode == 0, collected.stdout[-2_000:]


# --- a share that runs each time ---------------------------------------------------------------


HARMLESS = Mutant(
    "P1-harmless",
    "rules/lease.py",
    '    """What an acquirer does next."""\n',
    '    """What an acquirer does next, in other words."""\n',
    "it is none: its test must pass, or whatever is killed beside it proves nothing",
    ("tests/rules/test_lease.py::test_every_acquirer",),
)


def test_a_seeded_share_is_killed_and_its_harmless_twin_survives() -> None:
    quick = [m for m in MUTANTS if all(n.startswith(QUICK) for n in m.killed_by)]
    share = random.Random(SEED).sample(quick, SHARE)
    verdicts = run_all([*share, HARMLESS], jobs=2, timeout_s=60)
    assert {v.id: v.outcome for v in verdicts} == {
        **{m.id: "killed" for m in share},
        HARMLESS.id: "survived",
    }
    assert verdicts[-1].reasons == {HARMLESS.killed_by[0]: "passed"}
    for verdict in verdicts:
        package = Path(verdict.package)
        assert package.name == "__init__.py"
        assert not package.is_relative_to(ROOT), "the mutant was not what was imported"


# --- the table and the judge have teeth --------------------------------------------------------


def test_a_table_that_is_not_whole_is_told() -> None:
    one = MUTANTS[0]
    told = "\n".join(
        findings(
            [
                replace(one, old="this stands nowhere"),
                replace(one, id="P0-new", new=one.old),
                replace(one, id="P0-blind", killed_by=()),
                replace(one, id="P0-broken", new="    def ("),
                replace(one, id="P0-gone", file="no_such_file.py"),
                replace(one, id="X9-unknown"),
                replace(one, id="P0-new"),
            ],
            ROOT,
        )
    )
    for said in (
        "stands 0 times",
        "P0-new changes nothing",
        "P0-blind names no test",
        "P0-broken",
        "P0-gone",
        "rule X9 is none",
        "P0-new stands 2 times",
        "rule R4 has 0 mutants",
    ):
        assert said in told, said
    assert "there is no mutant" in "\n".join(findings([], ROOT))
    assert len([*needed_twice([])]) == len(RULES)


def witnessed(root: Path, mutant: Mutant, **changes: object) -> Run:
    """What the witness of a run that was killed would write."""
    path = root / "src" / "surefoot" / mutant.file
    assert mutant.module is not None
    seen = {
        "files": {
            "surefoot": str(root / "src" / "surefoot" / "__init__.py"),
            mutant.module: str(path),
        },
        "digests": {mutant.module: hashlib.sha256(path.read_bytes()).hexdigest()},
        "outcomes": dict.fromkeys(mutant.killed_by, "failed"),
        "reasons": dict.fromkeys(mutant.killed_by, "AssertionError: 1 != 2"),
        **changes,
    }
    return Run(ended=True, testimony=seen, output="")


def test_only_a_test_that_failed_on_the_changed_file_kills() -> None:
    mutant = next(m for m in MUTANTS if m.file == "rules/lease.py")
    first = mutant.killed_by[0]
    with mutated(ROOT, mutant) as root:
        good = witnessed(root, mutant)

        def outcome(run: Run) -> str:
            return judge(mutant, run, root, 1.0).outcome

        def with_reason(text: str) -> Run:
            return witnessed(root, mutant, reasons=dict.fromkeys(mutant.killed_by, text))

        assert outcome(good) == "killed"
        assert outcome(
            witnessed(root, mutant, outcomes=dict.fromkeys(mutant.killed_by, "passed"))
        ) == ("survived")
        half = {**good.testimony["outcomes"], first: "passed"}
        assert len(half) == 1 or outcome(witnessed(root, mutant, outcomes=half)) == "survived"
        cases = {f"{n}[{c}]": c for n in mutant.killed_by for c in ("failed", "passed")}
        assert outcome(witnessed(root, mutant, outcomes=cases, reasons={})) == "killed"
        # What was not run, crashed, hung or ran on other sources proves nothing.
        assert outcome(witnessed(root, mutant, outcomes={})) == "broken"
        skipped = dict.fromkeys(mutant.killed_by, "skipped")
        assert outcome(witnessed(root, mutant, outcomes=skipped)) == "broken"
        assert outcome(with_reason("NameError: name 'x' is not defined")) == "broken"
        assert outcome(with_reason("Failed: Timeout (>120.0s) from pytest-timeout.")) == "hung"
        assert outcome(Run(ended=True, testimony={}, output="no")) == "broken"
        assert outcome(Run(ended=False, testimony={}, output="")) == "hung"
        elsewhere = {**good.testimony["files"], "surefoot": str(ROOT / "src/surefoot/__init__.py")}
        assert outcome(witnessed(root, mutant, files=elsewhere)) == "broken"
        stale = dict.fromkeys(good.testimony["digests"], "0" * 64)
        assert outcome(witnessed(root, mutant, digests=stale)) == "broken"
        may_hang = replace(mutant, may_hang=True)
        assert judge(may_hang, Run(ended=False, testimony={}, output=""), root, 1.0).outcome == (
            "killed"
        )


def test_a_test_that_fails_without_a_mutant_stops_the_campaign() -> None:
    blind = replace(MUTANTS[0], killed_by=("tests/rules/test_lease.py::test_that_is_not_there",))
    with pytest.raises(RuntimeError, match="was not run"):
        run_all([blind], jobs=1, timeout_s=60)


def test_no_test_at_all_is_never_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no test is named"):
        run_tests(tmp_path, [], 1.0)
