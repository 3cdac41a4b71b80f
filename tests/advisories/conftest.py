"""Stores under attack, and the saver's fixtures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.advisories.thread_under_attack import Attacked, make_attacked
from tests.saver.conftest import BACKENDS, Backend, Half, backend, half, saver

from surefoot import SurefootSaver

__all__ = ["attacked", "backend", "each_half", "half", "saver"]


#: The sync half on SQLite and the async half on PostgreSQL; all four in `make campaign-advisories`.
HALVES = ["own half", "other half"] if os.environ.get("SUREFOOT_FULL") else ["own half"]


@pytest.fixture(params=HALVES)
def other(request: pytest.FixtureRequest) -> bool:
    """Whether the half is the one that is not run on this store otherwise."""
    return bool(request.param == "other half")


@pytest.fixture
def each_half(backend: Backend, saver: SurefootSaver, *, other: bool) -> Half:
    """One half on each store, or both."""
    return Half(saver, is_async=(backend.name == "postgres") is not other)


@pytest.fixture(params=BACKENDS)
def attacked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Attacked]:
    """A thread with something in every table, on SQLite and on PostgreSQL."""
    made = make_attacked(request.param, tmp_path)
    yield made
    made.close()
    made.store.drop()
