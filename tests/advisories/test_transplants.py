"""Case 45 and genuine rows in the wrong place: other threads, tenants and namespaces.

Nothing here is forged: every byte was sealed by a holder of the key, or is what a stock saver
writes. Each test puts the rows back in the end, and the honest answer must be there again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from tests.frames import OpenFrame
from tests.saver.conftest import TABLES, Backend, Half, at, put

from surefoot import Keyring, SurefootSaver
from surefoot.errors import Refused, RollbackDetected, TamperDetected
from surefoot.keys import Key
from surefoot.rules.envelope import GENESIS, Identity, Link, seal_frame

pytestmark = pytest.mark.optimized

NOTICED = (TamperDetected, RollbackDetected)


def large(word: str) -> str:
    return f"{word} {os.urandom(700).hex()}"


async def fill(half: Half, thread: str, namespaces: tuple[str, ...] = ("",)) -> None:
    """Three checkpoints in each namespace with a small value, a large one, a list and writes."""
    for namespace in namespaces:
        config = at(thread, namespace=namespace)
        for step in range(3):
            word = f"{thread} {namespace} {step}"
            log = [f"{word} {n}" for n in range(16 * (step + 1))]
            config = await put(half, config, f"c{step}", small=word, large=large(word), log=log)
        await half.put_writes(config, [("small", f"{thread} {namespace} write")], "task")


async def read(half: Half, thread: str, *, namespace: str | None = None) -> list[Any]:
    """Every way in which a reader without a graph reads."""
    latest = await half.get_tuple(at(thread, namespace=namespace))
    listed = await half.list(at(thread, namespace=namespace))
    by_id = [await half.get_tuple(t.config) for t in listed]
    delta = await half.get_delta_channel_history(config=at(thread), channels=["small"])
    return [latest, listed, by_id, delta]


@contextmanager
def changed(backend: Backend, *tables: str) -> Iterator[None]:
    """Puts the tables back in the end."""
    before = {table: backend.rows(table) for table in tables}
    yield
    for table, rows in before.items():
        backend.execute(f"DELETE FROM {table}")
        for row in rows:
            marks = ", ".join("?" * len(row))
            forced = " OVERRIDING SYSTEM VALUE" if backend.name == "postgres" else ""
            forced = forced if table == "surefoot_thread" else ""
            backend.execute(f"INSERT INTO {table}{forced} VALUES ({marks})", *row)


async def refused_everywhere(half: Half, backend: Backend, thread: str) -> None:
    """No reading method of a fresh saver serves anything of the thread."""
    reader = half.on(backend.open_saver())
    for call in (
        lambda: reader.list(at(thread, namespace=None)),
        lambda: reader.list(None),
        lambda: reader.copy_thread(thread, "copied"),
    ):
        with pytest.raises(NOTICED):
            await call()
    reader.saver.close()


def key_of(backend: Backend, thread: str, tenant: str | None = None) -> int:
    ((key,),) = backend.execute(
        "SELECT key FROM surefoot_thread WHERE tenant = ? AND thread = ?",
        (tenant or backend.tenant).encode(),
        thread.encode(),
    )
    return int(key)


# --- other threads and tenants --------------------------------------------------------------------

PIECES = {
    "frame": ("surefoot_frame", "last_seq", "head, body"),
    "value": ("surefoot_value", "digest", "body"),
    "chunk": ("surefoot_chunk", "log_id", "body"),
}


@pytest.mark.parametrize("strange", ["thread", "tenant"])
@pytest.mark.parametrize("table", ["surefoot_frame", "surefoot_value", "surefoot_chunk"])
async def test_rows_of_another_thread_or_tenant(
    backend: Backend, each_half: Half, table: str, strange: str
) -> None:
    """All rows of one kind change places between two threads of the same shape."""
    half = each_half
    await fill(half, "mine")
    thread, tenant = "theirs", backend.tenant
    if strange == "tenant":
        thread, tenant = "mine", f"{backend.tenant}-other"
    other = half.on(backend.open_saver(tenant=tenant))
    await fill(other, thread)
    honest = [await read(half, "mine"), await read(other, thread)]
    one, two = key_of(backend, "mine"), key_of(backend, thread, tenant)
    assert one != two
    with changed(backend, table):
        for old, new in ((one, -1), (two, one), (-1, two)):
            backend.execute(f"UPDATE {table} SET thread_key = ? WHERE thread_key = ?", new, old)
        assert backend.execute(f"SELECT count(*) FROM {table} WHERE thread_key = ?", one)[0][0]
        await refused_everywhere(half, backend, "mine")
        with pytest.raises(NOTICED):
            await half.on(backend.open_saver(tenant=tenant)).list(at(thread))
    assert [await read(half, "mine"), await read(other, thread)] == honest


@pytest.mark.parametrize("column", ["thread", "tenant"])
async def test_a_thread_row_under_another_name(
    backend: Backend, each_half: Half, column: str
) -> None:
    """The whole thread, with all rows, is passed off as another one."""
    half = each_half
    await fill(half, "mine")
    await fill(half, "theirs")
    honest = await read(half, "mine")
    with changed(backend, "surefoot_thread"):
        if column == "thread":
            swap = {b"mine": b"~", b"theirs": b"mine", b"~": b"theirs"}
            for old, new in swap.items():
                backend.execute("UPDATE surefoot_thread SET thread = ? WHERE thread = ?", new, old)
            await refused_everywhere(half, backend, "mine")
            await refused_everywhere(half, backend, "theirs")
        else:
            stranger = f"{backend.tenant}-other"
            await fill(half.on(backend.open_saver(tenant=stranger)), "mine")
            swap = {backend.tenant: "~", stranger: backend.tenant, "~": stranger}
            for old, new in swap.items():
                backend.execute(
                    "UPDATE surefoot_thread SET tenant = ? WHERE tenant = ? AND thread = ?",
                    new.encode(), old.encode(), b"mine",
                )  # fmt: skip
            await refused_everywhere(half, backend, "mine")
            backend.execute(
                "DELETE FROM surefoot_thread WHERE tenant = ? AND thread = ?",
                stranger.encode(), b"mine",
            )  # fmt: skip
    assert await read(half, "mine") == honest


async def test_a_thread_that_was_never_seen_here(backend: Backend, each_half: Half) -> None:
    """Rows copied under a name that the high-water store does not know are not adopted."""
    half = each_half
    await fill(half, "mine")
    honest = await read(half, "mine")
    with changed(backend, *TABLES[:2]):
        backend.execute("UPDATE surefoot_thread SET thread = ?", b"new name")
        with pytest.raises(Refused):
            await half.get_tuple(at("new name"))
        with pytest.raises(Refused):
            await half.list(None)
        with pytest.raises(Refused):
            await put(half, at("new name"), "c9", n=1)
    assert await read(half, "mine") == honest


# --- namespaces -----------------------------------------------------------------------------------

NAMESPACES = ("", "a", "a|b", "ab", "a:1", "a:1|b:2", "A", "%", "a%", "_", "a_")


async def test_a_namespace_is_matched_as_a_whole(backend: Backend, each_half: Half) -> None:
    """Prefixes crossed segments in CVE-2026-71433: none is a prefix of another one here."""
    half = each_half
    for number, namespace in enumerate(NAMESPACES):
        stored = await put(half, at("t", namespace=namespace), "same-id", n=number)
        await half.put_writes(stored, [("n", number)], "task")
    reader = half.on(backend.open_saver())
    for number, namespace in enumerate(NAMESPACES):
        for config in (at("t", namespace=namespace), at("t", "same-id", namespace=namespace)):
            found = await reader.get_tuple(config)
            assert found.checkpoint["channel_values"] == {"n": number}
            assert found.pending_writes == [("task", "n", number)]
        (found,) = await reader.list(at("t", namespace=namespace))
        assert found.config["configurable"]["checkpoint_ns"] == namespace
    for unknown in ("a|", "|b", "a|b|c", "b", "*", "a:1|b", "a:", " a", "\0"):
        assert await reader.get_tuple(at("t", namespace=unknown)) is None
        assert await reader.list(at("t", namespace=unknown)) == []
    # Absent means the root graph for one checkpoint, and all namespaces for a list.
    root = await reader.get_tuple(at("t", namespace=None))
    assert root.checkpoint["channel_values"] == {"n": 0}
    assert len(await reader.list(at("t", namespace=None))) == len(NAMESPACES)
    (only,) = await reader.list(at("t", namespace=""))
    assert only.checkpoint["channel_values"] == {"n": 0}


async def test_nothing_of_the_root_is_shown_where_only_a_subgraph_has_something(
    half: Half,
) -> None:
    await put(half, at("t", namespace="a|b"), "c", n=1)
    for namespace in ("", None, "a", "ab", "b"):
        assert await half.get_tuple(at("t", namespace=namespace)) is None
    assert await half.list(at("t", namespace="")) == []
    assert await half.ids(at("t", namespace=None)) == ["c"]


async def test_frames_of_another_namespace(backend: Backend, each_half: Half) -> None:
    half = each_half
    await fill(half, "t", ("", "a", "a|b"))
    honest = [await read(half, "t", namespace=n) for n in (None, "", "a", "a|b")]
    rows = backend.execute("SELECT last_seq, epoch, head, body FROM surefoot_frame ORDER BY 1")
    size = len(rows) // 3
    assert len(rows) == 3 * size
    assert size >= 4
    for step in range(size):
        with changed(backend, "surefoot_frame"):
            for (seq, epoch, *_), (_, _, head, body) in (
                (rows[step], rows[step + size]),
                (rows[step + size], rows[step]),
            ):
                backend.execute(
                    "UPDATE surefoot_frame SET head = ?, body = ?, checkpoint_hash = NULL"
                    " WHERE last_seq = ? AND epoch = ?",
                    head, body, seq, epoch,
                )  # fmt: skip
            await refused_everywhere(half, backend, "t")
    assert [await read(half, "t", namespace=n) for n in (None, "", "a", "a|b")] == honest


# --- case 45: unsealed, or sealed otherwise -------------------------------------------------------


def stock_row() -> tuple[bytes, bytes]:
    """A checkpoint as the stock savers store it: a type tag and bytes, without any seal."""
    serde = JsonPlusSerializer()
    tag, raw = serde.dumps_typed({**empty_checkpoint(), "channel_values": {"small": "forged"}})
    return tag.encode(), raw


Planted = tuple[bytes, bytes]


def zero_seal(frame: OpenFrame) -> Planted:
    return frame.head()[:-32] + bytes(32), frame.body()


def no_seal(frame: OpenFrame) -> Planted:
    return frame.head()[:-32], frame.body()


def empty_head(frame: OpenFrame) -> Planted:
    return b"", frame.body()


def other_version(version: int) -> Callable[[OpenFrame], Planted]:
    def made(frame: OpenFrame) -> Planted:
        return bytes((version,)) + frame.head()[1:], frame.body()

    made.__name__ = f"version_{version}"
    return made


def no_key(frame: OpenFrame) -> Planted:
    return b"\x01\x00" + frame.head()[2 + frame.head()[1] :], frame.body()


def plain_json(frame: OpenFrame) -> Planted:
    return frame.head(), json.dumps({"channel_values": {"small": "forged"}}).encode()


def as_stock(frame: OpenFrame) -> Planted:
    return stock_row()


def sealed_by_a_stranger(frame: OpenFrame) -> Planted:
    """The very same records under a key of somebody else, who calls it by our key's name."""
    made = seal_frame(
        Identity(TENANTS[-1], "t", 1),
        frame.epoch,
        Link(frame.last_seq - len(frame.records), frame.prev or GENESIS),
        frame.records,
        key_id=frame.key_id,
        seal_key=os.urandom(32),
    )
    return made.head, made.body


