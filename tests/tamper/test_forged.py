"""What somebody without the key can make: payloads that would act when decoded, rows without a
seal, with the seal of another key, and rows that say the same in another encoding."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from langgraph.checkpoint.serde.jsonplus import EXT_CONSTRUCTOR_SINGLE_ARG
from tests.tamper.campaign import Campaign
from tests.tamper.conftest import backends, finished
from tests.tamper.content import COLUMNS
from tests.tamper.edits import Place
from tests.tamper.structure import Edit, judge

from surefoot import Keyring
from surefoot.keys import Key
from surefoot.rules.bodies import pack_stored, unpack_stored
from surefoot.rules.envelope import Identity, Link, Record, record_digest, seal_frame, verify_frame

pytestmark = pytest.mark.optimized

FRAME = COLUMNS["surefoot_frame"]


def edited(campaign: Campaign, kind: str, table: str, row: tuple[Any, ...], **now: Any) -> Edit:
    """One row with other columns; a row that is needed must be refused."""
    named = dict(zip(COLUMNS[table], row, strict=True))
    changed = tuple({**named, **now}.values())
    rows = [changed if r is row else r for r in campaign.rows[table]]
    thread = campaign.table.thread_of(table, row)
    assert thread is not None
    beyond = campaign.table.place_of(table, row) is Place.BEYOND
    return Edit(
        f"{kind}: {table} of {thread}",
        {table: rows},
        [thread],
        frozenset() if beyond else frozenset({thread}),
        cut=frozenset({thread} if beyond else ()),
    )


# --- case 44 ------------------------------------------------------------------------------------


def payloads(marker: Path) -> list[bytes]:
    """Bytes that make LangGraph's own decoder open a file for writing, in each stored form."""
    call = ormsgpack.packb(("os", "system", f"touch {marker}"))
    raw = ormsgpack.packb({"x": ormsgpack.Ext(EXT_CONSTRUCTOR_SINGLE_ARG, call)})
    json_form = b'{"lc": 2, "type": "constructor", "id": ["os", "system"], "args": ["touch %s"]}'
    text = json_form % str(marker).encode()
    return [raw, b"\0" + raw, pack_stored(raw * 9), (1).to_bytes(4, "big") + b"\0" + raw, text]


def test_the_payload_acts_where_it_is_decoded(tmp_path: Path) -> None:
    """The honest twin: LangGraph's own serialiser, when it is not strict, runs it."""
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    marker = tmp_path / "marker"
    serde = JsonPlusSerializer(allowed_msgpack_modules=True)
    serde.loads_typed(("msgpack", payloads(marker)[0]))
    assert marker.exists()


@backends
def test_case_44_a_forged_payload_is_never_decoded(campaign: Campaign, tmp_path: Path) -> None:
    marker = tmp_path / "marker"

    def forged() -> Iterator[Edit]:
        for table, columns in (
            ("surefoot_frame", ("head", "body")),
            ("surefoot_value", ("body", "digest")),
            ("surefoot_chunk", ("body",)),
        ):
            for row in campaign.rows[table][:: 4 if campaign.content.postgres else 1]:
                for column in columns:
                    payload = payloads(marker)[len(row[-1]) % 5]
                    yield edited(campaign, f"forged {column}", table, row, **{column: payload})
        for row in campaign.rows["surefoot_value"]:  # with the digest that belongs to it
            payload = payloads(marker)[2]
            digest = hashlib.sha256(payload).digest()
            yield edited(
                campaign, "forged value", "surefoot_value", row, body=payload, digest=digest
            )

    judge(campaign, forged())
    report = finished(campaign)
    assert report.edits.total() > 100
    assert not marker.exists()


# --- case 45 ------------------------------------------------------------------------------------


def _parts(head: bytes) -> tuple[int, int]:
    """Where the fixed fields of a head end, and how many records follow."""
    at = 2 + head[1] + 32 + 8 + 2
    return at, int.from_bytes(head[at - 2 : at], "big")


