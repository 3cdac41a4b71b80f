"""Effects whose task comes back at another position are recognised (rule E4b)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from tests.effects.conftest import Bench, State

from surefoot import Absent, Committed, EffectCall, Limits, SurefootSaver, effect
from surefoot.errors import EffectInDoubt, EffectOnFork, Misuse
from surefoot.flows.views import viewing
from surefoot.rules.bodies import CheckpointBody
from surefoot.rules.envelope import Kind
from surefoot.testing.faults import Died, Fault, Plan, bury, with_faults

pytestmark = pytest.mark.optimized
COLOURS = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
KINDS = pytest.mark.parametrize("kind", ["K", "L", "N"])


class Boom(Exception):
    """The node, or the process in it, fails."""


class Pay:
    """An effect of a class in a colour, which may die at given calls after it has landed."""

    def __init__(self, bench: Bench, kind: str, *, asynchronous: bool = False) -> None:
        self.world = bench.world
        self.asynchronous = asynchronous
        self.dies_at: set[int] = set()
        self.found = True
        self.after: Callable[[], None] = lambda: None
        #: A node of this effect is about to return.
        self.returns = threading.Event()
        settings: dict[str, Any] = {"name": "pay", "idempotent": kind == "K"}
        if kind == "L":
            settings |= {"reconcile": self.ask, "lookup": "strong"}

        def pay(what: Any, *, call: EffectCall) -> Any:
            self.world.send(what, call.key)
            self.after()
            if self.world.count in self.dies_at:
                raise Boom
            return f"paid {what}"

        async def apay(what: Any, *, call: EffectCall) -> Any:
            await asyncio.sleep(0)
            return pay(what, call=call)

        self.effect = effect(**settings)(apay if asynchronous else pay)

    def ask(self, call: EffectCall) -> Any:
        """The lookup."""
        if call.key in self.world.keys and self.found:
            return Committed({"what": call.arguments["what"]}, result="found")
        return Absent()

    def node(self, *what: Any) -> Callable[[Any], Any]:
        """A node that pays these."""

        def run(state: Any) -> Any:
            done = {"log": [self.effect(one) for one in what]}
            self.returns.set()
            return done

        async def arun(state: Any) -> Any:
            done = {"log": [await self.effect(one) for one in what]}
            self.returns.set()
            return done

        return arun if self.asynchronous else run


def run(graph: Any, given: Any, config: Any, *, asynchronous: bool = False, **more: Any) -> Any:
    """Invokes in a colour."""
    if asynchronous:
        return asyncio.run(graph.ainvoke(given, config, **more))
    return graph.invoke(given, config, **more)


def fan_out(pay: Pay, bench: Bench, fails: list[bool], saver: SurefootSaver | None = None) -> Any:
    """Branch A pays; branch B fails, once A is done, as long as ``fails`` says so."""

    def fail(state: Any) -> Any:
        if fails.pop(0):
            if not pay.returns.wait(30):
                raise TimeoutError("branch A never returned")
            raise Boom
        return {"log": ["b"]}

    async def afail(state: Any) -> Any:
        if fails[0]:
            await asyncio.to_thread(pay.returns.wait, 30)
        for _ in range(100):  # turns of the loop: A's task ends and its writes are handed over
            await asyncio.sleep(0)
        return fail(state)

    graph = StateGraph(State)
    graph.add_node("a", pay.node(7))
    graph.add_node("b", afail if pay.asynchronous else fail)
    graph.add_node("wait", lambda state: {"log": ["begun"]})
    graph.add_edge(START, "wait")
    graph.add_edge("wait", "a")
    graph.add_edge("wait", "b")
    return graph.compile(checkpointer=saver or bench.saver)


# --- case 11: new input after a failed fan-out ---------------------------------------------------


@KINDS
@COLOURS
@pytest.mark.parametrize("other_process", [False, True])
def test_case_11_new_input_after_a_failed_fan_out(
    either: Bench, kind: str, asynchronous: bool, other_process: bool
) -> None:
    pay = Pay(either, kind, asynchronous=asynchronous)
    config = either.config()
    fails = [True, False]
    graph = fan_out(pay, either, fails)
    with pytest.raises(Boom):
        run(graph, {"log": ["one"]}, config, asynchronous=asynchronous)
    assert either.world.sent == [7]
    if other_process:
        graph = fan_out(pay, either, fails, either.open())
    done = run(graph, {"log": ["two"]}, config, asynchronous=asynchronous)
    assert either.world.sent == [7]
    assert done["log"] == ["one", "begun", "two", "begun", "paid 7", "b"]


@KINDS
def test_it_is_adopted_once_only(bench: Bench, kind: str) -> None:
    """The third message is meant: what was left has been taken over by the second one."""
    pay = Pay(bench, kind)
    config = bench.config()
    graph = fan_out(pay, bench, [True, False, False])
    with pytest.raises(Boom):
        graph.invoke({"log": ["one"]}, config)
    graph.invoke({"log": ["two"]}, config)
    assert bench.world.sent == [7]
    graph.invoke({"log": ["three"]}, config)
    assert bench.world.sent == [7, 7]
    assert len(set(bench.world.keys)) == 2


@KINDS
def test_new_input_after_a_finished_run_is_another_effect(bench: Bench, kind: str) -> None:
    pay = Pay(bench, kind)
    config = bench.config()
    graph = fan_out(pay, bench, [False, False])
    graph.invoke({"log": ["one"]}, config)
    graph.invoke({"log": ["two"]}, config)
    assert bench.world.sent == [7, 7]


def test_other_arguments_are_another_effect(bench: Bench) -> None:
    pay = Pay(bench, "N")
    config = bench.config()
    with pytest.raises(Boom):
        fan_out(pay, bench, [True]).invoke({"log": []}, config)
    graph = StateGraph(State)
    graph.add_node("a", pay.node(8))
    graph.add_edge(START, "a")
    graph.compile(checkpointer=bench.saver).invoke({"log": []}, config)
    assert bench.world.sent == [7, 8]


@pytest.mark.parametrize(("kind", "sent"), [("K", 2), ("L", 1)])
def test_a_doubt_is_adopted_with_its_key(either: Bench, kind: str, sent: int) -> None:
    pay = Pay(either, kind)
    pay.dies_at = {1}
    config = either.config()
    graph = fan_out(pay, either, [False, False])
    with pytest.raises(Boom):
        graph.invoke({"log": []}, config)
    done = graph.invoke({"log": ["again"]}, config)
    assert len(either.world.sent) == sent
    assert len(set(either.world.keys)) == 1
    assert done["log"][-2] == ("found" if kind == "L" else "paid 7")


def test_a_doubt_of_class_n_is_adopted_and_stays_one(either: Bench) -> None:
    pay = Pay(either, "N")
    pay.dies_at = {1}
    config = either.config()
    with pytest.raises(Boom):
        fan_out(pay, either, [False]).invoke({"log": []}, config)
    for _ in range(2):
        again = fan_out(pay, either, [False, False], either.open())
        with pytest.raises(EffectInDoubt):
            again.invoke({"log": ["again"]}, config)
    assert either.world.sent == [7]


@pytest.mark.parametrize("kind", ["L", "N"])
def test_a_start_of_a_dead_process_is_adopted_as_maybe_sent(either: Bench, kind: str) -> None:
    """The process dies inside the effect, so only its start is recorded."""
    pay = Pay(either, kind)
    config = either.config()
    dying = either.open()
    plan = Plan({"effect.body.after#1": Fault.DIE})

    def die() -> None:
        plan.around("effect.body", lambda: None)

    pay.after = die
    with_faults(dying, plan)
    with pytest.raises(Died):
        fan_out(pay, either, [False], dying).invoke({"log": []}, config)
    bury(dying, plan)
    assert plan.hit == ["effect.body.after#1"]
    pay.after = lambda: None
    again = fan_out(pay, either, [False, False], either.open())
    if kind == "L":
        assert "found" in again.invoke({"log": ["again"]}, config)["log"]
    else:
        with pytest.raises(EffectInDoubt):
            again.invoke({"log": ["again"]}, config)
        with pytest.raises(EffectInDoubt):
            again.invoke(None, config)
    assert either.world.sent == [7]


def test_what_was_proven_absent_is_no_reason_to_adopt(bench: Bench) -> None:
    from surefoot import NotSent

    tries: list[int] = []

    @effect(name="pay")
    def pay(what: int) -> str:
        tries.append(what)
        if len(tries) == 1:
            raise NotSent
        return "paid"

    config = bench.config()
    graph = bench.graph(lambda s: {"log": [pay(7)]})
    with pytest.raises(NotSent):
        graph.invoke({"log": []}, config)
    assert graph.invoke({"log": []}, config)["log"] == ["paid"]
    assert tries == [7, 7]


def test_several_messages_later(either: Bench) -> None:
    """What is left stays on the list until something takes it over, across processes."""
    pay = Pay(either, "N")
    config = either.config()
    with pytest.raises(Boom):
        fan_out(pay, either, [True]).invoke({"log": []}, config)
    for number in range(3):
        idle = StateGraph(State)
        idle.add_node("idle", lambda state: {"log": ["idle"]})
        idle.add_edge(START, "idle")
        idle.compile(checkpointer=either.open()).invoke({"log": [number]}, config)
    done = fan_out(pay, either, [False], either.open()).invoke({"log": []}, config)
    assert either.world.sent == [7]
    assert "paid 7" in done["log"]


def test_the_list_is_stored_once_and_not_with_every_checkpoint(bench: Bench) -> None:
    pay = Pay(bench, "N")
    config = bench.config()
    with pytest.raises(Boom):
        fan_out(pay, bench, [True]).invoke({"log": []}, config)
    bench.graph(*[lambda s: {"log": ["on"]}] * 5).invoke({"log": []}, config)
    lists = {
        body.loose
        for body in _checkpoints(bench, config["configurable"]["thread_id"])
        if body.loose is not None
    }
    assert len(lists) == 1
    fan_out(pay, bench, [False]).invoke({"log": []}, config)
    newest = _checkpoints(bench, config["configurable"]["thread_id"])[0]
    assert newest.loose is None


def _checkpoints(bench: Bench, thread: str) -> list[CheckpointBody]:
    def bodies(chain: Any) -> list[CheckpointBody]:
        return [
            CheckpointBody.unpack(r.schema, r.body)
            for r in chain.walk()
            if r.kind is Kind.CHECKPOINT
        ]

    return viewing(bench.saver.core.ports, thread, bodies)


def test_a_crash_between_the_adoption_and_its_checkpoint(either: Bench) -> None:
    """The adoption stands in the journal's tail; the next process sees that it was taken."""
    pay = Pay(either, "N")
    config = either.config()
    with pytest.raises(Boom):
        fan_out(pay, either, [True]).invoke({"log": []}, config)
    with pytest.raises(Boom):
        fan_out(pay, either, [True], either.open()).invoke({"log": ["two"]}, config)
    done = fan_out(pay, either, [False], either.open()).invoke(None, config)
    assert either.world.sent == [7]
    assert done["log"] == ["begun", "two", "begun", "paid 7", "b"]
    fan_out(pay, either, [False], either.open()).invoke({"log": ["three"]}, config)
    assert either.world.sent == [7, 7]


