"""Writes the golden files of the audit trail. Run once, by hand; the files are never made again.

    PYTHONPATH=src:. python tests/golden/make_trail.py tests/golden/v1-trail

Format version 1 of the envelope, with the bodies that `make.py` has no record of: orders (D, R),
key changes (K), facts of the user's own (V), and W and E of schema 2. Beside the stores stands
`events.json`: what each thread told when it was made.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from langgraph.types import Interrupt
from tests.golden.make import TENANT, NoHost, at, put

from surefoot import Keyring, Reviewers, SigningKey, SurefootSaver, fold
from surefoot.flows import journal
from surefoot.flows.acquire import held
from surefoot.flows.values import writer_for
from surefoot.keys import Key
from surefoot.rules.bodies import BODY_SCHEMAS, EffectBody
from surefoot.rules.envelope import Kind, Record

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
BEFORE = Keyring([Key("golden", OLD, "primary")])
AFTER = Keyring([Key("golden", OLD, "enabled"), Key("turned", NEW, "primary")])
#: Kept in the repository on purpose: they seal and sign nothing but these files.
KEYS = {
    "keys": [
        {"id": "golden", "secret": base64.b64encode(OLD).decode(), "state": "retired"},
        {"id": "turned", "secret": base64.b64encode(NEW).decode(), "state": "primary"},
    ]
}
OPERATOR = SigningKey("golden-operator", OLD)
_ANY_TASK = "00000000-0000-0000-0000-000000000000"


class TickingHost(NoHost):
    """A host that tells nothing of the machine, and whose clock goes on a second at each look.

    The clock begins where the real one stands, because decisions hold for some days only.
    """

    def __init__(self, start_us: int) -> None:
        super().__init__()
        self._at_us = start_us

    def now_us(self) -> int:
        """A second later than the last time."""
        self._at_us += 1_000_000
        return self._at_us


def effect(saver: SurefootSaver, thread: str, name: str, *states: dict[str, Any]) -> bytes:
    """Records an effect's transitions, as a worker that was given back in between would."""
    ports = saver.core.ports
    slot = hashlib.sha256(name.encode()).digest()
    with held(ports, thread) as (session, _):
        writer = writer_for(ports, session, saver.serde)
        body = EffectBody(
            slot=slot,
            name=name,
            state="started",
            attempt=1,
            receiver="L",
            fingerprint=hashlib.sha256(b"fp" + name.encode()).digest(),
            key=slot.hex()[:32],
            namespace="",
            checkpoint_id="c1",
            position="(root) step 1 task (pull,pay) call 0",
            arguments=writer.value({"amount": 7}, channel="arguments"),
            family=hashlib.sha256(b"family").digest(),
        )
        for state in states:
            typed = {k: writer.value(v, channel=k) for k, v in state.items() if k in _VALUES}
            body = replace(body, **{**state, **typed}, at_us=ports.host.now_us())
            record = Record(Kind.EFFECT, BODY_SCHEMAS["E"], body.slot[:16], body.pack())
            journal.append(ports, session, [record], rows=writer.rows)
            writer.rows.clear()
    return slot


_VALUES = frozenset({"result", "receipt", "evidence"})


def told_thread(saver: SurefootSaver) -> None:
    """Questions and answers, effects of every kind of outcome, facts, an approval, a fork."""
    put(saver, "told", "c0", None, -1, n=0)
    put(saver, "told", "c1", "c0", 0, n=1)
    asked = (Interrupt("sure?", id="i-1"),)
    saver.put_writes(at("told", "c1"), [("__interrupt__", asked)], "task-1", "~a")
    saver.put_writes(at("told", "c1"), [("__resume__", True)], _ANY_TASK, "")
    saver.put_writes(at("told", "c1"), [("__interrupt__", asked)], "task-1", "~a")
    saver.record("told", "guardrail.tripped", {"why": "amount", "limits": [1, 2.5, None, b"\0"]})
    saver.record("told", "transcript", {"text": "x" * 3_000}, schema=3)
    effect(saver, "told", "sent", {}, {"receipt": {"id": "ch_1"}}, {"state": "succeeded"})
    failed = {"state": "failed", "error": "NotSent"}
    retried = {"state": "started", "attempt": 2, "error": None}
    effect(saver, "told", "refused", {}, failed, retried, {"state": "succeeded"})
    absent = {"state": "absent", "source": "reconcile", "evidence": {"found": 0}}
    again = {"state": "started", "source": "body", "attempt": 2}
    found = {"state": "succeeded", "source": "reconcile", "evidence": {"amount": 7}}
    effect(saver, "told", "asked", {}, absent, again, found)
    doubt = effect(saver, "told", "unknown", {}, {"state": "in_doubt", "error": "TimeoutError"})
    order(saver, "told", "approve", slot=doubt.hex(), outcome="succeeded", result={"id": "ch_2"})
    put(saver, "told", "c2", "c1", 1, n=2)
    put(saver, "told", "c1b", "c0", 0, n="a branch of its own")


