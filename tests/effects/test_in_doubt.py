"""Effects in doubt as a queue: nothing in doubt is missing, nothing else is in it."""

from __future__ import annotations

import dataclasses
import sqlite3
import sys
import types
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from tests.effects.conftest import Bench, State

from surefoot import Committed, EffectCall, InDoubt, Unknown, effect
from surefoot.errors import (
    EffectConflict,
    EffectInDoubt,
    Misconfigured,
    Misuse,
    RollbackDetected,
)
from surefoot.ports import Publish
from surefoot.rules.intents import LEFT_OPEN, pack_intents, unpack_intents
from surefoot.signing import Reviewers, SigningKey
from surefoot.testing.faults import Died, Fault, Plan, bury, with_faults

pytestmark = pytest.mark.optimized
_operator = SigningKey.generate("operator")


class Timeout(Exception):
    """A transport error of a client library."""


def thread_of(config: dict[str, Any]) -> str:
    return str(config["configurable"]["thread_id"])


def failing(bench: Bench, kind: str, name: str, **settings: Any) -> Callable[..., Any]:
    """An effect that reaches the receiver, whose answer is lost."""
    classes: dict[str, dict[str, Any]] = {
        "K": {"idempotent": True},
        "L": {"reconcile": lambda call: Unknown("the lookup is down")},
        "N": {},
    }

    @effect(name=name, **classes[kind], **settings)
    def send(amount: int, *, call: EffectCall) -> int:
        call.note(provider_id=f"po-{amount}")
        bench.world.send(amount, call.key)
        raise Timeout

    return send


def left(bench: Bench, send: Callable[..., Any], amount: int = 1) -> dict[str, Any]:
    """A thread whose run ended in the error of an effect."""
    config = bench.config()
    graph = bench.graph(lambda s: {"log": [send(amount)]})
    with pytest.raises(Timeout):
        graph.invoke({"n": 0}, config)
    bench.saver.release(thread_of(config))
    return config


def swallowed(bench: Bench, send: Callable[..., Any], amount: int = 1) -> dict[str, Any]:
    """A thread that went on behind an effect whose outcome nobody knows."""
    config = bench.config()

    def node(_: State) -> State:
        with pytest.raises(Timeout):
            send(amount)
        return {"log": ["went on"]}

    bench.graph(node, lambda _: {"log": ["and on"]}).invoke({"n": 0}, config)
    bench.saver.release(thread_of(config))
    return config


def edit(bench: Bench, statement: str, *values: object) -> None:
    """An attacker with the rights of the database's owner."""
    if bench.conn.startswith("sqlite"):
        lite = sqlite3.connect(bench.conn.removeprefix("sqlite:///"), isolation_level=None)
        lite.execute(statement, values)
        lite.close()
        return
    with psycopg.connect(bench.conn, autocommit=True) as connection:
        connection.execute(statement.replace("?", "%s").encode(), values)


def hints(bench: Bench) -> list[str]:
    """Threads that A's hint leads to."""
    return [row.thread for row in bench.saver.core.ports.store.threads_with_open(bench.tenant)]


# --- what an item says ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["K", "L", "N"])
def test_an_item_says_what_a_person_needs(either: Bench, kind: str) -> None:
    send = failing(either, kind, "pay", risk="high", deadline=timedelta(hours=1))
    config = left(either, send, 70)
    (item,) = either.saver.in_doubt()
    assert (item.thread, item.effect, item.state) == (thread_of(config), "pay", "in_doubt")
    assert (item.receiver, item.attempt, item.risk) == (kind, 1, "high")
    assert [item.key] == either.world.keys
    assert item.arguments == {"amount": 70}
    assert item.receipt == {"provider_id": "po-70"}
    assert item.evidence is None
    assert item.error == "Timeout"
    assert "Timeout" in item.reason
    assert "task" in item.position
    assert len(bytes.fromhex(item.slot)) == 32
    assert item.opened_at is not None
    assert item.deadline is not None
    assert item.deadline - item.opened_at == timedelta(hours=1)
    assert item.overdue is False
    assert 0 <= item.age_s < 600
    assert item.unshown == ()
    assert either.saver.in_doubt(thread=item.thread)[0].slot == item.slot


