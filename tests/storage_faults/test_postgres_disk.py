"""PostgreSQL on a disk that is full: where its tables are, and where its log is.

The first is an error of one statement; the second ends the server. Both need a file system of
their own, which only an administrator may mount.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from tests.postgres import Cluster, fresh_database, with_parts
from tests.storage_faults.conftest import SmallDisk
from tests.storage_faults.errand import Errand, Stores, no_alarm, walked

from surefoot import Keyring, Limits
from surefoot.errors import StoreUnavailable, Unavailable

pytestmark = pytest.mark.postgres
ALL = os.environ.get("SUREFOOT_FAULTS") == "all"
campaign = pytest.mark.skipif(not ALL, reason="half a minute: `make campaign-faults`")


@pytest.fixture
def clusters() -> Iterator[list[Cluster]]:
    made: list[Cluster] = []
    yield made
    for cluster in made:
        cluster.remove()


def database_on(cluster: Cluster, disk: SmallDisk) -> str:
    """A database all of whose tables are on the disk."""
    folder = disk.place / "tables"
    folder.mkdir()
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody")
    with psycopg.connect(cluster.url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLESPACE small LOCATION '{folder}'")  # type: ignore[arg-type]
        connection.execute("CREATE DATABASE small TABLESPACE small")
    return with_parts(cluster.url, dbname="small")


@pytest.mark.parametrize("store", ["a", pytest.param("b", marks=campaign)])
def test_no_room_for_the_tables_at_each_page(
    small_disk: Callable[[int], SmallDisk], clusters: list[Cluster], tmp_path: Path, store: str
) -> None:
    disk = small_disk(32)
    clusters.append(Cluster())
    url = database_on(clusters[0], disk)
    other = f"sqlite:///{tmp_path}/other.db"
    keys = Keyring.generate()
    pair = (url, other) if store == "a" else (other, url)
    stores = Stores(*pair, keys).set_up()
    errand = Errand(stores, "reference")
    with stores.open() as saver:
        errand.finish(saver)
    reference = walked(stores, "reference")
    # An update of a mark needs a new page only now and then, so B is tried more often.
    stopped, tries = 0, range(24 if ALL else 8)
    with no_alarm():
        for number in tries:
            errands = [
                Errand(stores, f"thread-{number}-{k}", is_async=number % 2 == 1)
                for k in range(6 if store == "a" else 40)
            ]
            tried: list[Errand] = []
            with stores.open() as saver:
                disk.fill(2 * number if store == "a" else 2 * (number % 2))
                for errand in errands:
                    error = errand.attempt(saver)
                    tried.append(errand)
                    if error is not None:
                        assert isinstance(error, StoreUnavailable), error
                        assert "53100" in str(error)
                        stopped += 1
                        break
                disk.empty()
                errand.finish(saver)
            for each in tried:
                problems = each.problems(reference)
                assert not problems, (each.thread, problems, clusters[0].log()[-1_500:])
    assert stopped > len(tries) // 3, "there was nearly always room"
    print(f"{store}: no room in {stopped} of {len(tries)} tries")


def revive(cluster: Cluster, sizes: dict[str, str]) -> None:
    """Waits until the server has recovered by itself, or starts it when it has given up."""
    while True:
        try:
            psycopg.connect(cluster.url).close()
            return
        except psycopg.OperationalError:
            if not cluster.is_running():
                cluster.start(**sizes)


@campaign
def test_no_room_for_the_log_ends_the_server(
    small_disk: Callable[[int], SmallDisk], clusters: list[Cluster], tmp_path: Path
) -> None:
    disk = small_disk(24)
    clusters.append(Cluster(initdb=["--waldir", str(disk.place / "log"), "--wal-segsize=1"]))
    cluster = clusters[0]
    sizes = {"min_wal_size": "2MB", "max_wal_size": "4MB"}
    cluster.restart(**sizes)
    limits = Limits(flush_after_ms=10**9, connect_timeout_ms=500)
    stores = Stores(
        fresh_database(cluster.url), f"sqlite:///{tmp_path}/b.db", Keyring.generate(), limits
    ).set_up()
    errand = Errand(stores, "reference")
    with stores.open() as saver:
        errand.finish(saver)
    reference = walked(stores, "reference")
    rounds = 3 if ALL else 1
    for number in range(rounds):
        errands = []
        with stores.open() as saver, no_alarm():
            disk.fill(number)
            for k in range(200):
                errands.append(Errand(stores, f"thread-{number}-{k}", is_async=k % 2 == 1))
                if errands[-1].attempt(saver) is not None:
                    break
            assert errands[-1].errors, "the log never grew"
            assert isinstance(errands[-1].errors[0], Unavailable)
            panics = cluster.log().count("PANIC:  could not write to file")
            assert panics > number, "it was not the disk that ended the server"
            disk.empty()
            revive(cluster, sizes)
            errands[-1].finish(saver)
        for errand in errands:
            assert not errand.problems(reference), errand.thread
    print(f"the server ended {rounds} times")