def order(saver: SurefootSaver, thread: str, action: str, **choices: Any) -> None:
    """Signs a decision and carries it out."""
    proposed = saver.propose(thread, action, reason=f"golden {action}", **choices)
    saver.resolve(OPERATOR.sign(proposed))


def restored_thread(saver: SurefootSaver) -> None:
    """Gone back to its second checkpoint, and on from there."""
    for n in range(4):
        put(saver, "restored", f"r{n}", f"r{n - 1}" if n else None, n, n=n)
    order(saver, "restored", "restore", to_seq=2)
    put(saver, "restored", "r2b", "r1", 2, n="after the restore")


def pruned_thread(saver: SurefootSaver) -> None:
    """Pruned; its facts stay."""
    for n in range(3):
        put(saver, "pruned", f"p{n}", f"p{n - 1}" if n else None, n, n=n)
        saver.record("pruned", "step.seen", n)
    saver.prune(["pruned"])


def aborted_thread(saver: SurefootSaver) -> None:
    """Frozen by an order."""
    put(saver, "aborted", "a0", None, 0, n=0)
    order(saver, "aborted", "abort")


def copied_thread(saver: SurefootSaver) -> None:
    """A copy of the first thread, with its provenance; its facts stay behind."""
    saver.copy_thread("told", "copied")


THREADS: tuple[Callable[[SurefootSaver], None], ...] = (
    told_thread,
    restored_thread,
    pruned_thread,
    aborted_thread,
    copied_thread,
)
NAMES = ("told", "restored", "pruned", "aborted", "copied")


def plain(value: Any) -> Any:
    """A value as `events.json` holds it."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return {"bytes": value.hex()} if isinstance(value, bytes) else value


def story(saver: SurefootSaver) -> dict[str, Any]:
    """What each thread tells."""
    out: dict[str, Any] = {}
    for name in NAMES:
        events = saver.events(name)
        state = asdict(fold(events))
        out[name] = {"events": [plain(e.document()) for e in events], "state": plain(state)}
    return out


def _open(folder: Path, keys: Keyring) -> SurefootSaver:
    return SurefootSaver(
        f"sqlite:///{folder}/content.db",
        highwater=f"sqlite:///{folder}/highwater.db",
        keys=keys,
        tenant=TENANT,
        reviewers=Reviewers({"golden-operator": OPERATOR.public()}),
    )


def write(folder: Path) -> None:
    """Writes all files.

    Raises:
        FileExistsError: They are there already.
    """
    folder.mkdir(parents=True)
    with _open(folder, BEFORE) as saver:
        saver.setup()
        host = TickingHost(saver.core.ports.host.now_us())
        saver.core.ports = replace(saver.core.ports, host=host)
        for make in THREADS:
            make(saver)
    with _open(folder, AFTER) as saver:
        saver.core.ports = replace(saver.core.ports, host=host)
        for thread in NAMES:
            saver.retire_key(thread, "golden")
    for name in ("content.db", "highwater.db"):
        with closing(sqlite3.connect(folder / name)) as database:
            database.execute("VACUUM")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (folder / "keys.json").write_text(json.dumps(KEYS, indent=1) + "\n", encoding="utf-8")
    (folder / "keys.json").chmod(0o600)
    with _open(folder, Keyring.from_file(folder / "keys.json")) as saver:
        told = json.dumps(story(saver), indent=1) + "\n"
    (folder / "events.json").write_text(told, encoding="utf-8")
    names = ("content.db", "highwater.db", "keys.json", "events.json")
    manifest = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    for left in folder.iterdir():
        if left.name not in {*names, "manifest.json"}:
            left.unlink()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
