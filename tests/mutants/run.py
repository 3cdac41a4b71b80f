"""Runs mutants: each in a copy of the tree, its named tests in a process of its own.

``python -m tests.mutants.run`` first runs every named test on an unchanged copy, which must
pass. Then each mutant is applied to a copy and its tests must fail. It is proven that the
process has imported the changed file, and a mutant that only crashes (a name that is not
defined, a file that does not compile, a test that could not be collected) counts as broken, not
as killed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.mutants.mutant import PACKAGE, RULES, Mutant, findings
from tests.mutants.table import MUTANTS
from tests.mutants.witness import TESTIMONY

__all__ = ["ROOT", "Verdict", "chosen", "judge", "main", "run_all", "run_tests"]

ROOT = Path(__file__).resolve().parents[2]
_COPIED = ("src", "tests", "pyproject.toml")
_TIMEOUT_S = 300.0
#: Errors of a mutant that was written wrongly: they prove nothing about the tests.
_CRASHES = ("NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError", "SyntaxError")


@dataclass(frozen=True, slots=True)
class Run:
    """What one process of pytest did.

    Attributes:
        ended: False when it did not end in time.
        testimony: What the witness wrote; empty when it could not.
        output: The last lines of what was printed.
    """

    ended: bool
    testimony: dict[str, Any]
    output: str


@dataclass(slots=True)
class Verdict:
    """What became of one mutant.

    Attributes:
        id: Of the mutant.
        rule: That it breaks.
        outcome: ``killed``, ``survived``, ``hung`` or ``broken``.
        seconds: That its tests took.
        package: ``surefoot.__file__`` of the process that ran them.
        reasons: The first line of the error of each test that failed, or what is broken.
    """

    id: str
    rule: str
    outcome: str
    seconds: float = 0.0
    package: str = ""
    reasons: dict[str, str] = field(default_factory=dict)


# --- copies ------------------------------------------------------------------------------------


def copy_tree(source: Path, target: Path) -> None:
    """Copies what a test run needs; compiled files keep their sources' times."""
    for name in _COPIED:
        if (source / name).is_dir():
            skip = shutil.ignore_patterns(".pytest_cache", ".mypy_cache")
            shutil.copytree(source / name, target / name, ignore=skip)
        else:
            shutil.copy2(source / name, target / name)


@contextmanager
def mutated(base: Path, mutant: Mutant) -> Iterator[Path]:
    """A copy of a tree with one mistake in it."""
    folder = Path(tempfile.mkdtemp(prefix="surefoot-mutant-"))
    try:
        copy_tree(base, folder)
        path = folder / PACKAGE / mutant.file
        path.write_text(mutant.applied(base), encoding="utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- one process -------------------------------------------------------------------------------


def run_tests(root: Path, nodes: Collection[str], timeout_s: float) -> Run:
    """Runs tests of a copy in a process group of its own, with its sources first on the path.

    Raises:
        ValueError: No test is named.
    """
    if not nodes:
        raise ValueError("no test is named, and without a name pytest would run them all")
    testimony = root / "testimony.json"
    testimony.unlink(missing_ok=True)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
        "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}",
        TESTIMONY: str(testimony),
    }
    plugins = ("-p", "tests.mutants.witness", "-p", "no:cacheprovider")
    with (root / "output.txt").open("w+", encoding="utf-8") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *plugins, "--tb=short", *nodes],
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(timeout_s)
            ended = True
        except subprocess.TimeoutExpired:
            ended = False
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        shown = output.read()[-4_000:]
    seen = json.loads(testimony.read_text(encoding="utf-8")) if testimony.exists() else {}
    return Run(ended, seen, shown)


# --- judging -----------------------------------------------------------------------------------


def _cases(outcomes: dict[str, str], node: str) -> list[str]:
    """Node ids of the cases that a name stands for."""
    return [found for found in outcomes if found == node or found.startswith(f"{node}[")]


