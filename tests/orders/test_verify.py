"""Verifying threads and whole databases: everything is looked at, and no honest run alarms."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from tests.orders.conftest import Place, Snapshot, at
from tests.saver.conftest import checkpoint, metadata

from surefoot.errors import StoreUnavailable
from surefoot.testing.faults import Fault, Plan, with_faults

pytestmark = pytest.mark.optimized


def grown(place: Place) -> None:
    """Threads with everything that the journal knows."""
    place.graph("KLN", stop=2).invoke({"done": ["x" * 5_000] * 20}, at("t"))
    paused = place.saver.get_tuple(at("t"))
    assert paused is not None
    place.graph("KLN").invoke(None, at("t"))
    place.graph("K").invoke(None, paused.config)
    place.saver.copy_thread("t", "copy")
    place.graph("K").invoke({"done": []}, at("pruned"))
    place.saver.prune(["pruned"])
    place.graph("K").invoke({"done": []}, at("gone"))
    place.saver.delete_thread("gone")


def test_every_thread_is_walked_with_progress(place: Place) -> None:
    grown(place)
    told: list[tuple[str, int]] = []
    reports = {
        r.thread: r
        for r in place.saver.verify(deep=True, progress=lambda thread, n: told.append((thread, n)))
    }
    assert set(reports) == {"t", "copy", "pruned"}
    assert all(r.ok for r in reports.values()), [r.problems for r in reports.values()]
    assert {thread for thread, _ in told} == set(reports)
    assert reports["t"].records["C"] >= 6
    assert reports["t"].records["E"] >= 12
    assert reports["copy"].records["F"] == 1
    assert reports["pruned"].records["P"] == 1
    assert reports["t"].values > sum(reports["t"].records.values())
    (gone,) = place.saver.verify("gone")
    assert (gone.state, gone.ok) == ("tombstone", True)
    (never,) = place.saver.verify("never")
    assert (never.state, never.ok) == ("unwitnessed", True)


def test_a_shallow_walk_reads_no_value_and_a_deep_one_finds_a_changed_one(place: Place) -> None:
    grown(place)
    log, body = place.backend.execute(
        "SELECT log_id, body FROM surefoot_chunk WHERE ordinal = 0 ORDER BY log_id LIMIT 1"
    )[0]
    place.backend.execute(
        "UPDATE surefoot_chunk SET body = ? WHERE log_id = ? AND ordinal = 0",
        bytes(body) + b"!",
        log,
    )
    assert all(r.ok for r in place.saver.verify())
    broken = [r for r in place.saver.verify(deep=True) if not r.ok]
    assert broken
    assert {p.code for r in broken for p in r.problems} == {"TAMPER"}


def test_every_row_that_does_not_verify_is_named(place: Place) -> None:
    grown(place)
    ((key,),) = place.backend.execute("SELECT key FROM surefoot_thread WHERE thread = ?", b"t")
    rows = place.backend.execute(
        "SELECT last_seq, epoch, head FROM surefoot_frame WHERE thread_key = ? ORDER BY last_seq",
        key,
    )
    hit = [rows[2], rows[-3]]
    for last_seq, epoch, head in hit:
        changed = bytes(head[:-1]) + bytes([head[-1] ^ 1])
        place.backend.execute(
            "UPDATE surefoot_frame SET head = ?"
            " WHERE thread_key = ? AND last_seq = ? AND epoch = ?",
            changed,
            key,
            last_seq,
            epoch,
        )
    (report,) = place.saver.verify("t")
    assert {p.seq for p in report.problems} == {last_seq for last_seq, _, _ in hit}
    assert report.last_good is not None
    assert report.last_good < hit[0][0]


def test_a_thread_that_one_store_does_not_know_is_reported(place: Place) -> None:
    place.graph("K", stop=1).invoke({"done": []}, at("t"))
    place.backend.execute("DELETE FROM surefoot_thread")
    reports = list(place.saver.verify())
    assert [(r.thread, r.ok) for r in reports] == [("t", False)]
    assert reports[0].problems[0].code == "ROLLBACK"
    assert reports[0].last_good is None


def test_a_value_that_nobody_can_build_here_is_named_and_verifies(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone_models.py").write_text(
        "import pydantic\nclass Gone(pydantic.BaseModel):\n    n: int\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import gone_models

    place.saver.put(
        at("t") | {"configurable": {"thread_id": "t", "checkpoint_ns": ""}},
        checkpoint(None, v=gone_models.Gone(n=1)),
        metadata(),
        {"v": 1},
    )
    assert [r.unloadable for r in place.saver.verify(deep=True)] == [()]
    del sys.modules["gone_models"]
    (tmp_path / "gone_models.py").unlink()
    (report,) = place.open().verify(deep=True)
    assert report.ok
    assert report.unloadable == ("gone_models.Gone",)


def test_verifying_never_alarms_beside_live_workers(place: Place) -> None:
    """Prunes, deletions and steps pass by while it walks."""
    stop = threading.Event()
    failures: list[Any] = []
    graph = place.graph("K")
    graph.invoke({"done": []}, at("t"))
    checker = place.open()

    def work() -> None:
        worker = place.open()
        running = place.graph("K", worker)
        while not stop.is_set():
            running.invoke({"done": [HumanMessage("hello")]}, at("t"))
            worker.prune(["t"])
            worker.delete_thread("t")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(25):
            failures += [r.problems for r in checker.verify(deep=True) if not r.ok]
    finally:
        stop.set()
        thread.join(60)
    assert failures == []


def test_a_store_that_does_not_answer_is_no_verdict(place: Place) -> None:
    place.graph("K", stop=1).invoke({"done": []}, at("t"))
    before = Snapshot(place.backend)
    checker = place.open()
    plan = Plan({"store.read_newest.before#1": Fault.UNAVAILABLE})
    with_faults(checker, plan)
    with pytest.raises(StoreUnavailable):
        list(checker.verify("t"))
    assert plan.hit == ["store.read_newest.before#1"]
    assert Snapshot(place.backend).rows == before.rows


async def test_the_async_twins(place: Place) -> None:
    grown(place)
    reports = [r async for r in place.saver.averify(deep=True)]
    assert {r.thread for r in reports} == {"t", "copy", "pruned"}
    assert all(r.ok for r in reports)
    proposed = await place.saver.apropose("t", "abort", reason="enough")
    done = await place.saver.aresolve(place.operator.sign(proposed))
    assert (done.action, done.thread) == ("abort", "t")
    assert [r.state async for r in place.saver.averify("t")] == ["frozen"]
