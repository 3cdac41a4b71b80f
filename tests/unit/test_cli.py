"""The command line: what it makes, what it never overwrites, and its exit codes."""

from __future__ import annotations

import json
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from surefoot import Keyring, SurefootSaver, __version__
from surefoot.cli import app
from surefoot.cli.asking import EXIT_BUSY, EXIT_MISUSE, EXIT_REFUSED, EXIT_UNAVAILABLE
from surefoot.errors import Busy, Misuse, Refused, StoreUnavailable, SurefootError
from surefoot.keys import ENV_KEYS, default_key_file

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def a_machine_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(ENV_KEYS, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def good(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- init --------------------------------------------------------------------------------------


@pytest.mark.optimized
def test_init_makes_keys_for_the_owner_only_and_a_high_water_store(tmp_path: Path) -> None:
    said = good("init")
    assert mode_of(default_key_file()) == 0o600
    assert Keyring.from_env().primary()
    marks = default_key_file().parent / "highwater.db"
    assert marks.exists()
    assert f"made key file: {default_key_file()}" in said
    assert f"made high-water store: sqlite:///{marks}" in said
    assert "Before production" in said
    assert f"export {ENV_KEYS}" not in said, "it is found by itself"
    # What it prints works as it stands.
    with SurefootSaver.from_conn_string(
        f"sqlite:///{tmp_path}/agents.db", highwater=f"sqlite:///{marks}"
    ) as saver:
        saver.setup()
        assert saver.health()["ok"]


def test_init_keeps_what_is_there() -> None:
    good("init")
    marks = default_key_file().parent / "highwater.db"
    before = default_key_file().read_bytes()
    said = good("init")
    assert default_key_file().read_bytes() == before
    assert f"kept key file: {default_key_file()}" in said
    assert f"kept high-water store: sqlite:///{marks}" in said


def test_init_at_other_places(tmp_path: Path) -> None:
    keys, marks = tmp_path / "x" / "keys.json", tmp_path / "y" / "marks.db"
    said = good("init", "--keys", str(keys), "--highwater", str(marks))
    assert f"export {ENV_KEYS}={keys}" in said
    assert mode_of(keys) == 0o600
    assert marks.exists()
    assert not default_key_file().exists()


def test_init_in_json(tmp_path: Path) -> None:
    first = json.loads(good("init", "--json", "--keys", "k.json"))
    assert first == {
        "keys": str(tmp_path / "k.json"),
        "highwater": f"sqlite:///{tmp_path}/highwater.db",
        "keys_made": True,
        "highwater_made": True,
    }
    second = json.loads(good("init", "--json", "--keys", "k.json"))
    assert (second["keys_made"], second["highwater_made"]) == (False, False)


def test_init_shows_no_secret(tmp_path: Path) -> None:
    said = good("init", "--keys", "k.json")
    for entry in json.loads((tmp_path / "k.json").read_text(encoding="utf-8"))["keys"]:
        assert entry["secret"] not in said


def test_init_over_a_file_that_others_may_read(tmp_path: Path) -> None:
    good("init", "--keys", "k.json")
    (tmp_path / "k.json").chmod(0o644)
    result = run("init", "--keys", "k.json")
    assert result.exit_code == EXIT_MISUSE
    assert "chmod 600" in result.stderr
    assert mode_of(tmp_path / "k.json") == 0o644, "told, not changed"


@pytest.mark.parametrize("option", ["--keys", "--highwater"])
def test_init_at_a_place_that_cannot_be(tmp_path: Path, option: str) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    result = run("init", option, str(tmp_path / "file" / "x"))
    assert result.exit_code in (EXIT_MISUSE, EXIT_UNAVAILABLE, EXIT_REFUSED), result.exception
    assert result.stderr.startswith("[")
    assert "Traceback" not in result.output


# --- setup -------------------------------------------------------------------------------------


def test_setup_makes_the_tables_and_may_be_repeated(tmp_path: Path) -> None:
    good("init")
    for _ in range(2):
        said = good("setup", "sqlite:///a.db", "--highwater", "sqlite:///b.db")
        assert said.startswith("ready\n")
        assert "content store: sqlite:///a.db" in said
        assert "degraded" not in said
    assert (tmp_path / "a.db").exists()
    assert (tmp_path / "b.db").exists()


def test_setup_in_json() -> None:
    good("init")
    health = json.loads(good("setup", "sqlite:///a.db", "--highwater", "sqlite:///b.db", "--json"))
    assert health["ok"] is True
    assert health["degraded"] is False


def test_setup_that_only_checks() -> None:
    good("init")
    arguments = ("setup", "sqlite:///a.db", "--highwater", "sqlite:///b.db")
    result = run(*arguments, "--verify-only")
    assert result.exit_code == EXIT_MISUSE
    assert "[NOT_SET_UP]" in result.stderr
    assert "surefoot setup" in result.stderr
    good(*arguments)
    assert good(*arguments, "--verify-only").startswith("checked\n")


def test_setup_says_degraded(tmp_path: Path) -> None:
    good("init")
    said = good("setup", "sqlite:///a.db", "--highwater", "sqlite:///a.db")
    assert "degraded" in said


# --- exit codes --------------------------------------------------------------------------------


def test_exit_codes_by_reaction(tmp_path: Path) -> None:
    """One code for each reaction, from real causes."""
    # refuse: no keys
    result = run("setup", "sqlite:///a.db", "--highwater", "sqlite:///b.db")
    assert result.exit_code == EXIT_REFUSED
    assert "[KEY_MISSING]" in result.stderr
    good("init")
    # misuse: an address that is none
    result = run("setup", "mysql://bob:hunter2@db/x", "--highwater", "sqlite:///b.db")
    assert result.exit_code == EXIT_MISUSE
    assert "hunter2" not in result.output
    # unavailable: nobody listens
    nobody = "postgresql://bob:hunter2@127.0.0.1:1/x?connect_timeout=2"
    result = run("setup", nobody, "--highwater", "sqlite:///b.db")
    assert result.exit_code == EXIT_UNAVAILABLE
    assert "hunter2" not in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused(reason="r"), EXIT_REFUSED),
        (Busy(what="w", holder="h", left_ms=1), EXIT_BUSY),
        (StoreUnavailable(store="s", reason="r"), EXIT_UNAVAILABLE),
        (Misuse(field="f", reason="[red]r[/red]"), EXIT_MISUSE),
        (SurefootError(reason="r"), 1),
    ],
    ids=lambda v: getattr(v, "code", ""),
)
def test_every_reaction_has_its_code(
    monkeypatch: pytest.MonkeyPatch, error: SurefootError, code: int
) -> None:
    def fails(self: SurefootSaver, **_: Any) -> None:
        raise error

    good("init")
    monkeypatch.setattr(SurefootSaver, "setup", fails)
    result = run("setup", "sqlite:///a.db", "--highwater", "sqlite:///b.db")
    assert result.exit_code == code
    assert " ".join(result.stderr.split()) == str(error)
    assert result.stdout == ""


