"""The cipher, its stored form, and what a form is bound to."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

import surefoot.encryption
from surefoot import Keyring, SurefootSaver
from surefoot.encryption import ThreadCiphers
from surefoot.errors import KeyMissing, Misconfigured
from surefoot.flows.cover import Cover
from surefoot.keys import Key
from surefoot.rules.binding import bound_chunk, bound_record, bound_value
from surefoot.rules.bodies import (
    BodyError,
    Encrypted,
    is_encrypted,
    pack_encrypted,
    pack_stored,
    unpack_encrypted,
    unpack_stored,
)
from surefoot.rules.envelope import Identity, Kind, Link, Record, RecordHead

pytestmark = pytest.mark.optimized

IDENTITY = Identity("tenant", "thread", 1)
RING = Keyring([Key("k1", bytes(range(32)), "primary")])
PLAIN = pack_stored(b"a body")


def cover(keys: Keyring = RING, identity: Identity = IDENTITY) -> Cover:
    return Cover(identity, ThreadCiphers(keys))


# --- the stored form ----------------------------------------------------------------------------


def test_golden_vector_of_the_encrypted_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Released forms are read for ever: key derivation, binding, layout and cipher stand here."""
    monkeypatch.setattr(surefoot.encryption.os, "urandom", lambda size: bytes(range(size)))
    derived = RING.purpose_key("k1", "encrypt/v1", "tenant", "thread")
    assert derived.hex() == "b60cf38cc062abf606599a3bdf8d47412c0a0ae664838f706aa416594e591f29"
    bound = bound_record(IDENTITY, kind=67, schema=1, subject=bytes(16), seq=7, epoch=3)
    assert bound.hex() == (
        "00000006656e632f76310000000674656e616e74000000067468726561640000"
        "00080000000000000001000000067265636f7264000000080000000000000043"
        "0000000800000000000000010000001000000000000000000000000000000000"
        "000000080000000000000007000000080000000000000003"
    )
    stored = ThreadCiphers(RING).encrypt("tenant", "thread", bound, b"\x00plain")
    assert stored.hex() == (
        "02026b31000102030405060708090a0bd435856217dc7e71ac229cfe4a121a88cc54a0e266ae"
    )
    monkeypatch.undo()
    assert ThreadCiphers(RING).decrypt("tenant", "thread", bound, stored) == b"\x00plain"


def test_layout_of_the_form() -> None:
    stored = cover().cover_value("msgpack", PLAIN)
    assert stored[:4] == b"\x02\x02k1"
    assert len(stored) == 2 + 2 + 12 + len(PLAIN) + 16
    assert unpack_encrypted(stored).key_id == "k1"
    assert is_encrypted(stored)
    assert not is_encrypted(PLAIN)
    assert not is_encrypted(b"")


def test_every_form_has_a_nonce_of_its_own() -> None:
    ciphers = cover()
    forms = [unpack_encrypted(ciphers.cover_value("msgpack", PLAIN)) for _ in range(1_000)]
    assert len({form.nonce for form in forms}) == len(forms)
    assert len({form.sealed for form in forms}) == len(forms)


@pytest.mark.parametrize("length", range(2 + 2 + 12 + 16))
def test_a_form_that_is_cut_short_is_refused(length: int) -> None:
    stored = cover().cover_value("msgpack", b"")
    assert unpack_encrypted(stored).key_id == "k1"
    with pytest.raises(BodyError):
        unpack_encrypted(stored[:length])


@pytest.mark.parametrize(
    "stored", [PLAIN, b"", b"\x02\x00" + bytes(40), b"\x02\x02\xff\xff" + bytes(40)]
)
def test_what_is_no_encrypted_form_is_refused(stored: bytes) -> None:
    with pytest.raises(BodyError):
        unpack_encrypted(stored)


@pytest.mark.parametrize(
    "parts",
    [
        Encrypted("", bytes(12), bytes(16)),
        Encrypted("k" * 256, bytes(12), bytes(16)),
        Encrypted("k", bytes(11), bytes(16)),
        Encrypted("k", bytes(12), bytes(15)),
    ],
)
def test_what_has_no_room_in_the_form_is_not_stored(parts: Encrypted) -> None:
    with pytest.raises(ValueError, match="has"):
        pack_encrypted(parts)


def test_a_plain_reader_never_takes_an_encrypted_form_for_content() -> None:
    with pytest.raises(BodyError, match="encrypted"):
        unpack_stored(cover().cover_value("msgpack", PLAIN))


# --- what it is bound to ------------------------------------------------------------------------

RECORD: dict[str, Any] = {
    "kind": 67,
    "schema": 1,
    "subject": bytes(16),
    "seq": 7,
    "epoch": 3,
}
CHUNK: dict[str, Any] = {"log_id": 5, "ordinal": 2, "items": 9}
OTHER_IDENTITIES = [
    replace(IDENTITY, tenant="other"),
    replace(IDENTITY, thread="other"),
    replace(IDENTITY, incarnation=2),
    # The same letters, cut elsewhere.
    Identity("tenantt", "hread", 1),
]


