"""SurefootSaver for `agmi-check`, the published suite of tamper edits on stores of agent memory.

The suite edits records of a store behind the tool's back, opens the store again and asks the
tool. What it calls a record is here a row of ours, and there is an adapter for each kind:

* `…Journal`: frames of the journal that hold a checkpoint each. These are what the suite means.
* `…Writes`, `…Outcomes`, `…Starts`: frames that hold pending writes, or what became of effects.
* `…Values` and `…ListChunks`: rows of large values, and pieces of lists. A forged one that no
  record refers to is never read, so that it is the one edit that nobody needs to notice.

Each edits as somebody would who knows the format and has everything but the keys: bodies are
taken apart and put together again, digests that need no key are made to fit, head rows follow.
`…Blunt` only changes bytes and repairs nothing.

The answer of the tool is taken strictly: only `TamperDetected` and `RollbackDetected` count as
noticed. An empty answer counts as served, and any other error leaves the suite without a verdict.
One of them by itself: ``python -m agmi.check --adapter tests.external.agmi_adapter:SqliteJournal``.
"""

from __future__ import annotations

import hashlib
import operator
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypedDict

from agmi.adapters.base import MemoryAdapter
from agmi.adapters.base import Record as Row
from langgraph.checkpoint.base import create_checkpoint, empty_checkpoint
from langgraph.graph import START, StateGraph
from tests.content_stores import PostgresStore, SqliteStore
from tests.frames import LAYOUTS, Body, OpenFrame, inline, value_of

from surefoot import Keyring, SurefootSaver, effect
from surefoot.errors import RollbackDetected, TamperDetected
from surefoot.rules.bodies import (
    Batch,
    ChannelValue,
    CheckpointBody,
    EffectBody,
    Write,
    WritesBody,
    pack_stored,
    unpack_stored,
)
from surefoot.rules.envelope import (
    Identity,
    Kind,
    Link,
    seal_frame,
)

TENANT = "default"
THREAD, OTHER = "agmi-thread", "agmi-thread-B"
SEED, OTHER_SEED, TAMPERED = "agmi-seed-", "agmi-twin-", "agmi-TAMP-"


class State(TypedDict, total=False):
    """State of the graph that runs effects."""

    what: str
    done: Annotated[list[str], operator.add]


def tampered(value: Any) -> Any:
    """The same with another meaning and the same encoding."""
    if isinstance(value, str) and SEED in value:
        return value.replace(SEED, TAMPERED)
    return f"{value} [TAMPERED]"


# --- the adapters ---------------------------------------------------------------------------------