# --- update_state --------------------------------------------------------------------------------


@COLOURS
def test_an_update_drops_what_the_tasks_have_written(either: Bench, asynchronous: bool) -> None:
    """LangGraph drops the finished branch, so when it runs again its effect is recognised."""
    pay = Pay(either, "N", asynchronous=asynchronous)
    config = either.config()
    graph = fan_out(pay, either, [True])
    with pytest.raises(Boom):
        run(graph, {"log": []}, config, asynchronous=asynchronous)
    graph.update_state(config, {"log": ["mended"]}, as_node="wait")
    assert "paid 7" not in graph.get_state(config).values["log"]
    again = fan_out(pay, either, [False], either.open())
    done = run(again, None, config, asynchronous=asynchronous)
    assert "paid 7" in done["log"]
    assert either.world.sent == [7]


def test_an_update_that_clears_the_tasks_folds_what_they_have_written(either: Bench) -> None:
    """With ``as_node=END`` LangGraph applies the finished branch, so paying again is meant."""
    pay = Pay(either, "N")
    config = either.config()
    graph = fan_out(pay, either, [True])
    with pytest.raises(Boom):
        graph.invoke({"log": []}, config)
    graph.update_state(config, None, as_node=END)
    assert "paid 7" in graph.get_state(config).values["log"]
    fan_out(pay, either, [False], either.open()).invoke({"log": ["new"]}, config)
    assert either.world.sent == [7, 7]


