"""Threads of savers that encrypt: keys that come and go, copies, forgeries, LangGraph's suite."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from tests.saver.conftest import Backend, at, checkpoint, metadata
from tests.saver.test_conformance import BASE_CASES, EXTENDED_CASES, run_suite

from surefoot import Keyring, SurefootSaver
from surefoot.errors import KeyMissing, RollbackDetected, TamperDetected
from surefoot.flows import save
from surefoot.flows.acquire import acquire, release
from surefoot.keys import Key
from surefoot.langgraph.serde import StrictSerializer
from surefoot.rules.bodies import is_encrypted, unpack_encrypted
from surefoot.rules.envelope import Identity, Kind, Link, Record, seal_frame

pytestmark = pytest.mark.optimized

LARGE = secrets.token_hex(3_000)
#: So many channels that the checkpoint without its values takes a row of its own.
WIDE = {secrets.token_hex(8): n for n in range(60)}
SAID = [HumanMessage(f"said {n}", id=str(n)) for n in range(70)]
OLD = Key("old", bytes((1,)) * 32, "primary")
NEW = Key("new", bytes((2,)) * 32, "primary")


def as_(key: Key, state: str) -> Key:
    return Key(key.key_id, key.secret, state)


def put(
    saver: SurefootSaver, config: Any, name: str, step: int = 0, essay: str = "", **values: Any
) -> Any:
    made = checkpoint(name, **values)
    return saver.put(
        config, made, metadata(step, run_id=f"run-{name}", essay=essay), made["channel_versions"]
    )


def fill(saver: SurefootSaver, thread: str = "t") -> None:
    """Two checkpoints with values of every form, a write of each size, and many channels."""
    first = put(saver, at(thread), "c1", small=1, large=LARGE, messages=SAID[:30], **WIDE)
    saver.put_writes(first, [("small", 2), ("large", LARGE[::-1])], "task")
    put(saver, first, "c2", 1, LARGE, small=2, large="L" + LARGE, messages=SAID)


def seen(saver: SurefootSaver, thread: str = "t") -> list[Any]:
    return [
        (f.checkpoint["id"], f.checkpoint["channel_values"], f.metadata, f.pending_writes)
        for f in saver.list(at(thread))
    ]


def cells(backend: Backend) -> Iterator[bytes]:
    """What the stores hold encrypted: values as they are, pieces of lists behind their count."""
    yield from (bytes(row[0]) for row in backend.execute("SELECT body FROM surefoot_value"))
    yield from (bytes(row[0])[4:] for row in backend.execute("SELECT body FROM surefoot_chunk"))


def key_ids(backend: Backend) -> set[str | None]:
    """Ids of the keys of values and pieces; None for a plain one."""
    return {unpack_encrypted(c).key_id if is_encrypted(c) else None for c in cells(backend)}


# --- as without encryption ------------------------------------------------------------------------


async def test_the_official_suite_passes_whole_with_encryption(backend: Backend) -> None:
    backend.open_saver = functools.partial(backend.open_saver, encryption=True)  # type: ignore[method-assign]
    report, ran = await run_suite(backend, lambda saver: saver)
    failures = [failure for result in report.results.values() for failure in result.failures]
    assert not failures, "\n".join(failures)
    assert len(ran) == len(set(ran)) == BASE_CASES + EXTENDED_CASES
    assert report.conformance_level() == "FULL"
    bodies = [bytes(row[0]) for row in backend.execute("SELECT body FROM surefoot_frame")]
    assert bodies
    assert all(map(is_encrypted, bodies))
    assert key_ids(backend) <= {backend.keys.primary()}


def test_every_value_and_piece_is_encrypted(backend: Backend) -> None:
    fill(backend.open_saver(encryption=True))
    assert len([*cells(backend)]) >= 5
    assert key_ids(backend) == {backend.keys.primary()}


def test_what_is_equal_is_stored_once(new_backend: Callable[[], Backend]) -> None:
    """A task's write becomes the channel's value: as without encryption, one row holds both."""
    counts = []
    for encryption in (False, True):
        backend = new_backend()
        saver = backend.open_saver(encryption=encryption)
        ports, serde = saver.core.ports, saver.serde
        session, _ = acquire(ports, "t", None)
        save.put(ports, session, serde, _checkpoint("c1", None, small=1))
        write = save.WritesSave("", "c1", [(0, "large", LARGE)], "task", "", False)
        assert save.enqueue(ports, session, serde, write) is save.Then.RIDE
        save.put(ports, session, serde, _checkpoint("c2", "c1", small=1, large=LARGE))
        # The value comes back later in the run, as a write and in another channel.
        again = save.WritesSave("", "c2", [(0, "other", LARGE)], "task", "", False)
        save.enqueue(ports, session, serde, again)
        save.put(ports, session, serde, _checkpoint("c3", "c2", large=LARGE, other=LARGE))
        release(ports, session)
        counts.append(backend.counts()["surefoot_value"])
        assert [values for _, values, *_ in seen(saver)] == [
            {"large": LARGE, "other": LARGE},
            {"small": 1, "large": LARGE},
            {"small": 1},
        ]
    assert counts == [1, 1]


def _checkpoint(name: str, parent: str | None, **values: Any) -> save.CheckpointSave:
    made = checkpoint(name, **values)
    return save.CheckpointSave("", made, metadata(), parent, made["channel_versions"])


# --- switching it on and off ----------------------------------------------------------------------


def test_plain_records_stay_readable_and_new_ones_are_encrypted(backend: Backend) -> None:
    plain = backend.open_saver(encryption=False)
    fill(plain)
    before = seen(plain)
    plain.close()
    saver = backend.open_saver(encryption=True)
    assert seen(saver) == before
    put(saver, at("t", "c2"), "c3", 2, small=3, large=LARGE[5:], messages=[*SAID, *SAID])
    assert key_ids(backend) == {None, backend.keys.primary()}
    after = seen(saver)
    assert after[1:] == before
    assert after[0][1] == {"small": 3, "large": LARGE[5:], "messages": [*SAID, *SAID]}
    saver.close()
    assert seen(backend.open_saver(encryption=True)) == after


class Watched(StrictSerializer):
    """Counts what is decoded."""

    decoded = 0

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        Watched.decoded += 1
        return super().loads_typed(data)


def test_a_saver_without_encryption_refuses_an_encrypted_thread(backend: Backend) -> None:
    saver = backend.open_saver(encryption=True)
    fill(saver)
    saver.close()
    Watched.decoded = 0
    plain = backend.open_saver(encryption=False, serde=Watched())
    for read in (
        lambda: plain.get_tuple(at("t")),
        lambda: [*plain.list(at("t"))],
        lambda: put(plain, at("t", "c2"), "c3", 2, small=3),
        lambda: plain.copy_thread("t", "u"),
        lambda: plain.prune(["t"]),
    ):
        with pytest.raises(KeyMissing, match="encryption=") as caught:
            read()
        assert caught.value.key_id == backend.keys.primary()
        assert "thread 't'" in str(caught.value)
    assert Watched.decoded == 0
    plain.close()
    honest = backend.open_saver(encryption=True, serde=Watched())
    assert [c for c, *_ in seen(honest)] == ["c2", "c1"]
    assert Watched.decoded > 0


def test_an_encrypted_thread_can_be_deleted_without_its_key(backend: Backend) -> None:
    saver = backend.open_saver(encryption=True)
    fill(saver)
    saver.close()
    plain = backend.open_saver(encryption=False)
    plain.delete_thread("t")
    assert plain.get_tuple(at("t")) is None
    assert backend.counts()["surefoot_value"] == 0


# --- rotation -------------------------------------------------------------------------------------


def test_case_47_rotation_of_encryption_keys_without_downtime(backend: Backend) -> None:
    """Two workers at different stages of the rotation take turns on one thread."""
    behind = Keyring([OLD, as_(NEW, "enabled")])
    ahead = Keyring([as_(OLD, "enabled"), NEW])
    first = backend.open_saver(encryption=Keyring([OLD]))
    fill(first)
    first.close()
    assert key_ids(backend) == {"old"}
    one, two = backend.open_saver(encryption=behind), backend.open_saver(encryption=ahead)
    expected: dict[str, Any] = {}
    for turn, saver in enumerate((two, one, two, one)):
        name = f"c{turn + 3}"
        values = {"small": turn, "large": LARGE[turn + 9 :], "messages": [*SAID, *SAID[: turn + 9]]}
        put(saver, at("t", f"c{turn + 2}"), name, turn + 2, **values)
        expected[name] = values
    for saver in (one, two):
        got = {name: values for name, values, *_ in seen(saver)}
        assert {name: got[name] for name in expected} == expected
    assert key_ids(backend) == {"old", "new"}
    one.close()
    two.close()
    newer = {unpack_encrypted(c).key_id for c in _encrypted_since(backend, ahead)}
    assert newer == {"new"}


def _encrypted_since(backend: Backend, ring: Keyring) -> list[bytes]:
    before = {*cells(backend)}
    saver = backend.open_saver(encryption=ring)
    put(saver, at("t", "c6"), "c7", 6, large=LARGE[20:])
    saver.close()
    return [c for c in cells(backend) if c not in before]


@pytest.mark.parametrize(
    ("ring", "says"),
    [
        pytest.param(Keyring([as_(OLD, "retired"), NEW]), "'old' is retired", id="retired"),
        pytest.param(Keyring([NEW]), "does not hold 'old'", id="unknown"),
        pytest.param(
            Keyring([Key("old", bytes((3,)) * 32, "primary")]),
            "'old' does not open it",
            id="another secret",
        ),
    ],
)
def test_case_47_a_missing_encryption_key_is_named(
    backend: Backend, ring: Keyring, says: str
) -> None:
    saver = backend.open_saver(encryption=Keyring([OLD]))
    fill(saver)
    before = seen(saver)
    saver.close()
    Watched.decoded = 0
    other = backend.open_saver(encryption=ring, serde=Watched())
    with pytest.raises(KeyMissing, match=says) as caught:
        seen(other)
    assert caught.value.key_id == "old"
    with pytest.raises(KeyMissing, match=says):
        put(other, at("t", "c2"), "c3", 2, small=3)
    assert Watched.decoded == 0
    other.close()
    # Nothing was broken by the attempts: whoever has the key goes on.
    honest = backend.open_saver(encryption=Keyring([OLD]))
    assert seen(honest) == before
    put(honest, at("t", "c2"), "c3", 2, small=3)


def test_a_retired_key_of_the_savers_own_ring_still_opens_what_the_chain_vouches_for(
    backend: Backend,
) -> None:
    """One ring seals and encrypts: what its seal is worth is written in the thread."""
    first = backend.open_saver(keys=Keyring([OLD]), encryption=True)
    fill(first)
    before = seen(first)
    first.close()
    retired = Keyring([as_(OLD, "retired"), NEW])
    with pytest.raises(KeyMissing, match="'old' is retired"):
        seen(backend.open_saver(keys=retired, encryption=True))
    turned = backend.open_saver(keys=Keyring([as_(OLD, "enabled"), NEW]), encryption=True)
    assert turned.retire_key("t", "old") is True
    turned.close()
    saver = backend.open_saver(keys=retired, encryption=True)
    assert seen(saver) == before
    known = {*cells(backend)}
    put(saver, at("t", "c2"), "c3", 2, small=3, large=LARGE[5:])
    assert {unpack_encrypted(c).key_id for c in cells(backend) if c not in known} == {"new"}
    assert seen(saver)[1:] == before


def test_the_seal_has_a_key_of_its_own(backend: Backend) -> None:
    """A ring for encryption alone neither seals nor verifies."""
    saver = backend.open_saver(encryption=Keyring([OLD]))
    fill(saver)
    saver.close()
    stranger = backend.open_saver(encryption=Keyring([OLD]), keys=Keyring.generate())
    with pytest.raises(KeyMissing, match=backend.keys.primary()):
        seen(stranger)


# --- copies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("source_encrypted", [True, False])
def test_a_copy_is_encrypted_for_its_own_thread(backend: Backend, source_encrypted: bool) -> None:
    first = backend.open_saver(encryption=source_encrypted)
    fill(first)
    first.close()
    saver = backend.open_saver(encryption=True)
    source = [*cells(backend)]
    saver.copy_thread("t", "u")
    copied = [c for c in cells(backend) if c not in source]
    assert len(copied) == len(source) >= 5
    assert all(map(is_encrypted, copied))
    assert seen(saver, "u") == seen(saver)
    # It lives on by itself: lists grow behind what was copied, and the source may go.
    put(saver, at("u", "c2"), "c3", 2, messages=[*SAID, *SAID[:9]])
    saver.delete_thread("t")
    got = seen(saver, "u")
    assert [name for name, *_ in got] == ["c3", "c2", "c1"]
    assert got[0][1]["messages"] == [*SAID, *SAID[:9]]
    saver.prune(["u"])
    assert seen(saver, "u") == got[:1]
    saver.close()
    assert seen(backend.open_saver(encryption=True), "u") == got[:1]


def test_a_list_grows_behind_encrypted_pieces(backend: Backend) -> None:
    """Old pieces are not written again, by the same saver or by the next one."""
    saver = backend.open_saver(encryption=True)
    config = put(saver, at("t"), "c1", messages=SAID[:30])
    before = {*cells(backend)}
    for step in range(1, 4):
        saver.close()
        saver = backend.open_saver(encryption=True)
        config = put(saver, config, f"c{step + 1}", step, messages=SAID[: 30 + 10 * step])
    after = {*cells(backend)}
    assert before < after
    assert len(after) == len(before) + 3
    assert seen(saver)[0][1]["messages"] == SAID[:60]


# --- forgeries ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("surefoot_frame", "last_seq"),
        ("surefoot_value", "digest"),
        ("surefoot_chunk", "ordinal"),
    ],
)
def test_ciphertexts_that_changed_places_are_refused(
    backend: Backend, table: str, key: str
) -> None:
    saver = backend.open_saver(encryption=True)
    fill(saver)
    put(saver, at("t", "c2"), "c3", 2, messages=[*SAID, *SAID])
    honest = seen(saver)
    rows = backend.execute(f"SELECT {key}, body FROM {table} ORDER BY {key}")
    (one, left), (other, right) = rows[0], rows[-1]
    assert left != right
    _write(backend, table, key, (one, right), (other, left))
    with pytest.raises((TamperDetected, RollbackDetected)):
        seen(saver)
    _write(backend, table, key, (one, left), (other, right))
    assert seen(saver) == honest


def _write(backend: Backend, table: str, key: str, *rows: tuple[Any, Any]) -> None:
    for value, body in rows:
        backend.execute(f"UPDATE {table} SET body = ? WHERE {key} = ?", body, value)


def test_every_flipped_byte_of_what_is_encrypted_is_refused(backend: Backend) -> None:
    saver = backend.open_saver(encryption=True)
    put(saver, at("t"), "c1", large=LARGE, messages=SAID[:9])
    honest = seen(saver)
    tried = 0
    for table, key in (
        ("surefoot_frame", "last_seq"),
        ("surefoot_value", "digest"),
        ("surefoot_chunk", "ordinal"),
    ):
        for value, body in backend.execute(f"SELECT {key}, body FROM {table}"):
            for offset in (0, 1, 5, 20, len(body) // 2, len(body) - 1):
                changed = bytearray(bytes(body))
                changed[offset] ^= 1
                _write(backend, table, key, (value, bytes(changed)))
                with pytest.raises(TamperDetected):
                    seen(saver)
                tried += 1
            _write(backend, table, key, (value, bytes(body)))
    assert tried >= 18
    assert seen(saver) == honest


def test_a_plain_row_in_place_of_an_encrypted_one_is_refused(backend: Backend) -> None:
    """Case 45: the stores say nothing about whether a row is encrypted; the seal does."""
    saver = backend.open_saver(encryption=True)
    put(saver, at("t"), "c1", large=LARGE)
    ((digest, body),) = backend.execute("SELECT digest, body FROM surefoot_value")
    tag_and_plain = saver.serde.dumps_typed(LARGE)[1]
    _write(backend, "surefoot_value", "digest", (digest, b"\x00" + tag_and_plain))
    with pytest.raises(TamperDetected):
        seen(saver)
    _write(backend, "surefoot_value", "digest", (digest, bytes(body)))
    assert seen(saver)[0][1]["large"] == LARGE


def test_a_holder_of_the_seal_key_alone_cannot_move_a_body(backend: Backend) -> None:
    """The seal of the forged frame holds; it is the associated data that refuses."""
    saver = backend.open_saver(encryption=Keyring([OLD]))
    put(saver, at("t"), "c1", small="one")
    put(saver, at("u"), "c1", small="two")
    frames = {
        thread: backend.execute(
            "SELECT f.last_seq, f.epoch, f.head, f.body, f.thread_key FROM surefoot_frame f "
            "JOIN surefoot_thread t ON t.key = f.thread_key WHERE t.thread = ?",
            thread.encode(),
        )[0]
        for thread in ("t", "u")
    }
    body = frames["u"][3]
    seq, epoch, own_head, own_body, key = frames["t"]
    again = _sealed_again(backend, bytes(own_head), bytes(own_body), seq, epoch)
    assert again == bytes(own_head), "the seal of the test is that of the saver"
    forged = _sealed_again(backend, bytes(own_head), bytes(body), seq, epoch)
    update = "UPDATE surefoot_frame SET head = ?, body = ? WHERE thread_key = ?"
    backend.execute(update, forged, bytes(body), key)
    with pytest.raises(KeyMissing, match="record 1 of thread 't'") as caught:
        seen(saver)
    assert caught.value.key_id == "old"


def _sealed_again(backend: Backend, head: bytes, body: bytes, seq: int, epoch: int) -> bytes:
    """The head of a frame with one record for another body, under the right seal key."""
    size = head[1]
    at_record = 2 + size + 32 + 8 + 2
    record = Record(
        Kind(head[at_record]), head[at_record + 1], head[at_record + 2 : at_record + 18], body
    )
    key_id = backend.keys.primary()
    return seal_frame(
        Identity(backend.tenant, "t", 1),
        epoch,
        Link(seq - 1, head[2 + size : 34 + size]),
        [record],
        key_id=key_id,
        seal_key=backend.keys.seal_key(key_id, backend.tenant, "t"),
    ).head
