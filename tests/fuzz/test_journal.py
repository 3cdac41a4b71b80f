"""The fold over a journal, against LangGraph's own saver in memory, and against damaged rows.

`InMemorySaver` is the oracle for `put`, `put_writes`, `get_tuple`, `list` and `delete_thread`.
Where its contract is another one, or it has none:

- *Latest* is the largest id there and the last on the chain here. Ids only grow below, so that
  both are the same; forks and checkpoints put again keep that so.
- A batch of writes that mixes special and ordinary channels replaces nothing here (as in
  LangGraph's database savers) and its special ones there. Batches are of one kind below.
- A parent that is not stored is taken there and refused here. Parents below are stored.
- `list` over several namespaces goes namespace by namespace there and along the chain here:
  compared are what is listed, and the order within each namespace.
- `copy_thread`, `prune` and `delete_for_runs` are not there. What they do to the oracle is
  written out below. After a prune the heads of all branches stay: they are the checkpoints
  without children, as long as no run was deleted. After that a head may have children on other
  branches, and what lost its child in the middle of a branch is no head; so it is only checked
  that the latest stays, and that what stays is as it was.
- Writes on a checkpoint that is not stored yet are dropped by a prune that drops anything.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver

from surefoot import Keyring, SurefootSaver
from surefoot.errors import Refused, TamperDetected

FACTOR = int(os.environ.get("SUREFOOT_FUZZ_FACTOR", "1"))
THREADS = ("a", "b", "c")
NAMESPACES = ("", "child")
RUNS = ("run-1", "run-2", "run-3")
Place = tuple[str, str]

_memory = Path("/dev/shm")
_folder_for_files = str(_memory) if os.access(_memory, os.W_OK) else None


def config_of(thread: str, namespace: str | None = "", checkpoint_id: str | None = None) -> Any:
    configurable = {"thread_id": thread}
    if namespace is not None:
        configurable["checkpoint_ns"] = namespace
    if checkpoint_id is not None:
        configurable["checkpoint_id"] = checkpoint_id
    return {"configurable": configurable}


def shown(found: CheckpointTuple | None) -> Any:
    """Everything a caller sees of a checkpoint, in a form that compares."""
    if found is None:
        return None
    place = found.config["configurable"]
    parent = found.parent_config
    return {
        "place": (place["thread_id"], place.get("checkpoint_ns", ""), place["checkpoint_id"]),
        "checkpoint": dict(found.checkpoint),
        "metadata": dict(found.metadata),
        "parent": None if parent is None else parent["configurable"]["checkpoint_id"],
        "writes": [tuple(write) for write in found.pending_writes or []],
    }


# --- the oracle -------------------------------------------------------------------------------


class Oracle:
    """LangGraph's saver in memory, and the operations that it does not have."""

    def __init__(self) -> None:
        self.saver = InMemorySaver()

    def ids(self, thread: str, namespace: str) -> list[str]:
        stored = self.saver.storage
        return sorted(stored[thread][namespace]) if thread in stored else []

    def is_empty(self, thread: str) -> bool:
        return not any(self.ids(thread, ns) for ns in NAMESPACES) and not any(
            key[0] == thread and found for key, found in self.saver.writes.items()
        )

    def children(self, thread: str, namespace: str) -> set[str | None]:
        return {held[2] for held in self.saver.storage[thread][namespace].values()}

    def drop(self, thread: str, unwanted: set[Place]) -> None:
        """Drops checkpoints with their writes, and writes that wait for a checkpoint."""
        if not unwanted:
            return
        for namespace, checkpoint_id in unwanted:
            del self.saver.storage[thread][namespace][checkpoint_id]
        for key in [k for k in self.saver.writes if k[0] == thread]:
            if key[2] not in self.ids(thread, key[1]):
                del self.saver.writes[key]

    def copy(self, source: str, target: str) -> None:
        saver = self.saver
        for namespace in NAMESPACES:
            saver.storage[target][namespace] = dict(saver.storage[source][namespace])
        for (thread, *rest), found in list(saver.writes.items()):
            if thread == source:
                saver.writes[target, rest[0], rest[1]] = dict(found)
        for (thread, *blob), raw in list(saver.blobs.items()):
            if thread == source:
                saver.blobs[target, blob[0], blob[1], blob[2]] = raw

    def look(self, thread: str, namespace: str) -> list[Any]:
        return [shown(found) for found in self.saver.list(config_of(thread, namespace))]

    def all_places(self) -> Iterator[tuple[str, str, str]]:
        for thread in THREADS:
            for namespace in NAMESPACES:
                for checkpoint_id in self.ids(thread, namespace):
                    yield thread, namespace, checkpoint_id


