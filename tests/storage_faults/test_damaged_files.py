"""SQLite files that came back damaged, or that may only be read.

A damaged database gives the right values or an error of ours, never other values, and no effect
is done a second time. A high-water file is trusted, so its damage must be an error.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.storage_faults.errand import CHARGES, Errand, Stores, Till, Walk, walked

from surefoot import Keyring
from surefoot.errors import (
    KeyMissing,
    MarkCorrupt,
    RollbackDetected,
    StoreUnavailable,
    SurefootError,
    TamperDetected,
)

PAID = {f"thread/{what}": 1 for what in CHARGES}
ALL = os.environ.get("SUREFOOT_FAULTS") == "all"


@dataclass
class Sound:
    """A thread on a pair of sound files, to be copied and damaged."""

    folder: Path
    keys: Keyring
    walk: Walk
    till: Till

    def copy(self, name: str) -> tuple[Stores, Path]:
        folder = self.folder.parent / name
        shutil.copytree(self.folder, folder)
        return Stores.in_folder(folder, self.keys), folder


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    folder = tmp_path_factory.mktemp("damaged") / "sound"
    folder.mkdir()
    keys = Keyring.generate()
    stores = Stores.in_folder(folder, keys).set_up()
    errand = Errand(stores, "thread")
    with stores.open() as saver:
        errand.finish(saver)
        for turn in range(3):
            errand.graph(saver).invoke({"notes": [f"turn {turn}"]}, errand.config)
    assert not list(folder.glob("*-wal")), "everything is in the files themselves"
    return Sound(folder, keys, walked(stores, "thread"), errand.till)


def zeroed(data: bytearray, page: int, size: int) -> None:
    data[page * size : (page + 1) * size] = bytes(size)


def half_torn(data: bytearray, page: int, size: int) -> None:
    """The second half of a page is that of another one."""
    other = 0 if page else 1
    data[page * size + size // 2 : (page + 1) * size] = data[
        other * size + size // 2 : (other + 1) * size
    ]


def cut(data: bytearray, page: int, size: int) -> None:
    del data[page * size :]


def cut_inside(data: bytearray, page: int, size: int) -> None:
    del data[page * size + size // 3 :]


def noise(data: bytearray, page: int, size: int) -> None:
    """Every byte of the page is another one."""
    data[page * size : (page + 1) * size] = bytes(
        b ^ 0xA5 for b in data[page * size : (page + 1) * size]
    )


DAMAGES: list[Callable[[bytearray, int, int], None]] = [zeroed, half_torn, cut, cut_inside, noise]


def pages(path: Path) -> tuple[int, int]:
    """(number of pages, size of a page)."""
    header = path.read_bytes()[:100]
    (size,) = struct.unpack(">H", header[16:18])
    return path.stat().st_size // size, size


def looked_at(stores: Stores, sound: Sound) -> str:
    """What a fresh process makes of it: ``right``, or the name of an error of ours."""
    try:
        walk = walked(stores, "thread")
    except SurefootError as error:
        return type(error).__name__
    return "right" if walk == sound.walk else f"wrong: {walk}"


def resumed(stores: Stores, sound: Sound) -> str:
    """What a run makes of it. Nothing may be paid again."""
    errand = Errand(stores, "thread")
    errand.till.landed = list(sound.till.landed)
    with stores.open() as saver:
        error = errand.attempt(saver)
    again = any(event == "effect" for event, _ in errand.till.log)
    if again or errand.till.counts() != sound.till.counts():
        return f"paid again: {errand.till.log}"
    if error is None:
        return "right"
    return type(error).__name__ if isinstance(error, SurefootError) else f"wrong: {error!r}"


@pytest.mark.optimized
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
def test_a_damaged_page_of_the_database_is_an_error_never_other_values(
    sound: Sound, damage: Callable[[bytearray, int, int], None]
) -> None:
    count, size = pages(sound.folder / "a.db")
    outcomes: Counter[str] = Counter()
    wrong = []
    for page in range(count):
        stores, folder = sound.copy(f"a-{damage.__name__}-{page}")
        data = bytearray((folder / "a.db").read_bytes())
        before = bytes(data)
        damage(data, page, size)
        if bytes(data) == before:
            pytest.fail(f"page {page} is as it was: a fault that did not hit proves nothing")
        (folder / "a.db").write_bytes(data)
        found = [looked_at(stores, sound), resumed(stores, sound)]
        outcomes.update(found)
        wrong += [f"page {page}: {text}" for text in found if ":" in text]
        shutil.rmtree(folder)
    if wrong:
        pytest.fail("\n".join(wrong))
    refused = outcomes.total() - outcomes["right"]
    if refused <= outcomes.total() // 4:
        pytest.fail(f"hardly any damage was noticed: {outcomes}")
    print(f"{damage.__name__}: {count} pages, {dict(outcomes)}")


@pytest.mark.optimized
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
def test_a_damaged_page_of_the_high_water_file_is_an_error(
    sound: Sound, damage: Callable[[bytearray, int, int], None]
) -> None:
    count, size = pages(sound.folder / "b.db")
    outcomes: Counter[str] = Counter()
    wrong = []
    for page in range(count):
        stores, folder = sound.copy(f"b-{damage.__name__}-{page}")
        data = bytearray((folder / "b.db").read_bytes())
        before = bytes(data)
        damage(data, page, size)
        if bytes(data) == before:
            continue
        (folder / "b.db").write_bytes(data)
        found = [looked_at(stores, sound), resumed(stores, sound)]
        outcomes.update(found)
        wrong += [f"page {page}: {text}" for text in found if ":" in text]
        shutil.rmtree(folder)
    if wrong:
        pytest.fail("\n".join(wrong))
    if outcomes.total() == outcomes["right"]:
        pytest.fail(f"no damage was noticed: {outcomes}")
    print(f"{damage.__name__}: {count} pages, {dict(outcomes)}")


# --- a log that was cut ---------------------------------------------------------------------------


@dataclass
class Logged:
    """Copies of both files and logs while their process is alive: nothing is moved yet."""

    folder: Path
    keys: Keyring
    walk: Walk
    till: Till


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    live = tmp_path_factory.mktemp("logged")
    folder = live / "copy"
    folder.mkdir()
    keys = Keyring.generate()
    stores = Stores.in_folder(live, keys).set_up()
    errand = Errand(stores, "thread")
    with stores.open() as saver:
        errand.finish(saver)
        for file in live.glob("*.db*"):
            if not file.name.endswith("-shm"):
                shutil.copy(file, folder / file.name)
    walk = walked(stores, "thread")
    assert (folder / "a.db-wal").stat().st_size > 50_000
    return Logged(folder, keys, walk, errand.till)


@pytest.mark.optimized
def test_a_log_of_the_database_that_was_cut_is_a_rollback(logged: Logged) -> None:
    """Acknowledged commits are gone with the end of the log; with all of it, nothing is missing."""
    size = (logged.folder / "a.db-wal").stat().st_size
    frame = 24 + 4_096
    outcomes: Counter[str] = Counter()
    ends = [*range(32, size, frame if ALL else 2 * frame), size]
    as_sound = Sound(logged.folder, logged.keys, logged.walk, logged.till)
    for end in ends:
        stores, folder = as_sound.copy(f"log-{end}")
        with (folder / "a.db-wal").open("r+b") as log:
            log.truncate(end)
        for found in (looked_at(stores, as_sound), resumed(stores, as_sound)):
            outcomes[found] += 1
            allowed = {"right"} if end == size else {"RollbackDetected", "NotSetUp", "right"}
            if found not in allowed:
                pytest.fail(f"cut at {end} of {size}: {found}")
        shutil.rmtree(folder)
    if outcomes["right"] < 2 or outcomes["RollbackDetected"] < len(ends):
        pytest.fail(f"{outcomes}")


def test_a_rollback_names_both_seqs(logged: Logged) -> None:
    stores, folder = Sound(logged.folder, logged.keys, logged.walk, logged.till).copy("seqs")
    size = (folder / "a.db-wal").stat().st_size
    with (folder / "a.db-wal").open("r+b") as log:
        log.truncate(size * 2 // 3)
    with pytest.raises(RollbackDetected) as caught:
        walked(stores, "thread")
    error = caught.value
    assert 0 < error.stored_seq < error.witnessed_seq
    assert str(error.witnessed_seq) in str(error)
    assert str(error.stored_seq) in str(error)


# --- files and folders that may only be read ------------------------------------------------------


@pytest.fixture
def nobody(open_folder: Path) -> Iterator[Callable[[], None]]:
    """Gives up the rights of an administrator, whom no permission stops; they come back."""
    effective = os.geteuid()

    def give_up() -> None:
        if effective == 0:
            for path in [open_folder, *open_folder.rglob("*")]:
                os.chown(path, 65_534, 65_534)
            os.seteuid(65_534)

    yield give_up
    os.seteuid(effective)
    for path in [open_folder, *open_folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def read_only(folder: Path, what: str) -> Callable[[], None]:
    """Takes the right to write, or to enter; gives back how to undo it."""
    found = {
        "file of the database": [(folder / "a.db", 0o444)],
        "file of the marks": [(folder / "b.db", 0o444)],
        "folder": [(folder, 0o555)],
        "folder and files": [(folder / "a.db", 0o444), (folder / "b.db", 0o444), (folder, 0o555)],
        "no entry": [(folder, 0)],
        "no reading": [(folder / "a.db", 0), (folder / "b.db", 0)],
    }[what]
    for path, mode in found:
        path.chmod(mode)

    def undo() -> None:
        folder.chmod(0o755)
        for path in folder.iterdir():  # SQLite gives its logs the mode of their file
            path.chmod(0o600)

    return undo


WHAT = [
    "file of the database",
    "file of the marks",
    "folder",
    "folder and files",
    "no entry",
    "no reading",
]


@pytest.mark.parametrize("is_async", [False, True], ids=["invoke", "ainvoke"])
@pytest.mark.parametrize("begun", [False, True], ids=["new-thread", "begun-thread"])
@pytest.mark.parametrize("what", WHAT)
def test_what_may_only_be_read(
    open_folder: Path, nobody: Callable[[], None], what: str, *, begun: bool, is_async: bool
) -> None:
    folder = open_folder / "stores"
    folder.mkdir()
    stores = Stores.in_folder(folder, Keyring.generate()).set_up()
    errand = Errand(stores, "thread", is_async=is_async)
    if begun:
        with stores.open() as saver:
            given = {"notes": ["begun"], "paid": []}
            errand.graph(saver).invoke(given, errand.config, interrupt_before=["first"])
    paid = errand.till.counts()
    nobody()
    undo = read_only(folder, what)
    with stores.open() as saver:
        health = saver.health()
        error = errand.attempt(saver)
        for ask in (saver.setup, lambda: saver.setup(verify_only=True), saver.core.degraded):
            with suppress(SurefootError):  # nothing else may come
                ask()
        assert isinstance(error, SurefootError), error
    assert isinstance(health["ok"], bool)
    assert errand.till.counts() == paid, "an effect on stores that cannot be written"
    undo()
    with stores.open() as saver:
        errand.finish(saver)
    assert errand.till.counts() == PAID


def test_the_errors_say_what_is_wrong(open_folder: Path, nobody: Callable[[], None]) -> None:
    folder = open_folder / "stores"
    folder.mkdir()
    stores = Stores.in_folder(folder, Keyring.generate()).set_up()
    nobody()
    undo = read_only(folder, "file of the database")
    errand = Errand(stores, "thread")
    with stores.open() as saver:
        error = errand.attempt(saver)
        assert isinstance(error, StoreUnavailable)
        assert "READONLY" in str(error)
    undo()
    (folder / "b.db").write_bytes(b"no database at all " * 400)
    with stores.open() as saver:
        assert isinstance(errand.attempt(saver), MarkCorrupt | TamperDetected)
    assert not errand.till.landed


def test_a_folder_of_keys_that_may_not_be_entered(
    open_folder: Path, nobody: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUREFOOT_KEYS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(open_folder))
    folder = open_folder / "surefoot"
    folder.mkdir()
    nobody()
    folder.chmod(0)
    with pytest.raises(KeyMissing, match="denied"):
        Keyring.from_env()
    folder.chmod(0o700)
    with pytest.raises(KeyMissing, match="no key file"):
        Keyring.from_env()


# --- a file that is replaced under a live run -----------------------------------------------------


@pytest.mark.optimized
@pytest.mark.parametrize("with_log", [False, True], ids=["log-left", "log-gone"])
@pytest.mark.parametrize("how", ["replaced", "deleted"])
def test_a_file_that_goes_away_under_a_live_run(
    tmp_path: Path, how: str, *, with_log: bool
) -> None:
    """Nothing is acknowledged any more that only the vanished file would hold."""
    folder, earlier = tmp_path / "stores", tmp_path / "earlier.db"
    folder.mkdir()
    stores = Stores.in_folder(folder, Keyring.generate()).set_up()
    wanted = Errand(stores, "reference")
    with stores.open() as saver:
        wanted.finish(saver)
    reference = walked(stores, "reference")
    shutil.copy(folder / "a.db", earlier)
    errand = Errand(stores, "thread")
    charge = errand.till.charge
    gone: list[str] = []

    def charge_and_lose(mode: str, invoice: str, key: str) -> dict[str, Any]:
        if not gone:
            gone.append(how)
            if how == "replaced":
                earlier.replace(folder / "a.db")
            else:
                (folder / "a.db").unlink()
            if with_log:
                for log in folder.glob("a.db-*"):
                    log.unlink()
        return charge(mode, invoice, key)

    errand.till.charge = charge_and_lose  # type: ignore[method-assign]
    saver = stores.open()
    error = errand.attempt(saver)
    saver.close()
    if gone != [how] or not (error is None or isinstance(error, SurefootError)):
        pytest.fail(f"{gone} {error!r}")
    found = [looked_at(stores, Sound(folder, stores.keys, reference, errand.till))]
    with stores.open() as saver:
        again = errand.attempt(saver)
    found.append("right" if again is None else type(again).__name__)
    if max(errand.till.counts().values()) > 1:
        pytest.fail(f"paid twice: {errand.till.counts()}")
    if error is None:
        # The log that was left holds all that was committed; it is the new file's now.
        if found != ["right", "right"]:
            pytest.fail(f"acknowledged, but the next process finds {found}")
    elif not set(found) <= {"RollbackDetected", "NotSetUp", "right"}:
        pytest.fail(f"{error!r}, then {found}")
    print(f"{how}: the run ended with {error!r}, the next process with {found}")
