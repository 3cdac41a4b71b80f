"""Which pending writes stand: LangGraph's contract of `put_writes` (case 28)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.rules.bodies import Batch, Inline, Typed, Write
from surefoot.rules.writes import decide_writes

pytestmark = pytest.mark.optimized


def value(text: str) -> Typed:
    return Typed("t", Inline(text.encode()))


def batch(task: str, *writes: tuple[int, str], path: str = "", replaces: bool = False) -> Batch:
    return Batch(
        task, path, replaces, tuple(Write(idx, f"c{idx}", value(text)) for idx, text in writes)
    )


def stands(*batches: Batch) -> list[tuple[str, int, bytes]]:
    return [
        (s.task_id, s.idx, s.value.ref.stored)  # type: ignore[union-attr]
        for s in decide_writes(batches)
    ]


def test_nothing_written() -> None:
    assert stands() == []
    assert stands(batch("t")) == []


def test_the_first_write_of_a_place_stands() -> None:
    assert stands(batch("t", (0, "a"), (1, "b")), batch("t", (0, "x"), (1, "y"))) == [
        ("t", 0, b"a"),
        ("t", 1, b"b"),
    ]


def test_a_shorter_second_batch_removes_nothing() -> None:
    assert stands(batch("t", (0, "a"), (1, "b")), batch("t", (0, "x"))) == [
        ("t", 0, b"a"),
        ("t", 1, b"b"),
    ]


def test_a_longer_second_batch_adds_what_is_new() -> None:
    assert stands(batch("t", (0, "a")), batch("t", (0, "x"), (1, "y"))) == [
        ("t", 0, b"a"),
        ("t", 1, b"y"),
    ]


def test_special_batches_replace() -> None:
    assert stands(batch("t", (-3, "i1"), replaces=True), batch("t", (-3, "i2"), replaces=True)) == [
        ("t", -3, b"i2")
    ]


def test_an_error_then_a_success() -> None:
    assert stands(batch("t", (-1, "boom"), replaces=True), batch("t", (0, "ok"))) == [
        ("t", -1, b"boom"),
        ("t", 0, b"ok"),
    ]


def test_an_interrupt_after_a_normal_write() -> None:
    assert stands(batch("t", (0, "ok")), batch("t", (-3, "i"), replaces=True)) == [
        ("t", -3, b"i"),
        ("t", 0, b"ok"),
    ]


def test_a_mixed_batch_never_replaces() -> None:
    assert stands(batch("t", (-1, "e1"), replaces=True), batch("t", (-1, "e2"), (0, "a"))) == [
        ("t", -1, b"e1"),
        ("t", 0, b"a"),
    ]


def test_tasks_do_not_meet() -> None:
    assert stands(batch("b", (0, "x")), batch("a", (0, "y"))) == [("a", 0, b"y"), ("b", 0, b"x")]


def test_the_order_is_path_then_task_then_index() -> None:
    seen = decide_writes(
        [
            batch("t1", (1, ""), (0, ""), path="~b"),
            batch("t2", (0, ""), path="~a"),
            batch("t0", (-2, ""), (5, ""), path="~b"),
        ]
    )
    assert [(s.task_path, s.task_id, s.idx) for s in seen] == [
        ("~a", "t2", 0),
        ("~b", "t0", -2),
        ("~b", "t0", 5),
        ("~b", "t1", 0),
        ("~b", "t1", 1),
    ]


_BATCHES = st.lists(
    st.builds(
        lambda task, writes, special: batch(
            task,
            *[(-idx - 1 if special else idx, text) for idx, text in writes],
            replaces=special,
        ),
        st.sampled_from("abc"),
        st.lists(st.tuples(st.integers(0, 3), st.sampled_from("xyz")), max_size=4),
        st.booleans(),
    ),
    max_size=6,
)


@given(_BATCHES)
def test_against_the_words_of_the_contract(batches: list[Batch]) -> None:
    """First wins among normal places, last wins among special ones."""
    expected: dict[tuple[str, int], Typed] = {}
    for one in batches:
        for write in one.writes:
            place = (one.task_id, write.idx)
            if write.idx < 0 or place not in expected:
                expected[place] = write.value
    seen = {(s.task_id, s.idx): s.value for s in decide_writes(batches)}
    assert seen == expected


@given(_BATCHES, st.integers(0, 6))
def test_a_normal_write_never_changes_once_it_stands(batches: list[Batch], cut: int) -> None:
    before = {(s.task_id, s.idx): s for s in decide_writes(batches[:cut]) if s.idx >= 0}
    after = {(s.task_id, s.idx): s for s in decide_writes(batches)}
    assert all(after[place] == standing for place, standing in before.items())