def judge(mutant: Mutant, run: Run, root: Path, seconds: float) -> Verdict:
    """Decides what a run says about a mutant."""
    verdict = Verdict(mutant.id, mutant.rule, "broken", round(seconds, 1))
    if not run.ended:
        verdict.outcome = "killed" if mutant.may_hang else "hung"
        return verdict
    seen = run.testimony
    verdict.package = seen.get("files", {}).get("surefoot", "")
    problem = _not_proven(mutant, seen, root)
    if problem:
        verdict.reasons = {"(run)": f"{problem}; {run.output[-400:]}"}
        return verdict
    outcomes: dict[str, str] = seen["outcomes"]
    missed: list[str] = []
    for node in mutant.killed_by:
        cases = _cases(outcomes, node)
        failed = [c for c in cases if outcomes[c] == "failed"]
        if not cases or {outcomes[c] for c in cases} == {"skipped"}:
            verdict.reasons = {node: "was not run"}
            return verdict
        if not failed:
            missed.append(node)
            continue
        reason = seen["reasons"].get(failed[0], "")
        verdict.reasons[failed[0]] = reason
        if reason.split(":")[0] in _CRASHES:
            return verdict
        if reason.startswith("Failed: Timeout (>") and not mutant.may_hang:
            verdict.outcome = "hung"
            return verdict
    verdict.outcome = "survived" if missed else "killed"
    verdict.reasons.update(dict.fromkeys(missed, "passed"))
    return verdict


def _not_proven(mutant: Mutant, seen: dict[str, Any], root: Path) -> str:
    """Why it is not proven that the tests ran on the changed file; empty when it is."""
    if not seen:
        return "the run left no testimony"
    path = root / PACKAGE / mutant.file
    package = Path(seen["files"].get("surefoot", "nowhere"))
    if package != root / PACKAGE / "__init__.py":
        return f"surefoot was imported from {package}"
    if mutant.module is None:
        return ""
    if seen["files"].get(mutant.module) != str(path):
        return f"{mutant.module} was imported from {seen['files'].get(mutant.module)}"
    if seen["digests"][mutant.module] != hashlib.sha256(path.read_bytes()).hexdigest():
        return f"{mutant.module} is not the changed file"
    return ""


# --- all ---------------------------------------------------------------------------------------


def say(text: str) -> None:
    """Prints progress."""
    print(text, flush=True)


def check_unchanged(base: Path, mutants: Sequence[Mutant], jobs: int) -> list[str]:
    """Runs every named test on the unchanged copy; gives what does not pass there."""
    nodes = sorted({node for m in mutants for node in m.killed_by})
    files = sorted({node.split("::")[0] for node in nodes})
    jobs = min(jobs, len(files))
    shares = [
        [n for n in nodes if files.index(n.split("::")[0]) % jobs == job] for job in range(jobs)
    ]
    # One after the other would be slow; each process has a copy, since each leaves a testimony.
    problems: list[str] = []

    def run(job: int, share: Sequence[str]) -> Run:
        if job == 0:
            return run_tests(base, share, _TIMEOUT_S * 4)
        with tempfile.TemporaryDirectory(prefix="surefoot-unchanged-") as folder:
            copy_tree(ROOT, Path(folder))
            return run_tests(Path(folder), share, _TIMEOUT_S * 4)

    with ThreadPoolExecutor(jobs) as pool:
        runs = [*pool.map(run, range(jobs), shares)]
    for share, done in zip(shares, runs, strict=True):
        outcomes = done.testimony.get("outcomes", {})
        problems += [f"{n}: {o}" for n, o in outcomes.items() if o != "passed"]
        problems += [f"{n}: was not run" for n in share if not _cases(outcomes, n)]
        if not done.ended or not outcomes:
            problems.append(f"the run did not end well: {done.output[-1_000:]}")
    return problems