# --- damage -------------------------------------------------------------------------------------

COLUMNS = (
    *(("surefoot_thread", c) for c in ("tenant", "thread", "incarnation", "head_seq")),
    *(("surefoot_thread", c) for c in ("head_epoch", "head_digest", "created_us", "updated_us")),
    *(("surefoot_frame", c) for c in ("thread_key", "last_seq", "epoch", "checkpoint_hash")),
    *(("surefoot_frame", c) for c in ("head", "body")),
    *(("surefoot_value", c) for c in ("thread_key", "digest", "body")),
    *(("surefoot_chunk", c) for c in ("thread_key", "log_id", "ordinal", "body")),
)


def damaged(cell: Any, how: int, where: int) -> Any:
    """Another value for a cell: a flipped bit, a cut, another type, another number."""
    if isinstance(cell, bytes):
        raw = bytearray(cell)
        if how % 6 == 4 or not raw:
            return raw.hex() or "x"
        if how % 6 == 5:
            return bytes(raw[: where % len(raw)])
        raw[where % len(raw)] ^= 1 << (how % 8)
        return bytes(raw)
    number = cell if isinstance(cell, int) else 0
    return (number + 1, number - 1, -number - 1, number ^ (1 << where % 62), "x", 2.5, b"\0")[
        how % 7
    ]


class Damage:
    """One damaged cell of the content store, put right again at the end."""

    def __init__(self, database: Path, table: str, column: str, pick: int) -> None:
        self._database = database
        self._table, self._column = table, column
        self._pick = pick
        self.hit = False
        self._rowid = 0
        self._cell: Any = None

    def do(self, how: int, where: int) -> None:
        """Damages a cell; `hit` says whether there was one, and it is another one now."""
        with closing(sqlite3.connect(self._database, timeout=30)) as db:
            rows = db.execute(f"SELECT rowid FROM {self._table} ORDER BY rowid").fetchall()
            if not rows:
                return
            self._rowid = rows[self._pick % len(rows)][0]
            self._cell = self._read(db)
            with suppress(sqlite3.IntegrityError):  # the place of another row: no such damage
                self._write(db, damaged(self._cell, how, where))
            now = self._read(db)
            self.hit = (type(now), now) != (type(self._cell), self._cell)

    def undo(self) -> None:
        if self.hit:
            with closing(sqlite3.connect(self._database, timeout=30)) as db:
                self._write(db, self._cell)

    def _read(self, db: sqlite3.Connection) -> Any:
        found = db.execute(
            f"SELECT {self._column} FROM {self._table} WHERE rowid = ?", (self._rowid,)
        )
        return found.fetchone()[0]

    def _write(self, db: sqlite3.Connection, cell: Any) -> None:
        db.execute(
            f"UPDATE {self._table} SET {self._column} = ? WHERE rowid = ?", (cell, self._rowid)
        )
        db.commit()


def same_or_refused(ask: Callable[[], Any], truth: Any, what: str) -> bool:
    """Asks, and demands the true answer or a typed refusal; says whether it was refused."""
    try:
        answer = ask()
    except Refused:
        return True
    if answer != truth:
        raise AssertionError(f"{what}: another answer\n{answer}\ninstead of\n{truth}")
    return False


