"""A primary dies before its replica has everything: what was acknowledged and is lost is refused.

Two real servers: a primary, and an asynchronous streaming replica that follows it over a wire.
The wire is cut, threads go on, the primary is killed with SIGKILL, the replica is promoted and
becomes the content store. The high-water store lives on a third server, or in a file, and keeps
what it was told. ``SUREFOOT_FAILOVERS`` sets how often that happens (1 by default).
"""

from __future__ import annotations

import io
import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres import Cluster, fresh_database, with_parts
from tests.storage_faults.errand import CHARGES, Errand, Stores, Walk, no_alarm, walked
from tests.storage_faults.wire import Wire

from surefoot import Keyring, SurefootSaver
from surefoot.errors import RollbackDetected, Unavailable
from surefoot.signing import Reviewers, SigningKey
from surefoot.testing.faults import Died, Fault, Plan, bury, with_faults

pytestmark = pytest.mark.postgres
ROUNDS = int(os.environ.get("SUREFOOT_FAILOVERS", "1"))
#: Threads of each kind in one failover.
EACH = 2 if ROUNDS == 1 else 6


class Pair:
    """A primary and its replica, with a wire between them."""

    def __init__(self, stack: ExitStack, primary: Cluster | None = None) -> None:
        self.primary = primary or Cluster()
        if primary is None:
            stack.callback(self.primary.remove)
        self.wire = Wire(self.primary.url, tcp=True)
        stack.callback(self.wire.close)
        self.replica = Cluster(replica_of=with_parts(self.wire.url, dbname=None))
        stack.callback(self.replica.remove)

    def catch_up(self) -> None:
        """Waits until the replica has everything that is committed now."""
        with (
            psycopg.connect(self.primary.url, autocommit=True) as here,
            psycopg.connect(self.replica.url, autocommit=True) as there,
        ):
            (target,) = here.execute("SELECT pg_current_wal_flush_lsn()").fetchone() or ("",)
            behind = "SELECT pg_last_wal_replay_lsn() < %s::pg_lsn"
            while there.execute(behind, (target,)).fetchone() != (False,):
                continue

    def cut(self) -> None:
        """Nothing reaches the replica any more."""
        self.wire.cut(lasting=True)
        with psycopg.connect(self.primary.url, autocommit=True) as here:
            following = "SELECT count(*) FROM pg_stat_replication"
            while here.execute(following).fetchone() != (0,):
                continue

    def fail_over(self) -> Cluster:
        """Kills the primary and promotes the replica."""
        with psycopg.connect(self.primary.url) as witness:
            self.primary.kill()
            with pytest.raises(psycopg.OperationalError):
                witness.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(self.primary.url)
        self.replica.promote()
        with psycopg.connect(self.replica.url) as there:
            assert there.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)
        return self.replica


@dataclass
class Fleet:
    """Threads by what the failover does to them.

    Attributes:
        kept: Nothing of them is lost.
        lost: Records that were acknowledged are lost.
    """

    kept: list[Errand] = field(default_factory=list)
    lost: list[Errand] = field(default_factory=list)


def before_the_cut(stores: Stores, saver: SurefootSaver, chance: random.Random) -> Fleet:
    """Finished, half done, and half done to be continued; in any order."""
    fleet = Fleet()
    for number in range(EACH):
        done = Errand(stores, f"done-{number}", is_async=number % 2 == 1)
        done.finish(saver)
        half = Errand(stores, f"half-{number}")
        half.until(saver, "between")
        going = Errand(stores, f"going-{number}")
        going.until(saver, chance.choice(["first", "between", "second"]))
        fleet.kept += [done, half]
        fleet.lost.append(going)
    return fleet


def after_the_cut(fleet: Fleet, stores: Stores, saver: SurefootSaver) -> None:
    """Those that are lost go on, and new ones begin."""
    for number, errand in enumerate(list(fleet.lost)):
        errand.finish(saver)
        begun = Errand(stores, f"begun-{number}", is_async=number % 2 == 0)
        begun.finish(saver)
        fleet.lost.append(begun)


