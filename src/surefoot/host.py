"""The process and its host: clocks, and how a lease holder describes itself."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from pathlib import Path

from surefoot.rules.lease import HolderFacts, ProcessFacts

__all__ = ["LocalHost"]

_TOKEN_BYTES = 8


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _start_of(pid: int) -> int | None:
    """Start time of a process in ticks; None when it is gone or a zombie, 0 when unknown."""
    if pid <= 0:
        return 0
    try:
        raw = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _gone(pid)
    fields = raw.rpartition(")")[2].split()
    if not fields or fields[0] in ("Z", "X", "x"):
        return None  # a zombie runs no more code; it only waits to be reaped
    try:
        return int(fields[19])
    except (IndexError, ValueError):
        return 0


#: Tokens of the acquisitions of this process that are not over. Shared by all savers of the
#: process, because they share its pid.
_live_tokens: set[str] = set()


def _gone(pid: int) -> int | None:
    """None when the kernel says that there is no such process; 0 when it may be hidden."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        return 0
    return 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_live_tokens.clear)


class LocalHost:
    """Facts about this process, and proofs about others on the same host."""

    def __init__(self) -> None:
        self._boot = _read("/proc/sys/kernel/random/boot_id")
        self._namespace = _pid_namespace()

    def facts(self) -> ProcessFacts:
        """This process; asked anew each time because a fork changes the answer."""
        pid = os.getpid()
        return ProcessFacts(self._boot, self._namespace, pid, _start_of(pid) or 0)

    def describe(self) -> str:
        """Text that goes into the high-water store as the owner of an acquisition."""
        facts = self.facts()
        token = secrets.token_hex(_TOKEN_BYTES)
        _live_tokens.add(token)
        return json.dumps(
            {
                "host": socket.gethostname(),
                "boot": facts.boot_id,
                "ns": facts.pid_namespace,
                "pid": facts.pid,
                "start": facts.start,
                "token": token,
            },
            separators=(",", ":"),
        )

    def retire(self, owner: str) -> None:
        """Says that an acquisition of this process is over, whatever the store knows of it."""
        try:
            _live_tokens.discard(str(json.loads(owner)["token"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return  # not described by this class, so it was never live here

    def holder(self, owner: str) -> HolderFacts:
        """What this host can say about the holder that described itself as ``owner``."""
        here = self.facts()
        try:
            raw = json.loads(owner)
            holder = ProcessFacts(
                str(raw["boot"]), str(raw["ns"]), int(raw["pid"]), int(raw["start"])
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return HolderFacts(None, here, 0)
        if (holder.boot_id, holder.pid_namespace, holder.pid) == (
            here.boot_id,
            here.pid_namespace,
            here.pid,
        ) and raw.get("token") not in _live_tokens:
            return HolderFacts(holder, here, None)  # this process, but that acquisition is over
        same = (holder.boot_id, holder.pid_namespace) == (here.boot_id, here.pid_namespace)
        return HolderFacts(holder, here, _start_of(holder.pid) if same else 0)

    def shown(self, owner: str) -> str:
        """Readable form of an owner."""
        try:
            raw = json.loads(owner)
            return f"pid {int(raw['pid'])} on {raw['host']}"
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return "an unknown holder"

    def monotonic_ms(self) -> int:
        """Milliseconds of the local monotonic clock."""
        return time.monotonic_ns() // 1_000_000

    def now_us(self) -> int:
        """Microseconds since the epoch on the local clock; for people, never for decisions."""
        return time.time_ns() // 1_000

    def pause(self, milliseconds: int) -> None:
        """Waits between two tries."""
        time.sleep(milliseconds / 1000)
