"""Case 47 and the drill after a key was lost to others: what a key sealed counts up to a point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.orders.conftest import STEPS, Place, Snapshot, at, whole
from tests.saver.conftest import at as at_checkpoint
from tests.saver.conftest import checkpoint, metadata

from surefoot import Keyring
from surefoot.errors import KeyMissing, Misconfigured, Misuse, TamperDetected
from surefoot.keys import Key
from surefoot.rules.bodies import BODY_SCHEMAS, Batch, Inline, Typed, Write, WritesBody, pack_stored
from surefoot.rules.envelope import (
    Identity,
    Kind,
    Link,
    Record,
    checkpoint_subject,
    seal_frame,
    verify_frame,
)

pytestmark = pytest.mark.optimized


def rings(place: Place) -> dict[str, Keyring]:
    """The stations of a rotation."""
    old = place.backend.keys
    both = old.with_new_key("new")
    turned = both.with_primary("new")
    return {
        "old": old,
        "both": both,
        "turned": turned,
        "retired": turned.with_retired(old.primary()),
    }


def test_case_47_old_rows_verify_new_rows_use_the_new_key(place: Place) -> None:
    ring = rings(place)
    place.graph("K", place.open(keys=ring["both"]), stop=1).invoke({"done": []}, at("t"))
    place.graph("K", place.open(keys=ring["turned"]), stop=2).invoke(None, at("t"))
    # A worker that has not turned yet reads and goes on, and so does one that has.
    place.graph("K", place.open(keys=ring["both"]), stop=3).invoke(None, at("t"))
    saver = place.open(keys=ring["turned"])
    assert place.graph("K", saver).invoke(None, at("t"))["done"] == whole("K")
    assert place.world.distinct("K") == STEPS
    used = {row[0] for row in _key_ids(place)}
    assert used == {place.backend.keys.primary(), "new"}


def _key_ids(place: Place) -> list[tuple[str]]:
    heads = place.backend.execute("SELECT head FROM surefoot_frame")
    return [(bytes(h)[2 : 2 + bytes(h)[1]].decode(),) for (h,) in heads]


def test_case_47_a_retired_key_is_refused_by_its_id(place: Place) -> None:
    ring = rings(place)
    place.graph("K", stop=2).invoke({"done": []}, at("t"))
    retired = place.open(keys=ring["retired"])
    for look in (
        lambda: retired.get_tuple(at("t")),
        lambda: list(retired.list(at("t"))),
        lambda: place.graph("K", retired).invoke(None, at("t")),
        lambda: retired.copy_thread("t", "copy"),
        lambda: retired.prune(["t"]),
    ):
        with pytest.raises(KeyMissing) as refused:
            look()
        assert refused.value.key_id == place.backend.keys.primary()
    (report,) = retired.verify("t")
    assert [p.code for p in report.problems] == ["KEY_MISSING"]


def test_a_thread_says_up_to_where_a_key_counts_and_is_read_without_it(place: Place) -> None:
    ring = rings(place)
    place.graph("K", stop=2).invoke({"done": []}, at("t"))
    before = list(place.saver.list(at("t")))
    turned = place.open(keys=ring["turned"])
    assert turned.retire_key("t", ring["old"].primary()) is True
    assert turned.retire_key("t", ring["old"].primary()) is False, "said twice"
    turned.close()
    retired = place.open(keys=ring["retired"])
    assert list(retired.list(at("t"))) == before
    assert place.graph("K", retired).invoke(None, at("t"))["done"] == whole("K")
    assert place.world.distinct("K") == STEPS
    (report,) = retired.verify("t", deep=True)
    assert report.ok
    assert report.records["K"] == 1


def test_a_worker_that_still_seals_with_a_retired_key_is_refused(place: Place) -> None:
    ring = rings(place)
    place.graph("K", stop=1).invoke({"done": []}, at("t"))
    place.open(keys=ring["turned"]).retire_key("t", ring["old"].primary())
    place.graph("K", place.open(keys=ring["both"]), stop=2).invoke(None, at("t"))
    with pytest.raises(KeyMissing) as refused:
        place.open(keys=ring["retired"]).get_tuple(at("t"))
    assert refused.value.key_id == ring["old"].primary()
    # The remedy: say it again, with the key enabled.
    assert place.open(keys=ring["turned"]).retire_key("t", ring["old"].primary()) is True
    saver = place.open(keys=ring["retired"])
    assert place.graph("K", saver).invoke(None, at("t"))["done"] == whole("K")


def test_what_a_key_may_have_sealed_survives_a_prune_and_an_ordered_restore(place: Place) -> None:
    ring = rings(place)
    old = ring["old"].primary()
    place.graph("L", stop=2).invoke({"done": []}, at("t"))
    unturned = Snapshot(place.backend)
    place.open(keys=ring["turned"]).retire_key("t", old)
    retired = place.open(keys=ring["retired"])
    retired.prune(["t"])
    assert [r.ok for r in place.open(keys=ring["retired"]).verify("t", deep=True)] == [True]
    # A backup from before the retirement: only an order that names the key may go back to it.
    unturned.put_back()
    with pytest.raises(Misuse):
        retired.propose("t", "restore", reason="x")
    place.decide("t", "restore", retired, trusted_keys=[old])
    fresh = place.open(keys=ring["retired"])
    assert [r.ok for r in fresh.verify("t", deep=True)] == [True]
    assert place.graph("L", fresh).invoke(None, at("t"))["done"] == whole("L")
    assert len(place.world.sent["L"]) == STEPS


# --- the drill ----------------------------------------------------------------------------------


def forge_tail(place: Place, ring: Keyring, saver: Any = None) -> None:
    """Whoever has the old key and can write to A adds a pending write behind the head."""
    saver = saver or place.saver
    ports = saver.core.ports
    mark = ports.marks.read(ports.tenant, "t")
    assert mark is not None
    latest = saver.get_tuple(at("t"))
    assert latest is not None
    checkpoint_id = latest.checkpoint["id"]
    value = Typed("msgpack", Inline(pack_stored(saver.serde.dumps_typed(["forged"])[1])))
    batch = Batch("00000000-0000-0000-0000-000000000000", "", False, (Write(0, "done", value),))
    body = WritesBody("", checkpoint_id, (batch,)).pack()
    key_id = ring.primary()
    frame = seal_frame(
        Identity(ports.tenant, "t", 1),
        mark.epoch,
        Link(mark.seq, mark.digest),
        [Record(Kind.WRITES, BODY_SCHEMAS["W"], checkpoint_subject("", checkpoint_id), body)],
        key_id=key_id,
        seal_key=ring.seal_key(key_id, ports.tenant, "t"),
    )
    ((key,),) = place.backend.execute("SELECT key FROM surefoot_thread")
    place.backend.execute(
        "INSERT INTO surefoot_frame (thread_key, last_seq, epoch, head, body)"
        " VALUES (?, ?, ?, ?, ?)",
        key,
        frame.last_seq,
        frame.epoch,
        frame.head,
        frame.body,
    )


def pending(saver: Any) -> list[Any]:
    found = saver.get_tuple(at("t"))
    return (
        []
        if found is None
        else [value for _, channel, value in found.pending_writes or [] if channel == "done"]
    )


def test_the_drill_drops_what_anybody_with_the_key_could_have_written(place: Place) -> None:
    ring = rings(place)
    place.graph("L", stop=2).invoke({"done": []}, at("t"))
    forge_tail(place, ring["old"])
    assert pending(place.open()) == [["forged"]], "the forgery is not one"
    turned = place.open(keys=ring["turned"])
    assert turned.retire_key("t", ring["old"].primary(), compromised=True) is True
    turned.close()
    saver = place.open(keys=ring["retired"])
    assert pending(saver) == []
    assert place.graph("L", saver).invoke(None, at("t"))["done"] == whole("L")
    assert len(place.world.sent["L"]) == STEPS


def test_after_the_drill_the_lost_key_forges_nothing_any_more(place: Place) -> None:
    ring = rings(place)
    place.graph("L", stop=2).invoke({"done": []}, at("t"))
    place.open(keys=ring["turned"]).retire_key("t", ring["old"].primary(), compromised=True)
    before = place.open(keys=ring["retired"]).get_tuple(at("t"))
    forge_tail(place, ring["old"], place.open(keys=ring["retired"]))
    saver = place.open(keys=ring["retired"])
    assert saver.get_tuple(at("t")) == before
    # Sealing an old frame anew, with another early floor, hides no pending write.
    assert place.graph("L", saver).invoke(None, at("t"))["done"] == whole("L")


def reseal(place: Place, ring: dict[str, Keyring], floor_of: Callable[[int], int]) -> int:
    """Whoever has the old key seals its frames anew, with other early floors; gives how many."""
    old, tenant = ring["old"], place.saver.core.ports.tenant
    rows = place.backend.execute(
        "SELECT last_seq, epoch, head, body FROM surefoot_frame ORDER BY last_seq"
    )
    changed = 0
    for last_seq, epoch, head, body in rows:
        frame = verify_frame(
            Identity(tenant, "t", 1),
            last_seq,
            epoch,
            bytes(head),
            bytes(body),
            lambda k: ring["turned"].seal_key(k, tenant, "t"),
        )
        if frame.key_id != old.primary():
            continue
        first = frame.records[0]
        forged = seal_frame(
            Identity(tenant, "t", 1),
            epoch,
            Link(first.link.seq - 1, first.prev),
            [Record(r.kind, r.schema, r.subject, r.body or b"") for r in frame.records],
            key_id=old.primary(),
            seal_key=old.seal_key(old.primary(), tenant, "t"),
            early_floor=floor_of(last_seq),
        )
        assert forged.links[-1] == frame.records[-1].link
        place.backend.execute(
            "UPDATE surefoot_frame SET head = ? WHERE last_seq = ? AND epoch = ?",
            forged.head,
            last_seq,
            epoch,
        )
        changed += forged.head != bytes(head)
    return changed


def test_a_frame_resealed_with_a_retired_key_does_not_change_what_is_read(place: Place) -> None:
    ring = rings(place)
    place.graph("L", stop=2).invoke({"done": []}, at("t"))
    place.open(keys=ring["turned"]).retire_key("t", ring["old"].primary(), compromised=True)
    before = list(place.open(keys=ring["retired"]).list(at("t")))
    assert reseal(place, ring, lambda last_seq: last_seq), "no frame was resealed"
    assert list(place.open(keys=ring["retired"]).list(at("t"))) == before


def test_a_frame_resealed_with_a_retired_key_hides_no_early_write(place: Place) -> None:
    """A write may come before its checkpoint; only the floor, which no digest covers, says so."""
    ring = rings(place)
    made = checkpoint("c1", done=[])
    place.saver.put_writes(at_checkpoint("t", "c1"), [("done", ["early"])], "task")
    place.saver.put(at_checkpoint("t"), made, metadata(), made["channel_versions"])
    assert pending(place.saver) == [["early"]]
    place.open(keys=ring["turned"]).retire_key("t", ring["old"].primary(), compromised=True)
    assert pending(place.open(keys=ring["retired"])) == [["early"]]
    assert reseal(place, ring, lambda last_seq: 0), "no frame was resealed"
    assert pending(place.open(keys=ring["retired"])) == [["early"]]


def test_the_primary_cannot_be_retired(place: Place) -> None:
    place.graph("K", stop=1).invoke({"done": []}, at("t"))
    with pytest.raises(Misuse, match="primary"):
        place.saver.retire_key("t", place.backend.keys.primary())
    with pytest.raises(Misconfigured, match="primary"):
        place.backend.keys.with_retired(place.backend.keys.primary())


def test_a_ring_turns_on_disk_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    first = Keyring([Key("a", bytes(range(32)), "primary")])
    first.to_file(path)
    turned = first.with_new_key("b").with_primary("b").with_retired("a")
    turned.replace_file(path)
    assert Keyring.from_file(path).states() == {"a": "retired", "b": "primary"}
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["keys.json"]
    with pytest.raises(Misconfigured):
        turned.replace_file(tmp_path / "no such folder" / "keys.json")
    with pytest.raises(KeyMissing, match="does not hold"):
        turned.with_primary("c")
    with pytest.raises(KeyMissing, match="retired"):
        turned.with_primary("a")
    with pytest.raises(Misconfigured, match="twice"):
        turned.with_new_key("a")


def test_a_forged_vouching_record_does_not_verify(place: Place) -> None:
    """A ``K`` record that the retired key seals itself vouches for nothing."""
    ring = rings(place)
    place.graph("K", stop=2).invoke({"done": []}, at("t"))
    ports = place.saver.core.ports
    mark = ports.marks.read(ports.tenant, "t")
    assert mark is not None
    from surefoot.rules.bodies import KeyChangeBody

    body = KeyChangeBody(ring["old"].primary(), mark.seq + 100, compromised=False)
    frame = seal_frame(
        Identity(ports.tenant, "t", 1),
        mark.epoch,
        Link(mark.seq, mark.digest),
        [Record(Kind.KEY_CHANGE, 1, body.subject(), body.pack())],
        key_id=ring["old"].primary(),
        seal_key=ring["old"].seal_key(ring["old"].primary(), ports.tenant, "t"),
    )
    ((key,),) = place.backend.execute("SELECT key FROM surefoot_thread")
    place.backend.execute(
        "INSERT INTO surefoot_frame (thread_key, last_seq, epoch, head, body)"
        " VALUES (?, ?, ?, ?, ?)",
        key,
        frame.last_seq,
        frame.epoch,
        frame.head,
        frame.body,
    )
    with pytest.raises((KeyMissing, TamperDetected)):
        place.open(keys=ring["retired"]).get_tuple(at("t"))
    assert replace(mark, lease_left_ms=0).seq == mark.seq


def test_a_frozen_thread_keeps_no_key_from_being_retired(place: Place) -> None:
    ring = rings(place)
    place.graph("K", stop=2).invoke({"done": []}, at("t"))
    before = place.saver.get_tuple(at("t"))
    place.decide("t", "abort")
    turned = place.open(keys=ring["turned"])
    assert turned.retire_key("t", ring["old"].primary(), compromised=True) is True
    assert turned.retire_key("t", ring["old"].primary()) is False
    turned.close()
    retired = place.open(keys=ring["retired"])
    assert retired.get_tuple(at("t")) == before
    (report,) = retired.verify("t", deep=True)
    assert (report.ok, report.state) == (True, "frozen")
