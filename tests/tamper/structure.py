"""Edits of whole rows: deleted, duplicated, swapped, spliced, moved, cut, retyped, put back.

Each is the tables as they are afterwards, with the threads whose rows were hit, and those of
them that must be refused; the rest must be refused or served as ever.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.tamper.campaign import Campaign
from tests.tamper.content import COLUMNS, KEYS, Blocked, Rows
from tests.tamper.edits import PROMISES, Place, Promise
from tests.tamper.reading import Thread

__all__ = [
    "Edit",
    "copied_under_another_key",
    "cut_out",
    "deleted",
    "judge",
    "moved",
    "put_back",
    "retyped",
    "some",
    "spliced",
    "subsets",
    "swapped",
    "twice_under_one_key",
]

Row = tuple[Any, ...]
_KEY_HOLDERS = ("surefoot_frame", "surefoot_value", "surefoot_chunk", "surefoot_run")


@dataclass(frozen=True)
class Edit:
    """An edit of whole rows.

    Attributes:
        name: What was done to what.
        tables: All rows of each table that was edited, as they are now.
        threads: Whose answers it could change; None: everybody's.
        detected: Who must be refused.
        cut: Whose records beyond the head may be gone.
        unharmed: Who must be served in spite of it.
    """

    name: str
    tables: Rows
    threads: Sequence[Thread] | None
    detected: frozenset[Thread] = frozenset()
    cut: frozenset[Thread] = frozenset()
    unharmed: frozenset[Thread] = field(default_factory=frozenset)


def some(edits: Iterator[Edit], share: float, seed: int = 1) -> Iterator[Edit]:
    """A seeded share of edits."""
    chosen = random.Random(seed)
    return (edit for edit in edits if chosen.random() < share)


def judge(campaign: Campaign, edits: Iterator[Edit]) -> None:
    """Makes the edits one after the other, reads, and puts the tables back.

    Raises:
        AssertionError: An edit changed nothing.
    """
    reader, report = campaign.reader, campaign.report
    for number, edit in enumerate(edits, 1):
        if all(_same(edit.tables[table], campaign.rows[table]) for table in edit.tables):
            raise AssertionError(f"{edit.name} changes nothing")
        try:
            campaign.content.put_back(edit.tables, campaign.rows)
        except Blocked:
            report.blocked += 1
            continue
        kind = edit.name.partition(":")[0]
        report.edits[kind] += 1
        try:
            for thread in campaign.world.threads() if edit.threads is None else edit.threads:
                trips = len(reader.problems)
                if thread in edit.unharmed:
                    reader.unharmed(thread)
                    refused = False
                elif thread in edit.cut:
                    refused = reader.refused_or_cut(thread)
                else:
                    refused = reader.all_refused_or_equal(thread)
                    campaign.other(thread, hint="checkpoint_hash" in edit.name)
                report.refused[kind] += refused
                if thread in edit.detected and not refused:
                    reader.problems.append(f"{edit.name}: {thread} was not refused")
                if len(reader.problems) > trips:
                    reader.problems.append(f"that was {edit.name}")
        finally:
            campaign.content.put_back({t: campaign.rows[t] for t in edit.tables}, edit.tables)
        if number % 20 == 0:
            for thread in campaign.world.threads() if edit.threads is None else edit.threads:
                reader.unharmed(thread)
                report.controls += 1


def _same(one: Sequence[Row], other: Sequence[Row]) -> bool:
    return sorted(map(repr, one)) == sorted(map(repr, other))


# --- building blocks ----------------------------------------------------------------------------


class _Rows:
    """The present rows of a campaign, as edits see them."""

    def __init__(self, campaign: Campaign) -> None:
        self.campaign = campaign
        self.rows = campaign.rows
        self.key_of = {thread: key for key, thread in campaign.table.threads.items()}

    def thread(self, table: str, row: Row) -> Thread:
        found = self.campaign.table.thread_of(table, row)
        if found is None:
            raise AssertionError(f"{table}: a row of no thread")
        return found

    def place(self, table: str, row: Row) -> Place:
        return self.campaign.table.place_of(table, row)

    def edited(
        self,
        name: str,
        table: str,
        row: Row,
        now: Sequence[Row],
        *others: Thread,
        added: bool = False,
    ) -> Edit:
        """One row of a table has become these rows."""
        thread = self.thread(table, row)
        kept = [r for r in self.rows[table] if r is not row]
        place = self.place(table, row)
        promised = Promise.DETECTED in PROMISES[table].values() and place is Place.NEEDED
        return Edit(
            f"{name}: {table} of {thread}",
            {table: [*kept, *now]},
            (thread, *others),
            frozenset() if added or not promised else frozenset({thread}),
            cut=frozenset({thread} if place is Place.BEYOND else ()),
        )

    def of(self, table: str, thread: Thread | None = None) -> list[Row]:
        """Rows of a table, of everybody or of one thread."""
        rows = self.rows[table]
        return [r for r in rows if thread is None or self.thread(table, r) == thread]


def _with(table: str, row: Row, **values: Any) -> Row:
    named = dict(zip(COLUMNS[table], row, strict=True))
    return tuple({**named, **values}.values())


# --- the edits ----------------------------------------------------------------------------------


def deleted(campaign: Campaign) -> Iterator[Edit]:
    """Every row, one at a time: pending writes and outcomes of effects among them."""
    here = _Rows(campaign)
    for table in ("surefoot_thread", *_KEY_HOLDERS):
        for row in here.of(table):
            yield here.edited("deleted", table, row, [])


def copied_under_another_key(campaign: Campaign, seed: int) -> Iterator[Edit]:
    """Every row once more under another key; what was there is still there."""
    here, chosen = _Rows(campaign), random.Random(seed)
    for row in here.of("surefoot_frame"):
        where = chosen.choice(
            [
                {"last_seq": row[1] + 1_000},
                {"epoch": row[2] + 1},
                {"epoch": row[2] + 1_000},
                {"last_seq": -row[1]},
            ]
        )
        yield here.edited(
            "duplicated",
            "surefoot_frame",
            row,
            [row, _with("surefoot_frame", row, **where)],
            added=True,
        )
    for row in here.of("surefoot_value"):
        twin = _with("surefoot_value", row, digest=chosen.randbytes(32))
        yield here.edited("duplicated", "surefoot_value", row, [row, twin], added=True)
    for row in here.of("surefoot_chunk"):
        where = chosen.choice([{"ordinal": row[2] + 50}, {"log_id": row[1] ^ 1}])
        twin = _with("surefoot_chunk", row, **where)
        yield here.edited("duplicated", "surefoot_chunk", row, [row, twin], added=True)
    for row in here.of("surefoot_thread"):
        twin = _with("surefoot_thread", row, key=row[0] + 1_000, thread=row[2] + b"-2")
        yield here.edited("duplicated", "surefoot_thread", row, [row, twin], added=True)


def swapped(campaign: Campaign, seed: int, count: int) -> Iterator[Edit]:
    """Two rows of a table exchange a column, within a thread or across threads."""
    here, chosen = _Rows(campaign), random.Random(seed)
    columns = {
        "surefoot_frame": ("head", "body", "last_seq", "thread_key", "head body"),
        "surefoot_value": ("digest", "body", "thread_key"),
        "surefoot_chunk": ("body", "ordinal", "log_id", "thread_key"),
        "surefoot_thread": ("thread", "tenant", "key"),
    }
    while count:
        table = chosen.choice([*columns, "surefoot_frame"])
        one = chosen.choice(here.of(table))
        near = chosen.random() < 0.5 and table != "surefoot_thread"
        other = chosen.choice(here.of(table, here.thread(table, one) if near else None))
        names = chosen.choice(columns[table]).split()
        first = dict(zip(COLUMNS[table], one, strict=True))
        second = dict(zip(COLUMNS[table], other, strict=True))
        changed = [n for n in names if first[n] != second[n]]
        moved_ = {n for n in names if n in KEYS[table] or n in ("thread", "tenant")}
        if one is other or not changed or (moved_ and _equal_but(first, second, moved_)):
            continue
        count -= 1
        now = [
            _with(table, one, **{n: second[n] for n in names}),
            _with(table, other, **{n: first[n] for n in names}),
        ]
        kept = [r for r in here.rows[table] if r is not one and r is not other]
        hit = {here.thread(table, r) for r in (one, other)}
        beyond = {
            here.thread(table, r) for r in (one, other) if here.place(table, r) is Place.BEYOND
        }
        needed = {
            here.thread(table, r) for r in (one, other) if here.place(table, r) is Place.NEEDED
        }
        yield Edit(
            f"swapped {' '.join(names)}: {table} of {sorted(hit)}",
            {table: [*kept, *now]},
            sorted(hit),
            frozenset(needed),
            cut=frozenset(beyond),
        )


def _equal_but(one: Mapping[str, Any], other: Mapping[str, Any], names: set[str]) -> bool:
    """Rows that differ only in what is exchanged: afterwards everything is as it was."""
    return all(one[n] == other[n] for n in one if n not in names)


def spliced(campaign: Campaign, seed: int, count: int) -> Iterator[Edit]:
    """The head of one frame with the body of another, of the same thread, a twin or a rival."""
    here, chosen = _Rows(campaign), random.Random(seed)
    while count:
        one, other = chosen.choices(here.of("surefoot_frame"), k=2)
        column = chosen.choice(["head", "body", "both"])
        values = {"head": {"head": other[4]}, "body": {"body": other[5]}}.get(
            column, {"head": other[4], "body": other[5]}
        )
        now = _with("surefoot_frame", one, **values)
        if now == one:
            continue
        count -= 1
        yield here.edited(f"spliced {column}", "surefoot_frame", one, [now])


def moved(campaign: Campaign) -> Iterator[Edit]:
    """Rows of another thread, tenant or incarnation stand where a thread's own rows stood."""
    here = _Rows(campaign)
    for source, target in (
        (("acme", "twin"), ("acme", "values")),
        (("rival", "values"), ("acme", "values")),
        (("acme", "copied"), ("acme", "values")),
        (("acme", "before-crash"), ("acme", "twin")),
        (("acme", "finished"), ("acme", "pruned")),
    ):
        yield from _moved(here, source, target)
    past = next(s for s in campaign.world.snapshots if s.step == "first life")
    key = here.key_of["acme", "reborn"]
    (old,) = [r for r in past.rows["surefoot_thread"] if r[2] == b"reborn"]
    life = [
        _with("surefoot_frame", r, thread_key=key)
        for r in past.rows["surefoot_frame"]
        if r[0] == old[0]
    ]
    others = [r for r in here.rows["surefoot_frame"] if r[0] != key]
    thread = ("acme", "reborn")
    yield Edit(
        "moved incarnation: all",
        {"surefoot_frame": [*others, *life]},
        [thread],
        frozenset({thread}),
    )


