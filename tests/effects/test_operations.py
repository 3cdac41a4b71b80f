"""`operation_id=`: a business operation happens once per tenant, whoever calls it (rule E4c)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.effects.conftest import Bench

from surefoot import Absent, Committed, EffectCall, effect
from surefoot.errors import Busy, EffectConflict, EffectInDoubt, Misconfigured, Misuse
from surefoot.rules.effects import OPERATION_PREFIX, operation_thread

pytestmark = pytest.mark.optimized
COLOURS = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
KINDS = pytest.mark.parametrize("kind", ["K", "L", "N"])


class Boom(Exception):
    """The process dies after the effect has landed."""


class Charge:
    """Charges an invoice; the invoice names the operation."""

    def __init__(self, bench: Bench, kind: str, *, asynchronous: bool = False) -> None:
        self.world = bench.world
        self.asynchronous = asynchronous
        self.dies = False
        settings: dict[str, Any] = {"name": "charge", "operation_id": "invoice"}
        settings["idempotent"] = kind == "K"
        if kind == "L":
            settings |= {"reconcile": self.ask, "compare": ["amount"], "lookup": "strong"}

        def charge(invoice: str, amount: int, *, call: EffectCall) -> str:
            if call.operation_id != invoice:
                raise AssertionError(call.operation_id)
            self.world.send((invoice, amount), call.key)
            if self.dies:
                raise Boom
            return f"charged {amount}"

        async def acharge(invoice: str, amount: int, *, call: EffectCall) -> str:
            await asyncio.sleep(0)
            return charge(invoice, amount, call=call)

        self.effect = effect(**settings)(acharge if asynchronous else charge)

    def ask(self, call: EffectCall) -> Any:
        """The lookup."""
        if call.key in self.world.keys:
            return Committed({"amount": call.arguments["amount"]}, result="found")
        return Absent()

    def node(self, invoice: str, amount: int = 700) -> Any:
        """A node that charges."""

        def run(state: Any) -> Any:
            return {"log": [self.effect(invoice, amount)]}

        async def arun(state: Any) -> Any:
            return {"log": [await self.effect(invoice, amount)]}

        return arun if self.asynchronous else run


def run(graph: Any, config: Any, *, asynchronous: bool = False, **more: Any) -> Any:
    """One run on new input."""
    if asynchronous:
        return asyncio.run(graph.ainvoke({"log": []}, config, **more))["log"]
    return graph.invoke({"log": []}, config, **more)["log"]


@KINDS
@COLOURS
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_once_for_all_threads_and_runs(
    either: Bench, kind: str, asynchronous: bool, durability: str
) -> None:
    charge = Charge(either, kind, asynchronous=asynchronous)
    same = either.config()
    for config, saver in ((same, None), (same, None), (either.config(), either.open())):
        graph = either.graph(charge.node("inv-1"), saver=saver)
        done = run(graph, config, asynchronous=asynchronous, durability=durability)
        assert done[-1] == "charged 700"
    run(either.graph(charge.node("inv-2")), same, asynchronous=asynchronous)
    assert either.world.sent == [("inv-1", 700), ("inv-2", 700)]
    assert len(set(either.world.keys)) == 2


@KINDS
def test_case_16_the_same_operation_with_other_arguments(either: Bench, kind: str) -> None:
    charge = Charge(either, kind)
    run(either.graph(charge.node("inv-1")), either.config())
    for _ in range(2):
        with pytest.raises(EffectConflict) as refused:
            run(either.graph(charge.node("inv-1", 900)), either.config())
        assert refused.value.differs == ["amount"]
    assert either.world.sent == [("inv-1", 700)]
    assert run(either.graph(charge.node("inv-1")), either.config()) == ["charged 700"]


@pytest.mark.parametrize(("kind", "sent"), [("K", 2), ("L", 1)])
@COLOURS
def test_another_thread_reconciles_what_one_has_left(
    either: Bench, kind: str, sent: int, asynchronous: bool
) -> None:
    charge = Charge(either, kind, asynchronous=asynchronous)
    charge.dies = True
    with pytest.raises(Boom):
        run(either.graph(charge.node("inv-1")), either.config(), asynchronous=asynchronous)
    charge.dies = False
    graph = either.graph(charge.node("inv-1"), saver=either.open())
    done = run(graph, either.config(), asynchronous=asynchronous)
    assert done == ["found" if kind == "L" else "charged 700"]
    assert len(either.world.sent) == sent
    assert len(set(either.world.keys)) == 1


def test_a_doubt_that_nobody_can_settle_stops_every_thread(either: Bench) -> None:
    charge = Charge(either, "N")
    charge.dies = True
    first = either.config()
    with pytest.raises(Boom):
        run(either.graph(charge.node("inv-1")), first)
    for config in (first, either.config()):
        with pytest.raises(EffectInDoubt) as refused:
            run(either.graph(charge.node("inv-1"), saver=either.open()), config)
        assert refused.value.thread == operation_thread("charge", "inv-1")
    assert len(either.world.sent) == 1


def test_at_the_same_moment(either: Bench) -> None:
    """The second one waits for the first one's lease, and takes its result."""
    inside, go = threading.Event(), threading.Event()
    sent: list[str] = []

    @effect(name="charge", operation_id="invoice")
    def charge(invoice: str) -> str:
        sent.append(invoice)
        inside.set()
        if not go.wait(30):
            raise TimeoutError
        return "charged"

    node = lambda state: {"log": [charge("inv-1")]}
    results: list[Any] = []
    first = threading.Thread(
        target=lambda: results.append(run(either.graph(node), either.config()))
    )
    first.start()
    assert inside.wait(30)
    hasty = either.graph(node, saver=either.open(handover_grace_ms=1))
    with pytest.raises(Busy):
        run(hasty, either.config())
    patient = either.graph(node, saver=either.open(wait_for_lease_ms=30_000))
    second = threading.Thread(target=lambda: results.append(run(patient, either.config())))
    second.start()
    go.set()
    first.join(30)
    second.join(30)
    assert results == [["charged"], ["charged"]]
    assert sent == ["inv-1"]


