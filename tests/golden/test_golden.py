"""What released versions have written still opens, verifies and means the same (case 50).

The files are made once by `make.py` and never again: a change of format gets a new folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint

from surefoot import Keyring, SurefootSaver
from surefoot.flows.acquire import effect_of
from surefoot.flows.chain import Chain
from surefoot.flows.load import loader_for
from surefoot.flows.views import viewing
from surefoot.rules.bodies import EffectBody
from surefoot.rules.envelope import Kind

pytestmark = pytest.mark.optimized

HERE = Path(__file__).resolve().parent
V1 = HERE / "v1"
#: Written down a second time, so that files and manifest cannot be made anew together unnoticed.
MANIFEST = {
    "content.db": "76721e08b099cd4978bf1a9d5bbae282863c3c531f2614f810815ba88a539c59",
    "highwater.db": "66ceab1ddbdbfc5626f1fc333a928e56011dd09250ae2ad4cf8b0278784407cd",
    "keys.json": "7fc3e333b5b6e080485def3be212936f4dd450fe9c2ff02793d4b48aca0a142d",
}
MESSAGES = [f"message {n}" for n in range(12)]
LARGE = hashlib.shake_256(b"golden").digest(3_000)
META = {"parents": {}, "run_id": "run-values"}

#: id -> parent, metadata, values, pending writes; newest first.
VALUES: dict[str, tuple[str | None, dict[str, Any], dict[str, Any], list[Any]]] = {
    "c2b": ("c1", {**META, "source": "loop", "step": 1}, {"small": "a branch of its own"}, []),
    "c2": (
        "c1",
        {**META, "source": "loop", "step": 1},
        {"small": {1: [2, 3]}, "messages": [*MESSAGES, *MESSAGES]},
        [("task-4", "small", "early")],
    ),
    "c1": (
        "c0",
        {**META, "source": "loop", "step": 0},
        {"small": -1, "large": LARGE, "packed": "abc" * 2_000, "messages": MESSAGES},
        [
            ("task-1", "messages", ["m"]),
            ("task-1", "small", b"\0\xff"),
            ("task-2", "__interrupt__", ["sure?"]),
            ("task-3", "__error__", "second"),
        ],
    ),
    "c0": (
        None,
        {**META, "source": "input", "step": -1},
        {
            "small": {"a": [1, 2.5, None, True, "é"]},
            "odd": ["\ud800", 2**70, {b"k": 1, (1, 2): 2}, {"x"}, -0.0],
            "message": HumanMessage("hi", id="m-1"),
        },
        [],
    ),
}


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[SurefootSaver]:
    """A saver on a copy; whatever it does, the files themselves stay as they are."""
    for file in V1.iterdir():
        shutil.copyfile(file, tmp_path / file.name)
    (tmp_path / "keys.json").chmod(0o600)
    with SurefootSaver.from_conn_string(
        f"sqlite:///{tmp_path}/content.db",
        highwater=f"sqlite:///{tmp_path}/highwater.db",
        keys=Keyring.from_file(tmp_path / "keys.json"),
        tenant="tenant",
    ) as opened:
        opened.setup()
        yield opened


def at(thread: str, checkpoint_id: str | None = None) -> Any:
    more = {} if checkpoint_id is None else {"checkpoint_id": checkpoint_id}
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", **more}}


def test_the_files_are_the_ones_that_were_made() -> None:
    assert {f.name for f in V1.iterdir()} == {*MANIFEST, "manifest.json"}
    assert json.loads((V1 / "manifest.json").read_text(encoding="utf-8")) == MANIFEST
    for name, digest in MANIFEST.items():
        assert hashlib.sha256((V1 / name).read_bytes()).hexdigest() == digest, name


def test_they_are_not_made_a_second_time(tmp_path: Path) -> None:
    """`make.py` writes into a new folder only."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("golden_make", HERE / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(FileExistsError):
        module.write(V1)


def test_the_tables_are_still_those_of_this_release(saver: SurefootSaver) -> None:
    saver.setup(verify_only=True)
    assert saver.health()["ok"]


