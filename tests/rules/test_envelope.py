"""The envelope: nothing that was changed verifies, and nothing but `EnvelopeError` says so."""

from __future__ import annotations

import hashlib
import hmac
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.rules.envelope import (
    FORMAT_VERSION,
    GENESIS,
    EnvelopeError,
    Frame,
    Identity,
    Kind,
    Link,
    Record,
    SealedFrame,
    checkpoint_subject,
    hash8,
    record_digest,
    seal_frame,
    tlv,
    verify_frame,
)

pytestmark = pytest.mark.optimized

IDENTITY = Identity("tenant", "thread", 3)
KEY = bytes(range(32))
SUBJECT = checkpoint_subject("", "checkpoint")
ONE = (Record(Kind.CHECKPOINT, 1, SUBJECT, b"\x00body"),)
THREE = (
    Record(Kind.WRITES, 1, SUBJECT, b"\x00writes"),
    Record(Kind.EFFECT, 2, bytes(16), b""),
    Record(Kind.CHECKPOINT, 1, checkpoint_subject("a|b", "\ud800\0"), b"\x00" + bytes(90)),
)


def key_of(_: str) -> bytes:
    return KEY


def sealed(records: tuple[Record, ...] = ONE, *, floor: int = 0) -> SealedFrame:
    after = Link(41, hashlib.sha256(b"before").digest())
    return seal_frame(IDENTITY, 7, after, records, key_id="k1", seal_key=KEY, early_floor=floor)


def verified(frame: SealedFrame, **changed: object) -> Frame:
    given_ = {
        "identity": IDENTITY,
        "last_seq": frame.last_seq,
        "epoch": frame.epoch,
        "head": frame.head,
        "body": frame.body,
        "seal_key_of": key_of,
        **changed,
    }
    return verify_frame(**given_)  # type: ignore[arg-type]


def refused(frame: SealedFrame, **changed: object) -> str:
    with pytest.raises(EnvelopeError) as caught:
        verified(frame, **changed)
    return str(caught.value)


