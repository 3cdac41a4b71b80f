"""What every content store does. One suite, all drivers."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.store.conftest import (
    FailingCommit,
    Place,
    digest_of,
    full_step,
    head,
    step,
    together,
)

from surefoot.config import Limits
from surefoot.errors import (
    Busy,
    Closed,
    MigrationRefused,
    NotSetUp,
    OutcomeUnknown,
    StoreUnavailable,
)
from surefoot.ports import (
    Append,
    ChunkRow,
    ContentStore,
    FrameRow,
    HeadRow,
    Kept,
    LogRef,
    StoredValues,
)
from surefoot.store import records, sqlite
from surefoot.store.statements import load_migrations, load_statements

Chain = Callable[..., int]

CALLS: dict[str, Callable[[ContentStore], object]] = {
    "read_thread": lambda s: s.read_thread("t", "x"),
    "read_newest": lambda s: s.read_newest("t", "x", limit=1),
    "find_checkpoint": lambda s: s.find_checkpoint(1, bytes(8)),
    "read_heads": lambda s: s.read_heads(1, from_seq=1),
    "read_frames": lambda s: s.read_frames(1, [(1, 1)]),
    "read_values": lambda s: s.read_values(1, [bytes(32)], []),
    "append": lambda s: s.append(full_step(1, after=None)),
    "append next": lambda s: s.append(full_step(2, after=head(1))),
    "append within": lambda s: s.append_within(lambda _: full_step(1, after=None)),
    "collect": lambda s: s.collect(1, Kept(head(1), [], 1, [], {})),
    "delete_thread": lambda s: s.delete_thread(1),
    "threads": lambda s: s.threads("t"),
    "threads_of_runs": lambda s: s.threads_of_runs("t", ["r"]),
    "threads_with_open": lambda s: s.threads_with_open("t"),
}

#: What a worker of the first release stores of a thread, without its frame.
INSERT_OF_THE_FIRST_RELEASE = (
    "INSERT INTO surefoot_thread (tenant, thread, incarnation, head_seq, head_epoch, head_digest,"
    " created_us, updated_us) VALUES (?, ?, 1, 1, 1, ?, 0, 0)"
)


# --- setting up -----------------------------------------------------------------------------


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_without_tables_every_call_says_so(
    place: Place, call: Callable[[ContentStore], object]
) -> None:
    with pytest.raises(NotSetUp):
        call(place.open())


def test_verifying_creates_nothing(place: Place) -> None:
    store = place.open()
    if place.dialect == "sqlite":
        with pytest.raises(NotSetUp, match="does not exist"):
            store.setup(verify_only=True)
        assert not Path(place.target).exists()
        Path(place.target).touch()
    for _ in range(2):
        with pytest.raises(NotSetUp, match="0001_initial"):
            store.setup(verify_only=True)


def test_setup_may_be_repeated(place: Place) -> None:
    first, second = place.open(), place.open()
    first.setup()
    assert first.append(step(1)) is not None
    for store in (first, second):
        store.setup()
        store.setup(verify_only=True)
        store.check_durability()
    assert second.read_thread("tenant", "thread") is not None


def test_eight_processes_set_up_at_once(place: Place) -> None:
    assert together([place.child("setup") for _ in range(8)]) == ["done\n"] * 8
    place.open().setup(verify_only=True)


def test_a_changed_migration_is_refused(place: Place) -> None:
    store = place.ready()
    place.execute("UPDATE surefoot_migration SET digest = ?", bytes(32))
    for verify_only in (True, False):
        with pytest.raises(MigrationRefused, match="0001_initial"):
            store.setup(verify_only=verify_only)


def test_a_newer_database_is_refused(place: Place) -> None:
    store = place.ready()
    number = len(load_migrations(place.dialect)) + 1
    place.execute("INSERT INTO surefoot_migration VALUES (?, 'x', ?, 0)", number, bytes(32))
    for verify_only in (True, False):
        with pytest.raises(MigrationRefused, match="newer release"):
            store.setup(verify_only=verify_only)


def test_a_lost_table_is_refused(place: Place) -> None:
    store = place.ready()
    place.execute("DROP TABLE surefoot_value")
    with pytest.raises(MigrationRefused, match="surefoot_value"):
        store.setup()


def test_tables_without_a_record_are_refused(place: Place) -> None:
    store = place.ready()
    place.execute("DROP TABLE surefoot_migration")
    with pytest.raises(MigrationRefused, match="surefoot_thread"):
        store.setup()


def test_a_failed_migration_leaves_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    store = place.open()

    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(records, "record_migration", fail)
        with pytest.raises(KeyboardInterrupt):
            store.setup()
    with pytest.raises(NotSetUp):
        store.setup(verify_only=True)
    store.setup()
    store.setup(verify_only=True)


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_statements_are_explained_and_shared(dialect: str) -> None:
    own = {"sqlite", "postgres"} - {dialect}
    here, there = load_statements(dialect), load_statements(own.pop())
    assert len(here) > 20
    assert all(len(statement.explanation) > 10 for statement in here.values())
    reads = {name for name in here if name.startswith(("read_", "find_", "threads"))}
    assert reads - {"read_durability"} <= set(there)


# --- appending ------------------------------------------------------------------------------


def test_what_was_appended_comes_back(store: ContentStore) -> None:
    key = store.append(full_step(1, after=None, incarnation=3))
    assert key is not None
    assert store.append(full_step(2, after=head(1))) == key
    row, frames = store.read_newest("tenant", "thread", limit=10)
    assert row is not None
    assert row == store.read_thread("tenant", "thread")
    assert (row.key, row.tenant, row.thread, row.incarnation) == (key, "tenant", "thread", 3)
    assert row.head == head(2)
    assert row.updated_us > 1_700_000_000_000_000
    assert list(frames) == [
        FrameRow(2, 1, b"head 2", b"body 2"),
        FrameRow(1, 1, b"head 1", b"body 1"),
    ]
    assert store.read_values(key, [digest_of(2, 77)], [LogRef(2, 1)]) == StoredValues(
        {digest_of(2, 77): b"value 2"}, {2: (b"own log",)}, {2: 1}
    )
    assert store.find_checkpoint(key, (2).to_bytes(8, "big")) == ((2, 1),)
    assert store.threads_of_runs("tenant", ["run 2"]) == ("thread",)


@pytest.mark.parametrize(
    "expected",
    [
        None,
        HeadRow(1, 1, digest_of(1)),
        HeadRow(2, 2, digest_of(2)),
        HeadRow(2, 1, digest_of(1)),
        HeadRow(3, 1, digest_of(3)),
    ],
    ids=["no row", "older seq", "other epoch", "other digest", "newer seq"],
)
def test_an_unexpected_head_row_stores_nothing_at_all(
    place: Place, store: ContentStore, chain: Chain, expected: HeadRow | None
) -> None:
    chain(2, make=full_step)
    before = place.contents()
    assert store.append(full_step(9, after=expected)) is None
    assert place.contents() == before


def test_a_head_row_that_is_expected_but_missing_stores_nothing(
    place: Place, store: ContentStore
) -> None:
    assert store.append(full_step(2, after=head(1))) is None
    assert set(place.counts().values()) == {0}


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (step(2, after=head(1), chunks=[ChunkRow(1, 1, b"other")]), "list chunk"),
        (step(2, after=head(1), chunks=[ChunkRow(5, 0, b"a"), ChunkRow(5, 0, b"a")]), "list chunk"),
        (step(1, after=head(1)), "frame"),
    ],
    ids=["chunk exists", "chunk twice", "frame exists"],
)
def test_what_exists_is_an_error_and_nothing_is_stored(
    place: Place, store: ContentStore, chain: Chain, second: Append, reason: str
) -> None:
    chain(1, make=full_step)
    before = place.contents()
    with pytest.raises(StoreUnavailable, match=f"a {reason} with this number exists already"):
        store.append(second)
    assert place.contents() == before
    assert store.append(full_step(2, after=head(1))) is not None


def test_known_values_and_runs_are_left_alone(place: Place, store: ContentStore) -> None:
    values = [(b"d" * 32, b"first"), (b"d" * 32, b"first")]
    key = store.append(step(1, values=values, run_ids=["r", "r"]))
    assert key is not None
    again = step(2, after=head(1), values=[(b"d" * 32, b"second")], run_ids=["r"])
    assert store.append(again) == key
    assert store.read_values(key, [b"d" * 32], []).values == {b"d" * 32: b"first"}
    assert place.counts()["run"] == 1


def test_large_and_empty_bytes(store: ContentStore) -> None:
    large = bytes(range(256)) * 40_960  # 10 MB
    key = store.append(
        step(
            1,
            body=large,
            values=[(b"d" * 32, large), (b"e" * 32, b"")],
            chunks=[ChunkRow(1, 0, b"")],
        )
    )
    assert key is not None
    assert store.read_frames(key, [(1, 1)])[0].body == large
    stored = store.read_values(key, [b"d" * 32, b"e" * 32], [LogRef(1, 1)])
    assert stored.values == {b"d" * 32: large, b"e" * 32: b""}
    assert stored.chunks == {1: (b"",)}


IDS = {
    "nul": "a\0b",
    "surrogate": "a\ud800b",
    "quotes": 'it\'s "quoted" `x` \\ %s %(x)s :x ?',
    "sql": "'; DROP TABLE surefoot_thread; --",
    "emoji": "🦶 ñ",
    "empty": "",
    "10 kB": "".join(chr(33 + (i * 7919) % 9000) for i in range(10_000)),
}


@pytest.mark.parametrize("text", IDS.values(), ids=IDS)
def test_ids_may_be_anything(store: ContentStore, text: str) -> None:
    key = store.append(full_step(1, after=None, tenant=text, thread=text))
    runs = step(2, after=head(1), tenant=text, thread=text, run_ids=[text])
    assert key is not None
    assert store.append(runs) == key
    assert store.append(step(1, tenant=text, thread=text + "x")) not in {None, key}
    row, frames = store.read_newest(text, text, limit=5)
    assert row is not None
    assert (row.tenant, row.thread, len(frames)) == (text, text, 2)
    assert [r.thread for r in store.threads(text)] == [text, text + "x"]
    assert store.threads_of_runs(text, [text]) == (text,)
    assert store.read_thread(text + "x", text) is None


def test_tenant_and_thread_are_not_mixed_up(store: ContentStore) -> None:
    keys = [
        store.append(step(1, tenant=tenant, thread=thread))
        for tenant, thread in [("a", "bc"), ("ab", "c"), ("", "abc"), ("abc", "")]
    ]
    assert len(set(keys)) == 4


def test_eight_writers_one_winner_per_seq(place: Place, store: ContentStore) -> None:
    writers, last = 8, 20
    assert store.append(step(1)) is not None
    start = threading.Barrier(writers)

    def write(number: int) -> list[int]:
        won = []
        own = place.open() if number % 2 else store
        for seq in range(2, last + 1):
            start.wait()
            mine = HeadRow(seq, 1, digest_of(seq, number))
            row = own.read_thread("tenant", "thread")
            start.wait()
            assert row is not None
            frame = FrameRow(seq, 1, b"head", b"by %d" % number)
            if own.append(Append("tenant", "thread", 1, row.head, mine, frame)) is not None:
                won.append(seq)
        return won

    with ThreadPoolExecutor(writers) as pool:
        wins = [seq for won in pool.map(write, range(writers)) for seq in won]
    assert sorted(wins) == list(range(2, last + 1))
    assert place.counts()["frame"] == last


def test_eight_first_writers_one_winner(place: Place) -> None:
    stores = [place.ready() for _ in range(8)]
    start = threading.Barrier(8)

    def write(store: ContentStore) -> int | None:
        start.wait()
        return store.append(full_step(1, after=None))

    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(write, stores))
    assert len([key for key in keys if key is not None]) == 1
    assert place.counts()["frame"] == 1


def test_readers_go_on_while_others_write(store: ContentStore, chain: Chain) -> None:
    """Every answer is of one moment: the newest frame is the head row's."""
    chain(1)
    done = threading.Event()

    def read() -> int:
        count = 0
        while not done.is_set() or count == 0:
            row, frames = store.read_newest("tenant", "thread", limit=2)
            assert row is not None
            assert frames[0].last_seq == row.head.seq
            count += 1
        return count

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read) for _ in range(4)]
        try:
            for seq in range(2, 60):
                assert store.append(step(seq, after=head(seq - 1))) is not None
        finally:
            done.set()
        assert all(reader.result() for reader in readers)


