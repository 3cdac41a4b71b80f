"""House rules that run.

Each rule is a generator of findings; a finding names the file, the line and what to write
instead. Every rule is itself tested on a small source that breaks it, because a rule that never
fires looks exactly like a clean house.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "surefoot"
TESTS = ROOT / "tests"
MAX_CODE_LINES = 70
VAGUE_ROOMS = {
    "utils",
    "util",
    "common",
    "helpers",
    "helper",
    "core",
    "manager",
    "managers",
    "misc",
}
MAY_PRINT = ("cli", "demo", "testing")


class Finding(NamedTuple):
    """One broken rule: where, and what to write instead."""

    path: Path
    line: int
    instead: str

    def __str__(self) -> str:
        return f"{_shown(self.path)}:{self.line}: {self.instead}"


class Source(NamedTuple):
    """A parsed Python file; ``room`` is its dotted name below the package, or empty."""

    path: Path
    text: str
    tree: ast.Module
    room: str


Rule = Callable[[Source], Iterator[Finding]]


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def _parsed(path: Path, text: str) -> Source:
    room = ".".join(path.with_suffix("").relative_to(SRC).parts) if path.is_relative_to(SRC) else ""
    return Source(path, text, ast.parse(text), room.removesuffix(".__init__"))


@cache
def sources(folder: Path) -> tuple[Source, ...]:
    """All Python files below a folder, parsed once."""
    return tuple(_parsed(p, p.read_text(encoding="utf-8")) for p in sorted(folder.rglob("*.py")))


@cache
def tracked_files() -> tuple[Path, ...]:
    """Files that git knows or would add; outside a checkout, everything but build products."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0 and listed.stdout:
        named = (ROOT / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name)
    else:
        named = (
            path
            for folder in ("src", "tests", "docs", "scripts", ".ci")
            for path in (ROOT / folder).rglob("*")
            if "__pycache__" not in path.parts
        )
    return tuple(sorted(path for path in named if path.is_file()))


# --- the rules --------------------------------------------------------------------------------


def no_assert(source: Source) -> Iterator[Finding]:
    """Asserts vanish under `python -O`; a check that matters must not."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assert):
            yield Finding(
                source.path,
                node.lineno,
                "`assert` vanishes under python -O; raise an error of surefoot.errors instead",
            )


def no_swallowed_error(source: Source) -> Iterator[Finding]:
    """An error may be dropped only where its type is named."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        if node.type is None:
            yield Finding(
                source.path,
                node.lineno,
                "bare `except:` also catches KeyboardInterrupt; name the exception types instead",
            )
        elif _is_broad(node.type) and all(_does_nothing(child) for child in node.body):
            yield Finding(
                source.path,
                node.lineno,
                "`except Exception: pass` hides faults; name the types, or log and latch instead",
            )


def _is_broad(kind: ast.expr) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(isinstance(k, ast.Name) and k.id in {"Exception", "BaseException"} for k in kinds)


def _does_nothing(node: ast.stmt) -> bool:
    if isinstance(node, ast.Pass | ast.Continue):
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def no_print(source: Source) -> Iterator[Finding]:
    """A library logs; only the shells print."""
    if source.room.split(".")[0] in MAY_PRINT:
        return
    for node in ast.walk(source.tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
        ):
            yield Finding(
                source.path,
                node.lineno,
                "`print` belongs to cli and demo; use logging.getLogger(__name__) instead",
            )


def no_vague_room(source: Source) -> Iterator[Finding]:
    """Rooms are named after what they hold."""
    for part in source.room.split("."):
        if part in VAGUE_ROOMS:
            yield Finding(
                source.path,
                1,
                f"{part!r} says nothing; name the room after its domain noun instead",
            )


_SQL_START = re.compile(
    r"\s*(?:SELECT\s|INSERT\s+(?:INTO|OR)\s|UPDATE\s+\S+\s+SET\s|DELETE\s+FROM\s|WITH\s+\w+\s+AS\s*\("
    r"|CREATE\s+(?:TABLE|INDEX|UNIQUE|SCHEMA|FUNCTION|TRIGGER|VIEW)\s|ALTER\s+TABLE\s|DROP\s+\w+\s)"
)


def no_sql(source: Source) -> Iterator[Finding]:
    """SQL lives in .sql files, where it can be pasted, explained and diffed."""
    for node in ast.walk(source.tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and _SQL_START.match(node.value)
        ):
            yield Finding(
                source.path,
                node.lineno,
                "SQL in Python; make it a named statement in a .sql file of both dialects instead",
            )


