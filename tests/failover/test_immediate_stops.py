"""The content store's server is stopped as by a crash, again and again, while workers run.

No effect happens twice, nothing acknowledged is lost, and nothing alarms: every error that a
worker meets is of the kind "try again". ``SUREFOOT_STOPS`` sets how often the server is stopped
(2 by default).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.postgres import Cluster, fresh_database
from tests.storage_faults.errand import CHARGES, Errand, Stores, walked

from surefoot import Keyring
from surefoot.demo.payments_client import PaymentService

pytestmark = pytest.mark.postgres
ROOT = Path(__file__).resolve().parents[2]
STOPS = int(os.environ.get("SUREFOOT_STOPS", "2"))
#: Then also with async nodes, and with the high-water store on a server of its own.
MANY = STOPS > 3
WORKERS = 3 if MANY else 2
#: Payments between two stops.
PAYMENTS = 4
ALARMS = ("[ROLLBACK]", "[TAMPER]", "[MARK_CORRUPT]", "[FENCED]")


class Worker:
    """A worker process and the thread that listens to it."""

    def __init__(self, office: Office, order: dict[str, object]) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.failover.worker", json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
        )
        self._office = office
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        try:
            for line in self.process.stdout:
                self.lines.append(line.rstrip("\n"))
                if self._office.heard(line.rstrip("\n")):
                    self._office.up.wait()
                    self.process.stdin.write("go\n")
                    self.process.stdin.flush()
        except BaseException:
            self.process.kill()  # nobody would answer it any more
            raise
        finally:
            self._office.left()


class Office:
    """What all workers have said."""

    def __init__(self) -> None:
        self.up = threading.Event()
        self.up.set()
        self.errors: list[tuple[str, str, str]] = []
        self.alarms: list[str] = []
        self.paid = 0
        self._left = 0
        self._news = threading.Condition()

    def heard(self, line: str) -> bool:
        """Takes one line; whether its worker waits for an answer."""
        with self._news:
            word, _, rest = line.partition(" ")
            if word == "PAID":
                self.paid += 1
            elif word == "ERROR":
                reaction, name, text = json.loads(rest)
                self.errors.append((reaction, name, text))
            if any(alarm in line for alarm in ALARMS):
                self.alarms.append(line)
            self._news.notify_all()
            return word == "ERROR"

    def left(self) -> None:
        """A worker has ended."""
        with self._news:
            self._left += 1
            self._news.notify_all()

    def wait_paid(self, count: int) -> bool:
        """Waits for so many payments; False when a worker has ended meanwhile."""
        with self._news:
            self._news.wait_for(lambda: self.paid >= count or self._left > 0, 90)
            return self.paid >= count and self._left == 0

    def wait_error(self, count: int) -> None:
        """Waits until workers have met so many errors."""
        with self._news:
            if not self._news.wait_for(lambda: len(self.errors) >= count, 60):
                raise AssertionError("the stop hit nobody")


@contextmanager
def at_work(office: Office, orders: list[dict[str, object]]) -> Iterator[list[Worker]]:
    workers = [Worker(office, order) for order in orders]
    try:
        yield workers
    finally:
        office.up.set()
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
            worker.listener.join(10)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.remove()


@pytest.mark.timeout(120 + 30 * STOPS)
@pytest.mark.parametrize(
    "is_async", [False, True][: 1 + MANY], ids=["invoke", "ainvoke"][: 1 + MANY]
)
def test_a_server_that_is_stopped_at_once_again_and_again(
    cluster: Cluster, tmp_path: Path, *, is_async: bool
) -> None:
    content = fresh_database(cluster.url)
    highwater = f"sqlite:///{tmp_path}/b.db" if not is_async else fresh_database()
    keys = Keyring.generate()
    keys.to_file(tmp_path / "keys.json")
    stores = Stores(content, highwater, keys).set_up()
    reference = Errand(stores, "reference", durability="async")
    with stores.open() as saver:
        reference.finish(saver)
    wanted = walked(stores, "reference")

    each = 2 + STOPS * PAYMENTS // len(CHARGES)
    threads = [[f"w{n}-{k}" for k in range(each)] for n in range(WORKERS)]
    office, stops = Office(), 0
    with PaymentService(mode="idempotent") as service:
        orders: list[dict[str, object]] = [
            {
                "url": content,
                "highwater": highwater,
                "key_file": str(tmp_path / "keys.json"),
                "service": service.url,
                "threads": mine,
                "is_async": is_async,
            }
            for mine in threads
        ]
        with at_work(office, orders) as workers:
            for stop in range(1, STOPS + 1):
                if not office.wait_paid(stop * PAYMENTS):
                    break
                before = len(office.errors)
                office.up.clear()
                cluster.stop_at_once()
                office.wait_error(before + 1)
                stops += 1
                cluster.start()
                office.up.set()
                print(f"stop {stop} of {STOPS}: {office.paid} payments so far", flush=True)
            for worker in workers:
                assert worker.process.wait(110) == 0, worker.lines[-3:]
                worker.listener.join(10)
                assert worker.lines[-1] == "END"
        audit = service.audit()
        invoices = {
            f"{thread}/{what}": 1 for mine in threads for thread in mine for what in CHARGES
        }
        assert {invoice: audit.count(invoice) for invoice in invoices} == invoices
    assert stops == STOPS, "the workers were done before the last stop"
    assert not office.alarms, office.alarms
    assert {reaction for reaction, _, _ in office.errors} == {"unavailable"}, office.errors
    for mine in threads:
        for thread in mine:
            walk = walked(stores, thread)
            assert (walk.values, walk.steps, walk.tasks) == (wanted.values, wanted.steps, 0), thread
    kinds = Counter(name for _, name, _ in office.errors)
    print(f"{stops} stops, {sum(map(len, threads))} threads, errors {dict(kinds)}")