def _moved(here: _Rows, source: Thread, target: Thread) -> Iterator[Edit]:
    from_key, to_key = here.key_of[source], here.key_of[target]
    theirs, own = here.of("surefoot_frame", source), here.of("surefoot_frame", target)
    for row in theirs:
        there = _with("surefoot_frame", row, thread_key=to_key)
        kept = [r for r in here.rows["surefoot_frame"] if r[:3] != there[:3]]
        gone = [r for r in own if r[:3] == there[:3]]
        if gone == [there]:
            continue
        yield Edit(
            f"moved frame: from {source} to {target}",
            {"surefoot_frame": [*kept, there]},
            [source, target],
            frozenset({target}) if gone else frozenset(),
        )
    for name, rows in (
        ("all", [_with("surefoot_frame", r, thread_key=to_key) for r in theirs]),
        (
            "exchanged",
            [_with("surefoot_frame", r, thread_key=to_key) for r in theirs]
            + [_with("surefoot_frame", r, thread_key=from_key) for r in own],
        ),
    ):
        kept = [r for r in here.rows["surefoot_frame"] if r[0] not in (to_key, from_key)]
        yield Edit(
            f"moved frames: {name} from {source} to {target}",
            {"surefoot_frame": [*kept, *rows]},
            [source, target],
            frozenset({source, target}),
        )