# --- case 12: time travel ------------------------------------------------------------------------


def _before(graph: Any, config: Any, node: str) -> Any:
    return next(s.config for s in graph.get_state_history(config) if s.next == (node,))


@KINDS
@COLOURS
def test_case_12_a_replay_with_the_same_arguments_is_recognised(
    either: Bench, kind: str, asynchronous: bool
) -> None:
    pay = Pay(either, kind, asynchronous=asynchronous)
    config = either.config()
    graph = either.graph(lambda s: {"log": ["think"]}, pay.node(7), lambda s: {"log": ["told"]})
    run(graph, {"log": []}, config, asynchronous=asynchronous)
    before = _before(graph, config, "n1")
    other = either.graph(
        lambda s: {"log": ["think"]},
        pay.node(7),
        lambda s: {"log": ["told"]},
        saver=either.open(),
    )
    for _ in range(2):
        done = run(other, None, before, asynchronous=asynchronous)
        assert done["log"] == ["think", "paid 7", "told"]
    assert either.world.sent == [7]


@KINDS
def test_case_12_a_replay_with_other_arguments_is_another_effect(either: Bench, kind: str) -> None:
    pay = Pay(either, kind)
    config = either.config()
    graph = either.graph(lambda s: {"n": 7}, lambda s: {"log": [pay.effect(s["n"])]})
    graph.invoke({"log": []}, config)
    before = _before(graph, config, "n1")
    forked = graph.update_state(before, {"n": 8})
    assert graph.invoke(None, forked)["log"] == ["paid 8"]
    assert either.world.sent == [7, 8]
    assert len(set(either.world.keys)) == 2


