"""Where crash tests keep their threads: one pair of stores per backend and process."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.postgres import fresh_database

from surefoot import Keyring, Limits, ResumePolicy, SurefootSaver

__all__ = ["BACKENDS", "Place", "place"]

BACKENDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
#: A folder in memory, where there is one: a simulated crash takes no power away.
_MEMORY = Path("/dev/shm")
_NEVER_MS = 10**9


@dataclass(frozen=True)
class Place:
    """A pair of stores that are set up, and how to open a saver on them.

    Attributes:
        backend: ``sqlite`` or ``postgres``.
        url: Of the content store.
        highwater: Of the high-water store, in another file or database.
        key_file: Keys.
    """

    backend: str
    url: str
    highwater: str
    key_file: str

    def open(
        self, *, saver_class: type[SurefootSaver] = SurefootSaver, **settings: Any
    ) -> SurefootSaver:
        """A saver as another process would open it; nothing happens by the clock."""
        limits = Limits(flush_after_ms=_NEVER_MS)
        policy = ResumePolicy(
            lease_ttl_ms=3_600_000, settling_ms=0, handover_grace_ms=0, barrier_timeout_ms=20_000
        )
        given: dict[str, Any] = {"limits": limits, "policy": policy, **settings}
        return saver_class(
            self.url, highwater=self.highwater, keys=Keyring.from_file(self.key_file), **given
        )


@cache
def place(backend: str) -> Place:
    """The stores of this process; each test takes threads of its own in them."""
    parent = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="surefoot-crash-", dir=parent))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    key_file = folder / "keys.json"
    Keyring.generate().to_file(key_file)
    if backend == "sqlite":
        made = Place(backend, f"sqlite:///{folder}/a.db", f"sqlite:///{folder}/b.db", str(key_file))
    else:
        made = Place(backend, fresh_database(), fresh_database(), str(key_file))
    with made.open() as saver:
        saver.setup()
    return made