class SurefootAdapter(MemoryAdapter):
    """What all adapters share: stores, seeding through the saver, the saver's own answer."""

    store_of: ClassVar[type[SqliteStore] | type[PostgresStore]]
    what: ClassVar[str]
    #: Whether digests that need no key are made to fit.
    repairs = True
    supports_replay = True
    supports_metadata = True
    supports_snapshot = True
    detection_point = "read"

    def __init__(self) -> None:
        kind = self.store_of.dialect + ("" if self.repairs else ", blunt")
        self.name = f"surefoot ({self.what}, {kind})"

    # Life of a store.

    def setup(self) -> None:
        """Fresh stores, keys and a saver."""
        self._folder = tempfile.TemporaryDirectory(prefix="surefoot-agmi-")
        self.store = self.store_of(Path(self._folder.name))
        self.keys = Keyring.generate()
        self.saver = self._open()
        self.saver.setup()
        self._order: dict[str, list[tuple[Any, ...]]] = {}
        #: What was served, whenever the suite asked; the last one is after the edit.
        self.answers: list[Any] = []

    def teardown(self) -> None:
        """Everything goes."""
        self.saver.close()
        self.store.drop()
        self._folder.cleanup()

    def _open(self) -> SurefootSaver:
        return SurefootSaver(
            self.store.url, highwater=self.store.marks, keys=self.keys, schema=self.store.schema,
            tenant=self.tenant,
        )  # fmt: skip

    @property
    def tenant(self) -> str:
        """High-water rows of Postgres outlive a schema, so each has a tenant of its own."""
        return self.store.schema or TENANT

    def reload(self) -> None:
        """As another process would open the store."""
        self.saver.close()
        self.saver = self._open()

    def verify(self) -> bool:
        """The saver's answer, by its reading methods."""
        self.verify_detail = None
        try:
            self.answers.append(self.served())
        except (TamperDetected, RollbackDetected) as error:
            self.verify_detail = f"{type(error).__name__}: {error}"[:160]
            return False
        return True

    def served(self, thread: str = THREAD) -> list[tuple[Any, ...]]:
        """All that reading gives: the latest checkpoint, then the whole list."""
        config = {"configurable": {"thread_id": thread}}
        latest = self.saver.get_tuple({"configurable": {**config["configurable"]}})
        found = ([] if latest is None else [latest]) + [*self.saver.list(config)]
        return [(t.config, t.checkpoint, t.metadata, t.pending_writes) for t in found]

    # Seeding, through the saver.

    def seed(self, n: int) -> None:
        """Legitimate records."""
        self._seed(THREAD, SEED, range(n))

    def seed_other(self, n: int) -> None:
        """The same in a second thread."""
        self._seed(OTHER, OTHER_SEED, range(n))

    def append_genuine(self) -> None:
        """One more."""
        self.reload()
        count = len(self.read_all_raw())
        self._seed(THREAD, SEED, range(count, count + 1))

    def _seed(self, thread: str, word: str, numbers: range) -> None:
        raise NotImplementedError

    def _put(self, thread: str, number: int, value: Any) -> None:
        config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        latest = self.saver.get_tuple(config)
        before = empty_checkpoint() if latest is None else latest.checkpoint
        made = create_checkpoint(before, None, number)
        made["channel_values"] = {"state": value}
        versions: dict[str, Any] = {"state": number + 1}
        made["channel_versions"] = versions
        at = config if latest is None else latest.config
        self.saver.put(at, made, {"source": "loop", "step": number, "parents": {}}, versions)

    # Where the rows are.

    def key_of(self, thread: str) -> int:
        """Key of a thread's rows."""
        statement = "SELECT key FROM surefoot_thread WHERE tenant = ? AND thread = ?"
        ((key,),) = self.store.execute(statement, self.tenant.encode(), thread.encode())
        return int(key)

    def snapshot_store(self) -> object:
        """The content store, and nothing outside of it."""
        self.saver.close()
        token = self.store.snapshot()
        self.saver = self._open()
        return token

    def restore_store(self, token: object) -> None:
        """Puts the content store back."""
        self.saver.close()
        self.store.restore(token)
        self.saver = self._open()

    def read_all_raw(self) -> list[Row]:
        """Rows of the first thread, oldest first."""
        return self._read(THREAD)

    def read_other_raw(self) -> list[Row]:
        """Rows of the second thread."""
        return self._read(OTHER)

    def _read(self, thread: str) -> list[Row]:
        raise NotImplementedError

    def owner_of(self, record: Row) -> str | None:
        """The thread."""
        return str(record.fields["thread"])