def _resealed(campaign: Campaign, row: tuple[Any, ...], ring: Keyring, body: bytes | None) -> bytes:
    """The head of the same records, sealed by another ring; with another body where given."""
    thread = campaign.table.thread_of("surefoot_frame", row)
    assert thread is not None
    mark = campaign.world.snapshots[-1].marks[thread]
    identity = Identity(*thread, mark.incarnation)
    genuine = campaign.world.savers[thread[0]].core.ports.seals

    def seal_key(key_id: str) -> bytes:
        return genuine.seal_key(key_id, *thread)

    frame = verify_frame(identity, row[1], row[2], row[4], row[5], seal_key)
    first = frame.records[0]
    records = [
        Record(r.kind, r.schema, r.subject, (r.body or b"") if body is None else body)
        for r in frame.records
    ]
    key_id = ring.primary()
    sealed = seal_frame(
        identity,
        row[2],
        Link(first.link.seq - 1, first.prev),
        records,
        key_id=key_id,
        seal_key=ring.seal_key(key_id, *thread),
        early_floor=frame.early_floor,
    )
    return sealed.head


def _key_id(head: bytes) -> str:
    return head[2 : 2 + head[1]].decode()


@backends
def test_case_45_a_row_without_its_seal_or_with_another(campaign: Campaign) -> None:
    """No seal, an empty one, the seal of a digest without a key, of a key of another ring."""
    stranger = Keyring.generate()

    def unsealed() -> Iterator[Edit]:
        for row in campaign.rows["surefoot_frame"][:: 3 if campaign.content.postgres else 2]:
            head = row[4]
            namesake = Keyring([Key(_key_id(head), bytes(range(32)), "primary")])
            bare = hashlib.sha256(head[:-32]).digest()
            keyless = hmac.digest(b"", head[:-32], "sha256")
            for kind, now in (
                ("no seal", head[:-32]),
                ("a seal of zeros", head[:-32] + bytes(32)),
                ("a digest as seal", head[:-32] + bare),
                ("a seal without a key", head[:-32] + keyless),
                ("no version", b"\0" + head[1:]),
                ("a later version", b"\2" + head[1:]),
                ("a stranger's key", _resealed(campaign, row, stranger, None)),
                ("a key of the same name", _resealed(campaign, row, namesake, None)),
            ):
                yield edited(campaign, kind, "surefoot_frame", row, head=now)

    judge(campaign, unsealed())
    report = finished(campaign)
    assert len(report.edits) == 8
    for kind, count in report.edits.items():
        assert report.refused[kind] >= count - 3, kind  # what lies beyond the head may be gone
    assert report.codes["KEY_MISSING"] >= 40


@backends
def test_case_45_the_same_content_in_another_encoding(campaign: Campaign) -> None:
    """Unpacked, packed again, or wrapped as if it were encrypted: the seal is over stored bytes."""

    def encoded() -> Iterator[Edit]:
        for row in campaign.rows["surefoot_value"]:
            raw = unpack_stored(row[2])
            twice = pack_stored(row[2] * 2)
            for kind, body in (
                ("unpacked", b"\0" + raw),
                ("without codec", raw),
                ("unknown codec", b"\2" + row[2][1:]),
                ("wrapped", b"\0" + row[2]),
                ("packed twice", twice),
            ):
                if body != row[2]:
                    yield edited(campaign, kind, "surefoot_value", row, body=body)
        for row in campaign.rows["surefoot_frame"]:
            if _parts(row[4])[1] == 1 and row[5][:1] == b"\1":
                yield edited(
                    campaign,
                    "unpacked record",
                    "surefoot_frame",
                    row,
                    body=b"\0" + unpack_stored(row[5]),
                )

    judge(campaign, encoded())
    report = finished(campaign)
    assert report.edits["unpacked"] > 5
    assert report.edits["unpacked record"] > 20
    for kind, count in report.edits.items():
        assert report.refused[kind] >= count - 2, kind


def test_the_seal_binds_what_the_columns_say() -> None:
    """Digests of one record under two identities, numbers or key ids are never equal."""
    base: tuple[Any, ...] = (
        Identity("a", "b", 1),
        3,
        2,
        (67, 1, bytes(16)),
        bytes(32),
        (bytes(32), 5),
        "k",
    )
    others: list[tuple[int, Any]] = [
        (0, Identity("ab", "", 1)),
        (0, Identity("a", "b", 2)),
        (1, 4),
        (2, 3),
        (3, (68, 1, bytes(16))),
        (4, bytes(31) + b"\1"),
        (5, (bytes(32), 6)),
        (6, "K"),
    ]
    digests = {record_digest(*base)}
    digests |= {record_digest(*base[:n], value, *base[n + 1 :]) for n, value in others}
    assert len(digests) == len(others) + 1