#: Of the test that runs; a row is sealed for its tenant.
TENANTS: list[str] = []
DOWNGRADES = [
    zero_seal,
    no_seal,
    empty_head,
    other_version(0),
    other_version(2),
    other_version(255),
    no_key,
    plain_json,
    as_stock,
    sealed_by_a_stranger,
]


@pytest.mark.parametrize("downgrade", DOWNGRADES, ids=lambda d: d.__name__)
async def test_case_45_a_sealed_row_replaced_by_an_unsealed_one(
    backend: Backend, half: Half, downgrade: Callable[[OpenFrame], Planted]
) -> None:
    await fill(half, "t")
    TENANTS.append(backend.tenant)
    honest = await read(half, "t")
    rows = backend.execute("SELECT last_seq, epoch, head, body FROM surefoot_frame ORDER BY 1")
    assert len(rows) >= 4
    for seq, epoch, head, body in rows:
        planted = downgrade(OpenFrame(seq, epoch, bytes(head), bytes(body)))
        assert planted != (bytes(head), bytes(body))
        with changed(backend, "surefoot_frame"):
            backend.execute(
                "UPDATE surefoot_frame SET head = ?, body = ? WHERE last_seq = ? AND epoch = ?",
                *planted, seq, epoch,
            )  # fmt: skip
            reader = half.on(backend.open_saver())
            with pytest.raises(Refused):
                await reader.list(at("t"))
            with pytest.raises(Refused):
                await put(reader, at("t"), "c9", n=1)
            reader.saver.close()
    assert await read(half, "t") == honest


async def test_case_45_a_reader_with_other_keys_sees_nothing(backend: Backend) -> None:
    """Neither a stranger's ring nor an equal name with other bytes opens a thread."""
    half = Half(backend.open_saver(), is_async=False)
    await fill(half, "t")
    namesake = Key(backend.keys.primary(), os.urandom(32), "primary")
    rings = [Keyring.generate(), Keyring([namesake])]
    for ring in rings:
        stranger: SurefootSaver = backend.open_saver(keys=ring)
        with pytest.raises(Refused):
            stranger.get_tuple(at("t"))
        with pytest.raises(Refused):
            list(stranger.list(None))
    assert await half.ids(at("t")) == ["c2", "c1", "c0"]