class Frames(SurefootAdapter):
    """Records are frames of the journal that hold a record of one kind."""

    kind: ClassVar[Kind] = Kind.CHECKPOINT

    def _read(self, thread: str) -> list[Row]:
        rows = self.store.execute(
            "SELECT last_seq, epoch, checkpoint_hash, head, body FROM surefoot_frame"
            " WHERE thread_key = ? ORDER BY last_seq, epoch",
            self.key_of(thread),
        )
        names = ("last_seq", "epoch", "checkpoint_hash", "head", "body")
        found: list[Row] = []
        for row in rows:
            fields = {**dict(zip(names, row, strict=True)), "thread": thread}
            fields["head"], fields["body"] = bytes(fields["head"]), bytes(fields["body"])
            if any(map(self._counts, self._open_frame(fields).bodies())):
                found.append(Row(len(found), fields))
        return found

    def _counts(self, body: Body) -> bool:
        """Whether a frame with such a record is one that the suite sees."""
        return isinstance(body, LAYOUTS[self.kind])

    @staticmethod
    def _open_frame(fields: dict[str, Any]) -> OpenFrame:
        return OpenFrame(fields["last_seq"], fields["epoch"], fields["head"], fields["body"])

    def _at(self, seq: int) -> dict[str, Any] | None:
        rows = self.read_all_raw()
        return rows[seq].fields if seq < len(rows) else None

    def write_raw(self, record: Row) -> None:
        """Puts content into the row at a place, or adds a row behind the last one."""
        fields, target = record.fields, self._at(record.seq)
        content = (fields["checkpoint_hash"], fields["head"], fields["body"])
        key = self.key_of(THREAD)
        if target is None:
            self.store.execute(
                "INSERT INTO surefoot_frame"
                " (thread_key, last_seq, epoch, checkpoint_hash, head, body)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                key, fields["last_seq"], fields["epoch"], *content,
            )  # fmt: skip
            self._move_head()
            return
        self._update(key, target, content)

    def _update(self, key: int, target: dict[str, Any], content: tuple[Any, ...]) -> None:
        self.store.execute(
            "UPDATE surefoot_frame SET checkpoint_hash = ?, head = ?, body = ?"
            " WHERE thread_key = ? AND last_seq = ? AND epoch = ?",
            *content, key, target["last_seq"], target["epoch"],
        )  # fmt: skip
        self._move_head()

    def delete_raw(self, seq: int) -> None:
        """Deletes a row; the thread's head row follows if it was the last one."""
        target = self._at(seq)
        if target is None:
            raise RuntimeError("there is no such row")
        self.store.execute(
            "DELETE FROM surefoot_frame WHERE thread_key = ? AND last_seq = ? AND epoch = ?",
            self.key_of(THREAD), target["last_seq"], target["epoch"],
        )  # fmt: skip
        self._move_head()

    def _move_head(self) -> None:
        """Makes the head row of the thread say what the newest row says."""
        if not self.repairs:
            return
        key = self.key_of(THREAD)
        ((last_seq, epoch, head, body),) = self.store.execute(
            "SELECT last_seq, epoch, head, body FROM surefoot_frame WHERE thread_key = ?"
            " ORDER BY last_seq DESC, epoch DESC LIMIT 1",
            key,
        )
        frame = OpenFrame(last_seq, epoch, bytes(head), bytes(body))
        digest = frame.digest(Identity(self.tenant, THREAD, 1))
        self.store.execute(
            "UPDATE surefoot_thread SET head_seq = ?, head_epoch = ?, head_digest = ?"
            " WHERE key = ?",
            last_seq, epoch, digest, key,
        )  # fmt: skip

    def replay_onto(self, victim_seq: int, donor: Row) -> None:
        """Puts the donor's bytes into the victim's row."""
        target = self._at(victim_seq)
        if target is None:
            raise RuntimeError("there is no such row")
        fields = donor.fields
        content = (fields["checkpoint_hash"], fields["head"], fields["body"])
        self._update(self.key_of(THREAD), target, content)

    # What a frame says.

    def _changed(self, record: Row, change: Callable[[Body], Body]) -> Row:
        frame = self._open_frame(record.fields)
        frame.change(change)
        head = frame.head() if self.repairs else record.fields["head"]
        if frame.body() == record.fields["body"]:
            raise RuntimeError("nothing was changed")
        return Row(record.seq, {**record.fields, "head": head, "body": frame.body()})

    def mutate_payload(self, record: Row) -> Row:
        """Changes what the row says, in a proper encoding."""
        return self._changed(record, self._with_other_content)

    def forge_record(self, template: Row) -> Row:
        """A row that follows the last one, links to it, and is sealed with a key of its own."""
        frame = self._open_frame(self._newest())
        model = self._open_frame(template.fields)
        model.change(self._with_other_content)
        identity = Identity(self.tenant, THREAD, 1)
        made = seal_frame(
            identity,
            frame.epoch + 1,
            Link(frame.last_seq, frame.digest(identity)),
            model.records,
            key_id=frame.key_id,
            seal_key=os.urandom(32),
        )
        fields = {**template.fields, "last_seq": made.last_seq, "epoch": made.epoch}
        return Row(template.seq + 1, {**fields, "head": made.head, "body": made.body})

    def _newest(self) -> dict[str, Any]:
        ((last_seq, epoch, head, body),) = self.store.execute(
            "SELECT last_seq, epoch, head, body FROM surefoot_frame WHERE thread_key = ?"
            " ORDER BY last_seq DESC, epoch DESC LIMIT 1",
            self.key_of(THREAD),
        )
        return {"last_seq": last_seq, "epoch": epoch, "head": bytes(head), "body": bytes(body)}

    def identity_of(self, record: Row) -> str:
        """The row's key."""
        fields = record.fields
        return f"{fields['thread']}/{fields['last_seq']}.{fields['epoch']}"

    def payload_of(self, record: Row) -> str:
        """What the records say, without their labels."""
        bodies = self._open_frame(record.fields).bodies()
        return repr([self._content(body) for body in bodies])

    def read_meta(self, seq: int) -> dict[str, Any]:
        """The labels."""
        target = self._at(seq)
        if target is None:
            raise RuntimeError("there is no such row")
        bodies = self._open_frame(target).bodies()
        return {str(n): self._labels(body) for n, body in enumerate(bodies)}

    def write_meta(self, seq: int, meta: dict[str, Any]) -> None:
        """Changes the labels; the suite added one, which every record gets."""
        row = self.read_all_raw()[seq]
        if not meta.get("agmi_meta_tampered"):
            raise RuntimeError("the suite did not ask for another label")
        self.write_raw(self._changed(row, self._with_other_labels))

    @staticmethod
    def _content(body: Body) -> Any:
        if isinstance(body, CheckpointBody):
            return [(v.channel, value_of(v.value)) for v in body.values]
        if isinstance(body, WritesBody):
            return [(w.channel, value_of(w.value)) for b in body.batches for w in b.writes]
        return (body.slot, body.name, body.state, body.result and value_of(body.result))

    @staticmethod
    def _labels(body: Body) -> Any:
        if isinstance(body, CheckpointBody):
            return value_of(body.metadata)
        if isinstance(body, WritesBody):
            return [(b.task_id, b.task_path) for b in body.batches]
        return (body.receiver, body.source, body.at_us, body.position)

    @staticmethod
    def _with_other_content(body: Body) -> Body:
        if isinstance(body, CheckpointBody):
            values = [
                ChannelValue(v.channel, inline(tampered(value_of(v.value)))) for v in body.values
            ]
            return replace(body, values=tuple(values))
        if isinstance(body, WritesBody):
            return replace(body, batches=tuple(map(_with_other_writes, body.batches)))
        # The state is left: the suite must find the record again.
        return replace(body, result=inline(f"{TAMPERED}result"), fingerprint=bytes(32))

    @staticmethod
    def _with_other_labels(body: Body) -> Body:
        if isinstance(body, CheckpointBody):
            labels = {**value_of(body.metadata), "agmi_meta_tampered": True}
            return replace(body, metadata=inline(labels))
        if isinstance(body, WritesBody):
            batches = [replace(b, task_path=f"{b.task_path}~") for b in body.batches]
            return replace(body, batches=tuple(batches))
        return replace(body, receiver="K" if body.receiver != "K" else "N", source="reconcile")