# --- the machine --------------------------------------------------------------------------------

messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["ai", "human"]), "text": st.sampled_from(["", "a", "ab" * 40])}
)
values = st.one_of(
    st.none() | st.integers(-(2**63), 2**63) | st.text(max_size=5) | st.binary(max_size=5),
    st.integers(0, 255).map(lambda n: bytes((n * i * i + i) % 256 for i in range(1_500))),
    st.integers(1, 9).map(lambda n: f"{n}" * 9_000),
    st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False), max_size=3),
)
writes = st.lists(st.tuples(st.sampled_from(["chat", "x", "branch:to:n"]), values), max_size=3)
special = st.lists(
    st.tuples(st.sampled_from(["__error__", "__interrupt__", "__resume__"]), values),
    min_size=1,
    max_size=2,
)
Step = dict[str, Any]
steps = st.fixed_dictionaries(
    {
        "back": st.sampled_from([0, 0, 0, 1, 2, 4]),
        "changes": st.dictionaries(st.sampled_from(["x", "y", "z"]), values, max_size=2),
        "chat": st.lists(messages, max_size=10),
        "gone": st.sampled_from([None, None, "x", "y"]),
        "run": st.sampled_from(RUNS),
    }
)
threads = st.sampled_from(THREADS)
namespaces = st.sampled_from(NAMESPACES)
picks = st.integers(0, 10_000)
cells = st.tuples(st.sampled_from(COLUMNS), picks, picks, picks)

seen: Counter[str] = Counter()


