"""LangGraph's conformance suite: all of it, on both stores, through both halves of the saver."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import (
    BASE_CAPABILITIES,
    EXTENDED_CAPABILITIES,
)
from langgraph.checkpoint.conformance.report import CapabilityReport, ProgressCallbacks
from tests.saver.conftest import Backend

from surefoot import SurefootSaver

BASE_CASES = 58
EXTENDED_CASES = 23


class SyncHalf(BaseCheckpointSaver[Any]):
    """The suite calls async methods only; these are the sync ones under their names."""

    def __init__(self, saver: SurefootSaver) -> None:
        super().__init__(serde=saver.serde)
        self._saver = saver

    async def aget_tuple(self, *args: Any, **kwargs: Any) -> Any:
        return self._saver.get_tuple(*args, **kwargs)

    async def alist(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        for found in self._saver.list(*args, **kwargs):
            yield found

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        return self._saver.put(*args, **kwargs)

    async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
        self._saver.put_writes(*args, **kwargs)

    async def adelete_thread(self, *args: Any, **kwargs: Any) -> None:
        self._saver.delete_thread(*args, **kwargs)

    async def adelete_for_runs(self, *args: Any, **kwargs: Any) -> None:
        self._saver.delete_for_runs(*args, **kwargs)

    async def acopy_thread(self, *args: Any, **kwargs: Any) -> None:
        self._saver.copy_thread(*args, **kwargs)

    async def aprune(self, *args: Any, **kwargs: Any) -> None:
        self._saver.prune(*args, **kwargs)


async def run_suite(
    backend: Backend, wrapped: Callable[[SurefootSaver], BaseCheckpointSaver[Any]]
) -> tuple[CapabilityReport, list[str]]:
    """Runs the suite with a fresh tenant, which is a fresh store to it, per capability."""
    ran: list[str] = []
    tenants = iter(range(100))

    @checkpointer_test(name="SurefootSaver")
    async def factory() -> AsyncIterator[BaseCheckpointSaver[Any]]:
        saver = backend.open_saver(tenant=f"{backend.tenant}-{next(tenants)}")
        yield wrapped(saver)
        saver.close()

    watch = ProgressCallbacks(on_test_result=lambda cap, name, *_: ran.append(f"{cap}::{name}"))
    return await validate(factory, progress=watch), ran


@pytest.mark.parametrize(
    "wrapped", [pytest.param(lambda saver: saver, id="async"), pytest.param(SyncHalf, id="sync")]
)
async def test_the_official_suite_passes_whole(
    backend: Backend, wrapped: Callable[[SurefootSaver], BaseCheckpointSaver[Any]]
) -> None:
    report, ran = await run_suite(backend, wrapped)
    failures = [failure for result in report.results.values() for failure in result.failures]
    assert not failures, "\n".join(failures)
    passed = {name: result.tests_passed for name, result in report.results.items()}
    assert sum(passed[c.value] for c in BASE_CAPABILITIES) == BASE_CASES
    assert sum(passed[c.value] for c in EXTENDED_CAPABILITIES) == EXTENDED_CASES
    assert len(ran) == len(set(ran)) == BASE_CASES + EXTENDED_CASES
    assert set(passed) == {c.value for c in BASE_CAPABILITIES | EXTENDED_CAPABILITIES}
    assert all(result.detected and result.passed for result in report.results.values())
    assert not any(result.tests_skipped for result in report.results.values())
    assert report.conformance_level() == "FULL"


async def test_the_adapter_really_calls_the_sync_half(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A suite that still went through the async half would prove nothing."""
    saver = backend.open_saver()

    async def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the async half was called")

    for name in ("aput", "aput_writes", "aget_tuple", "alist"):
        monkeypatch.setattr(saver, name, refuse)
    half = SyncHalf(saver)
    assert await half.aget_tuple({"configurable": {"thread_id": "t"}}) is None
    assert [found async for found in half.alist(None)] == []
