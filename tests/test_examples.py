"""The examples do what their headers say: killed at their switch, and gone on with."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.postgres import fresh_database

ROOT = Path(__file__).resolve().parent.parent


def run(folder: Path, name: str, *arguments: str) -> tuple[int, list[str]]:
    """Runs an example in a folder; its exit status and the lines that it printed."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    killed = done.returncode == -signal.SIGKILL
    assert killed or done.returncode == 0, done.stderr
    return done.returncode, done.stdout.splitlines()


def killed_then_resumed(folder: Path, name: str, switch: str, *arguments: str) -> list[str]:
    """Kills an example at its switch, resumes it, and looks at it once more."""
    assert run(folder, name, *arguments, switch) == (-signal.SIGKILL, [])
    _, resumed = run(folder, name, *arguments)
    _, again = run(folder, name, *arguments)
    assert again == resumed
    return resumed


@pytest.mark.kill
@pytest.mark.parametrize("name", ["payment.py", "payment_keyed.py"])
def test_a_payment_is_charged_once(tmp_path: Path, name: str) -> None:
    lines = killed_then_resumed(tmp_path, name, "--die")
    assert lines[0] == "INV-771 is within budget"
    assert lines[1].startswith("charged 4200 as ")
    assert lines[2:] == ["charges at the service: 1"]


@pytest.mark.kill
def test_a_mail_without_a_lookup_ends_in_review(tmp_path: Path) -> None:
    lines = killed_then_resumed(tmp_path, "email_once.py", "--die")
    assert lines[0].startswith("in doubt: send at ")
    assert lines[1:] == ["mails in the outbox: 1"]


def test_a_mail_is_sent(tmp_path: Path) -> None:
    expected = (0, ["sent 'Your order'", "mails in the outbox: 1"])
    assert run(tmp_path, "email_once.py") == expected
    assert run(tmp_path, "email_once.py") == expected
    (mail,) = (tmp_path / "email-example" / "outbox").iterdir()
    assert "To: ada@example.org" in mail.read_text()


@pytest.mark.kill
@pytest.mark.postgres
@pytest.mark.parametrize("switch", ["--die-before", "--die"])
def test_a_row_is_booked_once(tmp_path: Path, switch: str) -> None:
    lines = killed_then_resumed(tmp_path, "ledger_row.py", switch, fresh_database())
    assert lines == ["booked 4200 on rent", "rows in the table: 1"]


@pytest.mark.kill
@pytest.mark.parametrize("switch", ["--die-before", "--die"])
def test_a_file_is_edited_once(tmp_path: Path, switch: str) -> None:
    lines = killed_then_resumed(tmp_path, "file_edit.py", switch)
    assert lines[0].startswith("file-example/settings.txt is now ")
    assert lines[1:] == ["the file says: limit = 20"]


@pytest.mark.kill
def test_a_file_that_somebody_else_edited_is_left_alone(tmp_path: Path) -> None:
    assert run(tmp_path, "file_edit.py", "--die-before")[0] == -signal.SIGKILL
    settings = tmp_path / "file-example" / "settings.txt"
    settings.write_text("limit = 30\n")
    with pytest.raises(AssertionError, match="EffectInDoubt"):
        run(tmp_path, "file_edit.py")
    assert settings.read_text() == "limit = 30\n"