def no_long_function(source: Source) -> Iterator[Finding]:
    """A function fits on a screen: at most 70 lines of code, docstring and comments aside."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = _code_lines(node, source.text)
            if count > MAX_CODE_LINES:
                yield Finding(
                    source.path,
                    node.lineno,
                    f"{node.name} has {count} code lines; split it at its steps, "
                    f"{MAX_CODE_LINES} at most",
                )


def _code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> int:
    lines = text.splitlines()
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if not body:
        return 0
    first, last = node.lineno, node.end_lineno or node.lineno
    signature = range(first, node.body[0].lineno)
    inside = range(body[0].lineno, last + 1)
    numbers = {*signature, *inside}
    return sum(
        bool(lines[n - 1].strip()) and not lines[n - 1].lstrip().startswith("#") for n in numbers
    )


def has_docstrings(source: Source) -> Iterator[Finding]:
    """What is public says what it decides or does."""
    yield from _undocumented(source, source.tree, public=True)


def _undocumented(
    source: Source, parent: ast.Module | ast.ClassDef, *, public: bool
) -> Iterator[Finding]:
    for node in parent.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("_") or not public or _is_overload_or_setter(node):
            continue
        if ast.get_docstring(node) is None:
            yield Finding(
                source.path,
                node.lineno,
                f"{node.name} is public and has no docstring; say what it decides or does, "
                "or make it private with a leading underscore",
            )
        if isinstance(node, ast.ClassDef):
            yield from _undocumented(source, node, public=True)


def _is_overload_or_setter(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    for decorator in node.decorator_list:
        name = decorator.attr if isinstance(decorator, ast.Attribute) else ""
        if isinstance(decorator, ast.Name):
            name = decorator.id
        if name in {"overload", "override", "setter", "deleter"}:
            return True
    return False


def rules_stay_in_their_room(source: Source) -> Iterator[Finding]:
    """`grep -rn "def decide_" src` prints the rule book, and every page is in rules/."""
    if source.room.split(".")[0] == "rules":
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "decide_"
        ):
            yield Finding(
                source.path,
                node.lineno,
                f"{node.name} is a judgement; move it to surefoot.rules and hand it plain facts",
            )


def no_pickle(source: Source) -> Iterator[Finding]:
    """Unpickling runs code that whoever wrote the bytes has chosen."""
    for name, line in _imports(source.tree):
        if name.split(".")[0] in {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}:
            yield Finding(
                source.path,
                line,
                f"{name} runs code on load; serialise through the serde port (msgpack) instead",
            )


def _imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module, node.lineno


def no_sleep(source: Source) -> Iterator[Finding]:
    """A test that sleeps is slow when it passes and flaky when it matters."""
    from_time = {
        alias.asname or alias.name
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom) and node.module == "time"
        for alias in node.names
        if alias.name == "sleep"
    }
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        dotted = (
            isinstance(called, ast.Attribute)
            and called.attr == "sleep"
            and isinstance(called.value, ast.Name)
            and called.value.id == "time"
        )
        if dotted or (isinstance(called, ast.Name) and called.id in from_time):
            yield Finding(
                source.path,
                node.lineno,
                "time.sleep in a test; wait for a printed barrier, an Event or a fake clock",
            )


IN_SRC: tuple[Rule, ...] = (
    no_assert,
    no_swallowed_error,
    no_print,
    no_vague_room,
    no_sql,
    no_long_function,
    has_docstrings,
    rules_stay_in_their_room,
    no_pickle,
)
IN_TESTS: tuple[Rule, ...] = (no_sleep,)

# Written so that this file does not match itself.
_MACHINE_PATH = re.compile(
    r"(?<![\w.~$}\])/-])/(?:[w]ork|[r]oot|[h]ome/[a-z][\w-]*|[U]sers/[A-Za-z][\w-]*)(?:/|\b)(?!\w)"
)
_MACHINE_NAME = re.compile(r"\b[f]arm-[a-z0-9]")
# Text of others, and names that stand for the reader's own machine.
_PLACEHOLDER_HOMES = re.compile(r"/home/(?:you|user|me|app)\b")


def machine_traces(path: Path, text: str) -> Iterator[Finding]:
    """Nothing in the repository depends on, or tells, the machine it was written on."""
    for number, line in enumerate(text.splitlines(), start=1):
        shown = _PLACEHOLDER_HOMES.sub("", line)
        if _MACHINE_PATH.search(shown):
            yield Finding(
                path,
                number,
                "an absolute path of one machine; use a path relative to the repository, "
                "tmp_path or an environment variable instead",
            )
        if _MACHINE_NAME.search(shown):
            yield Finding(path, number, "the name of one machine; leave it out")


# --- the house --------------------------------------------------------------------------------


def _report(findings: list[Finding]) -> None:
    if findings:
        pytest.fail("\n".join(str(finding) for finding in findings), pytrace=False)


def _id(value: object) -> str | None:
    if isinstance(value, Source):
        return _shown(value.path)
    return getattr(value, "__name__", None)


@pytest.mark.parametrize("rule", IN_SRC, ids=_id)
@pytest.mark.parametrize("source", sources(SRC), ids=_id)
def test_source_keeps_the_rule(source: Source, rule: Rule) -> None:
    _report(list(rule(source)))


@pytest.mark.parametrize("rule", IN_TESTS, ids=_id)
@pytest.mark.parametrize("source", sources(TESTS), ids=_id)
def test_tests_keep_the_rule(source: Source, rule: Rule) -> None:
    _report(list(rule(source)))


def test_no_file_tells_the_machine_it_was_written_on() -> None:
    findings: list[Finding] = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # binary fixtures
        findings += machine_traces(path, text)
    _report(findings)


@pytest.mark.parametrize("name", ["LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_the_house_has(name: str) -> None:
    path = ROOT / name
    assert path.is_file(), f"{name} is missing; write it"
    assert path.stat().st_size > 200, f"{name} is as good as empty; write it"


def test_every_room_is_on_the_map() -> None:
    """A room that no layer names could import anything: add it to the layers contract."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = re.search(r"^layers = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert layers is not None, "pyproject.toml has no layers contract"
    named = set(re.findall(r"surefoot\.([\w.]+)", layers[1]))
    parents = {name.split(".")[0] for name in named if "." in name}
    findings = []
    for source in sources(SRC):
        parts = source.room.split(".")
        room = ".".join(parts[:2]) if parts[0] in parents and len(parts) > 1 else parts[0]
        if room in named or room in parents or room.startswith("_"):
            continue
        findings.append(
            Finding(source.path, 1, f"surefoot.{room} is in no layer; add it to pyproject.toml")
        )
    _report(findings)