def test_the_codes_are_fixed() -> None:
    assert (EXIT_REFUSED, EXIT_BUSY, EXIT_UNAVAILABLE, EXIT_MISUSE) == (10, 11, 12, 13)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    good("init")
    (tmp_path / "a.db").write_text(
        "this is no database, and it is long enough" * 9, encoding="utf-8"
    )
    result = run("setup", "sqlite:///a.db", "--highwater", "sqlite:///b.db")
    assert result.exit_code in (EXIT_REFUSED, EXIT_UNAVAILABLE, EXIT_MISUSE), result.exception
    assert "Traceback" not in result.output


def test_a_database_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    from contextlib import closing

    good("init")
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.execute("CREATE TABLE theirs (x)")
        database.execute("INSERT INTO theirs VALUES (1)")
        database.commit()
    good("setup", "sqlite:///a.db", "--highwater", "sqlite:///b.db")
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        assert database.execute("SELECT x FROM theirs").fetchall() == [(1,)]


# --- help --------------------------------------------------------------------------------------


def test_help() -> None:
    for flag in ("--help", "-h"):
        said = good(flag)
        for command in ("init", "setup", "demo"):
            assert command in said
    assert good("--version").strip() == __version__
    assert run().exit_code in (0, 2)
    assert "Usage" in run().output


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("init", ["never overwrites either", "--keys", "--highwater", "--json"]),
        ("setup", ["safe to run again and in parallel", "--verify-only", "--schema", "--json"]),
        ("demo", ["count the charges", "--json"]),
    ],
)
def test_help_of_each_command(command: str, words: list[str]) -> None:
    said = " ".join(good(command, "--help").split())
    for word in words:
        assert word in said


def test_wrong_options_are_told() -> None:
    for arguments in (("setup",), ("setup", "sqlite:///a.db"), ("init", "--nonsense"), ("nope",)):
        result = run(*arguments)
        assert result.exit_code == 2
        assert "Traceback" not in result.output
