"""Writes the golden files of format version 1. Run once, by hand; the files are never made again.

    python tests/golden/make.py tests/golden/v1

A small content store and a small high-water store, written through the saver's own methods
with a fixed key and fixed ids, and `manifest.json` with the SHA-256 of each file. A later
format version gets a folder of its own; the old one stays for ever.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint

from surefoot import Keyring, SurefootSaver
from surefoot.flows import journal
from surefoot.flows.acquire import held
from surefoot.flows.values import Writer
from surefoot.host import LocalHost
from surefoot.keys import Key
from surefoot.langgraph.serde import StrictSerializer
from surefoot.rules.bodies import BODY_SCHEMAS, EffectBody
from surefoot.rules.envelope import Kind, Record

TENANT = "tenant"
KEY = Key("golden", bytes(range(32)), "primary")
#: Kept in the repository on purpose: it seals nothing but these files.
KEYS = {
    "keys": [{"id": "golden", "secret": base64.b64encode(KEY.secret).decode(), "state": "primary"}]
}


class NoHost(LocalHost):
    """A host that tells nothing of the machine."""

    def describe(self) -> str:
        """A holder that nobody can look up."""
        return "golden"

    def now_us(self) -> int:
        """The first second of 2026."""
        return 1_767_225_600_000_000


def at(thread: str, checkpoint_id: str | None = None, namespace: str = "") -> dict[str, Any]:
    """A config."""
    more = {} if checkpoint_id is None else {"checkpoint_id": checkpoint_id}
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, **more}}


def put(
    saver: SurefootSaver,
    thread: str,
    checkpoint_id: str,
    parent: str | None,
    step: int,
    **values: Any,
) -> None:
    """Puts a checkpoint in which every channel is new."""
    versions = dict.fromkeys(values, f"{step + 2:032}.0")
    checkpoint: Any = {
        **empty_checkpoint(),
        "id": checkpoint_id,
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": versions,
    }
    source = "input" if step < 0 else "loop"
    metadata: Any = {"source": source, "step": step, "parents": {}, "run_id": f"run-{thread}"}
    saver.put(at(thread, parent), checkpoint, metadata, versions)


def values_thread(saver: SurefootSaver) -> None:
    """Values inside the record, in rows and in chunks; writes of every kind; early writes."""
    messages = [f"message {n}" for n in range(12)]
    put(
        saver,
        "values",
        "c0",
        None,
        -1,
        small={"a": [1, 2.5, None, True, "é"]},
        odd=["\ud800", 2**70, {b"k": 1, (1, 2): 2}, {"x"}, -0.0],
        message=HumanMessage("hi", id="m-1"),
    )
    put(
        saver,
        "values",
        "c1",
        "c0",
        0,
        small=-1,
        large=hashlib.shake_256(b"golden").digest(3_000),
        packed="abc" * 2_000,
        messages=messages,
    )
    saver.put_writes(
        at("values", "c1"), [("messages", ["m"]), ("small", b"\0\xff")], "task-1", "~a"
    )
    saver.put_writes(at("values", "c1"), [("small", "late")], "task-1", "~a")
    saver.put_writes(at("values", "c1"), [("__interrupt__", ["sure?"])], "task-2", "~b")
    saver.put_writes(at("values", "c1"), [("__error__", "first")], "task-3", "~c")
    saver.put_writes(at("values", "c1"), [("__error__", "second")], "task-3", "~c")
    saver.put_writes(at("values", "c2"), [("small", "early")], "task-4", "~d")
    put(saver, "values", "c2", "c1", 1, small={1: (2, 3)}, messages=[*messages, *messages])
    put(saver, "values", "c2b", "c1", 1, small="a branch of its own")


STATES = ("started", "succeeded", "failed", "in_doubt", "absent", "needs_review")


def effects_thread(saver: SurefootSaver) -> None:
    """One effect in each state, each with a class of receiver."""
    put(saver, "effects", "e0", None, 0, n=0)
    ports = saver.core.ports
    with held(ports, "effects") as (session, _):
        for number, state in enumerate(STATES):
            writer = Writer(StrictSerializer(), 512, 8, 24)
            body = EffectBody(
                slot=hashlib.sha256(state.encode()).digest(),
                name=f"effect {state}",
                state=state,
                attempt=number + 1,
                receiver="KLN"[number % 3],
                fingerprint=hashlib.sha256(b"fp" + state.encode()).digest(),
                key=f"{number:032x}",
                namespace="",
                checkpoint_id="e0",
                position=f"(root) step 1 task (pull,pay) call {number}",
                arguments=writer.value({"amount": number}, channel="arguments"),
                result=writer.value([state], channel="result") if state == "succeeded" else None,
                receipt=writer.value({"id": "ch_1"}, channel="receipt") if number % 2 else None,
                error="TimeoutError" if state == "in_doubt" else None,
                source="reconcile" if state in ("absent", "needs_review") else "body",
                evidence=writer.value({"amount": 9}, channel="e")
                if state == "needs_review"
                else None,
                at_us=1_767_225_600_000_000 + number,
            )
            record = Record(Kind.EFFECT, BODY_SCHEMAS["E"], body.slot[:16], body.pack())
            journal.append(ports, session, [record], rows=writer.rows)
            if state in ("started", "in_doubt"):
                session.intents[body.slot] = session.epoch


def pruned_thread(saver: SurefootSaver) -> None:
    """Five checkpoints, of which the last one is kept."""
    for n in range(5):
        put(saver, "pruned", f"p{n}", f"p{n - 1}" if n else None, n, n=n, big=f"{n}" * 900)
    saver.put_writes(at("pruned", "p4"), [("n", "pending")], "task-1")
    saver.prune(["pruned"])


def deleted_thread(saver: SurefootSaver) -> None:
    """Deleted; only the tombstone in the mark is left."""
    put(saver, "deleted", "d0", None, 0, n=1)
    saver.delete_thread("deleted")


def reborn_thread(saver: SurefootSaver) -> None:
    """Deleted, and begun again: the second life of its id."""
    put(saver, "reborn", "old", None, 0, n="first life")
    saver.delete_thread("reborn")
    put(saver, "reborn", "new", None, 0, n="second life")


def copied_thread(saver: SurefootSaver) -> None:
    """A copy of the first thread, with its provenance."""
    saver.copy_thread("values", "copied")


THREADS: tuple[Callable[[SurefootSaver], None], ...] = (
    values_thread,
    effects_thread,
    pruned_thread,
    deleted_thread,
    reborn_thread,
    copied_thread,
)


def write(folder: Path) -> None:
    """Writes all files.

    Raises:
        FileExistsError: They are there already.
    """
    folder.mkdir(parents=True)
    content, marks = folder / "content.db", folder / "highwater.db"
    with SurefootSaver(
        f"sqlite:///{content}", highwater=f"sqlite:///{marks}", keys=Keyring([KEY]), tenant=TENANT
    ) as saver:
        saver.setup()
        saver.core.ports = replace(saver.core.ports, host=NoHost())
        for make in THREADS:
            make(saver)
    for file in (content, marks):
        with closing(sqlite3.connect(file)) as database:
            database.execute("VACUUM")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (folder / "keys.json").write_text(json.dumps(KEYS, indent=1) + "\n", encoding="utf-8")
    names = ("content.db", "highwater.db", "keys.json")
    manifest = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    for left in folder.iterdir():
        if left.name not in {*names, "manifest.json"}:
            left.unlink()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