def flipped(raw: bytes, bit: int) -> bytes:
    out = bytearray(raw)
    out[bit // 8] ^= 1 << (bit % 8)
    return bytes(out)


# --- what was sealed verifies -------------------------------------------------------------------


@pytest.mark.parametrize("records", [ONE, THREE], ids=["one", "three"])
@pytest.mark.parametrize("floor", [0, 1, 2**63])
def test_a_sealed_frame_verifies(records: tuple[Record, ...], floor: int) -> None:
    frame = sealed(records, floor=floor)
    seen = verified(frame)
    assert (seen.last_seq, seen.epoch, seen.key_id) == (41 + len(records), 7, "k1")
    assert seen.early_floor == floor
    assert tuple(r.link for r in seen.records) == frame.links
    for record, head in zip(records, seen.records, strict=True):
        assert (head.kind, head.schema, head.subject) == (
            record.kind,
            record.schema,
            record.subject,
        )
        assert head.body == record.body
        assert head.epoch == 7


def test_records_are_linked_to_each_other_and_to_what_was_before() -> None:
    seen = verified(sealed(THREE))
    assert seen.records[0].prev == hashlib.sha256(b"before").digest()
    for before, after in zip(seen.records, seen.records[1:], strict=False):
        assert after.prev == before.link.digest
        assert after.link.seq == before.link.seq + 1


def test_frames_chain_from_the_first_one() -> None:
    at = Link(0, GENESIS)
    digests = set()
    for number in range(1, 6):
        frame = seal_frame(
            IDENTITY, number, at, [Record(Kind.WRITES, 1, SUBJECT, b"")], key_id="k", seal_key=KEY
        )
        seen = verified(frame)
        assert seen.records[0].prev == at.digest
        at = seen.records[-1].link
        digests.add(at.digest)
    assert (at.seq, len(digests)) == (5, 5)


def test_heads_alone_verify_and_give_no_body() -> None:
    seen = verified(sealed(THREE), body=None)
    assert [r.body for r in seen.records] == [None, None, None]
    assert tuple(r.link for r in seen.records) == sealed(THREE).links


def test_the_digest_is_the_one_of_the_record_design() -> None:
    """The formula of the format, spelled out: it can only change together with the version."""
    (link,) = sealed().links
    fields = (
        tlv("rec/v1", "tenant", "thread", 3)
        + tlv(42, 7, ord("C"), 1, SUBJECT)
        + tlv(hashlib.sha256(b"before").digest(), hashlib.sha256(b"\x00body").digest(), 5, "k1")
    )
    assert link.digest == hashlib.sha256(fields).digest()
    mac = hmac.digest(KEY, tlv("frame/v1", link.digest, 1, 0), "sha256")
    assert sealed().head.endswith(mac)


# --- what was changed does not -----------------------------------------------------------------


@pytest.mark.parametrize("records", [ONE, THREE], ids=["one", "three"])
def test_every_flipped_bit_of_a_head_is_refused(records: tuple[Record, ...]) -> None:
    frame = sealed(records, floor=5)
    for bit in range(len(frame.head) * 8):
        changed = flipped(frame.head, bit)
        refused(frame, head=changed)
        refused(frame, head=changed, body=None)


@pytest.mark.parametrize("records", [ONE, THREE], ids=["one", "three"])
def test_every_flipped_bit_of_a_body_is_refused(records: tuple[Record, ...]) -> None:
    frame = sealed(records)
    for bit in range(len(frame.body) * 8):
        refused(frame, body=flipped(frame.body, bit))


def test_every_truncation_and_extension_is_refused() -> None:
    frame = sealed(THREE)
    for cut in range(len(frame.head)):
        refused(frame, head=frame.head[:cut])
        refused(frame, head=frame.head[cut + 1 :])
    for cut in range(len(frame.body)):
        refused(frame, body=frame.body[:cut])
        refused(frame, body=frame.body[cut + 1 :])
    for more in (b"\x00", frame.head, frame.body):
        refused(frame, head=frame.head + more)
        refused(frame, head=more + frame.head)
        refused(frame, body=frame.body + more)


@pytest.mark.parametrize(
    "identity",
    [
        Identity("tenant2", "thread", 3),
        Identity("tenant", "thread2", 3),
        Identity("tenant", "thread", 2),
        Identity("tenant", "thread", 4),
        Identity("tenantthread", "", 3),
        Identity("", "tenantthread", 3),
        Identity("thread", "tenant", 3),
    ],
    ids=repr,
)
def test_another_identity_is_refused(identity: Identity) -> None:
    assert "seal" in refused(sealed(THREE), identity=identity)


@pytest.mark.parametrize("seq", [-(2**63), -1, 0, 1, 41, 43, 2**32, 2**63 - 1, 2**63, 2**64, 2**70])
def test_another_number_is_refused(seq: int) -> None:
    refused(sealed(), last_seq=seq)


@pytest.mark.parametrize("epoch", [-(2**63), -1, 0, 6, 8, 2**63 - 1, 2**63, 2**64, 2**70])
def test_another_epoch_is_refused(epoch: int) -> None:
    refused(sealed(), epoch=epoch)


def test_another_key_is_refused() -> None:
    assert "seal" in refused(sealed(), seal_key_of=lambda _: bytes(32))


def test_the_key_is_asked_for_by_the_name_in_the_head() -> None:
    asked: list[str] = []

    def note(key_id: str) -> bytes:
        asked.append(key_id)
        return KEY

    verified(sealed(), seal_key_of=note)
    assert asked == ["k1"]


def test_a_body_of_another_frame_is_refused() -> None:
    other = sealed((Record(Kind.CHECKPOINT, 1, SUBJECT, b"\x00bodY"),))
    refused(sealed(), body=other.body)
    refused(sealed(), head=other.head)


def test_swapped_bodies_of_one_frame_are_refused() -> None:
    records = tuple(Record(Kind.WRITES, 1, SUBJECT, bytes((n,)) * 9) for n in range(2))
    frame = sealed(records)
    refused(frame, body=frame.body[9:] + frame.body[:9])


def resealed(head: bytes, *, count: int = 1, kind: int | None = None) -> bytes:
    """What somebody with the key could make of a head with one record: another kind, say."""
    base = 2 + 2 + 32 + 8
    out = bytearray(head[:-32])
    out[base : base + 2] = count.to_bytes(2, "big")
    if kind is not None:
        out[base + 2] = kind
    piece = bytes(out[base + 2 : base + 2 + 54])
    body = (piece[22:54], int.from_bytes(piece[18:22], "big"))
    record = (piece[0], piece[1], piece[2:18])
    digest = record_digest(IDENTITY, 42, 7, record, head[4:36], body, "k1")
    return bytes(out) + hmac.digest(KEY, tlv("frame/v1", digest, count, 0), "sha256")


def test_an_unknown_kind_is_refused_although_its_seal_holds() -> None:
    frame = sealed()
    assert verified(frame, head=resealed(frame.head)).records[0].kind is Kind.CHECKPOINT
    known = {int(kind) for kind in Kind}
    for kind in set(range(256)) - known:
        assert f"kind {kind}" in refused(frame, head=resealed(frame.head, kind=kind))


def test_the_kinds_of_format_version_1() -> None:
    assert {kind.name: chr(kind) for kind in Kind} == {
        "CHECKPOINT": "C",
        "WRITES": "W",
        "EFFECT": "E",
        "ANCHORS": "N",
        "DECISION": "D",
        "FORK": "F",
        "PRUNE": "P",
        "TOMBSTONE": "X",
        "RESTORE": "R",
        "KEY_CHANGE": "K",
        "EVENT": "V",
    }
    assert FORMAT_VERSION == 1


def test_every_other_format_version_is_refused_by_name() -> None:
    frame = sealed()
    assert frame.head[0] == FORMAT_VERSION
    for version in set(range(256)) - {FORMAT_VERSION}:
        changed = bytes((version,)) + frame.head[1:]
        assert f"version {version}" in refused(frame, head=changed)


def test_a_frame_without_records_is_refused() -> None:
    frame = sealed()
    base = 2 + 2 + 32 + 8
    head = frame.head[:base] + bytes(2)
    mac = hmac.digest(KEY, tlv("frame/v1", frame.head[4:36], 0, 0), "sha256")
    refused(frame, head=head + mac, body=b"")


def test_more_records_than_numbers_below_it_are_refused() -> None:
    frame = seal_frame(IDENTITY, 1, Link(0, GENESIS), THREE, key_id="k", seal_key=KEY)
    assert verified(frame).last_seq == 3
    for seq in (0, 1, 2):
        refused(frame, last_seq=seq)


def test_a_key_id_that_is_no_text_is_refused() -> None:
    frame = sealed()
    refused(frame, head=frame.head[:2] + b"\xff\xfe" + frame.head[4:])


@given(st.binary(max_size=400), st.binary(max_size=200))
def test_rubbish_is_refused(head: bytes, body: bytes) -> None:
    frame = sealed()
    refused(frame, head=head, body=body)
    refused(frame, head=bytes((FORMAT_VERSION,)) + head, body=body)
    refused(frame, head=frame.head[:90] + head, body=body)


@given(st.data())
def test_no_edit_of_a_head_verifies(data: st.DataObject) -> None:
    frame = sealed(THREE)
    at = data.draw(st.integers(0, len(frame.head)))
    length = data.draw(st.integers(0, 40))
    piece = data.draw(st.binary(max_size=40))
    changed = frame.head[:at] + piece + frame.head[at + length :]
    if changed == frame.head:
        return
    refused(frame, head=changed)
    refused(frame, head=changed, body=None)


def test_a_message_shows_no_stored_bytes() -> None:
    secret = b"hunter2" * 9
    frame = sealed((Record(Kind.CHECKPOINT, 1, SUBJECT, secret),))
    for text in (
        refused(frame, body=secret[:-1] + b"3"),
        refused(frame, head=frame.head[:-1] + b"?"),
        refused(frame, body=b"hunter2"),
    ):
        assert "hunter2" not in text


# --- what may be sealed ------------------------------------------------------------------------


def test_what_cannot_be_sealed_is_refused() -> None:
    after = Link(0, GENESIS)

    def seal(records: list[Record], key_id: str = "k") -> SealedFrame:
        return seal_frame(IDENTITY, 1, after, records, key_id=key_id, seal_key=KEY)

    record = Record(Kind.WRITES, 1, SUBJECT, b"")
    for broken in (
        lambda: seal([]),
        lambda: seal([record] * 65_536),
        lambda: seal([Record(Kind.WRITES, 1, b"short", b"")]),
        lambda: seal([Record(Kind.WRITES, 1, bytes(17), b"")]),
        lambda: seal([record], ""),
        lambda: seal([record], "k" * 256),
        lambda: seal([record], "ü" * 128),
    ):
        with pytest.raises(ValueError, match=r"holds|has"):
            broken()


@pytest.mark.parametrize("key_id", ["k", "k" * 255, "ü" * 127, "a b\nc"])
def test_key_ids_of_every_size_travel(key_id: str) -> None:
    frame = seal_frame(IDENTITY, 1, Link(0, GENESIS), ONE, key_id=key_id, seal_key=KEY)
    assert verified(frame).key_id == key_id


@pytest.mark.parametrize("count", [1, 2, 255, 256, 1_000])
def test_the_size_of_a_head_is_known(count: int) -> None:
    records = [Record(Kind.WRITES, 1, SUBJECT, b"x")] * count
    frame = seal_frame(IDENTITY, 1, Link(0, GENESIS), records, key_id="k", seal_key=KEY)
    assert len(frame.head) == 1 + 1 + 1 + 32 + 8 + 2 + count * (1 + 1 + 16 + 4 + 32) + 32
    assert len(frame.body) == count
    assert len(verified(frame).records) == count


def test_a_large_body_travels() -> None:
    body = os.urandom(1 << 20)
    frame = sealed((Record(Kind.CHECKPOINT, 1, SUBJECT, body),))
    assert verified(frame).records[0].body == body


# --- TLV ---------------------------------------------------------------------------------------

_BYTES = st.lists(st.binary(max_size=9), max_size=6)
_TEXT = st.text(st.characters(), max_size=9)


@given(_BYTES, _BYTES)
def test_no_two_lists_of_fields_share_an_encoding(one: list[bytes], other: list[bytes]) -> None:
    assert (tlv(*one) == tlv(*other)) == (one == other)


@given(_BYTES, _BYTES)
def test_no_encoding_is_the_beginning_of_another_one(one: list[bytes], other: list[bytes]) -> None:
    """So two lists with the same fields before them differ as well."""
    if tlv(*other).startswith(tlv(*one)):
        assert other[: len(one)] == one


@given(st.lists(_TEXT, max_size=5), st.lists(_TEXT, max_size=5))
def test_texts_with_surrogates_stay_apart(one: list[str], other: list[str]) -> None:
    assert (tlv(*one) == tlv(*other)) == (one == other)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=5))
def test_numbers_take_eight_bytes(numbers: list[int]) -> None:
    assert len(tlv(*numbers)) == 12 * len(numbers)


def test_joined_and_split_fields_differ() -> None:
    assert len({tlv("ab", ""), tlv("a", "b"), tlv("", "ab"), tlv("ab"), tlv("ab", "", "")}) == 5


@given(_TEXT, _TEXT, st.integers(0, 2**40), _TEXT, _TEXT, st.integers(0, 2**40))
def test_identities_have_digests_of_their_own(
    tenant: str, thread: str, life: int, tenant2: str, thread2: str, life2: int
) -> None:
    one, other = Identity(tenant, thread, life), Identity(tenant2, thread2, life2)

    def digest(identity: Identity) -> bytes:
        return record_digest(identity, 1, 1, (67, 1, SUBJECT), GENESIS, (bytes(32), 0), "k")

    assert (digest(one) == digest(other)) == (one == other)


def test_subjects() -> None:
    assert checkpoint_subject("ns", "id") == hash8("ns") + hash8("id")
    assert len({checkpoint_subject(a, b) for a in ("", "a", "ab") for b in ("", "b", "ab")}) == 9
    assert len(hash8("\ud800")) == 8