def test_what_a_lookup_found_stands_in_the_item(either: Bench) -> None:
    @effect(name="pay", compare=["amount"], reconcile=lambda call: Committed({"amount": 99}))
    def pay(amount: int) -> int:
        either.world.send(amount)
        raise Timeout

    config = left(either, pay, 70)
    graph = either.graph(lambda s: {"log": [pay(70)]})
    with pytest.raises(EffectInDoubt):
        graph.invoke(None, config)
    (item,) = either.saver.in_doubt()
    assert item.state == "needs_review"
    assert item.evidence == {"amount": 99}
    assert "'amount' differs" in item.reason


async def test_the_async_twins_give_the_same(either: Bench) -> None:
    left(either, failing(either, "N", "pay"))
    saver = either.saver
    (item,) = await saver.ain_doubt()
    (again,) = saver.in_doubt()
    assert dataclasses.replace(item, age_s=0.0) == dataclasses.replace(again, age_s=0.0)
    assert await saver.aeffects(item.thread) == saver.effects(item.thread)
    numbers = await saver.aeffect_numbers()
    assert (numbers.open, numbers.opened) == (1, 1)


def test_what_is_overdue_comes_first_then_risk_then_age(bench: Bench) -> None:
    made = {
        "old": left(bench, failing(bench, "N", "a")),
        "young": left(bench, failing(bench, "N", "b")),
        "low and overdue": left(bench, failing(bench, "N", "c", risk="low", deadline=1e-3)),
        "low": left(bench, failing(bench, "N", "d", risk="low")),
        "critical": left(bench, failing(bench, "N", "e", risk="critical")),
        "high": left(bench, failing(bench, "N", "f", risk="high", deadline=60)),
    }
    names = {thread_of(config): name for name, config in made.items()}
    order = ["low and overdue", "critical", "high", "old", "young", "low"]
    found = bench.saver.in_doubt()
    assert [names[item.thread] for item in found] == order
    assert [item.overdue for item in found] == [True, False, False, False, False, False]
    assert [names[item.thread] for item in bench.saver.in_doubt(limit=2)] == order[:2]
    numbers = bench.saver.effect_numbers()
    assert (numbers.open, numbers.overdue, numbers.unreadable) == (6, 1, 0)
    assert [*numbers.oldest_s] == ["critical", "high", "normal", "low"]
    assert numbers.oldest_s["normal"] >= found[4].age_s


# --- which effects are in it ---------------------------------------------------------------------


CLASSES: dict[str, dict[str, Any]] = {
    "K": {"idempotent": True},
    "L": {"reconcile": lambda call: Committed("paid"), "lookup": "strong"},
    "N": {},
}


@pytest.mark.parametrize("kind", ["K", "L", "N"])
def test_what_a_dead_worker_has_started_is_in_doubt(either: Bench, kind: str) -> None:
    plan = Plan({"receiver.pay.after#1": Fault.DIE})

    @effect(name="pay", **CLASSES[kind])
    def pay(*, call: EffectCall) -> str:
        if plan.dead:  # the next worker, whose process is another one
            return either.world.send("paid", call.key)
        return plan.around("receiver.pay", lambda: either.world.send("paid", call.key))

    config = either.config()
    first = with_faults(either.open(), plan)
    with pytest.raises(Died):
        either.graph(lambda _: {"log": [pay()]}, saver=first).invoke({"n": 0}, config)
    assert plan.hit == ["receiver.pay.after#1"]
    bury(first, plan)
    (item,) = either.saver.in_doubt()
    assert (item.state, item.receiver, item.attempt) == ("started", kind, 1)
    assert [item.key] == either.world.keys
    assert "worker is gone" in item.reason
    either.take_over(item.thread)
    assert either.saver.in_doubt() == [], "another worker has it now, and may be sending"
    give_back(either, item.thread)
    assert [one.slot for one in either.saver.in_doubt()] == [item.slot]
    graph = either.graph(lambda _: {"log": [pay()]})
    if kind == "N":
        for _ in range(2):
            with pytest.raises(EffectInDoubt):
                graph.invoke(None, config)
        assert [one.slot for one in either.saver.in_doubt()] == [item.slot]
        wanted = (0, 0, 1, 1)
    else:
        graph.invoke(None, config)
        assert either.saver.in_doubt() == []
        wanted = (1 if kind == "K" else 0, 1, 0, 0)
    numbers = either.saver.effect_numbers()
    assert (numbers.opened, numbers.reconciled, numbers.escalated, numbers.open) == wanted
    assert either.saver.health()["effects"] == {
        "opened": wanted[0],
        "reconciled": wanted[1],
        "escalated": wanted[2],
    }


