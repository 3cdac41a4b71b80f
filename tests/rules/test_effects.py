"""Running a side effect: identity, and the whole table of what a call does (E1 to E9)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.rules.answers import Absent, Committed, Conflicting, Unknown
from surefoot.rules.effects import (
    OPERATION_PREFIX,
    Barrier,
    BarrierFacts,
    CallFacts,
    Elsewhere,
    FailureFacts,
    Loose,
    Position,
    Receiver,
    Verdict,
    decide_absent,
    decide_adoption,
    decide_barrier,
    decide_call,
    decide_expired,
    decide_failure_stands,
    decide_match,
    decide_never_sent,
    idempotency_key,
    operation_thread,
    slot_of,
    strip_task_ids,
)

pytestmark = pytest.mark.optimized

K, L, N = Receiver.DEDUPLICATES, Receiver.CAN_BE_ASKED, Receiver.NEITHER
RUN, REPLAY, ADOPT = Verdict.RUN, Verdict.REPLAY, Verdict.ADOPT
CONFLICT, REFUSE = Verdict.CONFLICT, Verdict.REFUSE
#: The two ways to reconcile.
SEND_AGAIN, ASK = (Verdict.RECONCILE, False), (Verdict.RECONCILE, True)

# --- the table ---------------------------------------------------------------------------------

#: state -> receiver -> verdict (same arguments): without an intent, with one.
SAME: dict[str | None, dict[Receiver, tuple[Any, Any]]] = {
    None: {K: (RUN, RUN), L: (RUN, ASK), N: (RUN, REFUSE)},
    "started": {K: (SEND_AGAIN, SEND_AGAIN), L: (RUN, ASK), N: (RUN, REFUSE)},
    "in_doubt": {K: (SEND_AGAIN, SEND_AGAIN), L: (ASK, ASK), N: (REFUSE, REFUSE)},
    "failed": {K: (RUN, RUN), L: (RUN, RUN), N: (RUN, RUN)},
    "absent": {K: (RUN, RUN), L: (RUN, RUN), N: (RUN, RUN)},
    "succeeded": {K: (REPLAY, REPLAY), L: (REPLAY, REPLAY), N: (REPLAY, REPLAY)},
    "needs_review": {K: (REFUSE, REFUSE), L: (REFUSE, REFUSE), N: (REFUSE, REFUSE)},
    "abandoned": {K: (REFUSE, REFUSE), L: (REFUSE, REFUSE), N: (REFUSE, REFUSE)},
    "compensated": {K: (REFUSE, REFUSE), L: (REFUSE, REFUSE), N: (REFUSE, REFUSE)},
    "a state of tomorrow": {K: (REFUSE, REFUSE), L: (REFUSE, REFUSE), N: (REFUSE, REFUSE)},
}
#: With other arguments everything is a conflict, except where nothing can have happened.
OTHER: dict[str | None, Verdict | None] = {
    None: None,
    "failed": None,
    "absent": None,
    "started": CONFLICT,
    "in_doubt": CONFLICT,
    "succeeded": CONFLICT,
    "needs_review": CONFLICT,
    "abandoned": CONFLICT,
    "compensated": CONFLICT,
    "a state of tomorrow": CONFLICT,
}


def said(call: Any) -> Any:
    """A verdict, and how to reconcile if it is that."""
    return (call.verdict, call.asks) if call.verdict is Verdict.RECONCILE else call.verdict


@pytest.mark.parametrize(
    ("state", "receiver", "same", "intent", "tainted"),
    [*product(SAME, (K, L, N), (True, False), (False, True), (False, True))],
)
def test_every_call(
    state: str | None, receiver: Receiver, same: bool, intent: bool, tainted: bool
) -> None:
    call = decide_call(CallFacts(receiver, state, same, intent, tainted))
    expected = SAME[state][receiver][intent]
    never_sent = state == "started" and receiver is not K and not intent
    if not same and not never_sent:
        expected = OTHER[state] or expected
    assert said(call) == expected
    assert call.reason


def test_the_table_is_whole() -> None:
    assert SAME.keys() == OTHER.keys()
    assert all(set(row) == {K, L, N} for row in SAME.values())
    met = {v for row in SAME.values() for pair in row.values() for v in pair}
    assert met == {RUN, REPLAY, REFUSE, SEND_AGAIN, ASK}


@pytest.mark.parametrize("state", [*SAME])
@pytest.mark.parametrize("intent", [False, True])
def test_class_n_never_runs_over_an_intent(state: str | None, intent: bool) -> None:
    """The one line that must hold whatever else changes: intent and no proof means stop."""
    for same, tainted, elsewhere in product((True, False), (True, False), Elsewhere):
        facts = CallFacts(N, state, same, intent, tainted, elsewhere=elsewhere)
        verdict = decide_call(facts).verdict
        if intent and state not in ("failed", "absent"):
            assert verdict in (REPLAY, REFUSE, CONFLICT)


def test_only_class_k_is_sent_again() -> None:
    for receiver, state, same, intent in product((K, L, N), SAME, (True, False), (True, False)):
        call = said(decide_call(CallFacts(receiver, state, same, intent, True)))
        assert call != SEND_AGAIN or receiver is K
        assert call != ASK or receiver is L


# --- E4b: adoption --------------------------------------------------------------------------------


@pytest.mark.parametrize("receiver", [*Receiver])
@pytest.mark.parametrize("policy", ["adopt", "execute", "refuse"])
def test_an_equal_record_of_this_branch_is_adopted_whatever_the_policy(
    receiver: Receiver, policy: str
) -> None:
    facts = CallFacts(receiver, None, False, False, True, elsewhere=Elsewhere.HERE)
    assert decide_call(facts, policy).verdict is ADOPT


@pytest.mark.parametrize("receiver", [*Receiver])
def test_on_a_fork_the_policy_decides(receiver: Receiver) -> None:
    facts = CallFacts(receiver, None, False, False, True, elsewhere=Elsewhere.FORK)
    assert decide_call(facts).verdict is ADOPT
    assert decide_call(facts, "execute").verdict is RUN
    refused = decide_call(facts, "refuse")
    assert refused.verdict is REFUSE
    assert refused.forked


@pytest.mark.parametrize("elsewhere", [Elsewhere.HERE, Elsewhere.FORK])
@pytest.mark.parametrize("receiver", [K, L, N])
def test_what_may_have_been_sent_from_the_slot_itself_comes_first(
    receiver: Receiver, elsewhere: Elsewhere
) -> None:
    facts = CallFacts(receiver, None, False, True, True, elsewhere=elsewhere)
    assert said(decide_call(facts)) == SAME[None][receiver][1]


@pytest.mark.parametrize("state", [s for s in SAME if s is not None])
def test_a_record_of_the_slot_itself_comes_first(state: str) -> None:
    """Unless it proves that nothing happened there: then it hides nothing."""
    for receiver, same, intent in product((K, L, N), (True, False), (True, False)):
        alone = CallFacts(receiver, state, same, intent, True)
        both = decide_call(replace(alone, elsewhere=Elsewhere.HERE))
        never_sent = state == "started" and receiver is not K and not intent
        if (state in ("failed", "absent") or never_sent) and not intent:
            assert both.verdict is ADOPT
        else:
            assert both == decide_call(alone)


@pytest.mark.parametrize("receiver", [*Receiver])
@pytest.mark.parametrize("intent", [True, False])
def test_a_start_that_was_not_announced_was_never_sent(receiver: Receiver, intent: bool) -> None:
    announced = receiver in (L, N)
    assert decide_never_sent(receiver, "started", intent=intent) is (announced and not intent)
    assert not decide_never_sent(receiver, "in_doubt", intent=intent)
    assert not decide_never_sent(receiver, None, intent=intent)


LOOSE = [
    Loose("pay", b"a", "failed", False),
    Loose("send", b"a", "succeeded", False),
    Loose("pay", b"b", "succeeded", False),
    Loose("pay", b"a", "in_doubt", True),
    Loose("pay", b"a", "succeeded", False),
]


def test_the_oldest_equal_one_is_adopted() -> None:
    assert decide_adoption("pay", b"a", LOOSE) == 3
    assert decide_adoption("pay", b"b", LOOSE) == 2
    assert decide_adoption("send", b"b", LOOSE) is None
    assert decide_adoption("pay", b"a", []) is None


def test_where_forks_are_not_adopted_this_branch_comes_first() -> None:
    for policy in ("execute", "refuse"):
        assert decide_adoption("pay", b"a", LOOSE, policy) == 4
        assert decide_adoption("pay", b"a", LOOSE[:4], policy) == 3


@pytest.mark.parametrize(
    ("state", "adoptable"),
    [
        ("started", True),
        ("in_doubt", True),
        ("succeeded", True),
        ("needs_review", True),
        ("abandoned", True),
        ("failed", False),
        ("absent", False),
        ("compensated", False),
        ("a state of tomorrow", False),
    ],
)
def test_what_did_not_happen_is_not_adopted(state: str, adoptable: bool) -> None:
    found = decide_adoption("pay", b"a", [Loose("pay", b"a", state, False)])
    assert (found == 0) is adoptable


# --- a proven failure that the node has gone past ------------------------------------------------


@pytest.mark.parametrize(
    ("not_sent", "ended", "passed"), [*product((True, False), (True, False), (True, False))]
)
def test_a_failure_stands_only_where_the_node_went_on(
    not_sent: bool, ended: bool, passed: bool
) -> None:
    stands = decide_failure_stands(FailureFacts(not_sent, ended, passed))
    assert stands is (not_sent and passed and not ended)


# --- E4c: operations ---------------------------------------------------------------------------


def test_each_operation_has_a_journal_of_its_own() -> None:
    pairs = [("charge", "x:1"), ("charge:x", "1"), ("charge%3Ax", "1"), ("charge\ud800", "1")]
    names = {operation_thread(*pair) for pair in pairs}
    assert len(names) == len(pairs)
    assert all(name.startswith(OPERATION_PREFIX) for name in names)


# --- the receiver's window (case 20) --------------------------------------------------------------


@pytest.mark.parametrize("state", ["started", "in_doubt"])
def test_case_20_a_key_that_protects_no_more_is_not_sent_again(state: str) -> None:
    facts = CallFacts(K, state, True, False, True, expired=True)
    assert said(decide_call(facts)) is REFUSE
    assert said(decide_call(replace(facts, can_ask=True))) == ASK
    assert said(decide_call(replace(facts, expired=False))) == SEND_AGAIN


@pytest.mark.parametrize("state", ["succeeded", "failed", "absent", None])
def test_case_20_what_is_proven_needs_no_window(state: str | None) -> None:
    facts = CallFacts(K, state, True, False, True)
    assert decide_call(replace(facts, expired=True)) == decide_call(facts)


@pytest.mark.parametrize(
    ("age", "expired"),
    [(0, False), (9_999_999, False), (10_000_000, True), (-1, False), (-400_000_000, True)],
)
def test_the_window_is_over_or_cannot_be_told(age: int, expired: bool) -> None:
    now = 1_700_000_000_000_000
    assert decide_expired(window_us=10_000_000, since_us=now - age, now_us=now) is expired
    assert not decide_expired(window_us=None, since_us=now - age, now_us=now)


# --- E1 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("durability", "receiver", "barrier"),
    [
        *((mode, r, Barrier.WAIT) for mode in ("async", "sync") for r in Receiver),
        ("exit", K, Barrier.PASS),
        ("exit", L, Barrier.REFUSE),
        ("exit", N, Barrier.REFUSE),
        ("a mode of tomorrow", N, Barrier.WAIT),
    ],
)
def test_the_barrier(durability: str, receiver: Receiver, barrier: Barrier) -> None:
    assert decide_barrier(BarrierFacts(durability, receiver)) is barrier


@pytest.mark.parametrize("receiver", [*Receiver])
def test_a_named_operation_needs_no_checkpoint(receiver: Receiver) -> None:
    assert decide_barrier(BarrierFacts("exit", receiver, named=True)) is Barrier.PASS
    assert decide_barrier(BarrierFacts("sync", receiver, named=True)) is Barrier.WAIT


# --- E4: the slot --------------------------------------------------------------------------------

HERE = Position("tenant", "thread", 1, b"", (3,), "", "(pull,pay)", "charge", 0)
CHANGES: dict[str, Any] = {
    "tenant": "other",
    "thread": "other",
    "incarnation": 2,
    "branch": bytes(32),
    "steps": (4,),
    "namespace": "sub",
    "path": "(pull,other)",
    "name": "refund",
    "call": 1,
}


def test_a_slot_is_32_bytes_and_always_the_same() -> None:
    assert slot_of(HERE) == slot_of(replace(HERE))
    assert len(slot_of(HERE)) == 32


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Position)])
def test_each_part_of_a_position_counts(field: str) -> None:
    assert slot_of(replace(HERE, **{field: CHANGES[field]})) != slot_of(HERE)


def test_all_changes_give_slots_of_their_own() -> None:
    slots = {slot_of(HERE)} | {slot_of(replace(HERE, **{k: v})) for k, v in CHANGES.items()}
    assert len(slots) == len(CHANGES) + 1


def test_an_ordinal_and_a_call_id_that_look_alike_differ() -> None:
    calls: list[int | str] = [0, 1, "0", "1", "#", "id", "", "\0" * 7 + "\1", "\ud800"]
    assert len({slot_of(replace(HERE, call=call)) for call in calls}) == len(calls)


def test_steps_are_a_list_not_a_sum() -> None:
    steps = [(), (1,), (1, 2), (2, 1), (12,), (-1,), (-1, 2), (0,), (0, 0)]
    assert len({slot_of(replace(HERE, steps=s)) for s in steps}) == len(steps)


_TEXT = st.text(st.characters(), max_size=6)
_POSITION = st.builds(
    Position,
    _TEXT,
    _TEXT,
    st.integers(1, 3),
    st.binary(max_size=3),
    st.lists(st.integers(-3, 5), max_size=3).map(tuple),
    _TEXT,
    _TEXT,
    _TEXT,
    st.integers(0, 3) | _TEXT,
)


@given(_POSITION, _POSITION)
def test_two_positions_share_no_slot(one: Position, other: Position) -> None:
    assert (slot_of(one) == slot_of(other)) == (one == other)


def test_where_a_call_was_is_readable() -> None:
    assert HERE.shown() == "(root) step 3 task (pull,pay) call 0"
    deep = replace(HERE, steps=(1, 4), namespace="a|b", call="mail-2")
    assert deep.shown() == "a|b step 1.4 task (pull,pay) call mail-2"


@pytest.mark.parametrize(
    ("namespace", "stripped"),
    [
        ("", ""),
        ("a:1f-2", "a"),
        ("a:1|b:2", "a|b"),
        ("a:1|2|b:3", "a|2|b"),
        ("a", "a"),
        ("a:1:2", "a"),
    ],
)
def test_task_ids_are_no_part_of_a_place(namespace: str, stripped: str) -> None:
    assert strip_task_ids(namespace) == stripped


# --- E9: the key -------------------------------------------------------------------------------


def test_the_key_is_a_keyed_digest_of_the_slot() -> None:
    slot = slot_of(HERE)
    key = idempotency_key(bytes(32), slot)
    assert key == idempotency_key(bytes(32), slot)
    assert len(key) == 32
    assert set(key) <= set("0123456789abcdef")
    assert key != idempotency_key(bytes(31) + b"\1", slot)
    assert key != idempotency_key(bytes(32), slot_of(replace(HERE, call=1)))


def test_the_key_of_a_fixed_slot_never_changes() -> None:
    """A golden value: another one would charge everybody twice after an upgrade."""
    assert slot_of(HERE).hex() == SLOT
    assert idempotency_key(bytes(range(32)), slot_of(HERE)) == KEY


SLOT = "f1bd3a4133945eb344b4a6c4442f6ea838a0096d292b0ab9ae703d92bf68666c"
KEY = "aa473cabc80a5994549db52d5600de5c"

# --- E5, E8: what an answer is worth -----------------------------------------------------------


class Money:
    def __init__(self, amount: object) -> None:
        self.amount = amount


@pytest.mark.parametrize(
    ("compare", "arguments", "evidence", "sentence"),
    [
        ([], {}, None, None),
        ([], {"amount": 1}, {"amount": 2}, None),
        (["amount"], {"amount": 1}, {"amount": 1}, None),
        (["amount"], {"amount": 1, "to": "x"}, {"amount": 1, "to": "y", "id": 7}, None),
        (["amount", "to"], {"amount": 1, "to": "x"}, {"amount": 1, "to": "y"}, "'to' differs"),
        (["amount"], {"amount": 1}, {"amount": 2}, "'amount' differs"),
        (["amount"], {"amount": 1}, {"amount": "1"}, "'amount' differs"),
        (["amount"], {"amount": 1}, {"amount": True}, "'amount' differs"),
        (["amount"], {"amount": 1}, {"amount": None}, "'amount' differs"),
        (["amount"], {"amount": 1}, {}, "the evidence lacks 'amount'"),
        (["amount"], {"amount": 1}, None, "the evidence lacks 'amount'"),
        (["amount"], {"amount": 1}, [1], "the evidence lacks 'amount'"),
        (["amount"], {"amount": 1}, Money(1), None),
        (["amount"], {"amount": 1}, Money(2), "'amount' differs"),
        (["amount"], {"amount": None}, {"amount": None}, None),
        (["amout"], {"amount": 1}, {"amount": 1, "amout": 1}, "compare names 'amout'"),
    ],
)
def test_is_what_a_lookup_found_this_effect(
    compare: list[str], arguments: dict[str, Any], evidence: object, sentence: str | None
) -> None:
    said = decide_match(compare, arguments, evidence)
    if sentence is None:
        assert said is None
    else:
        assert said is not None
        assert sentence in said


def test_a_difference_is_told_without_values() -> None:
    said = decide_match(["to"], {"to": "alice@example.org"}, {"to": "bob@example.org"})
    assert said is not None
    assert "alice" not in said
    assert "bob" not in said


class Currency(Enum):
    EUR = "EUR"


@pytest.mark.parametrize(
    ("argument", "found"),
    [(Currency.EUR, "EUR"), ((1, 2), [1, 2]), (b"x", bytearray(b"x")), ({1: (2,)}, {1: [2]})],
    ids=repr,
)
def test_what_counts_as_the_same_argument_counts_as_the_same_evidence(
    argument: object, found: object
) -> None:
    assert decide_match(["a"], {"a": argument}, {"a": found}) is None


@pytest.mark.parametrize(
    ("strong", "reads", "settled"), [*product((False, True), range(4), (False, True))]
)
def test_when_absent_counts(strong: bool, reads: int, settled: bool) -> None:
    counts = decide_absent(strong=strong, reads=reads, settled=settled)
    assert counts == (settled and (strong or reads >= 2))


@pytest.mark.parametrize(
    ("answer", "attribute"),
    [
        (lambda: Committed({"id": 1}), "evidence"),
        (Absent, "evidence"),
        (lambda: Conflicting([1, 2]), "reason"),
        (Unknown, "reason"),
    ],
)
def test_answers_are_facts(answer: Callable[[], Any], attribute: str) -> None:
    made = answer()
    with pytest.raises((AttributeError, TypeError)):
        setattr(made, attribute, "changed")
    assert made == answer()


def test_a_committed_effect_returns_its_evidence_unless_told_otherwise() -> None:
    assert Committed({"id": 1}).returned() == {"id": 1}
    assert Committed({"id": 1}, result="ok").returned() == "ok"
    assert Committed({"id": 1}, result=None).returned() is None
