"""The documents say what is there: every rule, error, path and example."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import surefoot.rules.fingerprint
from surefoot import errors
from surefoot.rules.events import EVENTS, OURS, Bearing

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), ROOT / "CONTRIBUTING.md"])
assert surefoot.rules.fingerprint  # defines an error of its own

#: What each example prints, among other lines.
EXAMPLES = {
    "payment.py": ["charges at the service: 1"],
    "payment_keyed.py": ["charges at the service: 1"],
    "kill_test.py": [
        "careless: 'INV-771' happened 2 times instead of 1",
        "half_repaired: 'mail' happened 2 times instead of 1",
        "repaired: the same end, wherever it died",
    ],
}


def every_error(cls: type[errors.SurefootError]) -> list[type[errors.SurefootError]]:
    found = [sub for sub in cls.__subclasses__() if sub.__module__.startswith("surefoot.")]
    return [*found, *(deeper for sub in found for deeper in every_error(sub))]


def test_every_error_has_cause_and_remedy() -> None:
    text = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| `(\w+)` \| [^|]+ \| [^|]+ \|$", text, re.MULTILINE))
    groups = {"REFUSED", "UNAVAILABLE"}
    public = {c.code: c.__name__ for c in every_error(errors.SurefootError) if c.__name__[0] != "_"}
    missing = {code: name for code, name in public.items() if code not in rows}
    assert {code for code in missing if code not in groups} == set()
    assert {code for code in rows if code not in public} == set()


@pytest.mark.parametrize("page", DOCS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), f"{page.name}: broken link {target}"
    for path in re.findall(r"`((?:src|tests|docs|examples|scripts)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), f"{page.name}: no such path {path}"


def test_rules_name_code_and_tests_that_exist() -> None:
    text = (ROOT / "docs/rules.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([PER]\d+[bc]?) \| [^|]+ \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    wanted = [f"P{n}" for n in range(8)] + [f"E{n}" for n in range(1, 11)] + ["E4b", "E4c"]
    wanted += [f"R{n}" for n in range(1, 14)]
    assert sorted(rule for rule, _, _ in rows) == sorted(wanted)
    for rule, code, test in rows:
        for path in re.findall(r"`([\w/]+\.(?:py|sql))`", code):
            assert (ROOT / "src/surefoot" / path).exists(), f"{rule}: no {path}"
        for path in re.findall(r"`([\w/]+\.py)`", test):
            assert (ROOT / "tests" / path).exists(), f"{rule}: no test {path}"
        for path, name in re.findall(r"`([\w/]+\.py)` (decide_\w+|slot_of|idempotency_key)", code):
            source = (ROOT / "src/surefoot" / path).read_text(encoding="utf-8")
            assert f"def {name}(" in source, f"{rule}: no {name} in {path}"
        if code.strip() != "planned":
            assert test.strip() != "planned", f"{rule} is implemented and names no test"


def test_every_claim_about_an_attacker_names_a_test_that_exists() -> None:
    text = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (can|cannot) \| ([^|]+) \| ([^|]*) \|$", text, re.MULTILINE)
    assert len(rows) >= 25
    named = re.findall(r"`([\w/]+\.py)` ((?:test_\w+(?:,\s)?)+)", text)
    for path, tests in named:
        source = (ROOT / "tests" / path).read_text(encoding="utf-8")
        for test in tests.split(", "):
            assert f"def {test}(" in source, f"no {test} in tests/{path}"
    for verdict, claim, proof in rows:
        assert verdict == "can" or "test_" in proof, f"no test for: cannot {claim}"


@pytest.mark.parametrize("example", sorted(EXAMPLES))
def test_examples_run_and_run_again(example: str, tmp_path: Path) -> None:
    """Those that take no arguments; the others are run in test_examples.py and elsewhere."""
    outputs = [
        subprocess.run(
            [sys.executable, str(ROOT / "examples" / example)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for _ in range(2)
    ]
    assert outputs[0] == outputs[1]
    for line in EXAMPLES[example]:
        assert line in outputs[1].splitlines()


def test_every_example_is_run_by_a_test() -> None:
    tests = [*ROOT.glob("tests/*.py"), *ROOT.glob("tests/*/*.py")]
    text = "".join(path.read_text(encoding="utf-8") for path in tests)
    for example in ROOT.glob("examples/*.py"):
        assert example.name in text or f'"{example.stem}"' in text, f"no test runs {example.name}"


#: What a block prints when it shows what its page says.
PRINTED = {
    "guide.md-0": "Bergen\n",
    "guide.md-1": "asked 1 time; the same ticket: True\n",
}


def runnable_blocks() -> list[tuple[str, str]]:
    """Blocks of the pages that say that they run."""
    return [
        (f"{page.name}-{number}", block)
        for page in DOCS
        for number, block in enumerate(
            re.findall(
                r"^```python run\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
            )
        )
    ]


@pytest.mark.parametrize(("name", "block"), runnable_blocks(), ids=lambda v: v[:16].split("\n")[0])
def test_blocks_that_say_so_run(name: str, block: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"{name}: {done.stderr[-2_000:]}"
    if name in PRINTED:
        assert done.stdout == PRINTED[name]


def test_the_example_of_the_audit_trail_prints_what_the_page_says(tmp_path: Path) -> None:
    text = (ROOT / "docs/trail.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (printed,) = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", source],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert [line.rstrip() for line in done.stdout.splitlines()] == [
        line.rstrip() for line in printed.splitlines()
    ]


def test_the_page_of_the_audit_trail_names_every_event() -> None:
    text = (ROOT / "docs/trail.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]+) \| [^|]+ \| (yes|no) \|$", text, re.MULTILINE)
    listed: dict[str, str] = {}
    for names, changes in rows:
        room = ""
        for name in re.findall(r"`([\w.]+)`", names):
            room = name.partition(".")[0] or room
            listed[f"{OURS}{room}.{name.rpartition('.')[2]}"] = changes
    wanted = {name: bearing for name, (_, bearing) in EVENTS.items()}
    assert listed.keys() == wanted.keys()
    for name, bearing in wanted.items():
        assert listed[name] == ("yes" if bearing is Bearing.STATE else "no"), name


def test_the_page_about_testing_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs/testing.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    script = tmp_path / "testing.py"
    script.write_text(blocks[0], encoding="utf-8")
    subprocess.run([sys.executable, str(script)], check=True, timeout=120)