def cut_out(campaign: Campaign) -> Iterator[Edit]:
    """Every record cut out of its frame, head and body; heads and bodies cut or lengthened."""
    here = _Rows(campaign)
    for row in here.of("surefoot_frame"):
        head, body = row[4], row[5]
        for changed in (head[:-1], head + b"\0", b""):
            now = _with("surefoot_frame", row, head=changed)
            yield here.edited("cut or lengthened", "surefoot_frame", row, [now])
        for changed in (body[:-1], body + b"\0", b"", body + body):
            now = _with("surefoot_frame", row, body=changed)
            yield here.edited("cut or lengthened", "surefoot_frame", row, [now])
        for head_now, body_now in _without_each_record(head, body):
            now = _with("surefoot_frame", row, head=head_now, body=body_now)
            yield here.edited("record cut out", "surefoot_frame", row, [now])


def _without_each_record(head: bytes, body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The frame without one of its records; the layout is that of format version 1."""
    first = 2 + head[1] + 32 + 8 + 2
    count = int.from_bytes(head[first - 2 : first], "big")
    size = 2 + 16 + 4 + 32
    at = 0
    for number in range(count):
        start = first + number * size
        length = int.from_bytes(head[start + 18 : start + 22], "big")
        if count > 1:
            shorter = head[: first - 2] + (count - 1).to_bytes(2, "big")
            shorter += head[first:start] + head[start + size :]
            yield shorter, body[:at] + body[at + length :]
        at += length


def retyped(campaign: Campaign, *, postgres: bool) -> Iterator[Edit]:
    """Every cell with a value of another type; needs tables without constraints."""
    here = _Rows(campaign)
    for table in ("surefoot_thread", *_KEY_HOLDERS):
        for row in here.of(table):
            for column, value in zip(COLUMNS[table], row, strict=True):
                for now in [None] if postgres else _other_types(value):
                    if now is None and value is None:
                        continue
                    edit = here.edited(
                        f"retyped {column}", table, row, [_with(table, row, **{column: now})]
                    )
                    same = isinstance(value, bytes) and now in (_as_text(value), value)
                    promised = PROMISES[table][column] is Promise.DETECTED and not same
                    yield Edit(
                        edit.name,
                        edit.tables,
                        edit.threads,
                        edit.detected if promised else frozenset(),
                        cut=edit.cut,
                    )


def _as_text(value: bytes) -> str | None:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _other_types(value: Any) -> list[Any]:
    """Values of every other storage class of SQLite, the same content where that is possible."""
    if isinstance(value, bytes):
        text = _as_text(value)
        return [None, len(value), 1.5, "text", *([] if text is None else [text])]
    if value is None:
        return [1, b"blob"]
    return [None, value + 0.5, f"{value}", f"{value}x", str(value).encode(), b""]


def twice_under_one_key(campaign: Campaign) -> Iterator[Edit]:
    """A changed row beside the genuine one, before it and after it; needs tables without keys."""
    here = _Rows(campaign)
    for table, column in (
        ("surefoot_frame", "head"),
        ("surefoot_frame", "body"),
        ("surefoot_value", "body"),
        ("surefoot_chunk", "body"),
        ("surefoot_thread", "head_digest"),
    ):
        for row in here.of(table):
            named = dict(zip(COLUMNS[table], row, strict=True))
            raw = bytearray(named[column])
            raw[len(raw) // 2] ^= 1
            forged = _with(table, row, **{column: bytes(raw)})
            kept = [r for r in here.rows[table] if r is not row]
            for now in ([forged, *kept, row], [row, *kept, forged]):
                thread = here.thread(table, row)
                cut = {thread} if here.place(table, row) is Place.BEYOND else ()
                name = f"twice under one key: {table} of {thread}"
                yield Edit(name, {table: now}, [thread], cut=frozenset(cut))


# --- put back -----------------------------------------------------------------------------------


def put_back(campaign: Campaign) -> Iterator[Edit]:
    """The whole store as it was after each earlier step, and each thread alone as it was then."""
    now = campaign.world.snapshots[-1]
    tables = [t for t in COLUMNS if t != "surefoot_migration"]
    for past in campaign.world.snapshots[:-1]:
        same = {t for t in now.marks if _served_alike(past.marks.get(t), now.marks[t])}
        dead = {t for t, mark in now.marks.items() if mark.state == "tombstone"}
        yield Edit(
            f"put back: to {past.step}",
            {t: past.rows[t] for t in tables},
            None,
            frozenset(now.marks.keys() - same - dead),
            unharmed=frozenset(same | dead),
        )


def _served_alike(past: Any, now: Any) -> bool:
    """The thread has not moved since: putting it back changes nothing of it."""
    return past is not None and (past.incarnation, past.seq, past.digest, past.state) == (
        now.incarnation,
        now.seq,
        now.digest,
        now.state,
    )


def subsets(campaign: Campaign, seed: int, count: int, step: int) -> Iterator[Edit]:
    """Prefixes of the store in the order of its rows, every ``step``th, and random subsets."""
    tables = [t for t in COLUMNS if t not in ("surefoot_migration", "surefoot_run")]
    every = [(t, row) for t in tables for row in campaign.rows[t]]
    every.sort(key=lambda item: (item[1][0], tables.index(item[0])))
    chosen = random.Random(seed)
    for size in range(0, len(every), step):
        yield _subset(campaign, f"prefix: of {size}", every[:size], tables)
    for number in range(count):
        share = chosen.choice([0.5, 0.9, 0.97, 0.99])
        kept = [item for item in every if chosen.random() < share]
        if len(kept) < len(every):
            yield _subset(campaign, f"subset: {number}", kept, tables)


def _subset(
    campaign: Campaign, name: str, kept: Sequence[tuple[str, Row]], tables: Sequence[str]
) -> Edit:
    """Whoever lacks a needed row is refused; the others are served."""
    here = _Rows(campaign)
    rows: dict[str, list[Row]] = {table: [] for table in tables}
    for table, row in kept:
        rows[table].append(row)
    held = {id(row) for _, row in kept}
    lacking: set[Thread] = set()
    cut: set[Thread] = set()
    for table in tables:
        for row in campaign.rows[table]:
            if id(row) not in held:
                needed = here.place(table, row) is Place.NEEDED
                (lacking if needed else cut).add(here.thread(table, row))
    return Edit(
        name,
        rows,
        None,
        frozenset(lacking),
        cut=frozenset(cut),
        unharmed=frozenset({*campaign.world.threads()} - lacking - cut),
    )
