"""Stores under attack, and the saver's fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.advisories.thread_under_attack import Attacked, make_attacked
from tests.saver.conftest import BACKENDS, backend, each_half, half, saver

__all__ = ["attacked", "backend", "each_half", "half", "saver"]


@pytest.fixture(params=BACKENDS)
def attacked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Attacked]:
    """A thread with something in every table, on SQLite and on PostgreSQL."""
    made = make_attacked(request.param, tmp_path)
    yield made
    made.close()
    made.store.drop()