def one_that_loses_a_tail(stores: Stores, pair: Pair) -> Errand:
    """Its process dies between a commit and its publish; only that commit is not replicated.

    Nothing that was acknowledged is lost with it, so it must not be refused.
    """
    errand = Errand(stores, "tail")
    stop, die = "store.append.before#6", "store.append.after#6"
    plan = Plan({stop: Fault.STOP, die: Fault.DIE}, out=io.StringIO())
    saver = with_faults(stores.open(), plan)
    reached: list[BaseException] = []

    def run() -> None:
        try:
            errand.graph(saver).invoke({"paid": [], "notes": ["begun"]}, errand.config)
        except Died as death:
            reached.append(death)

    running = threading.Thread(target=run)
    running.start()
    while stop not in plan.hit:
        if not running.is_alive():
            pytest.fail(f"it never came to {stop}: {plan.trace}")
    pair.catch_up()
    pair.cut()
    plan.go_on(stop)
    running.join(60)
    assert plan.hit == [stop, die]
    bury(saver, plan)
    return errand


def seqs(saver: SurefootSaver, thread: str) -> tuple[int, int]:
    """(published, stored)."""
    ports = saver.core.ports
    mark = ports.marks.read("default", thread)
    row = ports.store.read_thread("default", thread)
    assert mark is not None
    return mark.seq, 0 if row is None else row.head.seq


def refused(errand: Errand, saver: SurefootSaver) -> None:
    """Looked at or run, in either colour, it is a rollback with both numbers; nothing is sent."""
    published, stored = seqs(saver, errand.thread)
    assert stored < published, "nothing was lost: the fault did not hit"
    before = len(errand.till.log)
    graph = errand.graph(saver)
    asks: list[Callable[[], object]] = [
        lambda: graph.get_state(errand.config),
        lambda: [*graph.get_state_history(errand.config)],
    ]
    if not errand.is_async:  # nodes that are async are only run by `ainvoke`, below
        asks += [
            lambda: graph.invoke(None, errand.config),
            lambda: graph.invoke({"notes": ["again"]}, errand.config),
        ]
    for ask in asks:
        with pytest.raises(RollbackDetected) as caught:
            ask()
        error = caught.value
        assert (error.witnessed_seq, error.stored_seq) == (published, stored)
        assert error.fields["rules"] == ["R3"]
        assert errand.thread in str(error)
    found = errand.attempt(saver)
    assert isinstance(found, RollbackDetected)
    assert errand.till.log[before:] == [("run", ""), ("raised", "RollbackDetected")]


def reference(stores: Stores) -> Walk:
    errand = Errand(stores, "reference")
    with stores.open() as saver:
        errand.finish(saver)
    return walked(stores, "reference")


def go_on(fleet: Fleet, stores: Stores, wanted: Walk) -> None:
    """Those that lost nothing go on to the end, without an alarm."""
    with stores.open() as saver, no_alarm():
        for errand in fleet.kept:
            errand.stores = stores
            errand.finish(saver)
            assert not errand.errors, errand.errors
    for errand in fleet.kept:
        problems = errand.problems(wanted)
        assert not problems, (errand.thread, problems)


def restored(fleet: Fleet, stores: Stores, wanted: Walk) -> None:
    """After an operator's signed order, what was lost is done anew and no effect happens twice."""
    operator = SigningKey.generate("operator")
    reviewers = Reviewers({"operator": operator.public()})
    with stores.open(reviewers=reviewers) as saver:
        for errand in fleet.lost:
            errand.stores = stores
            published, stored = seqs(saver, errand.thread)
            more: dict[str, Any] = {"to_seq": 0} if stored == 0 else {}
            order = saver.propose(errand.thread, "restore", reason="the primary died", **more)
            done = saver.resolve(operator.sign(order))
            assert done.seq > published, "the high-water mark is never lowered"
            errand.finish(saver)
            assert errand.till.counts() == {f"{errand.thread}/{what}": 1 for what in CHARGES}
            walk = walked(stores, errand.thread)
            assert json.loads(walk.values)[0] == json.loads(wanted.values)[0]
            assert walk.tasks == 0
            assert [r.ok for r in saver.verify(errand.thread, deep=True)] == [True]