def _bindings() -> list[bytes]:
    """The right one first, and then one for every part changed, of each of the three kinds."""
    out = [bound_record(IDENTITY, **RECORD)]
    for name, value in (
        ("kind", 87),
        ("schema", 2),
        ("subject", bytes(15) + b"\1"),
        ("seq", 8),
        ("epoch", 4),
    ):
        out.append(bound_record(IDENTITY, **{**RECORD, name: value}))
    out += [bound_value(IDENTITY, "msgpack"), bound_value(IDENTITY, "bytes")]
    out.append(bound_chunk(IDENTITY, **CHUNK))
    out += [bound_chunk(IDENTITY, **{**CHUNK, name: 77}) for name in CHUNK]
    for other in OTHER_IDENTITIES:
        out.append(bound_record(other, **RECORD))
        out.append(bound_value(other, "msgpack"))
        out.append(bound_chunk(other, **CHUNK))
    return out


BINDINGS = _bindings()


def test_bindings_are_all_different() -> None:
    assert len(BINDINGS) == len(set(BINDINGS)) == 6 + 2 + 4 + 3 * len(OTHER_IDENTITIES)


@pytest.mark.parametrize("made_for", range(len(BINDINGS)))
def test_a_form_opens_only_for_what_it_was_made_for(made_for: int) -> None:
    """Same key, same thread key even: it is the associated data that refuses."""
    ciphers = ThreadCiphers(RING)
    stored = ciphers.encrypt("tenant", "thread", BINDINGS[made_for], PLAIN)
    for number, bound in enumerate(BINDINGS):
        if number == made_for:
            assert ciphers.decrypt("tenant", "thread", bound, stored) == PLAIN
            continue
        with pytest.raises(KeyMissing, match="'k1' does not open it"):
            ciphers.decrypt("tenant", "thread", bound, stored)


def test_a_value_opens_only_under_its_tag_and_in_its_thread() -> None:
    stored = cover().cover_value("msgpack", PLAIN)
    assert cover().open_value("msgpack", stored) == PLAIN
    with pytest.raises(KeyMissing, match="'k1'"):
        cover().open_value("bytes", stored)
    for other in OTHER_IDENTITIES:
        with pytest.raises(KeyMissing, match="'k1'"):
            cover(identity=other).open_value("msgpack", stored)


@pytest.mark.parametrize("place", [(6, 2, 9), (5, 3, 9), (5, 2, 8)])
def test_a_piece_of_a_list_opens_only_in_its_place(place: tuple[int, int, int]) -> None:
    stored = cover().cover_chunk(5, 2, 9, PLAIN)
    assert cover().open_chunk(5, 2, 9, stored) == PLAIN
    with pytest.raises(KeyMissing, match="piece of a list"):
        cover().open_chunk(*place, stored)


def _head(body: bytes | None, **other: Any) -> RecordHead:
    given: dict[str, Any] = {
        "link": Link(8, bytes(32)),
        "prev": bytes(32),
        "epoch": 3,
        "kind": Kind.CHECKPOINT,
        "schema": 1,
        "subject": bytes(16),
        "body": body,
        **other,
    }
    return RecordHead(**given)


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"link": Link(9, bytes(32))},
        {"epoch": 4},
        {"kind": Kind.WRITES},
        {"schema": 2},
        {"subject": bytes(15) + b"\1"},
    ],
    ids=lambda other: next(iter(other), "its own"),
)
def test_a_record_opens_only_behind_its_own_head(other: dict[str, Any]) -> None:
    records = [
        Record(Kind.WRITES, 1, bytes(16), pack_stored(b"first")),
        Record(Kind.CHECKPOINT, 1, bytes(16), PLAIN),
    ]
    _, second = cover().cover_records(records, after_seq=6, epoch=3)
    head = _head(second.body, **other)
    if not other:
        assert cover().open_record(head) == _head(PLAIN)
        return
    with pytest.raises(KeyMissing, match=f"record {head.link.seq} of thread 'thread'"):
        cover().open_record(head)


def test_heads_and_plain_records_pass_through() -> None:
    for head in (_head(None), _head(PLAIN), _head(b"")):
        assert cover().open_record(head) is head
        assert Cover(IDENTITY, None).open_record(head) is head


def test_an_encrypted_form_holds_no_other_encrypted_form() -> None:
    inner = cover().cover_value("msgpack", PLAIN)
    nested = cover().cover_value("msgpack", inner)
    with pytest.raises(BodyError, match="inside"):
        cover().open_value("msgpack", nested)


