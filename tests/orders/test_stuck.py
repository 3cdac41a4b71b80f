"""What somebody who can only write the database must not be able to do: block every order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.orders.conftest import Place, Snapshot, at, whole

from surefoot.errors import DecisionRefused, Fenced, Misuse, ResumeRefused, RollbackDetected
from surefoot.rules.publish import GateFacts, Then, decide_gate
from surefoot.testing.faults import Fault, Plan, with_faults

pytestmark = pytest.mark.optimized

FORGED = 4_611_686_018_427_387_000


def paused(place: Place, classes: str = "K") -> None:
    place.graph(classes, stop=2).invoke({"done": []}, at("t"))
    place.saver.close()
    place.saver = place.open()


def raise_the_gate(place: Place) -> None:
    place.backend.execute("UPDATE surefoot_thread SET head_epoch = ?", FORGED)
    assert place.backend.execute("SELECT head_epoch FROM surefoot_thread") == [(FORGED,)]
    refused = place.open()
    with pytest.raises((RollbackDetected, Fenced)):
        place.graph("K", refused).invoke(None, at("t"))
    refused.close()


def squat(place: Place) -> None:
    """Puts frames that verify nowhere where the next ones would be stored."""
    ((key, last_seq, epoch, head, body),) = place.backend.execute(
        "SELECT thread_key, last_seq, epoch, head, body FROM surefoot_frame"
        " ORDER BY last_seq DESC LIMIT 1"
    )
    for seq in range(last_seq + 1, last_seq + 5):
        for later in range(epoch, epoch + 10):
            place.backend.execute(
                "INSERT INTO surefoot_frame (thread_key, last_seq, epoch, head, body)"
                " VALUES (?, ?, ?, ?, ?)",
                key,
                seq,
                later,
                head,
                body,
            )


def test_a_head_row_of_an_epoch_that_was_never_given_out_is_reported(place: Place) -> None:
    paused(place)
    assert [(r.ok, r.notes) for r in place.open().verify("t")] == [(True, ())]
    raise_the_gate(place)
    (report,) = place.open().verify("t", deep=True)
    assert [p.code for p in report.problems] == ["ROLLBACK"]
    assert "epoch" in report.problems[0].text
    assert report.last_good == report.seq


def test_a_head_row_that_names_no_record_is_noted_and_stops_nothing(place: Place) -> None:
    paused(place)
    place.backend.execute("UPDATE surefoot_thread SET head_digest = ?", bytes(32))
    (report,) = place.open().verify("t")
    assert report.ok
    assert len(report.notes) == 1
    assert place.graph("K", place.open()).invoke(None, at("t"))["done"] == whole("K")
    assert [(r.ok, r.notes) for r in place.open().verify("t")] == [(True, ())]


def test_nothing_is_reported_while_a_worker_of_a_later_epoch_writes(place: Place) -> None:
    """The mark that the verification began with is older than the head row it then reads."""
    paused(place)
    saver = place.open()
    read = saver.core.ports.store.read_newest
    ran: list[str] = []

    def late(*where: Any, **how: Any) -> Any:
        if not ran:
            ran.append("went on")
            working = place.open()
            place.graph("K", working, stop=3).invoke(None, at("t"))
            working.close()
        return read(*where, **how)

    saver.core.ports.store.read_newest = late  # type: ignore[method-assign]
    assert [(r.ok, r.problems, r.notes) for r in saver.verify("t")] == [(True, (), ())]
    assert ran


@pytest.mark.parametrize("damage", [raise_the_gate, squat])
@pytest.mark.parametrize("choices", [{}, {"to_seq": 0}])
def test_one_restore_is_enough(place: Place, damage: Any, choices: dict[str, Any]) -> None:
    # What begins anew asks about every effect of the lost steps; this is about the journal.
    classes = "" if choices else "K"
    paused(place, classes)
    damage(place)
    place.decide("t", "restore", place.open(), **choices)
    given = {"done": []} if choices else None
    assert place.graph(classes, place.open()).invoke(given, at("t"))["done"] == whole(classes)
    assert [(r.ok, r.problems) for r in place.open().verify("t", deep=True)] == [(True, ())]


@pytest.mark.parametrize("damage", [raise_the_gate, squat])
def test_a_thread_can_be_deleted_and_starts_anew(place: Place, damage: Any) -> None:
    paused(place)
    damage(place)
    place.open().delete_thread("t")
    assert place.backend.execute("SELECT 1 FROM surefoot_frame") == []
    assert place.graph("K", place.open()).invoke({"done": []}, at("t"))["done"] == whole("K")


@pytest.mark.parametrize("parent", [True, False])
def test_only_an_order_takes_a_later_head_row_over(parent: bool) -> None:
    def then(mark: int | None, *, ordered: bool, first: bool = True) -> Then:
        return decide_gate(GateFacts(3, mark, first, 9, False, parent, ordered))

    assert then(3, ordered=False) is Then.ROLLBACK
    assert then(3, ordered=True) is (Then.RELOAD if parent else Then.ROLLBACK)
    assert then(4, ordered=True) is Then.FENCED
    assert then(None, ordered=True) is Then.ROLLBACK
    assert then(3, ordered=True, first=False) is Then.ROLLBACK


def test_a_lost_reply_beside_damaged_rows_does_not_stop_a_restore(place: Place) -> None:
    paused(place, "L")
    ((seq, epoch, body),) = place.backend.execute(
        "SELECT last_seq, epoch, body FROM surefoot_frame ORDER BY last_seq DESC LIMIT 1"
    )
    place.backend.execute(
        "UPDATE surefoot_frame SET body = ? WHERE last_seq = ? AND epoch = ?",
        bytes(body[:-1]) + bytes([body[-1] ^ 1]),
        seq,
        epoch,
    )
    saver = place.open()
    signed = place.operator.sign(saver.propose("t", "restore", reason="x"))
    plan = Plan({"store.append.after#1": Fault.LOST})
    with_faults(saver, plan)
    saver.resolve(signed)
    assert plan.hit
    assert place.graph("L", place.open()).invoke(None, at("t"))["done"] == whole("L")


def test_an_aborted_thread_whose_mark_was_lost_is_adopted_frozen(
    place: Place, tmp_path: Path
) -> None:
    paused(place)
    place.decide("t", "abort")
    place.saver.close()
    elsewhere = {"highwater": f"sqlite:///{tmp_path / 'new.db'}"}
    adopting = place.open(**elsewhere)
    assert "frozen" in place.decide("t", "adopt", adopting).text
    ports = adopting.core.ports
    assert ports.marks.read(ports.tenant, "t").state == "frozen"
    with pytest.raises(ResumeRefused, match="R13"):
        place.graph("K", place.open(**elsewhere)).invoke(None, at("t"))


@pytest.mark.parametrize("collected", [False, True])
def test_nothing_below_a_published_prune_is_gone_back_to(place: Place, collected: bool) -> None:
    paused(place)
    ports = place.saver.core.ports
    below = place.saver.propose("t", "restore", reason="x").to_seq
    assert below
    target = place.saver.propose("t", "restore", reason="x", to_seq=below - 1)
    pruning = place.open()
    if not collected:
        pruning.core.ports.store.collect = lambda key, kept: True  # type: ignore[method-assign]
    frames = len(place.backend.execute("SELECT 1 FROM surefoot_frame"))
    pruning.prune(["t"])
    pruning.close()
    left = len(place.backend.execute("SELECT 1 FROM surefoot_frame"))
    assert (left <= frames) == collected
    mark = ports.marks.read(ports.tenant, "t")
    with pytest.raises(Misuse, match="below the prune"):
        place.open().propose("t", "restore", reason="x", to_seq=below - 1)
    anyway = target.model_copy(update={"head_seq": mark.seq, "head_digest": mark.digest.hex()})
    with pytest.raises(DecisionRefused, match="below the prune"):
        place.open().resolve(place.operator.sign(anyway))
    place.decide("t", "restore", place.open())
    assert place.graph("K", place.open()).invoke(None, at("t"))["done"] == whole("K")


@pytest.mark.parametrize("action", ["restore", "abort"])
def test_an_order_about_a_deleted_thread_begins_no_new_life(place: Place, action: str) -> None:
    paused(place)
    early = place.saver.propose("t", action, reason="x")
    place.saver.delete_thread("t")
    ports = place.saver.core.ports
    before = ports.marks.read(ports.tenant, "t")
    with pytest.raises(Misuse, match="deleted"):
        place.saver.propose("t", action, reason="x")
    with pytest.raises(DecisionRefused, match="deleted"):
        place.open().resolve(place.operator.sign(early))
    assert ports.marks.read(ports.tenant, "t") == before


def test_what_an_order_gave_up_is_not_proposed_when_it_is_put_back(place: Place) -> None:
    paused(place)
    place.graph("K", place.open()).invoke(None, at("t"))
    given_up = Snapshot(place.backend)
    stored = place.saver.propose("t", "restore", reason="x").to_seq
    assert stored
    target = stored - 4
    place.decide("t", "restore", place.open(), to_seq=target)
    ((key,),) = place.backend.execute("SELECT key FROM surefoot_thread")
    known = set(place.backend.execute("SELECT last_seq, epoch FROM surefoot_frame"))
    put_back = [r for r in given_up.rows["surefoot_frame"] if (r[1], r[2]) not in known]
    assert put_back
    for row in put_back:
        marks = ", ".join("?" * len(row))
        place.backend.execute(f"INSERT INTO surefoot_frame VALUES ({marks})", *row)
    assert [r.ok for r in place.open().verify("t")] == [True]
    untouched = place.open().propose("t", "restore", reason="x")
    ports = place.saver.core.ports
    assert untouched.to_seq == ports.marks.read(ports.tenant, "t").seq
    ((seq, epoch, body),) = place.backend.execute(
        "SELECT last_seq, epoch, body FROM surefoot_frame"
        " WHERE thread_key = ? ORDER BY epoch DESC, last_seq DESC LIMIT 1",
        key,
    )
    place.backend.execute(
        "UPDATE surefoot_frame SET body = ? WHERE last_seq = ? AND epoch = ?",
        bytes(body[:-1]) + bytes([body[-1] ^ 1]),
        seq,
        epoch,
    )
    (report,) = place.open().verify("t")
    assert not report.ok
    assert report.last_good is None or report.last_good <= target
    with pytest.raises(Misuse, match="given it up"):
        place.open().propose("t", "restore", reason="x")
    assert place.open().propose("t", "restore", reason="x", to_seq=target).to_seq == target
