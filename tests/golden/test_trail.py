"""Audit trails that released versions have written are told the same for ever (case 50).

`v1-trail` is made once by `make_trail.py`: orders, key changes and facts of the user's own. `v1` is
older: its effects and its writes are of schema 1, and are raised to the layouts of today.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.golden.make_trail import NAMES, OPERATOR, plain, story, write

from surefoot import Event, Keyring, Reviewers, SurefootSaver, fold
from surefoot.flows.acquire import body_of, effect_of, restore_of
from surefoot.flows.chain import Chain
from surefoot.flows.find import writes_of
from surefoot.flows.views import viewing
from surefoot.rules.bodies import (
    DecisionBody,
    EffectBody,
    EventBody,
    KeyChangeBody,
    ProvenanceBody,
    RestoreBody,
    WritesBody,
)
from surefoot.rules.decisions import SignedDecision
from surefoot.rules.envelope import Kind, RecordHead

pytestmark = pytest.mark.optimized

HERE = Path(__file__).resolve().parent
TRAIL, V1 = HERE / "v1-trail", HERE / "v1"
#: Written down a second time, so that files and manifest cannot be made anew together unnoticed.
MANIFEST = {
    "content.db": "c9f5bbd33de1b7385e71a54101464cb3df51d0eb6ce6eea8987cdbec945ee00e",
    "highwater.db": "4bc5d2fab79b43f52d55e0da0c6649bc1046a75712fffea400b6853087bf03fd",
    "keys.json": "74b0bb0379de1ae194e77a3a1a8fb5b82823f589320a269a1b24bf7758f64845",
    "events.json": "95ddd254c2af8dd108327d9a49649339661ee47ab176f3755aa946019da89c8d",
}
TOLD: dict[str, Any] = json.loads((TRAIL / "events.json").read_text(encoding="utf-8"))


def _opened(files: Path, folder: Path) -> SurefootSaver:
    for file in files.iterdir():
        shutil.copyfile(file, folder / file.name)
    (folder / "keys.json").chmod(0o600)
    saver = SurefootSaver(
        f"sqlite:///{folder}/content.db",
        highwater=f"sqlite:///{folder}/highwater.db",
        keys=Keyring.from_file(folder / "keys.json"),
        tenant="tenant",
        reviewers=Reviewers({"golden-operator": OPERATOR.public()}),
    )
    saver.setup()  # what later releases add to the tables
    return saver


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[SurefootSaver]:
    """A saver on a copy; whatever it does, the files themselves stay as they are."""
    with _opened(TRAIL, tmp_path) as opened:
        yield opened


@pytest.fixture
def older(tmp_path: Path) -> Iterator[SurefootSaver]:
    """A saver on a copy of what an older release has written."""
    with _opened(V1, tmp_path) as opened:
        yield opened


def records(saver: SurefootSaver, thread: str, kind: Kind) -> list[RecordHead]:
    """Records of a kind, oldest first."""

    def look(chain: Chain | None) -> list[RecordHead]:
        return [] if chain is None else [r for r in chain.walk() if r.kind is kind][::-1]

    return viewing(saver.core.ports, thread, look)


def test_the_files_are_the_ones_that_were_made() -> None:
    assert {f.name for f in TRAIL.iterdir()} == {*MANIFEST, "manifest.json"}
    assert json.loads((TRAIL / "manifest.json").read_text(encoding="utf-8")) == MANIFEST
    for name, digest in MANIFEST.items():
        assert hashlib.sha256((TRAIL / name).read_bytes()).hexdigest() == digest, name
    with pytest.raises(FileExistsError):
        write(TRAIL)


def test_they_tell_what_they_told(saver: SurefootSaver) -> None:
    assert story(saver) == TOLD


@pytest.mark.parametrize("thread", NAMES)
def test_what_was_exported_folds_to_the_same(saver: SurefootSaver, thread: str) -> None:
    exported = [Event.parse(document) for document in TOLD[thread]["events"]]
    assert plain(asdict(fold(exported))) == TOLD[thread]["state"]
    assert fold(exported) == fold(saver.events(thread))


def test_everything_verifies(saver: SurefootSaver) -> None:
    reports = {report.thread: report for report in saver.verify(deep=True)}
    assert reports.keys() == {*NAMES}
    assert all(report.ok for report in reports.values()), reports
    kinds = Counter[str]()
    for report in reports.values():
        kinds.update(report.records)
    assert kinds.keys() == set("CWEDFPRKV")


def test_orders(saver: SurefootSaver) -> None:
    (restore,) = records(saver, "restored", Kind.RESTORE)
    body = restore_of("restored", restore)
    assert (restore.schema, restore.link.seq, body.to_seq) == (1, 5, 2)
    assert body == RestoreBody(2, body.to_digest, 3, lost=False)
    (aim,) = [r for r in records(saver, "restored", Kind.CHECKPOINT) if r.link.seq == 2]
    assert aim.link.digest == body.to_digest
    for thread, action in (("restored", "restore"), ("aborted", "abort"), ("told", "approve")):
        (record,) = records(saver, thread, Kind.DECISION)
        assert record.schema == 1
        signed = SignedDecision.parse(body_of(thread, record, DecisionBody.unpack).document)
        assert (signed.decision.action, signed.decision.thread) == (action, thread)
        assert signed.decision.reason == f"golden {action}"
        assert record.subject.hex() == signed.decision.nonce
        saver.core.ports.reviewers.check(signed)


@pytest.mark.parametrize("thread", NAMES)
def test_key_changes(saver: SurefootSaver, thread: str) -> None:
    (record,) = records(saver, thread, Kind.KEY_CHANGE)
    body = body_of(thread, record, KeyChangeBody.unpack)
    assert record.schema == 1
    assert body == KeyChangeBody("golden", record.link.seq - 1, compromised=False)
    assert record.subject == body.subject()


def test_facts(saver: SurefootSaver) -> None:
    bodies = [
        (r.schema, body_of("told", r, EventBody.unpack)) for r in records(saver, "told", Kind.EVENT)
    ]
    assert [(s, b.kind, b.version) for s, b in bodies] == [
        (1, "guardrail.tripped", 1),
        (1, "transcript", 3),
    ]
    values = [e.value for e in saver.events("told") if not e.kind.startswith("surefoot.")]
    assert values == [
        {"why": "amount", "limits": [1, 2.5, None, b"\0"]},
        {"text": "x" * 3_000},
    ]
    kept = [e.value for e in saver.events("pruned") if e.kind == "step.seen"]
    assert kept == [0, 1, 2], "a prune keeps them"
    assert records(saver, "copied", Kind.EVENT) == [], "a copy leaves them behind"
    (fork,) = records(saver, "copied", Kind.FORK)
    origin = body_of("copied", fork, ProvenanceBody.unpack)
    assert (origin.source_thread, origin.source_incarnation) == ("told", 1)


def test_effects_and_writes_of_schema_2(saver: SurefootSaver) -> None:
    effects = [(r.schema, effect_of("told", r)) for r in records(saver, "told", Kind.EFFECT)]
    assert {schema for schema, _ in effects} == {2}
    assert {body.family for _, body in effects} == {hashlib.sha256(b"family").digest()}
    writes = [(r.schema, writes_of("told", r)) for r in records(saver, "told", Kind.WRITES)]
    assert {schema for schema, _ in writes} == {2}
    times = [body.at_us for _, body in writes]
    assert times == sorted(times)
    assert times[0] > 1_767_225_600_000_000


def test_the_latency_of_an_approval(saver: SurefootSaver) -> None:
    first, second = fold(saver.events("told")).approvals
    assert (first.id, first.state, first.latency_us) == ("i-1", "answered", 1_000_000)
    assert (second.id, second.state, second.latency_us) == ("i-1", "left", None)


# --- what an older release has written -----------------------------------------------------------


def test_effects_of_schema_1_are_raised(older: SurefootSaver) -> None:
    found = records(older, "effects", Kind.EFFECT)
    assert {r.schema for r in found} == {1}
    bodies = [effect_of("effects", r) for r in found]
    assert {body.family for body in bodies} == {b""}
    assert all(isinstance(body, EffectBody) for body in bodies)
    events = older.events("effects")
    assert [e.kind for e in events if e.kind.startswith("surefoot.effect.")] == [
        "surefoot.effect.started",
        "surefoot.effect.succeeded",
        "surefoot.effect.failed",
        "surefoot.effect.in_doubt",
        "surefoot.effect.reconciled",
        "surefoot.effect.reconciled",
    ]
    assert fold(events).effects_by_state() == dict.fromkeys(
        ("absent", "failed", "in_doubt", "needs_review", "started", "succeeded"), 1
    )
    assert [e.value for e in events if e.kind.endswith("reconciled")] == [None, {"amount": 9}]


def test_writes_of_schema_1_are_raised(older: SurefootSaver) -> None:
    found = records(older, "values", Kind.WRITES)
    assert {r.schema for r in found} == {1}
    bodies = [writes_of("values", r) for r in found]
    assert {body.at_us for body in bodies} == {0}
    assert all(isinstance(body, WritesBody) for body in bodies)
    state = fold(older.events("values"))
    assert [(a.state, a.asked_us) for a in state.approvals] == [("left", 0)]


def test_a_copy_of_schema_1_is_written_in_the_layout_of_today(older: SurefootSaver) -> None:
    """The bodies are packed anew, so the schema beside them has to be the new one."""
    before = [*older.list({"configurable": {"thread_id": "values"}})]
    older.copy_thread("values", "again")
    assert {r.schema for r in records(older, "again", Kind.WRITES)} == {2}
    after = [*older.list({"configurable": {"thread_id": "again"}})]
    assert [t.pending_writes for t in after] == [t.pending_writes for t in before]
    assert [t.checkpoint for t in after] == [t.checkpoint for t in before]
    assert all(report.ok for report in older.verify("again", deep=True))