@pytest.mark.parametrize(("policy", "sent"), [("execute", 2), ("adopt", 1)])
def test_case_12_the_policy(either: Bench, policy: str, sent: int) -> None:
    pay = Pay(either, "K")
    config = either.config()
    graph = either.graph(pay.node(7), saver=either.open(on_fork=policy))
    graph.invoke({"log": []}, config)
    assert graph.invoke(None, _before(graph, config, "n0"))["log"] == ["paid 7"]
    assert len(either.world.sent) == sent
    assert len(set(either.world.keys)) == sent


def test_case_12_the_policy_may_refuse(either: Bench) -> None:
    pay = Pay(either, "N")
    config = either.config()
    graph = either.graph(pay.node(7), saver=either.open(on_fork="refuse"))
    graph.invoke({"log": []}, config)
    before = _before(graph, config, "n0")
    for _ in range(2):
        with pytest.raises(EffectOnFork, match="another branch") as refused:
            graph.invoke(None, before)
    assert refused.value.effect == "pay"
    assert either.world.sent == [7]
    other = either.graph(pay.node(7), saver=either.open())
    assert other.invoke(None, before)["log"] == ["paid 7"]
    assert either.world.sent == [7]


def test_intended_repeats_of_another_branch_are_adopted_one_by_one(either: Bench) -> None:
    pay = Pay(either, "N")
    config = either.config()
    nodes = [lambda s: {"log": ["go"]}, pay.node(7, 7), pay.node(7)]
    graph = either.graph(*nodes)
    graph.invoke({"log": []}, config)
    assert either.world.sent == [7, 7, 7]
    before = _before(graph, config, "n1")
    assert graph.invoke(None, before)["log"] == ["go", *["paid 7"] * 3]
    assert either.world.sent == [7, 7, 7]
    # A fourth one on the fork is new.
    more = StateGraph(State)
    more.add_node("more", pay.node(7))
    more.add_edge(START, "more")
    more.compile(checkpointer=either.saver).invoke({"log": []}, config)
    assert len(either.world.sent) == 4


