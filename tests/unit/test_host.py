"""The process and its host: who holds a lease, and is it still alive?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot import host as module
from surefoot.host import LocalHost
from surefoot.rules.lease import decide_holder_dead

HERE = LocalHost()
linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def owner(**changed: Any) -> str:
    return json.dumps({**json.loads(HERE.describe()), **changed})


def child(source: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


DESCRIBE = "from surefoot.host import LocalHost; print(LocalHost().describe(), flush=True); input()"


def test_a_description_is_fresh_each_time() -> None:
    one, other = HERE.describe(), HERE.describe()
    assert one != other
    facts = json.loads(one)
    assert facts["pid"] == os.getpid()
    assert {**facts, "token": ""} == {**json.loads(other), "token": ""}


@linux
def test_we_are_alive() -> None:
    seen = HERE.holder(HERE.describe())
    assert seen.holder == HERE.facts()
    assert seen.start_now == HERE.facts().start > 0
    assert not decide_holder_dead(seen)


@linux
@pytest.mark.optimized
def test_another_process_lives_and_dies() -> None:
    process = child(DESCRIBE)
    assert process.stdout is not None
    told = process.stdout.readline()
    try:
        assert not decide_holder_dead(HERE.holder(told))
        process.kill()
        # Not waited for: a zombie runs no more code.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert decide_holder_dead(HERE.holder(told))
    finally:
        process.communicate()
    assert decide_holder_dead(HERE.holder(told))


@linux
def test_a_pid_that_another_process_has_now() -> None:
    facts = HERE.facts()
    assert decide_holder_dead(HERE.holder(owner(start=facts.start - 1)))
    assert not decide_holder_dead(HERE.holder(owner(start=0))), "unknown is never dead"


@pytest.mark.optimized
@pytest.mark.parametrize(
    "changed",
    [
        {"boot": "another boot"},
        {"ns": "pid:[1]"},
        {"boot": ""},
        {"ns": ""},
        {"pid": 0},
        {"pid": -7},
        {"pid": 1, "start": 0},
    ],
    ids=repr,
)
def test_what_is_not_here_or_not_known_is_not_dead(changed: dict[str, Any]) -> None:
    gone = {"pid": 2**22 + 1} if "pid" not in changed else {}
    assert not decide_holder_dead(HERE.holder(owner(**gone, **changed)))


@linux
def test_a_process_that_proc_hides_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``hidepid`` the files of others are not there, although their processes live."""
    process = child(DESCRIBE)
    assert process.stdout is not None
    told = process.stdout.readline()
    read = Path.read_text

    def hidden(self: Path, *args: Any, **kwargs: Any) -> str:
        if self == Path(f"/proc/{process.pid}/stat"):
            raise FileNotFoundError
        return read(self, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", hidden)
    try:
        assert not decide_holder_dead(HERE.holder(told))
    finally:
        process.communicate("\n")
    assert decide_holder_dead(HERE.holder(told))


def test_a_host_without_proc_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_read", lambda path: "")
    monkeypatch.setattr(module, "_pid_namespace", lambda: "")
    blank = LocalHost()
    assert blank.facts().boot_id == ""
    assert not decide_holder_dead(blank.holder(blank.describe()))


RUBBISH = [
    "",
    "{",
    "null",
    "5",
    "[]",
    '"x"',
    "{}",
    '{"boot": "b"}',
    '{"boot": "b", "ns": "n", "pid": "x", "start": 1}',
    '{"boot": "b", "ns": "n", "pid": Infinity, "start": 1}',
    '{"boot": "b", "ns": "n", "pid": NaN, "start": 1}',
    '{"boot": null, "ns": [], "pid": {}, "start": null}',
    '{"host": "h", "pid": 1e999}',
    "[" * 100_000,
    "a worker of another program",
]


@pytest.mark.parametrize("text", RUBBISH, ids=range(len(RUBBISH)))
def test_owners_of_every_kind_are_read(text: str) -> None:
    assert not decide_holder_dead(HERE.holder(text))
    assert isinstance(HERE.shown(text), str)


@given(st.text(max_size=60))
def test_any_text_may_be_an_owner(text: str) -> None:
    assert not decide_holder_dead(HERE.holder(text))
    assert HERE.shown(text)


def test_an_owner_is_shown_for_people() -> None:
    shown = HERE.shown(HERE.describe())
    assert str(os.getpid()) in shown
    assert json.loads(HERE.describe())["token"] not in shown
    assert HERE.shown("") == HERE.shown("null") == "an unknown holder"


def test_clocks_go_forward() -> None:
    first = HERE.monotonic_ms()
    HERE.pause(5)
    assert HERE.monotonic_ms() - first >= 4
    assert HERE.now_us() > 1_700_000_000_000_000


@linux
def test_a_fork_is_another_process() -> None:
    source = (
        "import os, sys\n"
        "from surefoot.host import LocalHost\n"
        "host = LocalHost()\n"
        "before = host.facts().pid\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    print(host.facts().pid != before, host.facts().pid == os.getpid(), flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "True"]