def _with_other_writes(batch: Batch) -> Batch:
    writes = [Write(w.idx, w.channel, inline(tampered(value_of(w.value)))) for w in batch.writes]
    return replace(batch, writes=tuple(writes))


class Journal(Frames):
    """Checkpoints: what the suite means by a record."""

    what = "checkpoints"

    def _seed(self, thread: str, word: str, numbers: range) -> None:
        for number in numbers:
            self._put(thread, number, f"{word}{number}")


class Writes(Frames):
    """Pending writes of tasks, on one checkpoint."""

    what = "pending writes"
    kind = Kind.WRITES

    def _seed(self, thread: str, word: str, numbers: range) -> None:
        config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        if self.saver.get_tuple(config) is None:
            self._put(thread, 0, "base")
        latest = self.saver.get_tuple(config)
        if latest is None:
            raise RuntimeError("the checkpoint was not stored")
        for number in numbers:
            self.saver.put_writes(
                latest.config, [("state", f"{word}{number}")], f"task-{number}", f"path-{number}"
            )


class Outcomes(Frames):
    """Outcomes of effects, from real runs of a graph."""

    what = "outcomes of effects"
    kind = Kind.EFFECT
    state: ClassVar[str] = "succeeded"

    def _counts(self, body: Body) -> bool:
        return isinstance(body, EffectBody) and body.state == self.state

    def _seed(self, thread: str, word: str, numbers: range) -> None:
        @effect(name="agmi-effect", idempotent=True)
        def act(what: str, *, idempotency_key: str) -> str:
            return f"{what} done"

        builder = StateGraph(State)
        builder.add_node("act", lambda state: {"done": [act(state["what"])]})
        builder.add_edge(START, "act")
        graph = builder.compile(checkpointer=self.saver)
        config = {"configurable": {"thread_id": thread}}
        for number in numbers:
            graph.invoke({"what": f"{word}{number}"}, config)
        self.saver.release(thread)


