"""`compensate=`: an effect is undone once, by an effect of its own with its own entry."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.effects.conftest import Bench

from surefoot import Absent, Committed, EffectCall, effect
from surefoot.errors import EffectInDoubt, Misconfigured
from surefoot.flows.views import viewing
from surefoot.rules.bodies import EffectBody
from surefoot.rules.envelope import Kind

pytestmark = pytest.mark.optimized
COLOURS = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
OPERATIONS = pytest.mark.parametrize("operation", [None, "invoice"], ids=["place", "operation"])


class Boom(Exception):
    """The node, or the process in it, fails."""


class Bank:
    """A charge and its refund, in one colour."""

    def __init__(
        self,
        bench: Bench,
        *,
        asynchronous: bool = False,
        kind: str = "K",
        operation: str | None = None,
    ) -> None:
        self.charged: list[Any] = []
        self.refunded: list[Any] = []
        self.keys: list[str] = []
        self.dies_in: set[str] = set()
        self.asynchronous = asynchronous
        settings: dict[str, Any] = {"idempotent": kind == "K"}
        if kind == "L":
            settings |= {"reconcile": self.ask, "lookup": "strong"}

        def refund(invoice: str, *, result: Any, receipt: Any, call: EffectCall) -> str:
            self.refunded.append((invoice, result["id"], receipt.get("provider")))
            self.keys.append(call.key)
            self.die("refund")
            return f"refunded {result['id']}"

        async def arefund(invoice: str, *, result: Any, receipt: Any, call: EffectCall) -> str:
            return refund(invoice, result=result, receipt=receipt, call=call)

        self.refund = effect(name="refund", **settings)(arefund if asynchronous else refund)

        def charge(invoice: str, amount: int, *, call: EffectCall) -> Any:
            self.charged.append((invoice, amount))
            call.note(provider=f"p{len(self.charged)}")
            self.die("charge")
            return {"id": len(self.charged)}

        async def acharge(invoice: str, amount: int, *, call: EffectCall) -> Any:
            await asyncio.sleep(0)
            return await asyncio.to_thread(charge, invoice, amount, call=call)

        self.charge = effect(
            name="charge", compensate=self.refund, operation_id=operation, idempotent=True
        )(acharge if asynchronous else charge)

    def ask(self, call: EffectCall) -> Any:
        """The lookup of the refund."""
        return Committed(None, result="found") if call.key in self.keys else Absent()

    def die(self, where: str) -> None:
        """Raises once, where it was told to."""
        if where in self.dies_in:
            self.dies_in.discard(where)
            raise Boom

    def node(self, *steps: tuple[str, str]) -> Any:
        """A node that charges and undoes, in this order."""

        def call(what: str, invoice: str) -> Any:
            return (self.charge if what == "charge" else self.charge.compensate)(invoice, 7)

        def run(state: Any) -> Any:
            done = {"log": [call(*step) for step in steps]}
            self.die("node")
            return done

        async def arun(state: Any) -> Any:
            done = {"log": [await call(*step) for step in steps]}
            self.die("node")
            return done

        return arun if self.asynchronous else run

    def run(self, graph: Any, given: Any, config: Any) -> Any:
        """One run in the colour."""
        if self.asynchronous:
            return asyncio.run(graph.ainvoke(given, config))["log"]
        return graph.invoke(given, config)["log"]


@COLOURS
@OPERATIONS
def test_it_is_undone_once(either: Bench, asynchronous: bool, operation: str | None) -> None:
    bank = Bank(either, asynchronous=asynchronous, operation=operation)
    config = either.config()
    graph = either.graph(bank.node(("charge", "i1")), bank.node(("undo", "i1")))
    assert bank.run(graph, {"log": []}, config) == [{"id": 1}, "refunded 1"]
    again = either.graph(bank.node(("undo", "i1")), saver=either.open())
    last = bank.run(again, {"log": []}, config)[-1]
    assert last == ("refunded 1" if operation else None)
    assert bank.refunded == [("i1", 1, "p1")]


@COLOURS
@OPERATIONS
@pytest.mark.parametrize("dies_in", ["node", "refund"])
@pytest.mark.parametrize("kind", ["K", "L"])
def test_a_crash_on_the_way(
    either: Bench, asynchronous: bool, operation: str | None, dies_in: str, kind: str
) -> None:
    bank = Bank(either, asynchronous=asynchronous, operation=operation, kind=kind)
    config = either.config()
    bank.dies_in = {dies_in}
    nodes = [bank.node(("charge", "i1"), ("undo", "i1"))]
    with pytest.raises(Boom):
        bank.run(either.graph(*nodes), {"log": []}, config)
    done = bank.run(either.graph(*nodes, saver=either.open()), None, config)
    assert bank.charged == [("i1", 7)]
    assert len(set(bank.keys)) == 1
    sent = 2 if (dies_in, kind) == ("refund", "K") else 1
    assert bank.refunded == [("i1", 1, "p1")] * sent
    assert done[1] == ("found" if (dies_in, kind) == ("refund", "L") else "refunded 1")


def test_two_equal_charges_are_undone_one_by_one(either: Bench) -> None:
    bank = Bank(either)
    config = either.config()
    graph = either.graph(
        bank.node(("charge", "i"), ("charge", "i")), bank.node(*[("undo", "i")] * 3)
    )
    assert bank.run(graph, {"log": []}, config)[2:] == ["refunded 2", "refunded 1", None]


def test_what_did_not_happen_is_not_undone(bench: Bench) -> None:
    bank = Bank(bench)
    graph = bench.graph(bank.node(("charge", "i1"), ("undo", "i2")))
    assert bank.run(graph, {"log": []}, bench.config()) == [{"id": 1}, None]
    assert bank.refunded == []


def test_what_is_in_doubt_is_not_undone(bench: Bench) -> None:
    bank = Bank(bench)
    config = bench.config()
    bank.dies_in = {"charge"}
    with pytest.raises(Boom):
        bank.run(bench.graph(bank.node(("charge", "i1"))), {"log": []}, config)
    with pytest.raises(EffectInDoubt, match="cannot be undone before"):
        bank.run(bench.graph(bank.node(("undo", "i1"))), {"log": []}, config)
    assert bank.refunded == []


def test_a_fork_does_not_undo_again(either: Bench) -> None:
    bank = Bank(either)
    config = either.config()
    graph = either.graph(bank.node(("charge", "i")), bank.node(("undo", "i")))
    bank.run(graph, {"log": []}, config)
    before = next(s.config for s in graph.get_state_history(config) if s.next == ("n1",))
    assert bank.run(graph, None, before) == [{"id": 1}, "refunded 1"]
    assert len(bank.refunded) == 1


def test_the_ledger_names_what_was_undone(bench: Bench) -> None:
    bank = Bank(bench)
    config = bench.config()
    bank.run(bench.graph(bank.node(("charge", "i"), ("undo", "i"))), {"log": []}, config)

    def entries(chain: Any) -> dict[str, EffectBody]:
        found = [EffectBody.unpack(r.schema, r.body) for r in chain.walk() if r.kind is Kind.EFFECT]
        return {body.name: body for body in reversed(found)}

    thread = config["configurable"]["thread_id"]
    found = viewing(bench.saver.core.ports, thread, entries)
    assert found["refund"].compensates == found["charge"].slot
    assert found["refund"].state == found["charge"].state == "succeeded"


def _plain(invoice: str) -> None: ...


@effect
def _needs_more(invoice: str, reason: str) -> None: ...


@effect(operation_id="invoice")
def _named(invoice: str) -> None: ...


@pytest.mark.parametrize(
    ("inverse", "message"),
    [(_plain, "decorate it"), (_needs_more, "needs 'reason'"), (_named, "operation_id=")],
)
def test_an_inverse_that_cannot_work_is_refused_at_decoration(inverse: Any, message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        effect(compensate=inverse)(lambda invoice: None)