def test_an_interrupt_rolls_back(sqlite_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    store = sqlite_place.ready()
    insert_frame = records.insert_frame

    def interrupted(*arguments: object) -> None:
        insert_frame(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(records, "insert_frame", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.append(full_step(1, after=None))
    assert set(sqlite_place.counts().values()) == {0}
    assert store.append(full_step(1, after=None)) is not None


# --- together with a caller's statements -----------------------------------------------------


class Boom(Exception):
    """What a caller's work raises."""


class Booking:
    """A table of the caller's own in the same database."""

    def __init__(self, place: Place) -> None:
        self.place = place
        place.execute("CREATE TABLE book (amount BIGINT)")
        self.table = "book" if place.schema is None else f"{place.schema}.book"

    def insert(self, connection: Any, amount: int = 7) -> None:
        connection.execute(f"INSERT INTO {self.table} VALUES ({amount})")

    def work(self, append: Append) -> Callable[[Any], Append]:
        """Books, then says what to append."""

        def run(connection: Any) -> Append:
            self.insert(connection)
            return append

        return run

    @property
    def amounts(self) -> list[int]:
        return [amount for (amount,) in self.place.execute("SELECT amount FROM book")]


@pytest.fixture
def booking(place: Place, store: ContentStore) -> Booking:
    assert store
    return Booking(place)


def test_a_callers_rows_and_an_append_are_one(
    place: Place, store: ContentStore, booking: Booking
) -> None:
    seen: list[list[int]] = []

    def work(connection: Any) -> Append:
        booking.insert(connection)
        seen.append(booking.amounts)
        return full_step(1, after=None)

    key = store.append_within(work)
    assert key is not None
    assert seen == [[]], "others see the rows only with the record"
    assert booking.amounts == [7]
    assert store.append_within(booking.work(full_step(2, after=head(1)))) == key
    assert booking.amounts == [7, 7]
    row, frames = store.read_newest("tenant", "thread", limit=5)
    assert row is not None
    assert (row.key, row.head) == (key, head(2))
    assert [frame.last_seq for frame in frames] == [2, 1]
    together_stored = place.counts()
    assert together_stored == {"thread": 1, "frame": 2, "value": 2, "chunk": 4, "run": 2}


@pytest.mark.parametrize(
    "refused",
    [
        full_step(2, after=None),
        full_step(2, after=head(9)),
        full_step(2, after=head(1, epoch=2)),
    ],
    ids=["as the first", "after another", "of another epoch"],
)
def test_a_refusal_by_the_gate_undoes_the_callers_rows(
    place: Place, store: ContentStore, booking: Booking, refused: Append
) -> None:
    store.append(full_step(1, after=None))
    before = place.contents()
    assert store.append_within(booking.work(refused)) is None
    assert (booking.amounts, place.contents()) == ([], before)
    assert store.append_within(booking.work(full_step(2, after=head(1)))) is not None
    assert booking.amounts == [7]


@pytest.mark.parametrize("error", [Boom("x"), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_what_the_work_raises_undoes_everything_and_is_raised_as_it_is(
    place: Place, store: ContentStore, booking: Booking, error: BaseException
) -> None:
    def work(connection: Any) -> Append:
        booking.insert(connection)
        raise error

    with pytest.raises(type(error)) as raised:
        store.append_within(work)
    assert raised.value is error
    assert (booking.amounts, set(place.counts().values())) == ([], {0})
    assert store.append_within(booking.work(full_step(1, after=None))) is not None


def test_an_error_of_the_database_is_the_callers(
    place: Place, store: ContentStore, booking: Booking
) -> None:
    def work(connection: Any) -> Append:
        booking.insert(connection)
        connection.execute("INSERT INTO no_such_table VALUES (1)")
        raise AssertionError

    with pytest.raises((sqlite3.Error, psycopg.Error), match="no_such_table"):
        store.append_within(work)
    assert (booking.amounts, set(place.counts().values())) == ([], {0})
    assert store.append(full_step(1, after=None)) is not None


@contextmanager
def lost_commits(place: Place) -> Iterator[None]:
    """Gets no answer once all is sent: a broken disk, or a server process that dies of it."""
    if place.dialect == "sqlite":
        taken = sqlite._Connections.take
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(
                sqlite._Connections, "take", lambda *a, **k: FailingCommit(taken(*a, **k))
            )
            yield
        return
    place.execute(
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$"
    )
    place.execute(
        "CREATE CONSTRAINT TRIGGER dying AFTER INSERT ON surefoot_frame DEFERRABLE "
        "INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()"
    )
    yield
    place.execute("DROP TRIGGER dying ON surefoot_frame")


def test_a_lost_reply_of_the_commit_is_an_unknown_outcome(
    place: Place, store: ContentStore, booking: Booking
) -> None:
    """Nobody here knows whether it is stored; the caller reads back. The work runs only once."""
    ran: list[int] = []

    def work(connection: Any) -> Append:
        ran.append(1)
        booking.insert(connection)
        return full_step(1, after=None)

    with lost_commits(place), pytest.raises(OutcomeUnknown, match="append_within"):
        store.append_within(work)
    assert ran == [1]
    assert store.read_thread("tenant", "thread") is None
    assert booking.amounts == []
    assert store.append_within(work) is not None
    assert booking.amounts == [7]


def test_of_a_race_of_callers_only_the_winners_rows_stay(place: Place, booking: Booking) -> None:
    stores = [place.open() for _ in range(4)]
    start = threading.Barrier(4)

    def write(number: int) -> int | None:
        start.wait(30)

        def work(connection: Any) -> Append:
            booking.insert(connection, number)
            return full_step(1, after=None, body=b"of %d" % number)

        return stores[number].append_within(work)

    with ThreadPoolExecutor(4) as pool:
        won = [number for number, key in enumerate(pool.map(write, range(4))) if key is not None]
    assert len(won) == 1
    assert booking.amounts == won
    _, (frame,) = stores[0].read_newest("tenant", "thread", limit=5)
    assert frame.body == b"of %d" % won[0]


# --- reading --------------------------------------------------------------------------------


def test_nothing_is_there(store: ContentStore) -> None:
    assert store.read_thread("tenant", "thread") is None
    assert store.read_newest("tenant", "thread", limit=3) == (None, ())
    assert store.find_checkpoint(1, bytes(8)) == ()
    assert store.read_heads(1, from_seq=0) == ()
    assert store.read_frames(1, [(1, 1)]) == ()
    assert store.read_values(1, [bytes(32)], [LogRef(1, 2)]) == StoredValues({}, {1: ()}, {})
    assert store.threads("tenant") == ()
    assert store.threads_of_runs("tenant", ["run"]) == ()


def test_nothing_is_asked_for(store: ContentStore, chain: Chain) -> None:
    key = chain(1, make=full_step)
    assert store.read_frames(key, []) == ()
    assert store.read_values(key, [], []) == StoredValues({}, {}, {})
    assert store.threads_of_runs("tenant", []) == ()


def test_newest_frames_are_paged(store: ContentStore, chain: Chain) -> None:
    chain(7)
    row, frames = store.read_newest("tenant", "thread", limit=3)
    assert [frame.last_seq for frame in frames] == [7, 6, 5]
    row, frames = store.read_newest("tenant", "thread", limit=3, below_seq=5)
    assert [frame.last_seq for frame in frames] == [4, 3, 2]
    row, frames = store.read_newest("tenant", "thread", limit=3, below_seq=2)
    assert [frame.last_seq for frame in frames] == [1]
    row, frames = store.read_newest("tenant", "thread", limit=3, below_seq=1)
    assert frames == ()
    assert row is not None
    assert row.head == head(7)


def test_siblings_are_never_split(store: ContentStore, chain: Chain) -> None:
    chain(3)
    at = head(3)
    for epoch in (2, 3, 4):  # three writers that each begin again after seq 1
        sibling = step(2, after=at, epoch=epoch)
        assert store.append(sibling) is not None
        at = sibling.head
    for limit, expected in {
        1: [(3, 1)],
        2: [(3, 1), (2, 4), (2, 3), (2, 2), (2, 1)],
        4: [(3, 1), (2, 4), (2, 3), (2, 2), (2, 1)],
        5: [(3, 1), (2, 4), (2, 3), (2, 2), (2, 1)],
        6: [(3, 1), (2, 4), (2, 3), (2, 2), (2, 1), (1, 1)],
    }.items():
        _, frames = store.read_newest("tenant", "thread", limit=limit)
        assert [(f.last_seq, f.epoch) for f in frames] == expected
    _, frames = store.read_newest("tenant", "thread", limit=1, below_seq=3)
    assert [(f.last_seq, f.epoch) for f in frames] == [(2, 4), (2, 3), (2, 2), (2, 1)]


@pytest.mark.parametrize("hash8", [bytes(8), b"\xff" * 8, b"\x80" + bytes(7), b"12345678"])
def test_checkpoints_are_found_newest_first(store: ContentStore, hash8: bytes) -> None:
    key = store.append(step(1, checkpoint_hash=hash8))
    assert key is not None
    store.append(step(2, after=head(1)))
    store.append(step(3, after=head(2), checkpoint_hash=hash8))
    store.append(step(4, after=head(3), checkpoint_hash=b"87654321"))
    assert store.find_checkpoint(key, hash8) == ((3, 1), (1, 1))
    assert store.find_checkpoint(key + 1, hash8) == ()


def test_heads_come_without_bodies(store: ContentStore, chain: Chain) -> None:
    key = chain(5)
    heads = store.read_heads(key, from_seq=2, to_seq=4)
    assert list(heads) == [FrameRow(seq, 1, b"head %d" % seq, None) for seq in (4, 3, 2)]
    assert [row.last_seq for row in store.read_heads(key, from_seq=4)] == [5, 4]


def test_named_frames(store: ContentStore, chain: Chain) -> None:
    key = chain(5)
    frames = store.read_frames(key, [(2, 1), (9, 1), (4, 1), (2, 1), (3, 2)])
    assert [(f.last_seq, f.body) for f in frames] == [(4, b"body 4"), (2, b"body 2")]


def test_chunks_of_logs(place: Place, store: ContentStore) -> None:
    chunks = [ChunkRow(log, n, b"%d/%d" % (log, n)) for log in (1, 2, 3) for n in range(4)]
    key = store.append(step(1, chunks=chunks))
    assert key is not None
    stored = store.read_values(
        key, [], [LogRef(1, 2), LogRef(2, 9), LogRef(7, 1), LogRef(1, 3), LogRef(3, 0)]
    )
    assert stored.chunks == {
        1: (b"1/0", b"1/1", b"1/2"),
        2: (b"2/0", b"2/1", b"2/2", b"2/3"),
        3: (),
        7: (),
    }
    assert stored.tips == {1: 4, 2: 4, 3: 4}
    place.execute("DELETE FROM surefoot_chunk WHERE log_id = 2 AND ordinal = 1")
    stored = store.read_values(key, [], [LogRef(2, 4)])
    assert stored.chunks == {2: (b"2/0",)}, "what follows a gap has another place in the list"
    assert stored.tips == {2: 4}


def test_many_values_at_once(store: ContentStore) -> None:
    values = [(digest_of(n), b"%d" % n) for n in range(3_000)]
    key = store.append(step(1, values=values))
    assert key is not None
    asked = [digest for digest, _ in values] + [b"x" * 32]
    assert store.read_values(key, asked, []).values == dict(values)
    assert store.read_values(key + 1, asked, []).values == {}


def test_threads_are_paged_by_key(store: ContentStore, chain: Chain) -> None:
    keys = [chain(1, thread=f"t{n}") for n in range(5)]
    chain(1, thread="t9", tenant="other")
    chain(3, thread="t5")
    assert keys == sorted(keys)
    first = store.threads("tenant", limit=3)
    assert [row.thread for row in first] == ["t0", "t1", "t2"]
    rest = store.threads("tenant", after_key=first[-1].key)
    assert [(row.thread, row.head.seq) for row in rest] == [("t3", 1), ("t4", 1), ("t5", 3)]
    assert rest[-1] == store.read_thread("tenant", "t5")


def test_threads_that_may_have_an_open_effect(store: ContentStore) -> None:
    for number in range(6):
        opened = step(1, thread=f"t{number}", has_open=number % 2 == 0)
        assert store.append(opened) is not None
    assert store.append(step(1, thread="t9", tenant="other", has_open=True)) is not None
    first = store.threads_with_open("tenant", limit=2)
    assert [row.thread for row in first] == ["t0", "t2"]
    rest = store.threads_with_open("tenant", after_key=first[-1].key)
    assert [row.thread for row in rest] == ["t4"]
    assert rest[0] == store.read_thread("tenant", "t4")
    for thread, has_open in {"t0": False, "t1": True}.items():
        later = step(2, after=head(1), thread=thread, has_open=has_open)
        assert store.append(later) is not None
    found = store.threads_with_open("tenant")
    assert [row.thread for row in found] == ["t1", "t2", "t4"]


def test_threads_of_an_earlier_release_may_have_an_open_effect(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was stored before the hint says nothing: it is looked at until it is written again."""
    with monkeypatch.context() as earlier:
        first = load_migrations(place.dialect)[:1]
        earlier.setattr("surefoot.store.migrate.load_migrations", lambda _: first)
        place.open().setup()
    place.execute(INSERT_OF_THE_FIRST_RELEASE, b"tenant", b"old", head(1).digest)
    store = place.open()
    with pytest.raises(NotSetUp, match="0002_open_effects"):
        store.setup(verify_only=True)
    store.setup()
    (row,) = store.threads_with_open("tenant")
    assert (row.thread, row.head) == ("old", head(1))
    # Its workers may still be at work beside those of this release.
    place.execute(INSERT_OF_THE_FIRST_RELEASE, b"tenant", b"new", head(1).digest)
    assert [r.thread for r in store.threads_with_open("tenant")] == ["old", "new"]
    assert store.append(step(2, after=head(1), thread="old", has_open=False)) is not None
    assert [r.thread for r in store.threads_with_open("tenant")] == ["new"]


def test_threads_of_runs(store: ContentStore) -> None:
    for thread, runs in {"a": ["1", "2"], "b": ["2"], "c": ["3"]}.items():
        assert store.append(step(1, thread=thread, run_ids=runs)) is not None
    assert store.append(step(1, thread="d", tenant="other", run_ids=["2"])) is not None
    assert store.threads_of_runs("tenant", ["2"]) == ("a", "b")
    assert store.threads_of_runs("tenant", ["1", "3", "3", "4"]) == ("a", "c")
    assert store.threads_of_runs("other", ["1", "2"]) == ("d",)


def test_columns_of_another_type_reach_the_seals(place: Place, store: ContentStore) -> None:
    """The database is not trusted: what is no bytes is read as bytes that verify nowhere."""
    assert store.append(full_step(1, after=None)) is not None
    if place.dialect == "sqlite":
        place.execute("UPDATE surefoot_frame SET head = 'text', body = 1.5")
        place.execute("UPDATE surefoot_thread SET head_seq = 'many', head_digest = 'text'")
    else:
        place.execute("ALTER TABLE surefoot_frame ALTER head TYPE text USING 'text'")
        place.execute("ALTER TABLE surefoot_frame ALTER body TYPE float USING 1.5")
        place.execute("ALTER TABLE surefoot_thread ALTER head_seq TYPE text USING 'many'")
        place.execute("ALTER TABLE surefoot_thread ALTER head_digest TYPE text USING 'text'")
    row, frames = store.read_newest("tenant", "thread", limit=1)
    assert row is not None
    assert row.head.seq == -1
    assert isinstance(row.head.digest, bytes)
    assert isinstance(frames[0].head, bytes)
    assert isinstance(frames[0].body, bytes)


# --- deleting -------------------------------------------------------------------------------


def test_collecting_keeps_what_it_is_told_to(
    place: Place, store: ContentStore, chain: Chain
) -> None:
    key = chain(6, make=full_step)
    other = chain(6, make=full_step, thread="other")
    before = store.read_newest("tenant", "other", limit=9)
    store.collect(
        key,
        Kept(
            head=head(6),
            frames=[(2, 1), (4, 9)],
            above_seq=4,
            values=[digest_of(2, 77), digest_of(6, 77)],
            logs={1: 4, 6: 1, 99: 3},
        ),
    )
    _, frames = store.read_newest("tenant", "thread", limit=9)
    assert [frame.last_seq for frame in frames] == [6, 5, 2]
    digests = [digest_of(n, 77) for n in range(1, 7)]
    assert set(store.read_values(key, digests, []).values) == {digest_of(2, 77), digest_of(6, 77)}
    ordinals = "SELECT log_id, ordinal FROM surefoot_chunk WHERE thread_key = ? ORDER BY 1, 2"
    assert [tuple(r) for r in place.execute(ordinals, key)] == [(1, n) for n in range(4)] + [(6, 0)]
    assert store.read_newest("tenant", "other", limit=9) == before
    assert set(store.read_values(other, digests, []).values) == set(digests)
    assert store.append(full_step(7, after=head(6))) == key


def test_collecting_everything(place: Place, store: ContentStore, chain: Chain) -> None:
    key = chain(3, make=full_step)
    assert store.collect(key, Kept(head(3), [], 3, [], {})) is True
    assert place.counts() == {"thread": 1, "frame": 0, "value": 0, "chunk": 0, "run": 3}


def test_nothing_is_collected_behind_a_head_that_has_moved(
    place: Place, store: ContentStore, chain: Chain
) -> None:
    """Whoever wrote since may refer to rows that the plan of the collection does not know."""
    key = chain(3, make=full_step)
    before = place.counts()
    for stale in (head(2), replace(head(3), epoch=2), replace(head(3), digest=bytes(32))):
        assert store.collect(key, Kept(stale, [], 3, [], {})) is False
    assert place.counts() == before


def test_a_deleted_thread_is_gone_and_its_key_is_never_given_again(
    place: Place, store: ContentStore, chain: Chain
) -> None:
    other = chain(2, make=full_step, thread="other")
    key = chain(2, make=full_step)
    store.delete_thread(key)
    assert store.read_thread("tenant", "thread") is None
    assert place.counts() == {"thread": 1, "frame": 2, "value": 2, "chunk": 4, "run": 2}
    assert store.append(step(3, after=head(2))) is None
    born = store.append(step(1, incarnation=2))
    assert born is not None
    assert born > max(key, other)
    row = store.read_thread("tenant", "thread")
    assert row is not None
    assert row.incarnation == 2
    store.delete_thread(key)  # once more, and of nothing
    assert store.read_thread("tenant", "thread") == row


@contextmanager
def held_migration_lock(place: Place) -> Iterator[None]:
    if place.dialect == "sqlite":
        lite = sqlite3.connect(place.target, isolation_level=None)
        lite.execute("PRAGMA journal_mode = WAL")
        lite.execute("BEGIN IMMEDIATE")
        yield
        lite.close()
        return
    asked: list[int] = []

    def refuse(_: object, lock: int) -> bool:
        asked.append(lock)
        return False

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(records, "try_migration_lock", refuse)
        with pytest.raises(Busy):
            place.open(Limits(lock_timeout_ms=1)).setup()
    with psycopg.connect(place.target) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (asked[0],))
        yield


# --- lifetime -------------------------------------------------------------------------------


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_closed_store_says_so(place: Place, call: Callable[[ContentStore], object]) -> None:
    store = place.ready()
    store.append(step(1))
    store.close()
    with pytest.raises(Closed):
        call(store)
    store.close()


def test_a_forked_child_uses_connections_of_its_own(place: Place) -> None:
    place.ready()
    assert together([place.child("fork")]) == ["0 2\n"]
    assert place.counts()["frame"] == 7


def test_a_migration_lock_that_is_held_is_busy(place: Place) -> None:
    """The lock is asked for and not got, so nothing goes on without it."""
    store = place.open(Limits(lock_timeout_ms=200))
    with held_migration_lock(place), pytest.raises(Busy):
        store.setup()
    with pytest.raises(NotSetUp):
        store.setup(verify_only=True)
    store.setup()
