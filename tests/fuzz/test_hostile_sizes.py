"""A few bytes never take much memory, and what is too large to be read is never written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from tests.saver.conftest import at, checkpoint, make_backend, metadata

from surefoot import SurefootSaver
from surefoot.errors import NotStorable
from surefoot.flows import values
from surefoot.rules import bodies
from surefoot.rules.bodies import MAX_UNPACKED_BYTES, BodyError, pack_stored, unpack_stored

pytestmark = pytest.mark.optimized

ROOT = Path(__file__).resolve().parents[2]
_MB = 2**20
_HONEST = {"an honest form of 64 MiB", "the control"}


def test_hostile_sizes_take_little_memory() -> None:
    """In a process of their own, whose scale is proved by two cases that do take memory."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.weigh"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert child.returncode == 0, child.stderr
    weighed = {
        name: (outcome, size, taken)
        for name, outcome, size, taken in map(json.loads, child.stdout.splitlines())
    }
    assert len(weighed) >= 24
    if sys.platform == "linux":
        assert weighed["the control"][0] == "MemoryError"
    outcome, _, taken = weighed["an honest form of 64 MiB"]
    assert outcome == "accepted"
    assert taken >= 64 * _MB
    for name in weighed.keys() - _HONEST:
        outcome, size, taken = weighed[name]
        assert outcome == "refused", name
        assert taken < 2 * _MB + 12 * size, (name, taken)


# --- the stored form --------------------------------------------------------------------------


def test_the_limit_of_a_stored_form_is_the_same_in_and_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_UNPACKED_BYTES", 10_000)
    whole = bytes(10_000)
    assert unpack_stored(pack_stored(whole)) == whole
    with pytest.raises(BodyError, match="10001 bytes"):
        pack_stored(bytes(10_001))
    with pytest.raises(BodyError, match="size"):
        unpack_stored(b"\x01" + zstandard.ZstdCompressor().compress(bytes(10_001)))


def test_the_densest_honest_form_is_read() -> None:
    """Zeros at the highest levels expand the most; the bound on expansion must let them pass."""
    for level in (1, 3, 19, 22):
        for size in (200, 128 * 1024, 128 * 1024 + 1, 8 * _MB):
            packed = b"\x01" + zstandard.ZstdCompressor(level=level).compress(bytes(size))
            assert unpack_stored(packed) == bytes(size)


@pytest.mark.parametrize(
    "packed",
    [
        zstandard.ZstdCompressor().compress(b"a" * 500) + b"junk",
        zstandard.ZstdCompressor().compress(b"a" * 500) * 2,
        b"\x28\xb5\x2f\xfd\x20\x00junk",
        b"\x28\xb5\x2f\xfd\x20\x00\x01\x00\x00",
    ],
    ids=["bytes behind the frame", "two frames", "an empty frame of junk", "an empty frame"],
)
def test_a_form_that_no_writer_makes_is_refused(packed: bytes) -> None:
    with pytest.raises(BodyError):
        unpack_stored(b"\x01" + packed)


# --- values that are too large ----------------------------------------------------------------


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> int:
    """The limit, made small enough to be reached."""
    monkeypatch.setattr(bodies, "MAX_UNPACKED_BYTES", 10_000)
    monkeypatch.setattr(values, "MAX_UNPACKED_BYTES", 10_000)
    return 10_000


@pytest.fixture
def saver(tmp_path: Path) -> SurefootSaver:
    """A saver on SQLite files."""
    backend = make_backend("sqlite", tmp_path)
    return backend.open_saver()


def test_a_value_that_nobody_could_read_is_refused_by_name(
    saver: SurefootSaver, small_limit: int
) -> None:
    assert small_limit < MAX_UNPACKED_BYTES
    made = checkpoint("c1", fits="x" * 9_000, large="x" * 10_001)
    with pytest.raises(NotStorable, match="at most 10000 are stored") as caught:
        saver.put(at("t"), made, metadata(), made["channel_versions"])
    assert (caught.value.channel, caught.value.path) == ("large", "$")
    with pytest.raises(NotStorable) as caught:
        saver.put_writes(at("t", "c1"), [("large", "x" * 10_001)], "task")
    assert caught.value.channel == "large"
    assert saver.get_tuple(at("t")) is None
    made = checkpoint("c1", fits="x" * 9_000)
    saver.put(at("t"), made, metadata(), made["channel_versions"])
    found = saver.get_tuple(at("t"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"fits": "x" * 9_000}
    saver.close()


def test_a_list_is_cut_so_that_every_piece_is_read_again(
    saver: SurefootSaver, small_limit: int
) -> None:
    long = [f"{n}" * 4_000 for n in range(9)] + [n % 7 for n in range(300)]
    made = checkpoint("c1", chat=long)
    saver.put(at("t"), made, metadata(), made["channel_versions"])
    found = saver.get_tuple(at("t"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"chat": long}
    assert sum(map(len, long[:9])) > 3 * small_limit
    made = checkpoint("c2", chat=[*long, "y" * 10_001])
    with pytest.raises(NotStorable) as caught:
        saver.put(at("t", "c1"), made, metadata(1), made["channel_versions"])
    assert (caught.value.channel, caught.value.path) == ("chat", "$[309]")
    saver.close()