class Starts(Outcomes):
    """Starts of effects: what says that something may have happened."""

    what = "starts of effects"
    state = "started"


class Pieces(SurefootAdapter):
    """Records are rows that a checkpoint refers to: values or chunks."""

    table: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]

    def _read(self, thread: str) -> list[Row]:
        names = ", ".join((*self.columns, "body"))
        rows = self.store.execute(
            f"SELECT {names} FROM {self.table} WHERE thread_key = ?", self.key_of(thread)
        )
        stored = {tuple(_plain(c) for c in row[:-1]): bytes(row[-1]) for row in rows}
        order = self._order.setdefault(thread, [])
        order += sorted(set(stored) - set(order))
        return [
            Row(n, {"place": place, "body": stored[place], "thread": thread})
            for n, place in enumerate(p for p in order if p in stored)
        ]

    def _note_order(self, thread: str) -> None:
        """Rows have no order of their own; they are in the order in which they were stored."""
        self._read(thread)

    def _where(self) -> str:
        return " AND ".join(f"{name} = ?" for name in ("thread_key", *self.columns))

    def _place(self, seq: int) -> tuple[Any, ...] | None:
        rows = self.read_all_raw()
        return rows[seq].fields["place"] if seq < len(rows) else None

    def write_raw(self, record: Row) -> None:
        """Puts bytes into the row at a place, or adds a row."""
        place, key = self._place(record.seq), self.key_of(THREAD)
        body = record.fields["body"]
        if place is None:
            marks = ", ".join("?" for _ in range(len(self.columns) + 2))
            names = ", ".join(("thread_key", *self.columns, "body"))
            self.store.execute(
                f"INSERT INTO {self.table} ({names}) VALUES ({marks})",
                key, *record.fields["place"], body,
            )  # fmt: skip
            return
        self.store.execute(
            f"UPDATE {self.table} SET body = ? WHERE {self._where()}", body, key, *place
        )

    def delete_raw(self, seq: int) -> None:
        """Deletes a row."""
        place = self._place(seq)
        if place is None:
            raise RuntimeError("there is no such row")
        self.store.execute(
            f"DELETE FROM {self.table} WHERE {self._where()}", self.key_of(THREAD), *place
        )

    def replay_onto(self, victim_seq: int, donor: Row) -> None:
        """Puts the donor's bytes into the victim's row."""
        self.write_raw(Row(victim_seq, {**donor.fields, "place": None}))

    def identity_of(self, record: Row) -> str:
        """The row's key."""
        return repr((record.fields["thread"], record.fields["place"]))

    def payload_of(self, record: Row) -> str:
        """The bytes."""
        return bytes(record.fields["body"]).hex()

    def read_meta(self, seq: int) -> dict[str, Any]:
        """Which thread a row belongs to is all the label it has."""
        return {"rows": [r.fields["place"] for r in self.read_all_raw()]}

    def write_meta(self, seq: int, meta: dict[str, Any]) -> None:
        """Moves the row to another thread."""
        self.store.execute(
            f"UPDATE {self.table} SET thread_key = thread_key + 1000 WHERE {self._where()}",
            self.key_of(THREAD), *(self._place(seq) or ()),
        )  # fmt: skip


def _plain(cell: Any) -> Any:
    return bytes(cell) if isinstance(cell, (bytes, memoryview)) else cell


