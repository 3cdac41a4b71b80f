"""SQLite on a disk that fails: full, unreadable, torn, or lying about its syncs.

Every operation of an uninterrupted run is made to fail once, in a run of its own: the error is
one of ours, no effect starts after it, nothing is half-written, and the thread goes on to the
same end with every effect exactly once. ``SUREFOOT_FAULTS=all`` takes every operation in both
colours and both ways to go on; without it, operations that are many are thinned out.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.storage_faults.conftest import SmallDisk
from tests.storage_faults.errand import CHARGES, Errand, Stores, Walk, no_alarm, walked
from tests.storage_faults.sqlite_disk import (
    CANTOPEN,
    FULL,
    IOERR_FSYNC,
    IOERR_READ,
    IOERR_SHMMAP,
    IOERR_TRUNCATE,
    IOERR_WRITE,
    Disk,
    DiskFault,
    faulty_disk,
)

from surefoot import Keyring
from surefoot.errors import Unavailable

ROOT = Path(__file__).resolve().parents[2]
ALL = os.environ.get("SUREFOOT_FAULTS") == "all"
#: A folder in memory, where there is one: faults are ours, and no power fails.
_MEMORY = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
#: Of operations that are many, every how-many-eth is made to fail.
EVERY = 1 if ALL else 8


@dataclass(frozen=True)
class Kind:
    """How operations fail.

    Attributes:
        operation: Which ones.
        code: What SQLite is told.
        lasting: Until the disk is mended.
        torn: What is written arrives half, what is synced not at all.
        stops: Runs that are hit raise; otherwise they get over it, and read back what happened.
    """

    operation: str
    code: int
    lasting: bool
    torn: bool
    stops: bool


KINDS = {
    "full": Kind("write", FULL, lasting=True, torn=False, stops=True),
    "full-once": Kind("write", FULL, lasting=False, torn=False, stops=False),
    "write-error": Kind("write", IOERR_WRITE, lasting=True, torn=True, stops=True),
    "torn-write": Kind("write", IOERR_WRITE, lasting=False, torn=True, stops=False),
    "sync-error": Kind("sync", IOERR_FSYNC, lasting=True, torn=True, stops=True),
    "sync-lies": Kind("sync", IOERR_FSYNC, lasting=False, torn=False, stops=False),
    "read-error": Kind("read", IOERR_READ, lasting=True, torn=False, stops=True),
    "read-error-once": Kind("read", IOERR_READ, lasting=False, torn=False, stops=False),
    "cannot-open": Kind("open", CANTOPEN, lasting=True, torn=False, stops=True),
    "shared-memory": Kind("shm", IOERR_SHMMAP, lasting=True, torn=False, stops=True),
    "truncate": Kind("truncate", IOERR_TRUNCATE, lasting=True, torn=False, stops=False),
}


@dataclass(frozen=True)
class Template:
    """A pair of files that are set up, to be copied, and what an uninterrupted run does to them."""

    folder: Path
    keys: Keyring
    reference: Walk
    counts: dict[tuple[str, str], int]

    def copy(self, name: str) -> Stores:
        """A pair of files of its own."""
        folder = self.folder / name
        folder.mkdir()
        for file in ("a.db", "b.db"):
            shutil.copy(self.folder / file, folder / file)
        return Stores.in_folder(folder, self.keys)


@pytest.fixture(scope="module")
def disk() -> Iterator[Disk]:
    with faulty_disk() as made:
        yield made


@pytest.fixture(scope="module")
def template(disk: Disk) -> Iterator[Template]:
    folder = Path(tempfile.mkdtemp(prefix="surefoot-disk-", dir=_MEMORY))
    keys = Keyring.generate()
    Stores.in_folder(folder, keys).set_up()
    made = Template(folder, keys, Walk("", (), 0), {})
    stores = made.copy("reference")
    disk.plan(None)
    errand = Errand(stores, "thread")
    with stores.open() as saver:
        errand.finish(saver)
    counts = dict(disk.counts)
    assert not errand.errors
    yield Template(folder, keys, walked(stores, "thread"), counts)
    shutil.rmtree(folder)


def faults(kind: Kind, counts: dict[tuple[str, str], int]) -> Sequence[DiskFault]:
    """One fault for each operation of the kind, or for some of them."""
    found = []
    for (operation, file), count in sorted(counts.items()):
        if operation == kind.operation:
            every = EVERY if count > 2 * EVERY else 1
            found += [
                DiskFault(operation, file, number, kind.code, kind.lasting, kind.torn)
                for number in range(1, count + 1, every)
            ]
    return found


@dataclass
class Struck:
    """What came of one fault."""

    fault: DiskFault
    problems: list[str]
    raised: bool
    hits: list[str]


def struck(
    disk: Disk, template: Template, fault: DiskFault, *, is_async: bool, same: bool
) -> Struck:
    """Runs into a fault, mends the disk, goes on, and judges.

    Args:
        disk: The disk.
        template: Stores to copy.
        fault: What happens.
        is_async: Colour.
        same: The process goes on with the saver that it has; otherwise it closes it while the
            disk still fails, and opens another one.
    """
    stores = template.copy(f"{fault}-{is_async}-{same}".replace(" ", "-"))
    errand = Errand(stores, "thread", is_async=is_async)
    saver = stores.open()
    disk.plan(fault, lambda text: errand.till.note("fault", text))
    error = errand.attempt(saver)
    if not same:
        saver.close()
    hits = list(disk.hits)
    disk.mend()
    if not same:
        saver = stores.open()
    errand.finish(saver)
    saver.close()
    # What is hit only at the end, when the files are closed, is hit by nobody's run.
    hits = hits or list(disk.hits)
    problems = errand.problems(template.reference)
    if fault.lasting and fault.operation == "write" and fault.file.endswith("-wal"):
        problems += _effects_behind(errand, "fault")
    shutil.rmtree(Path(stores.url.removeprefix("sqlite:///")).parent)
    return Struck(fault, problems, error is not None, hits)


def _effects_behind(errand: Errand, event: str) -> list[str]:
    """No effect starts between this event and the end of its run."""
    for run in errand.till.runs():
        names = [name for name, _ in run]
        if event in names and "effect" in names[names.index(event) :]:
            return [f"an effect started after the {event}: {run}"]
    return []


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.timeout(1_200 if ALL else 120)
def test_every_operation_of_a_run_fails_once(name: str, disk: Disk, template: Template) -> None:
    kind = KINDS[name]
    found = faults(kind, template.counts)
    assert found, "nothing to be made to fail"
    ways = [(a, s) for a in (False, True) for s in (False, True)]
    all_struck = []
    with no_alarm():
        for number, fault in enumerate(found):
            for is_async, same in ways if ALL else [ways[number % len(ways)]]:
                # The log is moved into the file itself, and synced once more, when that is closed.
                last = fault.number == template.counts[fault.operation, fault.file]
                in_closing = fault.of_closing or (fault.operation == "sync" and last)
                same = same and not in_closing  # noqa: PLW2901
                all_struck.append(struck(disk, template, fault, is_async=is_async, same=same))
    failed = [f"{one.fault}: {problem}" for one in all_struck for problem in one.problems]
    assert not failed, "\n".join(failed)
    missed = [str(one.fault) for one in all_struck if not one.hits]
    # Reads depend on what other connections left in the cache; all others are certain.
    allowed = len(all_struck) // 4 if kind.operation in ("read", "shm") else 0
    assert len(missed) <= allowed, f"a fault that did not hit proves nothing: {missed}"
    raised = sum(one.raised for one in all_struck)
    if kind.stops:
        assert raised > len(all_struck) // 3, f"{raised} of {len(all_struck)} runs were stopped"
    print(f"{name}: {len(all_struck) - len(missed)} faults proven, {raised} runs stopped")


@pytest.mark.parametrize("known", [False, True], ids=["new-thread", "known-thread"])
def test_a_full_high_water_store_does_not_ask_for_the_lease_for_ever(
    disk: Disk, template: Template, *, known: bool
) -> None:
    stores = template.copy(f"lease-{known}")
    errand = Errand(stores, "thread")
    if known:
        with stores.open() as saver:
            errand.finish(saver)
    disk.plan(DiskFault("write", "b.db-wal", 1, FULL, lasting=True))
    with stores.open() as saver:
        with pytest.raises(Unavailable):
            errand.graph(saver).invoke({"notes": ["again"]}, errand.config)
        assert 1 < len(disk.hits) < 50
        disk.mend()
        errand.finish(saver)
    assert errand.till.counts() == {f"thread/{what}": 1 for what in CHARGES}


@pytest.mark.optimized
def test_a_full_disk_also_without_asserts(disk: Disk, template: Template) -> None:
    for number in (3, 40):
        fault = DiskFault("write", "a.db-wal", number, FULL, lasting=True)
        found = struck(disk, template, fault, is_async=False, same=True)
        if not found.hits or not found.raised or found.problems:
            pytest.fail(str(found))


@pytest.mark.parametrize("operation", ["write", "sync", "open", "shm", "read"])
def test_setting_up_on_a_disk_that_fails(disk: Disk, tmp_path: Path, operation: str) -> None:
    code = {k.operation: k.code for k in KINDS.values()}[operation]
    keys = Keyring.generate()

    def fresh(name: str) -> Stores:
        folder = tmp_path / name
        folder.mkdir()
        return Stores.in_folder(folder, keys)

    disk.plan(None)
    fresh("reference").set_up()
    counts = {place: n for place, n in disk.counts.items() if place[0] == operation}
    assert counts
    hits = raised = 0
    for (_, file), count in sorted(counts.items()):
        for number in range(1, count + 1, 1 if ALL else max(1, count // 2)):
            stores = fresh(f"{file}-{number}")
            disk.plan(DiskFault(operation, file, number, code, lasting=True))
            try:
                stores.set_up()
            except Unavailable:
                raised += 1
            hits += bool(disk.hits)
            disk.mend()
            stores.set_up()
            errand = Errand(stores, "thread")
            with stores.open() as saver:
                saver.setup(verify_only=True)
                errand.finish(saver)
            assert not errand.errors
    assert hits > 0
    assert raised > 0
    print(f"{operation}: {hits} faults proven, {raised} times refused")


@pytest.mark.parametrize("store", ["a", "b"])
@pytest.mark.parametrize("operation", ["write", "sync", "read"])
def test_the_log_cannot_be_moved_into_the_file_in_the_middle_of_a_run(
    disk: Disk, template: Template, operation: str, store: str
) -> None:
    """SQLite does that inside a commit when the log has a thousand pages."""
    file = f"{store}.db"
    code = {"write": FULL, "sync": IOERR_FSYNC, "read": IOERR_READ}[operation]
    hits = 0
    numbers = {"write": (1, 2, 40), "sync": (1, 1), "read": (1, 2)}[operation]
    for turn, number in enumerate(numbers):
        stores = template.copy(f"long-log-{operation}-{store}-{turn}")
        path = Path(stores.url.removeprefix("sqlite:///")).parent / file
        # Open to the end, so that nothing is moved by closing.
        with closing(sqlite3.connect(path, isolation_level=None)) as beside:
            beside.execute("CREATE TABLE filling (page BLOB)")
            beside.execute("INSERT INTO filling VALUES (zeroblob(4000 * 980))")
            while path.with_name(f"{file}-wal").stat().st_size < 995 * (24 + 4_096):
                beside.execute("INSERT INTO filling VALUES (zeroblob(10))")
            errand = Errand(stores, "thread", is_async=turn == 1)
            saver = stores.open()
            place = f"{file}-wal" if operation == "read" else file
            disk.plan(DiskFault(operation, place, number, code, lasting=True, torn=True))
            errand.attempt(saver)
            hits += bool(disk.hits)
            disk.mend()
            errand.finish(saver)
            saver.close()
        assert not errand.problems(template.reference)
    assert hits > 1, "the log was never moved in the middle of a run"


def test_a_commit_whose_sync_failed_may_be_there_after_all(disk: Disk, tmp_path: Path) -> None:
    """The process is gone after the error; the log of the file holds the commit."""
    keys = Keyring.generate()
    stores = Stores.in_folder(tmp_path, keys).set_up()
    disk.plan(None)
    errand = Errand(stores, "warm")
    with stores.open() as saver:
        errand.finish(saver)
    syncs = disk.counts["sync", "a.db-wal"]
    reference = walked(stores, "warm")
    appeared = 0
    for number in range(1, syncs, 1 if ALL else 3):
        errand = Errand(stores, f"thread-{number}")
        copy = tmp_path / f"copy-{number}"
        copy.mkdir()
        saver = stores.open()
        disk.plan(DiskFault("sync", "a.db-wal", number, IOERR_FSYNC, lasting=True, torn=True))
        error = errand.attempt(saver)
        assert disk.hits, number
        for file in tmp_path.glob("*.db*"):  # as a crash of the machine would leave them
            if not file.name.endswith("-shm"):
                shutil.copy(file, copy / file.name)
        disk.mend()
        saver.close()
        if error is None:  # it was hit when the file was closed
            continue
        assert isinstance(error, Unavailable), error
        left = Stores.in_folder(copy, keys)
        errand.stores = left
        with left.open() as saver, no_alarm():
            appeared += _beyond(saver, errand.thread)
            errand.finish(saver)
        assert not errand.problems(reference)
    assert appeared > 1, "no unacknowledged commit was found again"


def _beyond(saver, thread: str) -> bool:
    """Whether the content store is ahead of the high-water store."""
    ports = saver.core.ports
    row, mark = ports.store.read_thread("default", thread), ports.marks.read("default", thread)
    return row is not None and mark is not None and row.head.seq > mark.seq


# --- the operating system's own limits ------------------------------------------------------------

#: Runs errands while no file may grow beyond a limit, each then once more without it.
_LIMITED = """
import json, resource, sys
from pathlib import Path
from tests.storage_faults.conftest import SmallDisk
from tests.storage_faults.errand import CHARGES, Errand, Stores, walked
from surefoot import Keyring

