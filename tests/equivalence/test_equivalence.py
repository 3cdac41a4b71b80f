"""`assert_resume_equivalent`: good graphs pass at every boundary, planted bugs are found."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from tests.equivalence import graphs
from tests.postgres import fresh_database

from surefoot import Absent, SurefootSaver
from surefoot.testing import CountingReceiver, Equivalence, NotEquivalent, assert_resume_equivalent
from surefoot.testing.comparing import differences, plain


@pytest.fixture
def receiver(tmp_path: Path) -> CountingReceiver:
    return CountingReceiver(tmp_path / "receiver.jsonl")


@cache
def databases() -> dict[str, str]:
    return {"url": fresh_database(), "highwater": fresh_database()}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def stores(request: pytest.FixtureRequest) -> dict[str, str]:
    return databases() if request.param == "postgres" else {}


def check(make: Callable[..., Any], receiver: CountingReceiver, **settings: Any) -> Equivalence:
    return assert_resume_equivalent(partial(make, receiver), {"log": []}, receiver, **settings)


def expect(condition: object, *shown: object) -> None:
    """Also under ``python -O``."""
    if not condition:
        raise AssertionError(*shown)


# --- what is right passes ------------------------------------------------------------------------


@pytest.mark.optimized
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_good_graph_passes_at_every_boundary(
    stores: dict[str, str], durability: str, receiver: CountingReceiver
) -> None:
    every = (1 if durability == "sync" else 3) * (6 if stores else 1)
    told: list[str] = []
    report = check(
        graphs.good,
        receiver,
        answers=["yes", "later"],
        durability=durability,
        progress=told.append,
        every=every,
        **stores,
    )
    names = report.boundaries[::every]
    expect(len(report.boundaries) > 60, report)
    expect(report.died + report.not_reached != (), report)
    expect({*report.died, *report.not_reached} == {*names}, report)
    expect(len(report.died) >= len(names) * 0.9, report)
    expect(len(told) == len(names), told)
    expect(report.in_doubt == (), report)
    expect(
        {"effect.send_k.before#1", "effect.send_k.after#1", "effect.send_l.after#1"}
        <= {*report.boundaries},
        report,
    )


def test_an_async_graph_passes(stores: dict[str, str], receiver: CountingReceiver) -> None:
    report = check(graphs.good_async, receiver, is_async=True, every=6 if stores else 2, **stores)
    assert "effect.post.after#3" in report.boundaries


async def test_it_can_be_called_in_an_async_test(receiver: CountingReceiver) -> None:
    check(graphs.good_async, receiver, is_async=True, every=6)


def test_tools_and_messages_with_generated_ids_pass(receiver: CountingReceiver) -> None:
    report = assert_resume_equivalent(
        partial(graphs.tools, receiver), {"messages": [("user", "refund!")]}, receiver, every=2
    )
    assert report.died


def test_answers_by_a_function_of_the_question(receiver: CountingReceiver) -> None:
    asked: list[Any] = []

    def answer(question: Any) -> str:
        asked.append(question)
        return "yes"

    check(graphs.good, receiver, answers=answer, every=5)
    assert {"ask": "go on?"} in asked
    assert "and now?" in asked


def test_durability_exit(receiver: CountingReceiver) -> None:
    """Nothing is stored before the end, so the application gives its first input again."""
    check(graphs.good_async, receiver, is_async=True, durability="exit", every=2)


def test_an_encrypted_saver_and_further_config(receiver: CountingReceiver) -> None:
    check(
        graphs.good_async,
        receiver,
        is_async=True,
        every=8,
        saver_settings={"encryption": True},
        config={"configurable": {"customer": "c-1"}, "recursion_limit": 7},
    )


@pytest.mark.optimized
def test_class_n_stops_for_a_person_only_where_it_may(receiver: CountingReceiver) -> None:
    with pytest.raises(NotEquivalent, match="raised EffectInDoubt"):
        check(graphs.neither, receiver, boundaries=["effect.send_n.after#1"])
    report = check(graphs.neither, receiver, in_doubt=["send_n"])
    expect("effect.send_n.after#1" in report.in_doubt, report)
    expect("store.append.before#1" not in report.in_doubt, report)
    with pytest.raises(NotEquivalent, match="raised EffectInDoubt"):
        check(
            graphs.neither,
            receiver,
            in_doubt=["another"],
            boundaries=["effect.send_n.after#1"],
        )


@pytest.mark.kill
def test_real_processes(stores: dict[str, str], receiver: CountingReceiver) -> None:
    wanted = [
        "effect.send_k.before#1",
        "effect.send_l.after#1",
        "marks.publish.before#3",
    ]
    report = check(
        graphs.good,
        receiver,
        answers=["yes", "later"],
        processes=True,
        boundaries=wanted,
        durability="sync",
        **stores,
    )
    assert {*report.died} == {*wanted}


# --- what is wrong is found ----------------------------------------------------------------------


@pytest.mark.optimized
@pytest.mark.parametrize(
    ("make", "difference"),
    [
        (graphs.outside, "'mail' happened 2 times instead of 1"),
        (graphs.own_key, "'invoice' happened 2 times instead of 1"),
        (graphs.liar, "'invoice' happened 2 times instead of 1"),
        (graphs.blind, "'invoice' happened 2 times instead of 1"),
        (graphs.swallowing, "'invoice' happened 0 times instead of 1"),
    ],
)
def test_planted_bugs_are_found(
    make: Callable[..., Any], difference: str, receiver: CountingReceiver
) -> None:
    # Under "async" a save may overtake the node behind it, so that a boundary lies elsewhere in
    # another run; this asks for the very same one again.
    with pytest.raises(NotEquivalent) as caught:
        check(make, receiver, durability="sync")
    error = caught.value
    expect(error.boundary is not None, error)
    expect(difference in error.differences, error)
    expect(str(error).startswith(f"a run that died at {error.boundary} "), error)
    again = pickle.loads(pickle.dumps(error))
    expect((again.boundary, again.differences) == (error.boundary, error.differences), again)
    # As it says, the same one is seen again, alone.
    with pytest.raises(NotEquivalent) as second:
        check(make, receiver, durability="sync", boundaries=[error.boundary])
    expect(second.value.boundary == error.boundary, second.value)
    expect(repr(error.boundary) in error.reproduce, error.reproduce)


def test_a_lost_step_shows_in_the_state_as_well(receiver: CountingReceiver) -> None:
    with pytest.raises(NotEquivalent) as caught:
        check(graphs.swallowing, receiver)
    assert "state['log'] has 1 items instead of 2" in caught.value.differences


def test_other_arguments_at_each_attempt_are_a_conflict(receiver: CountingReceiver) -> None:
    class AsOne:
        """Counts all invoices as one, so that it is not the count that differs."""

        def snapshot(self) -> dict[str, int]:
            return {"invoices": receiver.count()}

    with pytest.raises(NotEquivalent, match="raised EffectConflict"):
        assert_resume_equivalent(
            partial(graphs.other_arguments, receiver),
            {"log": []},
            AsOne(),
            state=lambda values: len(values["log"]),
        )


@pytest.mark.kill
def test_real_processes_find_it_too(receiver: CountingReceiver) -> None:
    with pytest.raises(NotEquivalent, match="'invoice' happened 2 times instead of 1") as caught:
        check(graphs.liar, receiver, processes=True, boundaries=["effect.pay.after#1"])
    assert "processes=True" in caught.value.reproduce


# --- what cannot be checked is said --------------------------------------------------------------


def test_runs_that_differ_by_themselves(receiver: CountingReceiver) -> None:
    with pytest.raises(NotEquivalent, match="two uninterrupted runs differ") as caught:
        check(graphs.unsteady, receiver)
    assert caught.value.boundary is None
    check(graphs.unsteady, receiver, state=lambda values: len(values["log"]), every=4)


def test_a_graph_that_fails_by_itself(receiver: CountingReceiver) -> None:
    with pytest.raises(KeyError, match="a mistake of its own"):
        check(graphs.failing, receiver)


def test_arguments_that_cannot_work(receiver: CountingReceiver) -> None:
    wrong: list[tuple[str, Callable[..., Any], dict[str, Any]]] = [
        ("every=", graphs.good, {"every": 0}),
        ("2 different questions", graphs.good, {"answers": ["yes", "later", "never"]}),
        ("no boundary of this run", graphs.neither, {"boundaries": ["store.append.before#999"]}),
        (
            "another process can import",
            lambda *given: graphs.neither(*given),  # noqa: PLW0108 - no other process has it
            {"processes": True},
        ),
        ("the saver it was given", lambda r, s: graphs.chain(None, graphs.note), {}),
        ("nothing was proven", graphs.neither, {"boundaries": []}),
    ]
    for match, make, settings in wrong:
        with pytest.raises(ValueError, match=match):
            check(make, receiver, **settings)
    with pytest.raises(LookupError, match="no answer"):
        check(graphs.good, receiver, answers=["yes"])
    with pytest.raises(ValueError, match="snapshot"):
        assert_resume_equivalent(partial(graphs.good, receiver), {}, object())  # type: ignore[arg-type]


def test_a_child_that_fails_in_another_way_is_no_kill(receiver: CountingReceiver) -> None:
    with pytest.raises(NotEquivalent, match="ended with 1 before"):
        check(graphs.only_here, receiver, processes=True, boundaries=["effect.send_k.before#1"])


def test_a_boundary_that_is_not_reached_is_no_death(receiver: CountingReceiver) -> None:
    """The first run pays twice, the later ones once: its second boundary never comes again."""
    runs: list[int] = []

    def make(saver: SurefootSaver) -> Any:
        send = graphs.sends(receiver, "K")
        return graphs.chain(saver, lambda s: {"log": [[send(w) for w in what()]]})

    def what() -> list[str]:
        runs.append(1)
        return ["a", "b"] if len(runs) == 1 else ["a"]

    class Any1:
        def snapshot(self) -> dict[str, int]:
            return {}

    with pytest.raises(ValueError, match="nothing was proven"):
        assert_resume_equivalent(
            make,
            {"log": []},
            Any1(),
            state=lambda values: None,
            boundaries=["effect.send_k.before#2"],
        )


# --- the parts -----------------------------------------------------------------------------------


def test_the_receiver_counts_across_threads_and_processes(receiver: CountingReceiver) -> None:
    gate = threading.Barrier(8)

    def send(n: int) -> Any:
        gate.wait()
        return receiver.send("same", key="k", once=True, n=n)

    with ThreadPoolExecutor(8) as pool:
        landed = list(pool.map(send, range(8)))
    assert len({entry["n"] for entry in landed}) == 1
    assert receiver.snapshot() == {"same": 1}
    receiver.send("same", key="k")
    other = CountingReceiver(receiver.path)
    assert other.count("same") == other.count() == 2
    assert len(other.find("k")) == 2
    assert other.find("none") == []
    other.reset()
    assert receiver.snapshot() == {}


def test_differences_name_the_place() -> None:
    wanted = plain({"a": [1, {"b": 2.0}], "c": {"x"}, "gone": (1,)})
    found = plain({"a": [1, {"b": 2}, 3], "c": {"y"}, "new": Absent()})
    assert list(differences(wanted, found)) == [
        "state['a'][1]['b'] is 2 instead of 2.0",
        "state['a'] has 3 items instead of 2",
        """state['c'][0] is "y" instead of "x\"""",
        "state['gone'] is missing",
        "state['new'] is {\"evidence\": null}, and was not there",
    ]
    assert list(differences(wanted, wanted)) == []
