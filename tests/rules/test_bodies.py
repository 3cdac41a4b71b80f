"""Layouts of bodies: what is packed comes back, and rubbish is a `BodyError`, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import ormsgpack
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.rules.bodies import (
    BODY_SCHEMAS,
    UPCASTERS,
    Batch,
    BodyError,
    ChannelValue,
    CheckpointBody,
    Chunks,
    DecisionBody,
    EffectBody,
    EventBody,
    Inline,
    KeptFrame,
    KeyChangeBody,
    ProvenanceBody,
    PruneBody,
    RestoreBody,
    Row,
    Segment,
    TombstoneBody,
    Typed,
    Write,
    WritesBody,
    pack_stored,
    unpack_stored,
)

pytestmark = pytest.mark.optimized

READERS: dict[str, Callable[[int, bytes], Any]] = {
    "C": CheckpointBody.unpack,
    "W": WritesBody.unpack,
    "E": EffectBody.unpack,
    "P": PruneBody.unpack,
    "R": RestoreBody.unpack,
    "D": DecisionBody.unpack,
    "F": ProvenanceBody.unpack,
    "X": TombstoneBody.unpack,
    "K": KeyChangeBody.unpack,
    "V": EventBody.unpack,
}
#: What is written today, by kind.
NOW = BODY_SCHEMAS
_TEXT = st.text(st.characters(), max_size=12)
_INT = st.integers(-(2**62), 2**62)
_DIGEST = st.binary(min_size=32, max_size=32)
_REF = st.one_of(
    st.builds(Inline, st.binary(max_size=20)),
    st.builds(Row, _DIGEST, st.integers(0, 2**31)),
    st.builds(
        Chunks,
        st.lists(
            st.builds(Segment, _INT, st.integers(1, 9), st.integers(1, 99), _DIGEST), max_size=3
        ).map(tuple),
    ),
)
_TYPED = st.builds(Typed, _TEXT, _REF)
_CHECKPOINT = st.builds(
    CheckpointBody,
    namespace=_TEXT,
    checkpoint_id=_TEXT,
    parent_id=st.none() | _TEXT,
    step=_INT,
    branch=st.just(b"") | _DIGEST,
    born=st.booleans(),
    skeleton=_TYPED,
    metadata=_TYPED,
    values=st.lists(st.builds(ChannelValue, _TEXT, _TYPED), max_size=3).map(tuple),
    folds=st.lists(_DIGEST, max_size=3).map(tuple),
    extra=st.dictionaries(st.text(max_size=5), _INT | st.binary(max_size=5), max_size=3),
)
_WRITES = st.builds(
    WritesBody,
    _TEXT,
    _TEXT,
    st.lists(
        st.builds(
            Batch,
            _TEXT,
            _TEXT,
            st.booleans(),
            st.lists(st.builds(Write, _INT, _TEXT, _TYPED), max_size=3).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    _INT,
)
_EFFECT = st.builds(
    EffectBody,
    slot=_DIGEST,
    name=_TEXT,
    state=_TEXT,
    attempt=st.integers(1, 2**40),
    receiver=st.sampled_from("KLN"),
    fingerprint=_DIGEST,
    key=_TEXT,
    namespace=_TEXT,
    checkpoint_id=_TEXT,
    position=_TEXT,
    arguments=st.none() | _TYPED,
    result=st.none() | _TYPED,
    unstorable=st.none() | _TEXT,
    receipt=st.none() | _TYPED,
    error=st.none() | _TEXT,
    source=_TEXT,
    evidence=st.none() | _TYPED,
    at_us=_INT,
    family=st.just(b"") | _DIGEST,
    since_us=_INT,
    root=_TEXT,
    task=_TEXT,
    adopted=st.just(b"") | _DIGEST,
    conflict=st.none() | _TYPED,
    operation=_TEXT,
    caller=_TEXT,
    compensates=st.just(b"") | _DIGEST,
    risk=st.none() | _TEXT,
    due_us=st.none() | _INT,
    asked_us=_INT,
    answer=_TEXT,
    why=_TEXT,
)
_PRUNE = st.builds(
    PruneBody,
    st.lists(st.builds(KeptFrame, _INT, _INT, _INT, _DIGEST), max_size=3).map(tuple),
    _TEXT,
    st.lists(_INT, max_size=3).map(tuple),
    st.booleans(),
)
SAMPLE = Typed("msgpack", Inline(b"\x00\x01"))
EXAMPLES: dict[str, Any] = {
    "C": CheckpointBody(
        "a|b\0\ud800",
        "id\udfff\0",
        "parent\n",
        -1,
        bytes(32),
        True,
        SAMPLE,
        Typed("null", Row(bytes(32), 7)),
        (ChannelValue("ch\0\ud800", Typed("msgpack", Chunks((Segment(1, 2, 3, bytes(32)),)))),),
        (bytes(32),),
        {"of": 3},
    ),
    "W": WritesBody(
        "", "c\ud800", (Batch("task\0", "~path", True, (Write(-3, "__interrupt__", SAMPLE),)),)
    ),
    "E": EffectBody(
        bytes(32), "name\ud800", "started", 1, "K", bytes(32), "key", "", "c", "(root)", SAMPLE
    ),
    "P": PruneBody((KeptFrame(9, 2, 8, bytes(32)),), "keep\0", (3, 4), True),
    "R": RestoreBody(3, bytes(32), -1, True),
    "D": DecisionBody(b"{}"),
    "F": ProvenanceBody("s\0\ud800", 2, 3, bytes(32)),
    "X": TombstoneBody("why\ud800"),
    "K": KeyChangeBody("k\u00e9", 7, compromised=True),
    "V": EventBody("guardrail.tripped", SAMPLE, 2**60, 3),
}


def packed(document: Any) -> bytes:
    return pack_stored(ormsgpack.packb(document, option=ormsgpack.OPT_NON_STR_KEYS))


def refused(kind: str, stored: bytes, schema: int | None = None) -> str:
    with pytest.raises(BodyError) as caught:
        READERS[kind](NOW[kind] if schema is None else schema, stored)
    return str(caught.value)


# --- round trips -------------------------------------------------------------------------------


@settings(max_examples=50)
@given(_CHECKPOINT)
def test_checkpoints_come_back(body: CheckpointBody) -> None:
    assert CheckpointBody.unpack(NOW["C"], body.pack()) == body


@settings(max_examples=50)
@given(_WRITES)
def test_writes_come_back(body: WritesBody) -> None:
    assert WritesBody.unpack(NOW["W"], body.pack()) == body


@given(_EFFECT)
def test_effects_come_back(body: EffectBody) -> None:
    assert EffectBody.unpack(NOW["E"], body.pack()) == body


@given(_PRUNE)
def test_prunes_come_back(body: PruneBody) -> None:
    assert PruneBody.unpack(NOW["P"], body.pack()) == body


@pytest.mark.parametrize("kind", EXAMPLES)
def test_names_of_every_kind_survive(kind: str) -> None:
    body = EXAMPLES[kind]
    assert READERS[kind](NOW[kind], body.pack()) == body
    assert READERS[kind](NOW[kind], body.pack()).pack() == body.pack()


def test_the_other_bodies_are_documents_too() -> None:
    tomb = ormsgpack.unpackb(unpack_stored(TombstoneBody("why\ud800").pack()))
    assert tomb == ["why\ud800".encode("utf-8", "surrogatepass")]
    origin = ormsgpack.unpackb(unpack_stored(ProvenanceBody("s\0", 2, 3, bytes(32)).pack()))
    assert origin == [b"s\0", 2, 3, bytes(32)]
    limit = ormsgpack.unpackb(unpack_stored(KeyChangeBody("k", 4, compromised=False).pack()))
    assert limit == [b"k", 4, False]
    fact = ormsgpack.unpackb(unpack_stored(EventBody("a.b", SAMPLE, 5, 2).pack()))
    assert fact == [b"a.b", [b"msgpack", [0, b"\x00\x01"]], 5, 2]


def test_an_effect_of_an_earlier_release_has_no_risk_and_no_deadline() -> None:
    body = EXAMPLES["E"]
    assert isinstance(body, EffectBody)
    assert (body.risk, body.due_us) == (None, None)
    declared = replace(body, risk="critical", due_us=1_700_000_000_000_000)
    assert EffectBody.unpack(1, declared.pack()) == declared
    document = ormsgpack.unpackb(unpack_stored(declared.pack()))
    with pytest.raises(BodyError, match="number"):
        EffectBody.unpack(1, pack_stored(ormsgpack.packb({**document, "due_us": b"soon"})))


def test_an_effect_stores_no_empty_field() -> None:
    document = ormsgpack.unpackb(unpack_stored(EXAMPLES["E"].pack()))
    given = {"slot", "name", "state", "attempt", "receiver", "fingerprint", "key"}
    given |= {"namespace", "checkpoint_id", "position", "arguments"}
    assert document.keys() == given
    assert given < {f.name for f in fields(EffectBody)}


# --- unknown schemas and layouts -----------------------------------------------------------------


@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.parametrize("beyond", [1, 2, 200])
def test_an_unknown_schema_is_refused_by_name(kind: str, beyond: int) -> None:
    for schema in (-1, 0, NOW[kind] + beyond):
        assert f"schema {schema} of kind {kind}" in refused(kind, EXAMPLES[kind].pack(), schema)


def test_the_schemas_of_this_release() -> None:
    assert dict(BODY_SCHEMAS) == {**dict.fromkeys("CPXFRDKV", 1), "W": 2, "E": 2}
    assert READERS.keys() == BODY_SCHEMAS.keys(), "a body that nobody can read again"


# --- what earlier releases wrote ---------------------------------------------------------------


def test_writes_of_schema_1_have_no_time() -> None:
    body = EXAMPLES["W"]
    older = ormsgpack.unpackb(unpack_stored(body.pack()))[:3]
    assert WritesBody.unpack(1, packed(older)) == body
    assert body.at_us == 0
    refused("W", packed(older))
    refused("W", body.pack(), 1)
    refused("W", packed(older[:2]), 1)


def test_effects_of_schema_1_have_no_family() -> None:
    body = EXAMPLES["E"]
    older = ormsgpack.unpackb(unpack_stored(body.pack()))
    assert "family" not in older
    assert EffectBody.unpack(1, packed(older)) == body
    refused("E", packed([1, 2]), 1)
    with_family = {**older, "family": bytes(32)}
    assert EffectBody.unpack(1, packed(with_family)).family == bytes(32), "it is never overwritten"


def test_every_older_schema_is_raised_to_the_one_of_today() -> None:
    for kind, now in BODY_SCHEMAS.items():
        assert [n for n in range(-1, 256) if UPCASTERS.knows(kind, n)] == [*range(1, now + 1)]
    assert not UPCASTERS.knows("Z", 1)


@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.parametrize(
    "document",
    [{}, {"a": 1}, {0: 1, 1: 2}, [], [[]] * 20, [1] * 20, [None] * 20, 5, "x", b"x", None, 1.5],
    ids=repr,
)
def test_documents_of_another_shape_are_refused(kind: str, document: Any) -> None:
    refused(kind, packed(document))


@pytest.mark.parametrize("kind", ["C", "W", "P", "R", "D", "F", "X", "K", "V"])
def test_documents_that_are_cut_short_are_refused(kind: str) -> None:
    whole = ormsgpack.unpackb(unpack_stored(EXAMPLES[kind].pack()))
    for length in range(len(whole)):
        refused(kind, packed(whole[:length]))


def test_an_effect_with_a_field_of_the_future_or_without_its_slot_is_refused() -> None:
    whole = ormsgpack.unpackb(unpack_stored(EXAMPLES["E"].pack()))
    refused("E", packed({**whole, "of_tomorrow": b"x"}))
    for name in ("slot", "name", "state", "attempt", "receiver", "fingerprint", "key"):
        refused("E", packed({k: v for k, v in whole.items() if k != name}))


def test_an_unknown_reference_is_refused() -> None:
    document = [b"", b"c", [[b"t", b"", False, [[0, b"ch", [b"msgpack", [3, b"x"]]]]]], 0]
    refused("W", packed(document))
    document[2][0][3][0][2] = None  # type: ignore[index]
    assert "missing" in refused("W", packed(document))


@pytest.mark.parametrize("kind", EXAMPLES)
@given(rubbish=st.binary(max_size=80))
def test_rubbish_is_a_body_error(kind: str, rubbish: bytes) -> None:
    for stored in (rubbish, b"\x00" + rubbish, b"\x01" + rubbish):
        try:
            READERS[kind](NOW[kind], stored)
        except BodyError:
            pass


_JSON = st.recursive(
    st.none() | st.booleans() | _INT | st.floats() | st.binary(max_size=5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=25,
)


@pytest.mark.parametrize("kind", EXAMPLES)
@settings(max_examples=40)
@given(document=_JSON)
def test_any_document_is_read_or_a_body_error(kind: str, document: Any) -> None:
    try:
        READERS[kind](NOW[kind], packed(document))
    except BodyError:
        pass


@pytest.mark.parametrize("kind", EXAMPLES)
@given(data=st.data())
def test_any_edit_of_a_document_is_read_or_a_body_error(kind: str, data: st.DataObject) -> None:
    raw = bytearray(unpack_stored(EXAMPLES[kind].pack()))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        READERS[kind](NOW[kind], b"\x00" + bytes(raw))
    except BodyError:
        pass


def test_a_deep_document_is_a_body_error() -> None:
    for kind in EXAMPLES:
        refused(kind, b"\x00" + b"\x91" * 100_000 + b"\xc0")


# --- the stored form ---------------------------------------------------------------------------


@given(st.binary(max_size=2_000))
def test_stored_forms_come_back(raw: bytes) -> None:
    stored = pack_stored(raw)
    assert unpack_stored(stored) == raw
    assert len(stored) <= len(raw) + 1


def test_what_compresses_is_compressed() -> None:
    assert pack_stored(b"a" * 10_000)[0] == 1
    assert len(pack_stored(b"a" * 10_000)) < 100
    assert pack_stored(b"short") == b"\x00short"
    assert pack_stored(b"") == b"\x00"


@pytest.mark.parametrize("codec", range(2, 256))
def test_unknown_codecs_are_refused(codec: int) -> None:
    with pytest.raises(BodyError, match=f"codec {codec} "):
        unpack_stored(bytes((codec,)) + b"x")


def test_an_empty_stored_form_is_refused() -> None:
    with pytest.raises(BodyError, match="empty"):
        unpack_stored(b"")


def _frame_of_size(size: int) -> bytes:
    """A zstd frame whose header claims ``size`` bytes, with nothing of that size behind it."""
    magic, descriptor = b"\x28\xb5\x2f\xfd", bytes((0b11100000,))
    return magic + descriptor + size.to_bytes(8, "little") + b"\x01\x00\x00"


@pytest.mark.parametrize("size", [1, 10_000, 2**31, 2**32, 2**63, 2**64 - 1])
def test_a_frame_that_claims_more_than_it_holds_is_refused(size: int) -> None:
    with pytest.raises(BodyError):
        unpack_stored(b"\x01" + _frame_of_size(size))


def test_a_frame_that_hides_its_size_is_refused() -> None:
    """A bomb: without a size in the header nothing would bound what it unpacks to."""
    packer = zstandard.ZstdCompressor(write_content_size=False)
    with pytest.raises(BodyError, match="size"):
        unpack_stored(b"\x01" + packer.compress(bytes(1_000_000)))


@given(st.binary(max_size=60), st.integers(0, 30))
def test_broken_frames_are_refused(rubbish: bytes, keep: int) -> None:
    good = pack_stored(b"abc" * 100)
    for stored in (b"\x01" + rubbish, good[:keep], good[:keep] + rubbish):
        try:
            seen = unpack_stored(stored)
        except BodyError:
            continue
        assert stored[:1] == b"\x00" or seen == b"abc" * 100 or rubbish