def give_back(bench: Bench, thread: str, **changes: Any) -> None:
    """The holder of the mark gives its lease back."""
    marks = bench.saver.core.ports.marks
    mark = marks.read(bench.tenant, thread)
    publish = Publish(
        epoch=mark.epoch,
        seq=mark.seq,
        digest=mark.digest,
        new_seq=mark.seq,
        new_digest=mark.digest,
        step=mark.step,
        intents=mark.intents,
        ttl_ms=0,
    )
    if not marks.publish(bench.tenant, thread, dataclasses.replace(publish, **changes)):
        raise RuntimeError("the mark did not take it")


@pytest.mark.parametrize("kind", ["K", "L", "N"])
def test_what_a_live_worker_is_sending_is_not_in_doubt(either: Bench, kind: str) -> None:
    watching = either.open()
    config = either.config()
    thread = thread_of(config)
    looked: list[Any] = []

    @effect(name="pay", **CLASSES[kind])
    def pay(*, call: EffectCall) -> str:
        looked.append(watching.in_doubt())
        looked.append(hints(either))
        return "paid"

    either.graph(lambda _: {"log": [pay()]}).invoke({"n": 0}, config)
    assert looked == [[], [thread]], "it was looked at, and its worker lives"


@pytest.mark.parametrize("kind", ["K", "L", "N"])
def test_what_a_checkpoint_has_left_open_stays_until_it_is_settled(
    either: Bench, kind: str
) -> None:
    config = swallowed(either, failing(either, kind, "pay"))
    thread = thread_of(config)
    marks = either.saver.core.ports.marks
    (item,) = either.saver.in_doubt()
    assert (item.state, item.receiver) == ("in_doubt", kind)
    # Other work of other workers does not make it forgotten.
    for _ in range(2):
        other = either.open()
        either.graph(lambda _: {"log": [1]}, saver=other).invoke({"n": 0}, config)
        other.close()
        assert hints(either) == [thread]
        intents = unpack_intents(marks.read(either.tenant, thread).intents)
        assert intents.keys() == {LEFT_OPEN}, "its own intent has left B"
    assert [one.slot for one in either.saver.in_doubt()] == [item.slot]
    settle(either, item, "compensated")
    assert either.saver.in_doubt() == []
    assert either.saver.in_doubt(thread=thread) == []
    assert hints(either) == []
    assert marks.read(either.tenant, thread).intents == b""


def settle(bench: Bench, item: InDoubt, outcome: str, **choices: Any) -> Any:
    """A person looks, decides and signs."""
    saver = bench.open(reviewers=Reviewers({"operator": _operator.public()}))
    decision = saver.propose(
        item.thread, "approve", reason="looked", slot=item.slot, outcome=outcome, **choices
    )
    return saver.resolve(_operator.sign(decision))


@pytest.mark.parametrize("outcome", ["succeeded", "absent", "abandoned", "compensated"])
def test_a_decision_ends_a_doubt(either: Bench, outcome: str) -> None:
    sent: list[str] = []

    @effect(name="pay")
    def pay(*, call: EffectCall) -> str:
        sent.append(call.key)
        if len(sent) == 1:
            raise Timeout
        return "paid again"

    config = either.config()
    graph = either.graph(lambda _: {"log": [pay()]})
    with pytest.raises(Timeout):
        graph.invoke({"n": 0}, config)
    either.saver.release(thread_of(config))
    (item,) = either.saver.in_doubt()
    result = {"result": "paid"} if outcome == "succeeded" else {}
    done = settle(either, item, outcome, evidence="the bank's statement of Monday", **result)
    assert outcome in done.text
    assert either.saver.in_doubt() == []
    newest = either.saver.effects(item.thread, limit=1)[0]
    assert (newest.state, newest.source, newest.error) == (outcome, "decision", "looked")
    if outcome == "succeeded":
        assert graph.invoke(None, config)["log"] == ["paid"]
    elif outcome == "absent":
        assert graph.invoke(None, config)["log"] == ["paid again"]
        assert sent == [item.key, item.key]
    else:
        with pytest.raises(EffectInDoubt, match=outcome):
            graph.invoke(None, config)
        assert either.saver.in_doubt() == [], "it is settled, although the run does not go on"
    assert len(sent) == (2 if outcome == "absent" else 1)