@pytest.mark.parametrize("at", range(2 + 2 + 12 + len(PLAIN) + 16))
def test_no_bit_of_a_form_can_be_changed(at: int) -> None:
    stored = bytearray(cover().cover_value("msgpack", PLAIN))
    stored[at] ^= 1
    try:
        opened = cover().open_value("msgpack", bytes(stored))
    except (KeyMissing, BodyError):
        return
    # The codec byte alone says whether it is encrypted: a plain form is what the seal lets pass.
    assert at == 0
    assert opened == bytes(stored)
    with pytest.raises(BodyError, match="codec 3"):
        unpack_stored(opened)


# --- keys ---------------------------------------------------------------------------------------


def ring(*keys: tuple[str, int, str]) -> Keyring:
    return Keyring([Key(key_id, bytes((secret,)) * 32, state) for key_id, secret, state in keys])


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        pytest.param(ring(("k2", 2, "primary")), "does not hold 'k1'", id="unknown"),
        pytest.param(
            ring(("k2", 2, "primary"), ("k1", 1, "retired")), "'k1' is retired", id="retired"
        ),
        pytest.param(ring(("k1", 3, "primary")), "'k1' does not open it", id="another secret"),
    ],
)
def test_a_key_that_is_not_at_hand_is_named(keys: Keyring, says: str) -> None:
    stored = cover(ring(("k1", 1, "primary"))).cover_value("msgpack", PLAIN)
    with pytest.raises(KeyMissing, match=says) as caught:
        cover(keys).open_value("msgpack", stored)
    assert caught.value.key_id == "k1"
    assert "a value of thread 'thread' is encrypted with it" in str(caught.value)


def test_an_enabled_key_still_opens() -> None:
    stored = cover(ring(("k1", 1, "primary"))).cover_value("msgpack", PLAIN)
    later = cover(ring(("k2", 2, "primary"), ("k1", 1, "enabled")))
    assert later.open_value("msgpack", stored) == PLAIN
    assert unpack_encrypted(later.cover_value("msgpack", PLAIN)).key_id == "k2"


def test_without_encryption_a_form_passes_through_and_an_encrypted_one_is_refused() -> None:
    none = Cover(IDENTITY, None)
    assert none.cover_value("msgpack", PLAIN) is PLAIN
    assert none.open_value("msgpack", PLAIN) is PLAIN
    with pytest.raises(KeyMissing, match=r"'k1'.*encryption=") as caught:
        none.open_value("msgpack", cover().cover_value("msgpack", PLAIN))
    assert caught.value.key_id == "k1"


def test_encryption_keys_are_not_the_keys_of_another_purpose() -> None:
    derived = {
        RING.purpose_key("k1", "encrypt/v1", "tenant", "thread"),
        RING.seal_key("k1", "tenant", "thread"),
        RING.purpose_key("k1", "idempotency/v1", "tenant", "thread"),
        RING.purpose_key("k1", "encrypt/v1", "tenant", "other"),
        RING.purpose_key("k1", "encrypt/v1", "other", "thread"),
    }
    assert len(derived) == 5


def test_one_cipher_serves_many_threads_at_once() -> None:
    ciphers = cover()

    def round_trip(number: int) -> bool:
        plain = pack_stored(number.to_bytes(4, "big") * 500)
        return ciphers.open_value("msgpack", ciphers.cover_value("msgpack", plain)) == plain

    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(round_trip, range(2_000))] == [True] * 2_000


# --- switching it on ------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [None, 1, 0, "yes", "", b"key"])
def test_a_setting_that_is_no_choice_is_refused(setting: Any, tmp_path: Any) -> None:
    with pytest.raises(Misconfigured, match="encryption"):
        SurefootSaver(
            f"sqlite:///{tmp_path}/a.db",
            highwater=f"sqlite:///{tmp_path}/b.db",
            keys=RING,
            encryption=setting,
        )


WITHOUT = """
import sys
sys.modules["cryptography"] = None
from surefoot import Keyring, SurefootSaver
from surefoot.errors import Misconfigured
settings = {"highwater": "sqlite:///b.db", "keys": Keyring.generate()}
SurefootSaver("sqlite:///a.db", **settings).close()
try:
    SurefootSaver("sqlite:///a.db", **settings, encryption=True)
except Misconfigured as error:
    print(error)
"""


def test_a_missing_extra_is_named_and_only_then_needed(tmp_path: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "surefoot[encryption]" in done.stdout


def test_nothing_of_a_cipher_shows_its_keys() -> None:
    ciphers = ThreadCiphers(RING)
    ciphers.encrypt("tenant", "thread", b"", PLAIN)
    secrets = (bytes(range(32)), RING.purpose_key("k1", "encrypt/v1", "tenant", "thread"))
    for shown in (repr(ciphers), repr(Cover(IDENTITY, ciphers)), str(vars(ciphers))):
        assert not any(s.hex() in shown or repr(s)[2:-1] in shown for s in secrets)