class JournalMachine(RuleBasedStateMachine):
    """Does the same to a saver on SQLite files and to the oracle, and looks at both."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="surefoot-journal-", dir=_folder_for_files))
        self.keys = Keyring.generate("k1")
        self.oracle = Oracle()
        self.counter = 0
        self.early: dict[Place, str] = {}
        self.runs_deleted: set[str] = set()
        self.saver = self.opened()
        self.saver.setup()

    def opened(self) -> SurefootSaver:
        return SurefootSaver(
            f"sqlite:///{self.folder}/a.db",
            highwater=f"sqlite:///{self.folder}/b.db",
            keys=self.keys,
        )

    def teardown(self) -> None:
        try:
            for thread in THREADS:
                self.compare(thread)
            reports = [*self.saver.verify(deep=True)]
            assert all(report.ok for report in reports), reports
            seen["sequences"] += 1
        finally:
            self.saver.close()
            shutil.rmtree(self.folder)

    def number(self) -> int:
        self.counter += 1
        return self.counter

    # --- writing ----------------------------------------------------------------------------------

    @initialize(steps=st.lists(steps, min_size=3, max_size=6))
    def begin(self, steps: list[Step]) -> None:
        """Most sequences begin with a thread that has something to lose."""
        self.put("a", "", steps)

    @rule(thread=threads, namespace=namespaces, steps=st.lists(steps, min_size=1, max_size=4))
    def put(self, thread: str, namespace: str, steps: list[Step]) -> None:
        """Puts behind the latest checkpoint, or behind an older one: a fork."""
        for step in steps:
            stored = self.oracle.ids(thread, namespace)
            parent = stored[max(0, len(stored) - 1 - step["back"])] if stored else None
            seen["forks"] += bool(stored and parent != stored[-1])
            early = self.early.pop((thread, namespace), None)
            made, new = self.grown(
                thread, namespace, parent, step["changes"], step["chat"], step["gone"]
            )
            made["id"] = early or f"{self.number():08d}"
            self.store(thread, namespace, parent, made, new, step["run"])
        self.compare(thread)

    def grown(
        self,
        thread: str,
        namespace: str,
        base: str | None,
        changes: dict[str, Any],
        chat: list[Any],
        gone: str | None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """A checkpoint that changes some channels of another one, as a loop makes it."""
        made: dict[str, Any] = {**empty_checkpoint()}
        if base is not None:
            before = self.oracle.saver.get_tuple(config_of(thread, namespace, base))
            assert before is not None
            made["channel_values"] = dict(before.checkpoint["channel_values"])
            made["channel_versions"] = dict(before.checkpoint["channel_versions"])
        if chat:
            changes = {**changes, "chat": [*made["channel_values"].get("chat", []), *chat]}
        new: dict[str, Any] = {name: self.number() for name in changes}
        made["channel_values"].update(changes)
        if gone is not None and gone not in changes:
            new[gone] = self.number()
            made["channel_values"].pop(gone, None)
        made["channel_versions"].update(new)
        return made, new

    def store(
        self, thread: str, namespace: str, parent: str | None, made: Any, new: Any, run: str
    ) -> None:
        meta: Any = {"source": "loop", "step": self.number(), "parents": {}, "run_id": run}
        config = config_of(thread, namespace, parent)
        answer = self.saver.put(config, made, meta, new)
        assert answer == self.oracle.saver.put(config, made, meta, new)
        seen["puts"] += 1

    @precondition(lambda self: any(True for _ in self.oracle.all_places()))
    @rule(
        pick=picks,
        changes=st.dictionaries(st.sampled_from(["x", "z"]), values, max_size=2),
        chat=st.lists(messages, max_size=3),
        run=st.sampled_from(RUNS),
    )
    def put_again(self, pick: int, changes: dict[str, Any], chat: list[Any], run: str) -> None:
        """Puts a stored id again, with other content."""
        places = [*self.oracle.all_places()]
        thread, namespace, checkpoint_id = places[pick % len(places)]
        parent = self.oracle.saver.storage[thread][namespace][checkpoint_id][2]
        if parent is not None and parent not in self.oracle.ids(thread, namespace):
            return
        made, new = self.grown(thread, namespace, checkpoint_id, changes, chat, None)
        made["id"] = checkpoint_id
        seen["puts again"] += 1
        self.store(thread, namespace, parent, made, new, run)
        self.compare(thread)

    @rule(
        thread=threads,
        namespace=namespaces,
        back=st.integers(0, 4),
        batch=writes | special,
        task=st.sampled_from(["task-1", "task-2"]),
        path=st.sampled_from(["", "~a", "~b"]),
        early=st.booleans(),
    )
    def put_writes(
        self,
        thread: str,
        namespace: str,
        back: int,
        batch: list[Any],
        task: str,
        path: str,
        early: bool,
    ) -> None:
        """Writes on a stored checkpoint, or on one that is not stored yet."""
        stored = self.oracle.ids(thread, namespace)
        if early or not stored:
            target = self.early.setdefault((thread, namespace), f"{self.number():08d}")
            seen["early writes"] += 1
        else:
            target = stored[max(0, len(stored) - 1 - back)]
        config = config_of(thread, namespace, target)
        self.saver.put_writes(config, batch, task, path)
        self.oracle.saver.put_writes(config, batch, task, path)
        self.compare(thread)

    # --- maintenance ----------------------------------------------------------------------------

    @rule(
        what=st.sampled_from(["prune", "prune", "copy", "runs"]),
        thread=st.sampled_from("aaabc"),
        to=threads,
        run=st.sampled_from(RUNS),
    )
    def tidy(self, what: str, thread: str, to: str, run: str) -> None:
        """What makes a history smaller, or doubles it."""
        if what == "prune":
            self.prune(thread)
        elif what == "copy":
            self.copy_thread(thread, to)
        else:
            self.delete_for_runs(run)
        for each in THREADS:
            self.compare(each)

    @rule(what=st.sampled_from(["release", "reopen", "reopen", "delete"]), thread=threads)
    def begin_anew(self, what: str, thread: str) -> None:
        """What ends a saver, a lease or a thread."""
        if what == "delete":
            self.delete_thread(thread)
        elif what == "release":
            self.saver.release(thread)
        else:
            self.reopen()
        for each in THREADS:
            self.compare(each)

    def delete_thread(self, thread: str) -> None:
        self.saver.delete_thread(thread)
        self.oracle.saver.delete_thread(thread)
        self.forget_early(thread)
        self.runs_deleted.discard(thread)
        seen["deletes"] += 1

    def forget_early(self, thread: str) -> None:
        self.early = {place: v for place, v in self.early.items() if place[0] != thread}

    def prune(self, thread: str) -> None:
        self.saver.prune([thread])
        unwanted: set[Place] = set()
        for namespace in NAMESPACES:
            stored = set(self.oracle.ids(thread, namespace))
            kept = {found["place"][2] for found in self.listed(thread, namespace)}
            leaves = stored - self.oracle.children(thread, namespace) if stored else set()
            assert kept <= stored
            assert not stored or max(stored) in kept
            if thread not in self.runs_deleted:
                assert kept == leaves
            unwanted |= {(namespace, gone) for gone in stored - kept}
        self.oracle.drop(thread, unwanted)
        if unwanted:
            seen["prunes"] += 1

    def delete_for_runs(self, run: str) -> None:
        self.saver.delete_for_runs([run])
        for thread in THREADS:
            unwanted = {
                (namespace, found["place"][2])
                for namespace in NAMESPACES
                for found in self.oracle.look(thread, namespace)
                if found["metadata"]["run_id"] == run
            }
            self.oracle.drop(thread, unwanted)
            if unwanted:
                self.runs_deleted.add(thread)
                seen["deletions of runs"] += 1

    def copy_thread(self, source: str, to: str) -> None:
        if source == to or not self.oracle.is_empty(to):
            return
        self.saver.copy_thread(source, to)
        self.oracle.copy(source, to)
        for (thread, namespace), checkpoint_id in list(self.early.items()):
            if thread == source:
                self.early[to, namespace] = checkpoint_id
        if source in self.runs_deleted:
            self.runs_deleted.add(to)
        seen["copies"] += 1

    def reopen(self) -> None:
        """Closes the saver, and goes on with another one: nothing lives in memory only."""
        self.saver.close()
        self.saver = self.opened()
        seen["reopened"] += 1

    # --- looking --------------------------------------------------------------------------------

    def listed(self, thread: str, namespace: str | None) -> list[Any]:
        return [shown(found) for found in self.saver.list(config_of(thread, namespace))]

    def compare(self, thread: str) -> None:
        """Both savers show the same of a thread."""
        everything = []
        for namespace in NAMESPACES:
            wanted = self.oracle.look(thread, namespace)
            assert self.listed(thread, namespace) == wanted
            latest = self.saver.get_tuple(config_of(thread, namespace))
            assert shown(latest) == (wanted[0] if wanted else None)
            everything += wanted
        assert sorted(f["place"] for f in self.listed(thread, None)) == sorted(
            f["place"] for f in everything
        )

    @precondition(lambda self: any(True for _ in self.oracle.all_places()))
    @rule(pick=picks, limit=st.integers(0, 3), run=st.sampled_from(RUNS))
    def look_closer(self, pick: int, limit: int, run: str) -> None:
        """By id, before an id, with a filter and a limit."""
        places = [*self.oracle.all_places()]
        thread, namespace, checkpoint_id = places[pick % len(places)]
        at = config_of(thread, namespace, checkpoint_id)
        for saver in (self.saver, self.oracle.saver):
            assert saver.get_tuple(config_of(thread, namespace, "nowhere")) is None
        assert shown(self.saver.get_tuple(at)) == shown(self.oracle.saver.get_tuple(at))
        asked: dict[str, Any] = {"filter": {"run_id": run}, "before": at, "limit": limit}
        of_thread = config_of(thread, namespace)
        assert [shown(f) for f in self.saver.list(of_thread, **asked)] == [
            shown(f) for f in self.oracle.saver.list(of_thread, **asked)
        ]

    @rule(thread=threads)
    def verify(self, thread: str) -> None:
        (report,) = self.saver.verify(thread, deep=True)
        assert report.ok, report
        assert not report.unloadable

    # --- damage ---------------------------------------------------------------------------------

    @precondition(lambda self: any(True for _ in self.oracle.all_places()))
    @rule(cells=st.lists(cells, min_size=1, max_size=3))
    def damage(self, cells: list[tuple[Any, ...]]) -> None:
        """With one cell damaged, every answer is the true one or a typed refusal."""
        for place, pick, how, where in cells:
            damage = Damage(self.folder / "a.db", *place, pick)
            damage.do(how, where)
            if not damage.hit:
                continue
            try:
                refused = self.ask_everything()
                reports = {report.thread: report for report in self.saver.verify(deep=True)}
            finally:
                damage.undo()
            for thread in refused:
                assert not reports[thread].ok, f"verify sees nothing wrong in {thread!r}"
            seen["damages"] += 1
            seen[f"refused {place[0]}.{place[1]}" if refused else "harmless damages"] += 1

    def ask_everything(self) -> set[str]:
        """Threads of which something was refused."""
        refused: set[str] = set()
        for thread in THREADS:
            for namespace in NAMESPACES:
                truth = self.oracle.look(thread, namespace)
                asked: list[tuple[Callable[[], Any], Any]] = [
                    (lambda t=thread, n=namespace: self.listed(t, n), truth),
                    (
                        lambda t=thread, n=namespace: shown(self.saver.get_tuple(config_of(t, n))),
                        truth[0] if truth else None,
                    ),
                ]
                for found in truth:
                    at = config_of(*found["place"])
                    asked.append((lambda at=at: shown(self.saver.get_tuple(at)), found))
                for ask, wanted in asked:
                    if same_or_refused(ask, wanted, f"thread {thread!r}, {namespace!r}"):
                        refused.add(thread)
        return refused


JournalMachine.TestCase.settings = settings(
    max_examples=30 * FACTOR,
    stateful_step_count=25,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class TestJournal(JournalMachine.TestCase):  # type: ignore[name-defined, misc]
    """Runs the machine, and then asks whether it did anything worth the name."""

    pytestmark = pytest.mark.timeout(600)

    def runTest(self) -> None:  # noqa: N802 - the name that unittest calls
        """Plays sequences; all kinds of steps must have happened."""
        seen.clear()
        super().runTest()
        print(dict(sorted(seen.items())))
        for kind in (
            "sequences",
            "puts",
            "forks",
            "puts again",
            "early writes",
            "damages",
        ):
            assert seen[kind] > 0, kind


# --- what the machine has found -----------------------------------------------------------------


@pytest.mark.parametrize("last_seq", [0, -5, -(2**63)])
def test_a_row_below_the_first_record_does_not_keep_verify_busy(
    last_seq: int, tmp_path: Path
) -> None:
    """The lenient walk, which passes over rows that do not verify, met it again with every page."""
    with SurefootSaver.from_conn_string(
        f"sqlite:///{tmp_path}/a.db",
        highwater=f"sqlite:///{tmp_path}/b.db",
        keys=Keyring.generate("k1"),
    ) as saver:
        saver.setup()
        config = config_of("t")
        for number in range(3):
            made: Any = {**empty_checkpoint(), "id": f"{number}"}
            config = saver.put(config, made, {"source": "loop", "step": number, "parents": {}}, {})
        (report,) = saver.verify("t", deep=True)
        assert report.ok
        with closing(sqlite3.connect(tmp_path / "a.db", timeout=30)) as db:
            changed = db.execute(
                "UPDATE surefoot_frame SET last_seq = ? WHERE last_seq = 1", (last_seq,)
            )
            assert changed.rowcount == 1
            db.commit()
        (report,) = saver.verify("t", deep=True)
        assert not report.ok
        assert {problem.code for problem in report.problems} == {"TAMPER"}
        with pytest.raises(TamperDetected):
            [*saver.list(config_of("t"))]