@pytest.mark.parametrize("kind", ["K", "L", "N"])
def test_an_effect_that_another_place_has_adopted_is_one_doubt(either: Bench, kind: str) -> None:
    """New input after a failed step: the call comes back in another step (E4b)."""
    sent: list[str] = []

    @effect(name="pay", **{**CLASSES[kind], **({"reconcile": _down} if kind == "L" else {})})
    def pay(amount: int, *, call: EffectCall) -> str:
        sent.append(call.key)
        if len(sent) == 1:
            raise Timeout
        return "paid"

    config = either.config()
    graph = either.graph(lambda _: {"log": [pay(70)]})
    with pytest.raises(Timeout):
        graph.invoke({"n": 0}, config)
    either.saver.release(thread_of(config))
    (item,) = either.saver.in_doubt()
    if kind == "K":
        graph.invoke({"n": 1}, config)
        assert sent == [item.key] * 2
    else:
        with pytest.raises(EffectInDoubt):
            graph.invoke({"n": 1}, config)
        either.saver.release(thread_of(config))
        (adopted,) = either.saver.in_doubt()
        assert adopted.key == item.key
        assert adopted.slot != item.slot
        assert adopted.opened_at == item.opened_at
        settle(either, adopted, "abandoned")
    assert either.saver.in_doubt() == []
    assert hints(either) == []


@pytest.mark.parametrize("outcome", ["succeeded", "absent"])
def test_a_decision_by_the_slot_of_the_first_place_settles_what_was_adopted(
    either: Bench, outcome: str
) -> None:
    fails = [True, False]

    @effect(name="pay")
    def pay(what: int) -> str:
        either.world.send(what)
        if fails.pop(0):
            raise Timeout
        return "paid"

    config = either.config()
    graph = either.graph(lambda state: {"log": [pay(7)]})
    with pytest.raises(Timeout):
        graph.invoke({"n": 1}, config)
    with pytest.raises(EffectInDoubt) as first:
        graph.invoke(None, config)
    with pytest.raises(EffectInDoubt):
        graph.invoke({"n": 2}, config)  # adopted at another slot
    either.saver.release(thread_of(config))
    saver = either.open(reviewers=Reviewers({"operator": _operator.public()}))
    more: dict[str, Any] = {"result": "paid"} if outcome == "succeeded" else {}
    decision = saver.propose(
        thread_of(config),
        "approve",
        reason="looked",
        slot=first.value.slot,
        outcome=outcome,
        **more,
    )
    (item,) = saver.in_doubt()
    assert decision.slot == item.slot != first.value.slot, "where it stands now"
    saver.resolve(_operator.sign(decision))
    assert either.saver.in_doubt() == []
    assert graph.invoke(None, config)["log"][-1] == "paid"
    assert either.world.sent == ([7] if outcome == "succeeded" else [7, 7])


def _down(_: EffectCall) -> Unknown:
    return Unknown("the lookup is down")


def test_a_business_operation_says_who_called_it(either: Bench) -> None:
    @effect(name="pay", operation_id="invoice")
    def pay(invoice: str) -> None:
        raise Timeout

    config = left(either, pay, "INV-7")  # type: ignore[arg-type]
    (item,) = either.saver.in_doubt()
    assert item.thread.startswith("surefoot:operation:")
    assert (item.operation, item.caller) == ("INV-7", thread_of(config))
    edit(either, "UPDATE surefoot_thread SET has_open = 0 WHERE tenant = ?", either.tenant.encode())
    assert len(either.saver.in_doubt()) == 1
    settle(either, item, "succeeded", result=None)
    assert either.saver.in_doubt() == []
    assert either.graph(lambda _: {"log": [pay("INV-7")]}).invoke(None, config)["log"] == [None]


def test_what_a_conflict_proposed_stands_in_the_item(either: Bench) -> None:
    send = failing(either, "N", "pay")
    config = left(either, send, 70)
    with pytest.raises(EffectConflict):
        either.graph(lambda _: {"log": [send(71)]}).invoke(None, config)
    either.saver.release(thread_of(config))
    (item,) = either.saver.in_doubt()
    assert item.arguments == {"amount": 70}
    assert item.conflict["arguments"] == {"amount": 71}
    newest, *older = either.saver.effects(thread_of(config))
    assert (newest.event, newest.state, newest.differs) == ("conflicted", item.state, ("amount",))
    assert {one.event for one in older} <= {"started", "noted", "in_doubt"}
    assert [newest] == either.saver.effects(thread_of(config), limit=1)