@pytest.mark.parametrize("thread", ["values", "copied"])
@pytest.mark.parametrize("checkpoint_id", VALUES)
def test_checkpoints_and_writes(saver: SurefootSaver, thread: str, checkpoint_id: str) -> None:
    found = saver.get_tuple(at(thread, checkpoint_id))
    assert found is not None
    parent, metadata, values, writes = VALUES[checkpoint_id]
    assert found.checkpoint["id"] == checkpoint_id
    assert found.checkpoint["ts"] == "2026-01-01T00:00:00+00:00"
    assert found.checkpoint["channel_values"] == values
    step = metadata["step"]
    assert found.checkpoint["channel_versions"] == dict.fromkeys(values, f"{step + 2:032}.0")
    assert found.metadata == metadata
    above = None if found.parent_config is None else found.parent_config["configurable"]
    assert (None if above is None else above["checkpoint_id"]) == parent
    assert found.pending_writes == writes


def test_types_are_what_they_were(saver: SurefootSaver) -> None:
    found = saver.get_tuple(at("values", "c0"))
    assert found is not None
    odd = found.checkpoint["channel_values"]["odd"]
    assert [type(v) for v in odd] == [str, int, dict, set, float]
    assert math.copysign(1, odd[4]) == -1
    message = found.checkpoint["channel_values"]["message"]
    assert (type(message), message.content, message.id) == (HumanMessage, "hi", "m-1")


@pytest.mark.parametrize(
    ("thread", "ids"),
    [
        ("values", ["c2b", "c2", "c1", "c0"]),
        ("copied", ["c2b", "c2", "c1", "c0"]),
        ("effects", ["e0"]),
        ("pruned", ["p4"]),
        ("deleted", []),
        ("reborn", ["new"]),
    ],
)
def test_what_there_is(saver: SurefootSaver, thread: str, ids: list[str]) -> None:
    assert [t.checkpoint["id"] for t in saver.list(at(thread))] == ids
    latest = saver.get_tuple(at(thread))
    assert (None if latest is None else latest.checkpoint["id"]) == (ids[0] if ids else None)


@pytest.mark.parametrize(
    ("thread", "incarnation", "seq", "digest", "epoch", "state"),
    [
        (
            "values",
            1,
            10,
            "f36e94e5aeb281f02618bc58148a492d8207459c6359f6477114d43773716213",
            10,
            "live",
        ),
        (
            "effects",
            1,
            7,
            "9d46c0d61607ccd68aac9270f389df71e5237897e629fc001966fa483cfd9f07",
            2,
            "live",
        ),
        (
            "pruned",
            1,
            7,
            "4337612a7695816b4c5b480ae9629d1d379c7cc38cdb158fcb7c9cfb33e0cd37",
            7,
            "live",
        ),
        (
            "deleted",
            1,
            2,
            "1ff277955d6bb4dd44bd38bfc15a8988fea1fbb0456862f5c360908afa212a66",
            2,
            "tombstone",
        ),
        (
            "reborn",
            2,
            1,
            "d65fc45bbfdfa85a8e3b73694739e2994f7fd2b709b6cc4168a0914abd961538",
            3,
            "live",
        ),
        (
            "copied",
            1,
            11,
            "8abfb57b478f1e1228a69a52175bf41c35813845b0af3cf0ccd3873d6f655614",
            1,
            "live",
        ),
    ],
)
def test_the_marks(
    saver: SurefootSaver,
    thread: str,
    incarnation: int,
    seq: int,
    digest: str,
    epoch: int,
    state: str,
) -> None:
    mark = saver.core.ports.marks.read("tenant", thread)
    assert mark is not None
    assert (mark.incarnation, mark.seq, mark.epoch, mark.state) == (incarnation, seq, epoch, state)
    assert mark.digest.hex() == digest
    assert (mark.owner, mark.clean, mark.tainted) == ("golden", True, False)


def test_pruned_and_reborn_threads(saver: SurefootSaver) -> None:
    pruned = saver.get_tuple(at("pruned"))
    assert pruned is not None
    assert pruned.checkpoint["channel_values"] == {"n": 4, "big": "4" * 900}
    assert pruned.pending_writes == [("task-1", "n", "pending")]
    assert saver.get_tuple(at("pruned", "p3")) is None
    reborn = saver.get_tuple(at("reborn"))
    assert reborn is not None
    assert reborn.checkpoint["channel_values"] == {"n": "second life"}


STATES = ["started", "succeeded", "failed", "in_doubt", "absent", "needs_review"]


