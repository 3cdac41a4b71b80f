"""What crash tests share."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest
from tests.crash.nursery import Nursery

from surefoot.demo.payments_client import PaymentService


@pytest.fixture(scope="session")
def explorers() -> Iterator[ProcessPoolExecutor]:
    """Processes that explore side by side."""
    workers = max(2, min(os.cpu_count() or 2, 8))
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Where killable workers come from."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(scope="session")
def service() -> Iterator[PaymentService]:
    """The payment service of all kill tests; it outlives every worker."""
    with PaymentService(mode="idempotent") as running:
        yield running
