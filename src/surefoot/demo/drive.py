"""Drives the demo: starts the service and the agents, kills, resumes, counts.

Every claim is taken from the payment service's audit and from what the agents printed; nothing
is assumed. A kill counts only when the service has reported that it holds the request.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from surefoot.demo.agent import AMOUNT, CURRENCY, INVOICE
from surefoot.demo.payments_client import PaymentService
from surefoot.demo.show import Comparison, Event, Run, Tone
from surefoot.keys import ENV_KEYS, Keyring

__all__ = ["RECEIVERS", "compare"]

RECEIVERS = ("idempotent", "lookup", "neither")
_SAVERS = {"stock": "SqliteSaver (no key sent)", "surefoot": "SurefootSaver"}
_DEADLINE_S = 60


@dataclass(slots=True)
class _Recorder:
    started: float
    events: list[Event] = field(default_factory=list)

    def add(self, actor: str, what: str, tone: Tone = "plain") -> None:
        at_ms = int((time.monotonic() - self.started) * 1000)
        self.events.append(Event(actor, what, at_ms, tone))


def compare(on_progress: Callable[[str], None]) -> list[Comparison]:
    """Runs the agent under both savers against all three kinds of receiver.

    Args:
        on_progress: Told what is going on, for a status line.

    Returns:
        One comparison for each receiver, in the order of `RECEIVERS`.
    """
    out: list[Comparison] = []
    with TemporaryDirectory(prefix="surefoot-demo-") as folder, ThreadPoolExecutor(2) as pool:
        for receiver in RECEIVERS:
            on_progress(f"a receiver of kind “{receiver}”: run, kill, resume")
            runs = {
                saver: pool.submit(_one, Path(folder) / f"{receiver}-{saver}", saver, receiver)
                for saver in _SAVERS
            }
            out.append(
                Comparison(
                    invoice=INVOICE,
                    amount=f"{AMOUNT / 100:.2f} {CURRENCY}",
                    kill_point="after the charge landed, before anything recorded it",
                    stock=runs["stock"].result(),
                    surefoot=runs["surefoot"].result(),
                )
            )
    return out


def _one(folder: Path, saver: str, receiver: str) -> Run:
    """One agent: run until the charge has landed, SIGKILL, resume in a new process, count."""
    folder.mkdir(parents=True)
    keys = folder / "keys.json"
    Keyring.generate().to_file(keys)
    recorder = _Recorder(time.monotonic())
    with PaymentService(folder / "payments.db") as service:
        held = service.hold("after_commit", invoice=INVOICE)
        command = [sys.executable, "-m", "surefoot.demo.agent", "--saver", saver]
        command += ["--receiver", receiver, "--url", service.url, "--dir", str(folder)]
        with _Agent(command, keys, recorder) as first:
            service.wait_held(held, timeout=_DEADLINE_S)
            landed = service.audit().count(INVOICE)
        recorder.add("kill", "SIGKILL: charged, not recorded", "kill")
        service.wait_gone(held, timeout=_DEADLINE_S)
        recorder.add("agent", "resumes in a new process")
        with _Agent([*command, "--resume"], keys, recorder) as second:
            second.finish()
        charges = service.audit().count(INVOICE)
    return Run(
        saver=_SAVERS[saver],
        events=tuple(recorder.events),
        charges=charges,
        killed=landed == 1 and first.process.returncode == -signal.SIGKILL,
        final=second.answer,
        notes=tuple(second.notes),
    )


class _Agent:
    """An agent's process; what it prints is recorded as it comes. Leaving the block kills it."""

    def __init__(self, command: list[str], keys: Path, recorder: _Recorder) -> None:
        self.answer: str | None = None
        self.notes: list[str] = []
        self._recorder = recorder
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, ENV_KEYS: str(keys)},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> _Agent:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            word, _, rest = line.rstrip().partition(" ")
            if word == "EVENT":
                self._recorder.add("agent", rest)
            elif word == "ANSWER":
                self.answer = rest
            elif word == "DOUBT":
                self.notes.append("stopped in doubt, nothing repeated")

    def finish(self) -> None:
        """Waits for the agent's own end."""
        self.process.wait(timeout=_DEADLINE_S)
        self._reader.join()
        if self.process.returncode not in (0, 3):
            error = self.process.stderr.read() if self.process.stderr else ""
            tail = error.strip().splitlines()[-1:] or ["no message"]
            self.notes.append(f"the agent failed: {tail[0]}")
