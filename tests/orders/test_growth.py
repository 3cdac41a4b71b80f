"""What looking at a long thread costs: each record is met a fixed number of times."""

from __future__ import annotations

import operator
import random
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from tests.orders.conftest import Place, at

from surefoot import SurefootSaver
from surefoot.rules.chain import KeyLimits

pytestmark = pytest.mark.optimized

STEPS = 40


class Counted(TypedDict, total=False):
    n: int


class Long(Counted, total=False):
    prompt: str
    log: Annotated[list[str], operator.add]


def run_long(saver: SurefootSaver, steps: int = STEPS) -> Any:
    """A loop with a subgraph, whose writes are stored before the checkpoints they belong to."""
    inner = StateGraph(Counted)
    inner.add_node("count", lambda state: {"n": state["n"] + 1})
    inner.add_edge(START, "count")
    builder = StateGraph(Long)
    builder.add_node("inner", inner.compile())
    builder.add_node("note", lambda state: {"log": [str(state["n"])]})
    builder.add_edge(START, "inner")
    builder.add_edge("inner", "note")
    builder.add_conditional_edges("note", lambda s: "inner" if s["n"] < steps else END)
    graph = builder.compile(checkpointer=saver)
    given = {"n": 0, "prompt": random.Random(7).randbytes(20_000).hex(), "log": ["begun"] * 80}
    return graph.invoke(given, {**at("t"), "recursion_limit": 3 * steps})


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sequence numbers of the records that walks have met, each time they were."""
    seqs: list[int] = []
    learn = KeyLimits.learn

    def counted(self: KeyLimits, record: Any) -> None:
        seqs.append(record.link.seq)
        learn(self, record)

    monkeypatch.setattr(KeyLimits, "learn", counted)
    return seqs


def shown(saver: SurefootSaver) -> list[Any]:
    return [(t.config, t.checkpoint, t.metadata, t.pending_writes) for t in saver.list(at("t"))]


def test_history_sealed_by_a_retired_key_is_read_in_proportion_to_its_length(
    place: Place, met: list[int]
) -> None:
    run_long(place.saver)
    before = shown(place.open())
    assert len(before) > STEPS
    old = place.backend.keys
    turned = old.with_new_key("new").with_primary("new")
    assert place.open(keys=turned).retire_key("t", old.primary())
    retired = place.open(keys=turned.with_retired(old.primary()))
    met.clear()
    assert shown(retired) == before
    records = max(met)
    assert len(met) <= 4 * records, f"{len(met)} meetings of {records} records"
    met.clear()
    assert [r.ok for r in retired.verify("t", deep=True)] == [True]
    retired.copy_thread("t", "copy")
    retired.prune(["t"])
    assert len(met) <= 20 * records, f"{len(met)} meetings of {records} records"


@pytest.mark.parametrize("gone", ["surefoot_value", "surefoot_chunk"])
def test_what_could_be_gone_back_to_is_found_in_proportion_to_the_length(
    place: Place, met: list[int], gone: str
) -> None:
    run_long(place.saver)
    records = len(place.backend.execute("SELECT 1 FROM surefoot_frame"))
    lost = place.backend.execute(f"SELECT 1 FROM {gone}")
    assert lost
    place.backend.execute(f"DELETE FROM {gone}")
    saver = place.open()
    reads: list[int] = []
    real = saver.core.ports.store.read_values
    saver.core.ports.store.read_values = lambda key, digests, logs: (  # type: ignore[method-assign]
        reads.append(len(digests) + sum(log.count for log in logs)) or real(key, digests, logs)
    )
    met.clear()
    (report,) = saver.verify("t", deep=True)
    assert not report.ok
    assert len(met) <= 12 * records, f"{len(met)} meetings of {records} records"
    assert sum(reads) <= 12 * records, f"{sum(reads)} values and pieces asked for"