def _effects(saver: SurefootSaver, chain: Chain | None) -> list[tuple[EffectBody, dict[str, Any]]]:
    """Effects of a chain, oldest first, with their values."""
    assert chain is not None
    loader = loader_for(saver.core.ports, chain, saver.serde)
    found = []
    for record in chain.walk():
        if record.kind is not Kind.EFFECT:
            continue
        body = effect_of("effects", record)
        parts = {
            name: getattr(body, name) for name in ("arguments", "result", "receipt", "evidence")
        }
        loader.fetch([part for part in parts.values() if part is not None])
        found.append((body, {k: v if v is None else loader.load(v) for k, v in parts.items()}))
    return found[::-1]


def test_effects_in_each_state(saver: SurefootSaver) -> None:
    loaded = viewing(saver.core.ports, "effects", lambda chain: _effects(saver, chain))
    assert [b.state for b, _ in loaded] == STATES
    for number, (body, load) in enumerate(loaded):
        state = STATES[number]
        assert body.slot == hashlib.sha256(state.encode()).digest()
        assert body.name == f"effect {state}"
        assert (body.attempt, body.receiver) == (number + 1, "KLNKLN"[number])
        assert body.fingerprint == hashlib.sha256(b"fp" + state.encode()).digest()
        assert body.key == f"{number:032x}"
        assert (body.namespace, body.checkpoint_id) == ("", "e0")
        assert body.position == f"(root) step 1 task (pull,pay) call {number}"
        assert load["arguments"] == {"amount": number}
        assert load["result"] == (["succeeded"] if state == "succeeded" else None)
        assert load["receipt"] == ({"id": "ch_1"} if number % 2 else None)
        assert load["evidence"] == ({"amount": 9} if state == "needs_review" else None)
        assert body.error == ("TimeoutError" if state == "in_doubt" else None)
        assert body.source == ("reconcile" if number > 3 else "body")
        assert body.at_us == 1_767_225_600_000_000 + number


def test_intents_of_open_effects(saver: SurefootSaver) -> None:
    from surefoot.rules.intents import unpack_intents

    mark = saver.core.ports.marks.read("tenant", "effects")
    assert mark is not None
    assert unpack_intents(mark.intents) == {
        hashlib.sha256(state.encode()).digest(): 2 for state in ("started", "in_doubt")
    }


def test_case_50_every_thread_of_an_earlier_release_goes_on(saver: SurefootSaver) -> None:
    """Reading is half of it: this release also writes behind what an older one wrote."""
    for thread in ("values", "effects", "pruned", "deleted", "reborn", "copied"):
        before = saver.get_tuple(at(thread))
        parent = None if before is None else before.checkpoint["id"]
        stored = {} if before is None else before.checkpoint["channel_values"]
        versions = {} if before is None else before.checkpoint["channel_versions"]
        values = {**stored, "more": 1}
        checkpoint: Any = {
            **empty_checkpoint(),
            "id": "next",
            "channel_values": values,
            "channel_versions": {**versions, "more": 9},
        }
        saver.put(at(thread, parent), checkpoint, {"source": "loop", "step": 9}, {"more": 9})
        after = saver.get_tuple(at(thread))
        assert after is not None
        assert after.checkpoint["channel_values"] == values
        if before is not None:
            assert saver.get_tuple(at(thread, parent)) == before
    mark = saver.core.ports.marks.read("tenant", "deleted")
    assert mark is not None
    assert mark.incarnation == 2


@pytest.mark.parametrize(
    "table", ["surefoot_frame.head", "surefoot_frame.body", "surefoot_value.body"]
)
def test_a_changed_byte_is_still_noticed(saver: SurefootSaver, tmp_path: Path, table: str) -> None:
    import sqlite3
    from contextlib import closing

    from surefoot.errors import TamperDetected

    name, column = table.split(".")
    with closing(sqlite3.connect(tmp_path / "content.db")) as database:
        rows = database.execute(f"SELECT rowid, {column} FROM {name}").fetchall()
        assert rows
        for rowid, raw in rows:
            changed = raw[:-1] + bytes((raw[-1] ^ 1,))
            database.execute(f"UPDATE {name} SET {column} = ? WHERE rowid = ?", (changed, rowid))
        database.commit()
    with pytest.raises(TamperDetected):
        saver.get_tuple(at("values", "c1"))