def test_what_is_settled_is_not_in_doubt(either: Bench) -> None:
    @effect(name="pay", idempotent=True)
    def pay(*, idempotency_key: str) -> str:
        return "paid"

    config = either.config()
    either.graph(lambda _: {"log": [pay()]}).invoke({"n": 0}, config)
    assert either.saver.in_doubt() == []
    assert hints(either) == [], "the last checkpoint has said that nothing is open"
    assert either.saver.in_doubt(thread=thread_of(config)) == []
    assert either.saver.in_doubt(thread="nobody has seen it") == []
    assert [one.state for one in either.saver.effects(thread_of(config))] == [
        "succeeded",
        "started",
    ]
    with pytest.raises(Misuse, match="limit"):
        either.saver.in_doubt(limit=0)


def test_a_thread_that_is_deleted_has_no_doubts(either: Bench) -> None:
    config = left(either, failing(either, "N", "pay"))
    assert len(either.saver.in_doubt()) == 1
    either.saver.delete_thread(thread_of(config))
    assert either.saver.in_doubt() == []


def test_a_prune_keeps_what_is_in_doubt(either: Bench) -> None:
    config = swallowed(either, failing(either, "N", "pay"))
    (item,) = either.saver.in_doubt()
    either.saver.prune([item.thread])
    (kept,) = either.saver.in_doubt()
    assert dataclasses.replace(kept, age_s=0.0) == dataclasses.replace(item, age_s=0.0)
    assert kept.arguments == {"amount": 1}
    settle(either, kept, "abandoned")
    either.saver.copy_thread(thread_of(config), "copy")
    assert either.saver.in_doubt() == []


# --- what an attacker cannot do, and what does not verify ----------------------------------------


@pytest.mark.parametrize("how", [left, swallowed], ids=["open", "left behind"])
@pytest.mark.parametrize("kind", ["L", "N"])
def test_whoever_edits_the_hint_hides_nothing(either: Bench, kind: str, how: Any) -> None:
    config = how(either, failing(either, kind, "pay"))
    assert hints(either) == [thread_of(config)]
    edit(either, "UPDATE surefoot_thread SET has_open = 0 WHERE tenant = ?", either.tenant.encode())
    assert hints(either) == [], "the edit did not hit"
    (item,) = either.saver.in_doubt()
    assert (item.thread, item.receiver) == (thread_of(config), kind)


def test_a_thread_that_does_not_verify_stands_in_the_queue(either: Bench) -> None:
    good = left(either, failing(either, "N", "good", risk="high"))
    bad = left(either, failing(either, "N", "bad"))
    thread = thread_of(bad)
    edit(
        either,
        "DELETE FROM surefoot_frame WHERE thread_key = "
        "(SELECT key FROM surefoot_thread WHERE tenant = ? AND thread = ?)",
        either.tenant.encode(),
        thread.encode(),
    )
    first, second = either.saver.in_doubt()
    assert (first.thread, first.state, first.error) == (thread, "unreadable", "ROLLBACK")
    assert second.thread == thread_of(good)
    with pytest.raises(RollbackDetected):
        either.saver.in_doubt(thread=thread)
    numbers = either.saver.effect_numbers()
    assert (numbers.open, numbers.unreadable) == (1, 1)


def test_an_intent_without_its_record_is_in_doubt(either: Bench) -> None:
    """As after a restore that gave the record up."""
    config = left(either, failing(either, "K", "pay"))
    thread = thread_of(config)
    (recorded,) = either.saver.in_doubt()
    either.take_over(thread)
    give_back(either, thread, intents=pack_intents({b"s" * 32: 1, LEFT_OPEN: 1}))
    found = either.saver.in_doubt()
    assert [(one.state, one.slot) for one in found] == [
        ("unrecorded", (b"s" * 32).hex()),
        ("in_doubt", recorded.slot),
    ]