async def test_whoever_waits_holds_no_thread_of_the_pool(either: Bench) -> None:
    saver = either.open(wait_for_lease_ms=6_000)

    @effect(name="charge", operation_id="invoice")
    async def charge(invoice: str) -> str:
        either.world.send(invoice)
        await asyncio.sleep(0)
        return "charged"

    async def node(state: Any) -> Any:
        return {"log": [await charge("inv-1")]}

    graph = either.graph(node, saver=saver)
    runs = [graph.ainvoke({"n": 1}, either.config()) for _ in range(24)]
    done = await asyncio.gather(*runs, return_exceptions=True)
    assert either.world.sent == ["inv-1"]
    assert [d for d in done if isinstance(d, BaseException)] == []


def test_it_may_be_a_function_of_the_arguments(bench: Bench) -> None:
    sent: list[int] = []

    @effect(operation_id=lambda customer, month: f"{customer}/{month}")
    def bill(customer: str, month: int) -> str:
        sent.append(month)
        return f"billed {month}"

    graph = bench.graph(lambda s: {"log": [bill("c", 1), bill("c", 2), bill("c", 1)]})
    assert run(graph, bench.config()) == ["billed 1", "billed 2", "billed 1"]
    assert sent == [1, 2]


def test_effects_of_one_id_do_not_meet(bench: Bench) -> None:
    sent: list[str] = []

    def make(name: str) -> Any:
        @effect(name=name, operation_id="invoice")
        def send(invoice: str) -> None:
            sent.append(name)

        return send

    charge, refund, odd = make("charge"), make("refund"), make("charge:x")

    def node(state: Any) -> Any:
        charge("1")
        refund("1")
        odd("1")
        charge("x:1")

    graph = bench.graph(node)
    run(graph, bench.config())
    assert sent == ["charge", "refund", "charge:x", "charge"]


@pytest.mark.parametrize("named", ["", None, True, 1.5, b"x"], ids=repr)
def test_what_names_nothing_is_refused(bench: Bench, named: Any) -> None:
    sent: list[Any] = []

    @effect(operation_id="invoice")
    def charge(invoice: Any) -> None:
        sent.append(invoice)

    with pytest.raises(Misuse, match="operation_id"):
        run(bench.graph(lambda s: charge(named)), bench.config())
    assert sent == []


def test_a_name_of_no_argument_is_refused_at_decoration() -> None:
    with pytest.raises(Misconfigured, match="operation_id= names no argument"):

        @effect(operation_id="invoise")
        def charge(invoice: str) -> None: ...


def test_no_thread_of_a_user_is_named_like_one(bench: Bench) -> None:
    charge = Charge(bench, "K")
    config = bench.config(f"{OPERATION_PREFIX}charge:inv-1")
    with pytest.raises(Misuse, match="operation ids"):
        run(bench.graph(charge.node("inv-1")), config)
    assert bench.world.sent == []


@pytest.mark.parametrize(
    "method", ["delete_thread", "copy_from", "copy_to", "prune", "prune_all", "record"]
)
@COLOURS
async def test_no_method_of_threads_makes_it_forget(
    either: Bench, method: str, asynchronous: bool
) -> None:
    """The journal is no thread of the user's, though it is looked at like one."""
    charge = Charge(either, "N")
    await asyncio.to_thread(either.graph(charge.node("inv-1")).invoke, {"n": 1}, either.config("t"))
    journal, saver = operation_thread("charge", "inv-1"), either.saver
    name, arguments, more = {
        "delete_thread": ("delete_thread", (journal,), {}),
        "copy_from": ("copy_thread", (journal, "u"), {}),
        "copy_to": ("copy_thread", ("t", journal), {}),
        "prune": ("prune", (["t", journal],), {}),
        "prune_all": ("prune", (["t", journal],), {"strategy": "delete"}),
        "record": ("record", (journal, "noted"), {}),
    }[method]
    with pytest.raises(Misuse, match="operation"):
        await (
            getattr(saver, f"a{name}")(*arguments, **more)
            if asynchronous
            else asyncio.to_thread(getattr(saver, name), *arguments, **more)
        )
    saver.delete_for_runs(["none"])
    assert [report.ok for report in saver.verify(journal)] == [True]
    assert [e.state for e in saver.effects(journal, limit=1)] == ["succeeded"]
    assert saver.in_doubt(thread=journal) == []
    assert saver.events(journal)
    saver.release(journal)
    assert saver.get_tuple(either.config("t")) is not None, "nothing of the list was done"
    await asyncio.to_thread(either.graph(charge.node("inv-1")).invoke, {"n": 1}, either.config("v"))
    assert either.world.sent == [("inv-1", 700)]


def test_listing_shows_no_operations(bench: Bench) -> None:
    charge = Charge(bench, "K")
    run(bench.graph(charge.node("inv-1")), bench.config("mine"))
    assert {t.config["configurable"]["thread_id"] for t in bench.saver.list(None)} == {"mine"}


def test_tenants_do_not_meet(bench: Bench) -> None:
    charge = Charge(bench, "N")
    run(bench.graph(charge.node("inv-1")), bench.config())
    bench.tenant = "another"
    run(bench.graph(charge.node("inv-1"), saver=bench.open()), bench.config())
    assert len(bench.world.sent) == 2