folder, limits = Path(sys.argv[1]), map(int, sys.argv[2:])
keys = Keyring.generate()
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

def stores(name):
    (folder / name).mkdir()
    return Stores.in_folder(folder / name, keys).set_up()

reference = Errand(stores("reference"), "thread")
with reference.stores.open() as saver:
    reference.finish(saver)
walk = walked(reference.stores, "thread")
for number, limit in enumerate(limits):
    errand = Errand(stores(str(limit)), "thread", is_async=number % 2 == 1)
    saver = errand.stores.open()
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    first = errand.attempt(saver)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    errand.finish(saver)
    saver.close()
    print(json.dumps([limit, type(first).__name__, str(first), errand.problems(walk)]), flush=True)
"""


def test_no_file_may_grow_beyond_each_page(tmp_path: Path) -> None:
    """The kernel refuses the write: ``RLIMIT_FSIZE``, in another process."""
    pages = range(0, 100, 1 if ALL else 14)
    limits = [str(32 + page * (24 + 4_096) + 2_000) for page in pages]
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path), *limits],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(limits)
    assert [problem for *_, problems in found for problem in problems] == []
    stopped = [kind for _, kind, text, _ in found if "SQLITE_" in text or "disk" in text]
    assert len(stopped) > len(found) // 3, found
    assert {kind for _, kind, *_ in found} <= {"NoneType", "StoreUnavailable", "OutcomeUnknown"}


def test_a_real_disk_is_full_at_each_page(small_disk: Callable[[int], SmallDisk]) -> None:
    disk = small_disk(2)
    keys = Keyring.generate()

    def stores(name: str) -> Stores:
        (disk.place / name).mkdir()
        return Stores.in_folder(disk.place / name, keys).set_up()

    errand = Errand(stores("reference"), "thread")
    with errand.stores.open() as saver:
        errand.finish(saver)
    reference = walked(errand.stores, "thread")
    stopped = 0
    free_pages = range(0, 130, 1 if ALL else 8)
    for free in free_pages:
        errand = Errand(stores(str(free)), "thread", is_async=free % 16 == 0)
        saver = errand.stores.open()
        disk.fill(free)
        error = errand.attempt(saver)
        stopped += error is not None
        disk.empty()
        errand.finish(saver)
        saver.close()
        assert not errand.problems(reference), free
        shutil.rmtree(disk.place / str(free))
    assert stopped > len(free_pages) // 3, "the disk was hardly ever full"
    print(f"the disk was full in {stopped} of {len(free_pages)} runs")