def test_there_is_something_to_check() -> None:
    """An empty list of checks must fail, not pass."""
    assert len(sources(SRC)) > 3
    assert len(sources(TESTS)) > 1
    assert len(tracked_files()) > 10


# --- the rules themselves ---------------------------------------------------------------------

LONG = "def f():\n" + "    x = 1\n" * (MAX_CODE_LINES + 1)

COMMENTED = (
    "def f():\n    '''Does.\n"
    + "    text\n" * 90
    + "    '''\n"
    + "    # why\n" * 90
    + "    return 1\n"
)

BROKEN: list[tuple[Rule, str, str]] = [
    (no_assert, "flows/save.py", "assert True"),
    (no_swallowed_error, "flows/save.py", "try:\n    f()\nexcept:\n    raise"),
    (no_swallowed_error, "flows/save.py", "try:\n    f()\nexcept Exception:\n    pass"),
    (
        no_swallowed_error,
        "flows/save.py",
        "try:\n    f()\nexcept (ValueError, Exception):\n    ...",
    ),
    (no_print, "flows/save.py", "print(1)"),
    (no_vague_room, "flows/utils.py", ""),
    (no_vague_room, "core/__init__.py", ""),
    (no_sql, "store/sqlite/driver.py", "Q = 'SELECT 1 '"),
    (no_sql, "store/sqlite/driver.py", "Q = '''\n  INSERT INTO t VALUES (1)'''"),
    (no_sql, "store/sqlite/driver.py", "q = f'DELETE FROM {table}'"),
    (no_long_function, "flows/save.py", LONG),
    (has_docstrings, "flows/save.py", "def save():\n    pass"),
    (
        has_docstrings,
        "flows/save.py",
        "class Save:\n    '''Saves.'''\n    def now(self):\n        pass",
    ),
    (rules_stay_in_their_room, "flows/save.py", "def decide_save():\n    pass"),
    (no_pickle, "flows/save.py", "def f():\n    from pickle import loads"),
    (no_sleep, "flows/save.py", "import time\ntime.sleep(1)"),
    (no_sleep, "flows/save.py", "from time import sleep as nap\nnap(1)"),
]

KEPT: list[tuple[Rule, str, str]] = [
    (no_swallowed_error, "flows/save.py", "try:\n    f()\nexcept ValueError:\n    pass"),
    (no_print, "cli/threads.py", "print(1)"),
    (no_sql, "store/sqlite/driver.py", "Q = 'PRAGMA synchronous = FULL'; B = 'BEGIN IMMEDIATE'"),
    (no_sql, "flows/save.py", "M = 'Update the keys, then delete the old file'"),
    (no_long_function, "flows/save.py", COMMENTED),
    (has_docstrings, "flows/save.py", "def _save():\n    pass"),
    (rules_stay_in_their_room, "rules/resume.py", "def decide_resume():\n    pass"),
    (no_sleep, "flows/save.py", "import asyncio\nasync def f():\n    await asyncio.sleep(0)"),
]


@pytest.mark.parametrize(("rule", "name", "text"), BROKEN)
def test_rule_finds(rule: Rule, name: str, text: str) -> None:
    findings = list(rule(_parsed(SRC / name, text)))
    assert findings, f"{rule.__name__} missed:\n{text}"
    assert all(f"src/surefoot/{name}:" in str(finding) for finding in findings)


@pytest.mark.parametrize(("rule", "name", "text"), KEPT)
def test_rule_lets_pass(rule: Rule, name: str, text: str) -> None:
    assert not list(rule(_parsed(SRC / name, text)))


@pytest.mark.parametrize(
    "line",
    ["see /" + "work/x", "'/" + "root/key'", "/" + "home/jane/agents.db", "on far" + "m-03"],
)
def test_machine_traces_are_found(line: str) -> None:
    assert list(machine_traces(ROOT / "README.md", line))


@pytest.mark.parametrize(
    "line",
    ["network/root/x", "/workers", "framework/root", "https://a.b/root", "$HOME/x", "a/home/b"],
)
def test_ordinary_paths_are_no_machine_traces(line: str) -> None:
    assert not list(machine_traces(ROOT / "README.md", line))