def test_values_of_types_that_only_the_workers_know(either: Bench) -> None:
    home = types.ModuleType("surefoot_tests_gone")
    home.Invoice = dataclasses.make_dataclass("Invoice", [("number", int)])
    home.Invoice.__module__ = home.__name__
    sys.modules[home.__name__] = home
    try:

        @effect(name="pay")
        def pay(invoice: Any) -> None:
            raise Timeout

        left(either, pay, home.Invoice(7))
        (item,) = either.saver.in_doubt()
        assert item.arguments == {"invoice": home.Invoice(7)}
    finally:
        del sys.modules[home.__name__]
    (item,) = either.open().in_doubt()
    assert item.arguments is None
    assert item.unshown == ("arguments",)
    assert item.effect == "pay"


# --- how much is looked at -----------------------------------------------------------------------


class Counted:
    """A store whose calls are counted."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.calls = inner, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return found

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            return found(*args, **kwargs)

        return counted


MANY = 10_000


def multiply(bench: Bench, thread: str) -> None:
    """Ten thousand more threads in both stores; none of them would verify if it were looked at."""
    number, series = ("printf('%06d', n)", "SELECT n FROM many")
    blob = "CAST({} AS BLOB)"
    many = f"WITH RECURSIVE many(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM many WHERE n < {MANY})"
    if bench.conn.startswith("postgres"):
        number, blob = "lpad(n::text, 6, '0')", "convert_to({}, 'UTF8')"
    name = blob.format(f"'none-' || {number}")
    for url, table, columns in (
        (
            bench.conn,
            "surefoot_thread",
            "incarnation, head_seq, head_epoch, head_digest, created_us, updated_us, has_open",
        ),
        (
            bench.highwater,
            "surefoot_marks",
            (
                "incarnation, seq, digest, epoch, owner, lease_until_ms, step, state, clean, "
                "tainted, resumes, intents"
            ),
        ),
    ):
        there = Bench.__new__(Bench)
        there.conn = url
        edit(
            there,
            f"{many} INSERT INTO {table} (tenant, thread, {columns}) "
            f"SELECT tenant, {name}, {columns} FROM {table}, ({series}) AS s "
            "WHERE tenant = ? AND thread = ?",
            bench.tenant.encode(),
            thread.encode(),
        )


def test_ten_thousand_threads_are_not_walked(either: Bench) -> None:
    quiet = either.config()
    either.graph(lambda _: {"log": [1]}).invoke({"n": 0}, quiet)
    multiply(either, thread_of(quiet))
    assert sum(1 for _ in either.saver.threads()) == MANY + 1
    doubtful = [
        left(either, failing(either, "K", "a")),
        left(either, failing(either, "L", "b")),
        swallowed(either, failing(either, "N", "c")),
    ]
    saver = either.open()
    saver.in_doubt(limit=1)  # once: durability is checked, connections are there
    core = saver.core
    store, marks = Counted(core.ports.store), Counted(core.ports.marks)
    core.ports = dataclasses.replace(core.ports, store=store, marks=marks)
    found = saver.in_doubt()
    assert sorted(one.thread for one in found) == sorted(map(thread_of, doubtful))
    assert marks.calls == {"marks_with_intents": 1, "read": 6}
    assert store.calls.pop("threads_with_open") == 2, "a page, and the empty one behind it"
    assert set(store.calls) <= {"read_newest", "read_heads", "read_frames", "read_values"}
    assert sum(store.calls.values()) <= 4 * len(doubtful), store.calls


# --- the decorator -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "about"),
    [
        ({"risk": "enormous"}, "risk is one of"),
        ({"deadline": 0}, "deadline="),
        ({"deadline": -1}, "deadline="),
        ({"deadline": True}, "deadline="),
        ({"deadline": "tomorrow"}, "deadline="),
        ({"deadline": float("nan")}, "deadline="),
        ({"deadline": timedelta(days=400 * 365)}, "deadline="),
    ],
)
def test_risk_and_deadline_are_checked_at_decoration(settings: dict[str, Any], about: str) -> None:
    with pytest.raises(Misconfigured, match=about):

        @effect(**settings)
        def pay() -> None: ...


def test_sending_again_does_not_put_the_deadline_off(bench: Bench) -> None:
    send = failing(bench, "K", "pay", deadline=100)
    config = left(bench, send)
    (first,) = bench.saver.in_doubt()
    with pytest.raises(Timeout):
        bench.graph(lambda s: {"log": [send(1)]}).invoke(None, config)
    bench.saver.release(thread_of(config))
    (second,) = bench.saver.in_doubt()
    assert second.attempt == first.attempt + 1
    assert second.deadline == first.deadline
    assert second.opened_at == first.opened_at, "the doubt is as old as before"