class Servers:
    """What lives as long as the tests here; who is promoted is the primary of the next pair."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._primary: Cluster | None = None

    def pair(self) -> Pair:
        """A primary and a new replica of it."""
        return Pair(self._stack, self._primary)

    def fail_over(self, pair: Pair) -> Cluster:
        """Kills the primary of a pair and promotes its replica."""
        self._primary = pair.fail_over()
        return self._primary


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack)


@pytest.mark.timeout(120 + 90 * ROUNDS)
def test_what_a_failover_lost_is_refused_and_nothing_else(servers: Servers, tmp_path: Path) -> None:
    chance = random.Random(1)
    totals = {"kept": 0, "lost": 0}
    for number in range(ROUNDS):
        pair = servers.pair()
        in_a_file = number % 2 == 1
        highwater = f"sqlite:///{tmp_path}/b{number}.db" if in_a_file else fresh_database()
        database = fresh_database(pair.primary.url)
        stores = Stores(database, highwater, Keyring.generate()).set_up()
        wanted = reference(stores)
        with stores.open() as saver:
            fleet = before_the_cut(stores, saver, chance)
        with stores.open() as saver:
            tail = one_that_loses_a_tail(stores, pair)  # and cuts
            after_the_cut(fleet, stores, saver)
            assert not saver.core.degraded()
            _, ahead = seqs(saver, tail.thread)
            replica = servers.fail_over(pair)
        name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
        moved = Stores(with_parts(replica.url, dbname=str(name)), highwater, stores.keys)
        with moved.open() as saver:
            published, stored = seqs(saver, tail.thread)
            assert published <= stored < ahead, "only what nobody was told of may be lost"
            for errand in fleet.lost:
                refused(errand, saver)
        tail.till.note("lost its tail")
        fleet.kept.append(tail)
        go_on(fleet, moved, wanted)
        restored(fleet, moved, wanted)
        totals["kept"] += len(fleet.kept)
        totals["lost"] += len(fleet.lost)
        print(f"failover {number + 1} of {ROUNDS}: {totals}", flush=True)


def test_with_synchronous_replication_nothing_is_lost_and_nobody_is_refused(
    servers: Servers, tmp_path: Path
) -> None:
    """The honest twin: a commit that the replica does not have is not acknowledged either."""
    pair = servers.pair()
    database = fresh_database(pair.primary.url)
    stores = Stores(database, f"sqlite:///{tmp_path}/b.db", Keyring.generate()).set_up()
    wanted = reference(stores)
    with psycopg.connect(pair.primary.url, autocommit=True) as owner:
        owner.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        owner.execute("SELECT pg_reload_conf()")
        while owner.execute("SHOW synchronous_standby_names").fetchone() != ("*",):
            continue
    fleet = Fleet()
    with stores.open() as saver:
        for node in ("first", "between", "second"):
            fleet.kept.append(Errand(stores, f"before-{node}"))
            fleet.kept[-1].until(saver, node)
        pair.cut()
        waiting = []
        for errand in [*fleet.kept, Errand(stores, "new")]:
            waiting.append(threading.Thread(target=errand.attempt, args=(saver,)))
            waiting[-1].start()
            if errand not in fleet.kept:
                fleet.kept.append(errand)
        with psycopg.connect(pair.primary.url, autocommit=True) as owner:
            held = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            while owner.execute(held).fetchone() != (len(waiting),):
                continue
        replica = servers.fail_over(pair)
        for one in waiting:
            one.join(60)
    assert [len(errand.errors) for errand in fleet.kept] == [1] * len(fleet.kept)
    for errand in fleet.kept:
        assert isinstance(errand.errors.pop(), Unavailable)
        assert not errand.errors
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    moved = Stores(with_parts(replica.url, dbname=str(name)), stores.highwater, stores.keys)
    go_on(fleet, moved, wanted)
    assert {errand.till.counts().total() for errand in fleet.kept} == {len(CHARGES)}
