"""What crash tests share."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest


@pytest.fixture(scope="session")
def explorers() -> Iterator[ProcessPoolExecutor]:
    """Processes that explore side by side."""
    workers = max(2, min(os.cpu_count() or 2, 8))
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        yield pool
