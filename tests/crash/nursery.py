"""Where workers come from: a template process that forks them, and the parent's end of each."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.crash.worker import Order

__all__ = ["Child", "Nursery"]

ROOT = Path(__file__).resolve().parents[2]


class NotReached(AssertionError):
    """A run has fewer boundaries of a kind than the one that the kill was planned on."""


class Child:
    """A worker as its parent sees it: its lines, and how it ended."""

    def __init__(self, nursery: Nursery, pid: int, to: int, back: int) -> None:
        self.pid = pid
        self._nursery = nursery
        self._to = os.fdopen(to, "w", buffering=1)
        self._back = os.fdopen(back, "r", buffering=1)
        self._status: int | None = None
        self.lines: list[str] = []

    def read(self, *words: str) -> str:
        """The next line that begins with one of these words.

        Raises:
            AssertionError: The worker ended before.
        """
        for line in self._back:
            self.lines.append(line.rstrip("\n"))
            if line.split()[0] in words:
                return self.lines[-1]
        raise AssertionError(f"the worker ended before it said {words}: {self.lines}")

    def at(self, boundary: str) -> None:
        """Waits until it stands at this boundary.

        Raises:
            NotReached: The run finished before.
            AssertionError: It failed, or came elsewhere first.
        """
        line = self.read("AT", "DONE", "RAISED")
        if line.startswith("DONE"):
            raise NotReached(f"meant {boundary}, but the run finished before")
        if line != f"AT {boundary}":
            raise AssertionError(f"meant {boundary}, but it said {line}; {self.lines}")

    def send(self, line: str) -> None:
        """Writes a line to it."""
        self._to.write(line + "\n")

    def kill(self) -> None:
        """SIGKILL; returns when it is dead and reaped.

        Raises:
            AssertionError: It ended in another way.
        """
        os.kill(self.pid, signal.SIGKILL)
        status = self.wait()
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            raise AssertionError(f"it was not the kill that ended it: {status}; {self.lines}")

    def signal(self, number: signal.Signals) -> None:
        """Sends another signal."""
        os.kill(self.pid, number)

    def finish(self) -> dict[str, Any]:
        """Reads to the end; gives the JSON of each word that it said.

        Raises:
            AssertionError: It crashed.
        """
        for line in self._back:
            self.lines.append(line.rstrip("\n"))
        status = self.wait()
        if status != 0:
            raise AssertionError(f"it ended with {status}; {self.lines}")
        said: dict[str, Any] = {}
        for line in self.lines:
            word, _, rest = line.partition(" ")
            if word in ("RAISED", "TRACE", "DONE", "ANSWERED"):
                said[word] = json.loads(rest)
        alarms = [line for line in self.lines if "[ROLLBACK]" in line or "[TAMPER]" in line]
        if alarms:
            raise AssertionError(f"an honest crash alarmed: {alarms}")
        return said

    def wait(self) -> int:
        """How it ended, as `os.waitpid` says."""
        if self._status is None:
            for line in self._back:  # until its end of the pipe is closed
                self.lines.append(line.rstrip("\n"))
            self._status = self._nursery.reap(self.pid)
            self._to.close()
            self._back.close()
        return self._status

    def abandon(self) -> None:
        """Kills it if it still runs."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.kill(self.pid, signal.SIGCONT)
            self.wait()


class Nursery:
    """Forks workers; may be used by several threads."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        flags = ["-O"] if sys.flags.optimize else []
        self._process = subprocess.Popen(
            [sys.executable, *flags, "-m", "tests.crash.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
        )
        theirs.close()
        self._control = ours
        self._lock = threading.Lock()
        self._children: list[Child] = []

    def fork(self, order: Order) -> Child:
        """A new process that begins with this order."""
        child_in, to = os.pipe()
        back, child_out = os.pipe()
        message = json.dumps(asdict(order)).encode() + b"\n"
        with self._lock:
            socket.send_fds(self._control, [message], [child_in, child_out])
            pid = self._number()
        os.close(child_in)
        os.close(child_out)
        child = Child(self, pid, to, back)
        self._children.append(child)
        return child

    def reap(self, pid: int) -> int:
        """Waits for the end of a child."""
        with self._lock:
            self._control.sendall(json.dumps({"reap": pid}).encode() + b"\n")
            return self._number()

    def _number(self) -> int:
        answer = b""
        while not answer.endswith(b"\n"):
            part = self._control.recv(64)
            if not part:
                raise AssertionError("the template process has ended")
            answer += part
        return int(answer)

    def close(self) -> None:
        """Ends all children and the template."""
        for child in self._children:
            child.abandon()
        self._control.close()
        self._process.wait(30)