def test_a_fork_of_a_fork(either: Bench) -> None:
    pay = Pay(either, "N")
    config = either.config()
    graph = either.graph(lambda s: {"log": ["go"]}, pay.node(7), pay.node(8))
    graph.invoke({"log": []}, config)
    for node in ("n1", "n2", "n1", "n2"):
        graph.invoke(None, _before(graph, config, node))
    assert either.world.sent == [7, 8]


def test_a_fork_that_dies_and_goes_on_in_another_process(either: Bench) -> None:
    pay = Pay(either, "N")
    config = either.config()
    fails = [False, True, False]

    def fail(state: Any) -> Any:
        if fails.pop(0):
            raise Boom
        return {"log": ["ok"]}

    nodes = [lambda s: {"log": ["go"]}, pay.node(7), fail, pay.node(8)]
    either.graph(*nodes).invoke({"log": []}, config)
    graph = either.graph(*nodes, saver=either.open())
    before = _before(graph, config, "n1")
    with pytest.raises(Boom):
        graph.invoke(None, before)
    done = either.graph(*nodes, saver=either.open()).invoke(None, config)
    assert done["log"] == ["go", "paid 7", "ok", "paid 8"]
    assert either.world.sent == [7, 8]


def test_a_fork_below_more_effects_than_the_limit(bench: Bench) -> None:
    pay = Pay(bench, "K")
    config = bench.config()
    saver = SurefootSaver(
        bench.conn,
        highwater=bench.highwater,
        keys=bench.keys,
        tenant=bench.tenant,
        limits=Limits(adoptable_effects_max=2),
    )
    with saver:
        graph = bench.graph(lambda s: {"log": ["go"]}, pay.node(1, 2, 3), saver=saver)
        saver.setup()
        graph.invoke({"log": []}, config)
        with pytest.raises(Misuse, match="adoptable_effects_max"):
            graph.invoke(None, _before(graph, config, "n1"))
    assert bench.world.sent == [1, 2, 3]


# --- subgraphs and Send --------------------------------------------------------------------------


def test_an_effect_in_a_subgraph_whose_task_comes_back(either: Bench) -> None:
    pay = Pay(either, "N")
    inner = StateGraph(State)
    inner.add_node("think", lambda state: {"log": []})
    inner.add_node("pay", pay.node(7))
    inner.add_node("after", lambda state: {"log": ["after"]})
    inner.add_edge(START, "think")
    inner.add_edge("think", "pay")
    inner.add_edge("pay", "after")
    inner.add_edge("after", END)
    fails = [True, False]

    def fail(state: Any) -> Any:
        if fails.pop(0):
            raise Boom
        return {}

    graph = StateGraph(State)
    graph.add_node("sub", inner.compile())
    graph.add_node("b", fail)
    graph.add_edge(START, "sub")
    graph.add_edge(START, "b")
    config = either.config()
    with pytest.raises(Boom):
        graph.compile(checkpointer=either.saver).invoke({"log": []}, config, durability="sync")
    done = graph.compile(checkpointer=either.open()).invoke({"log": ["two"]}, config)
    assert "paid 7" in done["log"]
    assert either.world.sent == [7]


def test_two_sends_with_one_payload_are_adopted_one_by_one(either: Bench) -> None:
    pay = Pay(either, "N")
    fails = [True, False]

    def fail(state: Any) -> Any:
        if fails.pop(0):
            raise Boom
        return {}

    graph = StateGraph(State)
    graph.add_node("worker", pay.node(7))
    graph.add_node("b", fail)
    graph.add_conditional_edges(
        START, lambda s: [Send("worker", {}), Send("worker", {}), Send("b", {})], ["worker", "b"]
    )
    config = either.config()
    with pytest.raises(Boom):
        graph.compile(checkpointer=either.saver).invoke({"log": []}, config)
    assert either.world.sent == [7, 7]
    done = graph.compile(checkpointer=either.open()).invoke({"log": []}, config)
    assert done["log"] == ["paid 7", "paid 7"]
    assert either.world.sent == [7, 7]