def run_all(mutants: Sequence[Mutant], *, jobs: int, timeout_s: float) -> list[Verdict]:
    """Runs mutants side by side, after all their tests have passed without them.

    Raises:
        RuntimeError: A named test does not pass on the unchanged tree.
    """
    with tempfile.TemporaryDirectory(prefix="surefoot-base-") as folder:
        base = Path(folder)
        copy_tree(ROOT, base)
        since = time.monotonic()
        problems = check_unchanged(base, mutants, jobs)
        if problems:
            raise RuntimeError("without a mutant:\n" + "\n".join(problems))
        say(f"unchanged: every named test passes ({time.monotonic() - since:.0f} s)")

        def run(mutant: Mutant) -> Verdict:
            with mutated(base, mutant) as root:
                begun = time.monotonic()
                done = run_tests(root, mutant.killed_by, timeout_s)
                return judge(mutant, done, root, time.monotonic() - begun)

        verdicts: list[Verdict] = []
        with ThreadPoolExecutor(jobs) as pool:
            futures = {pool.submit(run, mutant): mutant for mutant in mutants}
            for number, future in enumerate(as_completed(futures), start=1):
                verdict = future.result()
                verdicts.append(verdict)
                say(
                    f"[{number:3}/{len(mutants)}] {verdict.outcome:8} {verdict.seconds:6.1f} s  "
                    f"{verdict.id}  ({verdict.package or 'not imported'})"
                )
                if verdict.outcome != "killed":
                    say(f"    {futures[future].why}\n    {verdict.reasons}")
    return sorted(verdicts, key=lambda v: [m.id for m in mutants].index(v.id))


def chosen(
    ids: Collection[str] = (), *, rules: Collection[str] = (), share: int = 0, seed: str = ""
) -> list[Mutant]:
    """The mutants of these ids and rules (all when none are given), or a seeded share of them.

    Raises:
        ValueError: There is none.
    """
    found = [
        m
        for m in MUTANTS
        if (not ids or m.id in ids or any(m.id.startswith(i) for i in ids))
        and (not rules or m.rule in rules)
    ]
    if share:
        found = random.Random(seed).sample(found, min(share, len(found)))
    if not found:
        raise ValueError("no mutant of the table is chosen")
    return found


def report(verdicts: Sequence[Verdict], seconds: float) -> dict[str, Any]:
    """What a campaign found, as plain data."""
    killed = [v for v in verdicts if v.outcome == "killed"]
    return {
        "killed": len(killed),
        "total": len(verdicts),
        "seconds": round(seconds),
        "rules": {
            rule: {
                "killed": sum(v.rule == rule for v in killed),
                "total": sum(v.rule == rule for v in verdicts),
            }
            for rule in RULES
        },
        "mutants": [asdict(v) for v in verdicts],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0 when every mutant was killed and every rule has two."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.run", description=__doc__)
    parser.add_argument("ids", nargs="*", help="ids of mutants, or how they begin")
    parser.add_argument("--rule", action="append", default=[], choices=RULES)
    parser.add_argument("--share", type=int, default=0, help="only so many of them")
    parser.add_argument("--seed", default="", help="which ones a share takes")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=_TIMEOUT_S, help="seconds per mutant")
    parser.add_argument("--json", type=Path, help="where to write the report")
    given = parser.parse_args(arguments)
    since = time.monotonic()
    wrong = [*findings(MUTANTS, ROOT)]
    if wrong:
        say("\n".join(wrong))
        return 2
    mutants = chosen(given.ids, rules=given.rule, share=given.share, seed=given.seed)
    try:
        verdicts = run_all(mutants, jobs=max(given.jobs, 1), timeout_s=given.timeout)
    except RuntimeError as error:
        say(str(error))
        return 2
    found = report(verdicts, time.monotonic() - since)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for rule, counts in found["rules"].items():
        if counts["total"]:
            say(f"  {rule:4} {counts['killed']} of {counts['total']} killed")
    say(f"{found['killed']} of {found['total']} mutants killed in {found['seconds']} s")
    return 0 if found["killed"] == found["total"] else 1


if __name__ == "__main__":
    sys.exit(main())
