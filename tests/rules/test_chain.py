"""The tail beyond the head: writes and effects are adopted, checkpoints never (R5)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.rules.bodies import KeyChangeBody
from surefoot.rules.chain import ADOPTED_KINDS, KeyLimits, decide_tail
from surefoot.rules.envelope import (
    GENESIS,
    Frame,
    Identity,
    Kind,
    Link,
    Record,
    RecordHead,
    seal_frame,
    verify_frame,
)

pytestmark = pytest.mark.optimized

HEAD = Link(5, b"h" * 32)
IDENTITY = Identity("t", "th", 1)


def frame(after: Link, epoch: int, *kinds: Kind, mark: bytes = b"") -> Frame:
    """A real frame; ``mark`` makes its records differ from others."""
    sealed = seal_frame(
        IDENTITY,
        epoch,
        after,
        [Record(kind, 1, bytes(16), mark) for kind in kinds],
        key_id="k",
        seal_key=bytes(32),
    )
    return verify_frame(
        IDENTITY, sealed.last_seq, epoch, sealed.head, sealed.body, lambda _: bytes(32)
    )


def kinds_of(tail: list[RecordHead]) -> str:
    return "".join(chr(r.kind) for r in tail)


def tail(*frames: Frame, head: Link = HEAD) -> list[RecordHead]:
    adopted = [*decide_tail(head, frames)]
    assert [*decide_tail(head, reversed(frames))] == adopted, "the order of rows decides nothing"
    return adopted


def test_nothing_beyond_the_head() -> None:
    assert tail() == []
    assert tail(frame(Link(0, GENESIS), 1, Kind.CHECKPOINT)) == []


def test_writes_and_effects_are_adopted_in_order() -> None:
    first = frame(HEAD, 1, Kind.WRITES, Kind.EFFECT)
    second = frame(first.records[-1].link, 1, Kind.EFFECT)
    adopted = tail(first, second)
    assert kinds_of(adopted) == "WEE"
    assert [r.link.seq for r in adopted] == [6, 7, 8]


@pytest.mark.parametrize("kind", sorted(set(Kind) - ADOPTED_KINDS))
def test_other_kinds_end_the_tail(kind: Kind) -> None:
    first = frame(HEAD, 1, Kind.WRITES, kind, Kind.WRITES)
    second = frame(first.records[-1].link, 1, Kind.EFFECT)
    assert kinds_of(tail(first, second)) == "W"
    assert tail(frame(HEAD, 1, kind)) == []


def test_exactly_writes_and_effects_may_be_adopted() -> None:
    assert {Kind.WRITES, Kind.EFFECT} == ADOPTED_KINDS


def test_what_does_not_chain_from_the_head_is_left_out() -> None:
    assert tail(frame(Link(5, b"x" * 32), 1, Kind.WRITES)) == []
    assert tail(frame(Link(6, HEAD.digest), 1, Kind.WRITES)) == [], "a gap in the numbers"
    first = frame(HEAD, 1, Kind.WRITES)
    beyond = frame(Link(7, b"y" * 32), 1, Kind.EFFECT)
    assert kinds_of(tail(first, beyond)) == "W"


def test_below_the_head_nothing_is_adopted() -> None:
    below = frame(Link(3, HEAD.digest), 9, Kind.WRITES)
    assert tail(below) == []


def test_the_highest_epoch_wins_at_each_place() -> None:
    old = frame(HEAD, 1, Kind.WRITES, Kind.WRITES, mark=b"old")
    new = frame(HEAD, 2, Kind.EFFECT, mark=b"new")
    assert [r.epoch for r in tail(old, new)] == [2]
    behind = frame(old.records[0].link, 3, Kind.EFFECT, mark=b"re-based")
    adopted = tail(old, behind)
    assert [(r.epoch, chr(r.kind)) for r in adopted] == [(1, "W"), (3, "E")]


def test_an_unpublished_checkpoint_of_the_newest_epoch_gives_no_way_to_an_older_tail() -> None:
    old = frame(HEAD, 1, Kind.WRITES)
    newer = frame(HEAD, 2, Kind.CHECKPOINT)
    assert tail(old, newer) == []


def test_a_new_thread_adopts_from_the_beginning() -> None:
    first = frame(Link(0, GENESIS), 1, Kind.EFFECT, Kind.WRITES)
    assert kinds_of(tail(first, head=Link(0, GENESIS))) == "EW"


@given(st.lists(st.sampled_from(sorted(Kind)), max_size=12), st.data())
def test_any_cut_of_a_journal(kinds: list[Kind], data: st.DataObject) -> None:
    at, frames = HEAD, []
    for kind in kinds:
        frames.append(frame(at, 1, kind))
        at = frames[-1].records[-1].link
    kept = data.draw(st.lists(st.sampled_from(frames), unique_by=id) if frames else st.just([]))
    adopted = [*decide_tail(HEAD, kept)]
    expected = []
    for number, kind in enumerate(kinds):
        if frames[number] not in kept or kind not in ADOPTED_KINDS:
            break
        expected.append(frames[number].records[0])
    assert adopted == expected


# --- what a retired key sealed (R6) --------------------------------------------------------------


def vouching(seq: int, key_id: str, up_to: int) -> RecordHead:
    """A ``K`` record at a seq, as a chain that was verified holds it."""
    body = KeyChangeBody(key_id, up_to, compromised=False)
    return RecordHead(
        Link(seq, b"k" * 32), b"p" * 32, 1, Kind.KEY_CHANGE, 1, body.subject(), body.pack()
    )


def test_a_key_counts_up_to_what_a_record_says_and_no_other_key_does() -> None:
    limits = KeyLimits()
    assert not limits.covers("old", 0)
    limits.learn(vouching(9, "old", 7))
    assert [seq for seq in range(12) if limits.covers("old", seq)] == [*range(8)]
    assert not limits.covers("other", 1)


def test_a_record_vouches_for_nothing_at_or_above_itself() -> None:
    """Whatever a limit says: what comes after the record is not fixed by its digest."""
    limits = KeyLimits()
    limits.learn(vouching(9, "old", 10_000))
    assert limits.covers("old", 8)
    assert not limits.covers("old", 9)
    assert not limits.covers("old", 10)


def test_of_two_records_the_higher_limit_counts() -> None:
    for order in ((20, 15), (9, 7)), ((9, 7), (20, 15)):
        limits = KeyLimits()
        for seq, up_to in order:
            limits.learn(vouching(seq, "old", up_to))
        assert limits.covers("old", 15)
        assert not limits.covers("old", 16)


def test_records_of_other_kinds_vouch_for_nothing() -> None:
    limits = KeyLimits()
    limits.learn(replace(vouching(9, "old", 7), kind=Kind.EFFECT))
    assert not limits.covers("old", 1)