class Values(Pieces):
    """Values too large for a record."""

    what = "values"
    table = "surefoot_value"
    columns = ("digest",)

    def _seed(self, thread: str, word: str, numbers: range) -> None:
        for number in numbers:
            # Nothing that compresses: all are equally long, so that only digests can tell.
            self._put(thread, number, f"{word}{number} ".encode() + os.urandom(900))
            self._note_order(thread)

    def mutate_payload(self, record: Row) -> Row:
        """Changes the text inside, in a proper encoding and of the same length."""
        raw = unpack_stored(record.fields["body"])
        body = pack_stored(raw.replace(SEED.encode(), TAMPERED.encode()))
        if body == record.fields["body"] or len(body) != len(record.fields["body"]):
            raise RuntimeError("the edit is none, or of another length")
        return Row(record.seq, {**record.fields, "body": body})

    def forge_record(self, template: Row) -> Row:
        """A value under its own digest: nothing refers to it."""
        made = self.mutate_payload(template)
        digest = hashlib.sha256(made.fields["body"]).digest()
        return Row(template.seq + 1, {**made.fields, "place": (digest,)})


class ListChunks(Pieces):
    """Pieces of a list that grows: each step stores one more."""

    what = "chunks"
    table = "surefoot_chunk"
    columns = ("log_id", "ordinal")

    def _seed(self, thread: str, word: str, numbers: range) -> None:
        for number in numbers:
            value = [f"{word}{n}-{m}" for n in range(number + 1) for m in range(16)]
            self._put(thread, number, value)
            self._note_order(thread)

    def mutate_payload(self, record: Row) -> Row:
        """Changes the first element, in a proper encoding."""
        body = bytes(record.fields["body"])
        items = unpack_stored(body[4:])
        changed = items.replace(SEED.encode(), TAMPERED.encode(), 1)
        if changed == items:
            raise RuntimeError("nothing was changed")
        return Row(record.seq, {**record.fields, "body": body[:4] + pack_stored(changed)})

    def forge_record(self, template: Row) -> Row:
        """The piece that would come next in the log."""
        log, ordinal = template.fields["place"]
        made = self.mutate_payload(template)
        return Row(template.seq + 1, {**made.fields, "place": (log, ordinal + 1)})


def _on(store: type[SqliteStore] | type[PostgresStore], kind: type[SurefootAdapter]) -> Any:
    name = f"{store.dialect.title()}{kind.__name__}"
    return type(name, (kind,), {"store_of": store, "__module__": __name__})


SqliteJournal, PostgresJournal = _on(SqliteStore, Journal), _on(PostgresStore, Journal)
SqliteWrites, PostgresWrites = _on(SqliteStore, Writes), _on(PostgresStore, Writes)
SqliteOutcomes, PostgresOutcomes = _on(SqliteStore, Outcomes), _on(PostgresStore, Outcomes)
SqliteStarts, PostgresStarts = _on(SqliteStore, Starts), _on(PostgresStore, Starts)
SqliteValues, PostgresValues = _on(SqliteStore, Values), _on(PostgresStore, Values)
SqliteListChunks, PostgresListChunks = _on(SqliteStore, ListChunks), _on(PostgresStore, ListChunks)


class _Blunt(Journal):
    """Changes bytes and repairs nothing; lengths stay, so that only digests can tell."""

    repairs = False

    def mutate_payload(self, record: Row) -> Row:
        """Tries other words until the compressed body is as long as it was."""
        size = len(record.fields["body"])
        for number in range(100_000):
            made = self._changed(record, lambda body, n=number: _with_word(body, f"agmi-{n:05d}"))
            if len(made.fields["body"]) == size:
                return made
        raise RuntimeError("no edit of the same length was found")


def _with_word(body: Body, word: str) -> Body:
    if not isinstance(body, CheckpointBody):
        return body
    values = [
        ChannelValue(v.channel, inline(value_of(v.value).replace(SEED, word))) for v in body.values
    ]
    return replace(body, values=tuple(values))


class SqliteBlunt(_Blunt):
    """On SQLite."""

    store_of = SqliteStore


class PostgresBlunt(_Blunt):
    """On PostgreSQL."""

    store_of = PostgresStore


#: Of these every one of the nine edits must be rejected.
SEALED: Sequence[type[SurefootAdapter]] = (
    SqliteJournal,
    PostgresJournal,
    SqliteBlunt,
    PostgresBlunt,
    SqliteWrites,
    PostgresWrites,
    SqliteOutcomes,
    PostgresOutcomes,
    SqliteStarts,
    PostgresStarts,
)
#: Of these a forged row is inert instead.
REFERRED: Sequence[type[SurefootAdapter]] = (
    SqliteValues,
    PostgresValues,
    SqliteListChunks,
    PostgresListChunks,
)
