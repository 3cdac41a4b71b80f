"""What LangGraph may count on, and what goes beyond: on both stores, through both halves."""

from __future__ import annotations

import dataclasses
import gc
import operator
import random
import socket
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AnyMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph, add_messages
from pydantic import SecretStr
from tests.saver.conftest import Backend, Half, at, checkpoint, metadata, put, put_chain

from surefoot import Limits, SurefootSaver
from surefoot.errors import (
    Misuse,
    NotLoadable,
    NotStorable,
)
from surefoot.ports import Append, ContentStore

# --- list -----------------------------------------------------------------------------------------


@pytest.mark.optimized
async def test_list_is_newest_first_by_chain_whatever_the_ids_are(each_half: Half) -> None:
    await put_chain(each_half, "t", "c5", "c9", "c1", "c7")
    assert await each_half.ids(at("t")) == ["c7", "c1", "c9", "c5"]
    assert await each_half.ids(at("t"), limit=2) == ["c7", "c1"]
    found = await each_half.list(at("t"))
    parents = [f.parent_config and f.parent_config["configurable"]["checkpoint_id"] for f in found]
    assert parents == ["c1", "c9", "c5", None]


async def test_list_of_all_threads(half: Half) -> None:
    for step in range(3):
        for thread in ("one", "two", "three"):
            last = await half.ids(at(thread), limit=1)
            await put(half, at(thread, *last), f"{step}-{thread}", meta=metadata(step))
    everything = await half.list(None)
    assert len(everything) == 9
    ids = [f.checkpoint["id"] for f in everything]
    assert ids == sorted(ids, reverse=True)
    assert all(f.config["configurable"]["thread_id"] in f.checkpoint["id"] for f in everything)
    assert await half.ids(None, limit=4) == ids[:4]
    assert await half.ids(None, filter={"step": 1}) == [i for i in ids if i.startswith("1")]
    assert await half.ids(None, before=at("two", "1-two")) == [i for i in ids if i < "1-two"]


async def test_list_of_all_threads_shows_only_the_own_tenant(backend: Backend, half: Half) -> None:
    await put_chain(half, "t", "c1")
    other = half.on(backend.open_saver(tenant=f"{backend.tenant}-other"))
    assert await other.list(None) == []
    assert await other.get_tuple(at("t")) is None
    await put_chain(other, "t", "d1")
    assert await half.ids(None) == ["c1"]
    assert await other.ids(None) == ["d1"]


async def test_namespace_empty_and_absent_are_different(half: Half) -> None:
    await put_chain(half, "t", "root1")
    await put_chain(half, "t", "child1", namespace="child")
    await put_chain(half, "t", "deep1", namespace="child|deep:1")
    assert await half.ids(at("t")) == ["root1"]
    assert await half.ids(at("t", namespace="child")) == ["child1"]
    assert await half.ids(at("t", namespace=None)) == ["deep1", "child1", "root1"]
    assert await half.ids(at("t", namespace="chil")) == []
    assert (await half.get_tuple(at("t", namespace=None))).checkpoint["id"] == "root1"
    assert (await half.get_tuple(at("t", namespace="child"))).checkpoint["id"] == "child1"
    assert await half.get_tuple(at("t", "child1")) is None


async def test_one_id_in_two_namespaces_is_two_checkpoints(half: Half) -> None:
    await put(half, at("t"), "same", value="root")
    await put(half, at("t", namespace="n"), "same", value="child")
    await half.put_writes(at("t", "same", namespace="n"), [("a", 1)], "task")
    root = await half.get_tuple(at("t", "same"))
    child = await half.get_tuple(at("t", "same", namespace="n"))
    assert root.checkpoint["channel_values"] == {"value": "root"}
    assert root.pending_writes == []
    assert child.checkpoint["channel_values"] == {"value": "child"}
    assert child.pending_writes == [("task", "a", 1)]


async def test_before_is_strict_and_goes_by_the_chain(half: Half) -> None:
    await put_chain(half, "t", "c5", "c9", "c1")
    assert await half.ids(at("t"), before=at("t", "c1")) == ["c9", "c5"]
    assert await half.ids(at("t"), before=at("t", "c9")) == ["c5"]
    assert await half.ids(at("t"), before=at("t", "c5")) == []
    assert await half.ids(at("t"), before=at("t", "c1"), limit=1) == ["c9"]


async def test_before_may_name_a_checkpoint_of_another_namespace(half: Half) -> None:
    first = await put(half, at("t"), "c1")
    await put(half, at("t", namespace="n"), "d1")
    await put(half, first, "c2")
    assert await half.ids(at("t"), before=at("t", "d1", namespace="n")) == ["c1"]
    assert await half.ids(at("t", namespace=None), before=at("t", "c2")) == ["d1", "c1"]


async def test_an_unknown_before_goes_by_id(half: Half) -> None:
    await put_chain(half, "t", "c2", "c4", "c6")
    assert await half.ids(at("t"), before=at("t", "c5")) == ["c4", "c2"]
    assert await half.ids(at("t"), before=at("t", "c0")) == []
    assert await half.ids(at("t"), before=at("t", "c7")) == ["c6", "c4", "c2"]


async def test_before_needs_no_thread_id(half: Half) -> None:
    """LangGraph's own savers read only the checkpoint id of it."""
    await put_chain(half, "t", "c2", "c4")
    assert await half.ids(at("t"), before={"configurable": {"checkpoint_id": "c4"}}) == ["c2"]


ODD_KEYS = [
    "with.dot",
    "$",
    "$.a",
    'with"quote',
    "with'quote",
    "a[0]",
    "a]b[",
    "line\nbreak",
    "x" * 10_000,
    "",
    "%s",
    "back\\slash",
    "naïve \N{SNOWMAN}",
    "'; DROP TABLE surefoot_frame; --",
]


@pytest.mark.optimized
async def test_case_32_odd_filter_keys(each_half: Half) -> None:
    marked = await put(each_half, at("t"), "c1", meta=metadata(0, **dict.fromkeys(ODD_KEYS, "yes")))
    await put(each_half, marked, "c2", meta=metadata(1, **dict.fromkeys(ODD_KEYS, "no")))
    for key in ODD_KEYS:
        assert await each_half.ids(at("t"), filter={key: "yes"}) == ["c1"], key
        assert await each_half.ids(at("t"), filter={key: "no"}) == ["c2"], key
        assert await each_half.ids(at("t"), filter={f"{key}?": "yes"}) == [], key
    assert await each_half.ids(at("t"), filter=dict.fromkeys(ODD_KEYS, "yes")) == ["c1"]


async def test_case_32_filter_values(half: Half) -> None:
    meta = metadata(0, none=None, yes=True, one=1, half=0.5, nested={"a": [1, {"b": 2}]}, text="1")
    await put(half, at("t"), "c1", meta=meta)

    async def matches(**wanted: Any) -> bool:
        return bool(await half.ids(at("t"), filter=wanted))

    assert await matches(none=None)
    assert not await matches(unknown=None)
    assert await matches(yes=True)
    assert not await matches(yes=1)
    assert await matches(one=1)
    assert not await matches(one=True)
    assert not await matches(one="1")
    assert not await matches(text=1)
    assert await matches(half=0.5)
    assert await matches(nested={"a": [1, {"b": 2}]})
    assert not await matches(nested={"a": [1]})
    assert await matches(one=1, half=0.5, source="loop")
    assert not await matches(one=1, half=0.6)
    assert await half.ids(at("t"), filter={}) == ["c1"]
    assert await half.ids(at("t"), filter=None) == ["c1"]


async def test_case_32_limits(half: Half) -> None:
    await put_chain(half, "t", "c1", "c2", "c3")
    assert await half.ids(at("t"), limit=None) == ["c3", "c2", "c1"]
    assert await half.ids(at("t"), limit=0) == []
    assert await half.ids(at("t"), limit=1) == ["c3"]
    assert await half.ids(at("t"), limit=100) == ["c3", "c2", "c1"]
    for refused in (-1, 1.0, "1", True):
        with pytest.raises(Misuse) as caught:
            await half.list(at("t"), limit=refused)
        assert caught.value.field == "limit"
    with pytest.raises(Misuse):
        await half.list(at("t"), filter=[("a", 1)])


async def test_a_limit_counts_after_the_filter(half: Half) -> None:
    config = at("t")
    for n in range(6):
        config = await put(half, config, f"c{n}", meta=metadata(n, even=n % 2 == 0))
    assert await half.ids(at("t"), filter={"even": True}, limit=2) == ["c4", "c2"]
    assert await half.ids(at("t"), filter={"even": True}, before=at("t", "c4")) == ["c2", "c0"]


async def test_list_of_one_checkpoint_id(half: Half) -> None:
    await put_chain(half, "t", "c1", "c2")
    assert await half.ids(at("t", "c1")) == ["c1"]
    assert await half.ids(at("t", "c0")) == []


async def test_long_history_comes_in_pages_and_whole(half: Half) -> None:
    """More than one page of the journal, and more than one page of `alist`."""
    run = Run(half.saver, "t")
    for n in range(130):
        run.put(f"c{n:03}", n=n)
    run.end()
    expected = [f"c{n:03}" for n in reversed(range(130))]
    assert await half.ids(at("t")) == expected
    assert await half.ids(at("t"), before=at("t", "c100")) == expected[30:]
    found = await half.get_tuple(at("t", "c000"))
    assert found.checkpoint["channel_values"] == {"n": 0}


# --- put and get_tuple ------------------------------------------------------------------------------


async def test_what_put_returns_is_where_the_checkpoint_is(half: Half) -> None:
    stored = await put(half, at("t", namespace="n"), "c1", a=1)
    assert stored == at("t", "c1", namespace="n")
    found = await half.get_tuple(stored)
    assert found.config == stored
    assert found.parent_config is None
    assert found.metadata == metadata()
    assert found.pending_writes == []


async def test_nothing_is_there(half: Half) -> None:
    assert await half.get_tuple(at("t")) is None
    assert await half.get_tuple(at("t", "c1")) is None
    assert await half.list(at("t")) == []
    assert await half.list(None) == []
    await put_chain(half, "t", "c1")
    assert await half.get_tuple(at("t", "c2")) is None
    assert await half.get_tuple(at("t", namespace="n")) is None
    assert await half.get_tuple(at("other")) is None


@pytest.mark.parametrize("thread", ["a/b", "ünï", "x" * 5_000, "nul\0", "' OR 1=1", 17], ids=repr)
async def test_any_thread_id(half: Half, thread: Any) -> None:
    await put_chain(half, thread, "c1")
    assert (await half.get_tuple(at(thread))).checkpoint["id"] == "c1"
    assert await half.ids(None) == ["c1"]
    await half.delete_thread(thread)
    assert await half.get_tuple(at(thread)) is None


async def test_a_config_without_a_thread_is_misuse(half: Half) -> None:
    for config in ({}, {"configurable": {}}, {"configurable": {"thread_id": None}}):
        with pytest.raises(Misuse, match="thread_id"):
            await half.get_tuple(config)
    with pytest.raises(Misuse, match="checkpoint_ns"):
        await half.get_tuple({"configurable": {"thread_id": "t", "checkpoint_ns": 7}})
    with pytest.raises(Misuse, match="checkpoint_id"):
        await half.put_writes(at("t"), [("a", 1)], "task")


@pytest.mark.parametrize("which", ["latest", "older"])
@pytest.mark.parametrize("same", [True, False], ids=["equal", "changed"])
async def test_putting_an_id_again_keeps_its_place(half: Half, which: str, same: bool) -> None:
    versions = {"v": 7}
    config = at("t")
    for n in (1, 2, 3):
        made = {**checkpoint(f"c{n}", v=n), "channel_versions": versions}
        config = await half.put(config, made, metadata(n), versions)
    await half.put_writes(at("t", "c2"), [("w", "kept")], "task")
    number = 3 if which == "latest" else 2
    value = number if same else 99
    again = {**checkpoint(f"c{number}", v=value), "channel_versions": versions}
    meta = metadata(number) if same else metadata(number, changed=True)
    parent = at("t", f"c{number - 1}")
    assert await half.put(parent, again, meta, versions) == at("t", f"c{number}")

    assert await half.ids(at("t")) == ["c3", "c2", "c1"]
    assert (await half.get_tuple(at("t"))).checkpoint["id"] == "c3"
    found = await half.get_tuple(at("t", f"c{number}"))
    assert found.checkpoint["channel_values"] == {"v": value}
    assert found.metadata == meta
    assert found.parent_config == parent
    untouched = await half.get_tuple(at("t", "c1"))
    assert untouched.checkpoint["channel_values"] == {"v": 1}
    assert (await half.get_tuple(at("t", "c2"))).pending_writes == [("task", "w", "kept")]
    listed = {f.checkpoint["id"]: f for f in await half.list(at("t"))}
    assert listed[f"c{number}"] == found
    following = await put(half, at("t", "c3"), "c4", v=4)
    assert (await half.get_tuple(following)).parent_config == at("t", "c3")
    assert await half.ids(at("t")) == ["c4", "c3", "c2", "c1"]


async def test_putting_an_older_id_again_twice(half: Half) -> None:
    await put_chain(half, "t", "c1", "c2", "c3")
    for value in ("second", "third"):
        await put(half, at("t", "c1"), "c2", n=value)
    assert await half.ids(at("t")) == ["c3", "c2", "c1"]
    assert (await half.get_tuple(at("t", "c2"))).checkpoint["channel_values"] == {"n": "third"}
    assert await half.ids(at("t"), before=at("t", "c3")) == ["c2", "c1"]


@pytest.mark.optimized
async def test_a_parent_that_is_not_stored_is_misuse(each_half: Half) -> None:
    with pytest.raises(Misuse, match="parent"):
        await put(each_half, at("t", "gone"), "c1")
    assert await each_half.get_tuple(at("t")) is None
    await put_chain(each_half, "t", "c1")
    await put_chain(each_half, "t", "d1", namespace="n")
    for config in (at("t", "gone"), at("t", "d1"), at("t", "c1", namespace="n")):
        with pytest.raises(Misuse, match="parent"):
            await put(each_half, config, "c2")
    assert await each_half.ids(at("t", namespace=None)) == ["d1", "c1"]
    await put(each_half, at("t", "c1"), "c2")
    assert await each_half.ids(at("t")) == ["c2", "c1"]


async def test_unchanged_channels_keep_their_value_from_the_parent_given(half: Half) -> None:
    """LangGraph hands over all values at every put; only new versions changed."""
    big, other = "b" * 5_000, "o" * 5_000
    first = {**checkpoint("c1", big=big, n=1), "channel_versions": {"big": 1, "n": 1}}
    config = await half.put(at("t"), first, metadata(0), {"big": 1, "n": 1})
    second = {**checkpoint("c2", big=big, n=2), "channel_versions": {"big": 1, "n": 2}}
    await half.put(config, second, metadata(1), {"n": 2})
    forked = {**checkpoint("c3", big=other, n=3), "channel_versions": {"big": 2, "n": 3}}
    await half.put(config, forked, metadata(1), {"big": 2, "n": 3})
    after = {**checkpoint("c4", big=big, n=4), "channel_versions": {"big": 1, "n": 4}}
    await half.put(at("t", "c2"), after, metadata(2), {"n": 4})
    values = {f.checkpoint["id"]: f.checkpoint["channel_values"] for f in await half.list(at("t"))}
    assert values == {
        "c1": {"big": big, "n": 1},
        "c2": {"big": big, "n": 2},
        "c3": {"big": other, "n": 3},
        "c4": {"big": big, "n": 4},
    }


async def test_a_channel_that_is_gone_is_gone(half: Half) -> None:
    config = await put(half, at("t"), "c1", a=1, b=2)
    made = checkpoint("c2", a=1)
    await half.put(config, made, metadata(1), made["channel_versions"])
    found = await half.get_tuple(at("t"))
    assert found.checkpoint["channel_values"] == {"a": 1}


async def test_an_empty_channel_has_a_version_and_no_value(half: Half) -> None:
    made = {**checkpoint("c1", a=1), "channel_versions": {"a": 1, "empty": 3}}
    await half.put(at("t"), made, metadata(), {"a": 1, "empty": 3})
    found = await half.get_tuple(at("t"))
    assert found.checkpoint["channel_values"] == {"a": 1}
    assert found.checkpoint["channel_versions"] == {"a": 1, "empty": 3}


async def test_get_next_version_grows_and_differs_per_branch(saver: SurefootSaver) -> None:
    version = None
    for _ in range(50):
        following = saver.get_next_version(version, None)
        again = saver.get_next_version(version, None)
        assert following != again
        assert version is None or (following > version and again > version)
        version = following
    stock = InMemorySaver().get_next_version(None, None)
    assert saver.get_next_version(stock, None) > stock


@pytest.mark.optimized
async def test_case_30_the_last_committed_checkpoint_is_the_latest(
    backend: Backend, each_half: Half
) -> None:
    """A clock that stepped back gives smaller ids to newer checkpoints."""
    graph = counter_graph(each_half.saver)
    graph.invoke({"n": 0}, at("t"))
    latest = each_half.saver.get_tuple(at("t"))
    assert latest is not None
    newer = {**latest.checkpoint, "id": "00000000-0000-6000-8000-000000000000"}
    versions = {
        "n": each_half.saver.get_next_version(latest.checkpoint["channel_versions"]["n"], None)
    }
    newer["channel_values"] = {**newer["channel_values"], "n": 100}
    newer["channel_versions"] = {**newer["channel_versions"], **versions}
    await each_half.put(latest.config, newer, metadata(9), versions)

    for reader in (each_half, each_half.on(backend.open_saver())):
        assert (await reader.get_tuple(at("t"))).checkpoint["id"] == newer["id"]
        assert (await reader.ids(at("t")))[:2] == [newer["id"], latest.checkpoint["id"]]
        assert (await reader.ids(at("t"), before=at("t", newer["id"])))[0] == latest.config[
            "configurable"
        ]["checkpoint_id"]
    assert graph.get_state(at("t")).values == {"n": 100}
    assert graph.invoke({}, at("t")) == {"n": 103}
    assert counter_graph(backend.open_saver()).get_state(at("t")).values == {"n": 103}


# --- pending writes ---------------------------------------------------------------------------------


async def test_case_27_writes_before_their_checkpoint(backend: Backend, half: Half) -> None:
    """A reader between the two sees neither; afterwards both."""
    other = half.on(backend.open_saver())
    await put_chain(half, "t", "c0")
    await half.put_writes(at("t", "c1"), [("a", 1), ("b", "x" * 5_000)], "task")
    for reader in (half, other):
        assert await reader.get_tuple(at("t", "c1")) is None
        latest = await reader.get_tuple(at("t"))
        assert (latest.checkpoint["id"], latest.pending_writes) == ("c0", [])
        assert await reader.ids(at("t")) == ["c0"]
    await put(other, at("t", "c0"), "c1")
    await half.put_writes(at("t", "c1"), [("c", 3)], "task2")
    for reader in (half, other):
        found = await reader.get_tuple(at("t"))
        assert found.pending_writes == [
            ("task", "a", 1),
            ("task", "b", "x" * 5_000),
            ("task2", "c", 3),
        ]
        assert (await reader.list(at("t")))[0] == found
        assert (await reader.get_tuple(at("t", "c1"))) == found
        assert (await reader.get_tuple(at("t", "c0"))).pending_writes == []


@pytest.mark.optimized
async def test_case_27_writes_are_the_very_first_thing_of_a_thread(
    backend: Backend, each_half: Half
) -> None:
    await each_half.put_writes(at("t", "c1"), [("a", 1)], "task")
    assert await each_half.get_tuple(at("t")) is None
    assert await each_half.list(at("t")) == []
    await put_chain(each_half.on(backend.open_saver()), "t", "c1")
    assert (await each_half.get_tuple(at("t"))).pending_writes == [("task", "a", 1)]


async def test_early_writes_of_several_checkpoints_far_apart(backend: Backend, half: Half) -> None:
    await half.put_writes(at("t", "c3"), [("a", 3)], "task")
    await half.put_writes(at("t", "c1"), [("a", 1)], "task")
    await put_chain(half.on(backend.open_saver()), "t", "c1", "c2", "c3", "c4")
    await half.put_writes(at("t", "never"), [("a", 0)], "task")
    writes = {f.checkpoint["id"]: f.pending_writes for f in await half.list(at("t"))}
    assert writes == {
        "c4": [],
        "c3": [("task", "a", 3)],
        "c2": [],
        "c1": [("task", "a", 1)],
    }
    assert (await half.get_tuple(at("t", "c3"))).pending_writes == [("task", "a", 3)]


async def test_late_writes_belong_to_their_checkpoint(backend: Backend, half: Half) -> None:
    await put_chain(half, "t", "c1", "c2", "c3")
    await half.on(backend.open_saver()).put_writes(at("t", "c1"), [("a", 1)], "task")
    assert (await half.get_tuple(at("t", "c1"))).pending_writes == [("task", "a", 1)]
    assert (await half.get_tuple(at("t"))).pending_writes == []
    writes = {f.checkpoint["id"]: f.pending_writes for f in await half.list(at("t"))}
    assert writes == {"c3": [], "c2": [], "c1": [("task", "a", 1)]}


Batch = Sequence[tuple[str, Any]]

CASE_28: dict[str, tuple[list[Batch], list[tuple[str, Any]]]] = {
    "error, then success": ([[("__error__", "e")], [("a", 1)]], [("__error__", "e"), ("a", 1)]),
    "success twice": ([[("a", 1), ("b", 2)], [("a", 9), ("b", 9)]], [("a", 1), ("b", 2)]),
    "interrupt after a write": (
        [[("a", 1)], [("__interrupt__", "i")]],
        [("__interrupt__", "i"), ("a", 1)],
    ),
    "a shorter second batch": ([[("a", 1), ("b", 2)], [("a", 9)]], [("a", 1), ("b", 2)]),
    "a longer second batch": ([[("a", 1)], [("a", 9), ("b", 2)]], [("a", 1), ("b", 2)]),
    "another channel second": ([[("a", 1)], [("b", 9)]], [("a", 1)]),
    "special twice": ([[("__interrupt__", 1)], [("__interrupt__", 2)]], [("__interrupt__", 2)]),
    "error twice": ([[("__error__", 1)], [("__error__", 2)]], [("__error__", 2)]),
    "resume accumulates": (
        [[("__resume__", [1])], [("__resume__", [1, 2])]],
        [("__resume__", [1, 2])],
    ),
    "a mixed batch replaces nothing": (
        [[("__interrupt__", 1)], [("a", 2), ("__interrupt__", 9)]],
        [("__interrupt__", 1), ("a", 2)],
    ),
    "a mixed batch comes first": (
        [[("a", 2), ("__interrupt__", 1)], [("__interrupt__", 9)]],
        [("__interrupt__", 9), ("a", 2)],
    ),
    "all special channels": (
        [[("__resume__", 4), ("__interrupt__", 3), ("__scheduled__", 2), ("__error__", 1)]],
        [("__resume__", 4), ("__interrupt__", 3), ("__scheduled__", 2), ("__error__", 1)],
    ),
    "one channel twice in a batch": ([[("a", 1), ("a", 2)]], [("a", 1), ("a", 2)]),
    "nothing": ([[]], []),
}


@pytest.mark.optimized
async def test_case_28_which_writes_stand(each_half: Half) -> None:
    await put_chain(each_half, "t", "c1")
    await put_chain(each_half, "u", "c1")
    for number, (batches, _) in enumerate(CASE_28.values()):
        for batch in batches:
            await each_half.put_writes(at("t", "c1"), batch, f"task{number:02}")
    run = Run(each_half.saver, "u")  # in a run the batches wait in memory and are stored together
    for number, (batches, _) in enumerate(CASE_28.values()):
        for batch in batches:
            each_half.saver.put_writes(run.config("c1"), batch, f"task{number:02}")
    run.end()
    for thread in ("t", "u"):
        standing = (await each_half.get_tuple(at(thread))).pending_writes
        for number, (name, (_, expected)) in enumerate(CASE_28.items()):
            found = [(c, v) for task, c, v in standing if task == f"task{number:02}"]
            assert found == expected, (thread, name)


async def test_writes_are_in_the_order_in_which_they_are_applied(half: Half) -> None:
    await put_chain(half, "t", "c1")
    for task, path in (("z", "~1"), ("b", "~2"), ("a", "~2"), ("m", "")):
        await half.put_writes(at("t", "c1"), [("x", task), ("y", task)], task, path)
    found = [(t, c) for t, c, _ in (await half.get_tuple(at("t"))).pending_writes]
    assert found == [(t, c) for t in "mzab" for c in "xy"]


def fan_out(checkpointer: BaseCheckpointSaver[Any], tasks: int) -> Any:
    class State(TypedDict):
        got: Annotated[list[int], operator.add]

    builder = StateGraph(State)
    for n in range(tasks):
        builder.add_node(f"node{n}", lambda state, n=n: {"got": [n]})
        builder.add_edge(START, f"node{n}")
        builder.add_edge(f"node{n}", END)
    return builder.compile(checkpointer=checkpointer)


def shape_of(found: Any) -> list[tuple[Any, ...]]:
    """What can be compared between savers: ids and versions differ."""
    return [
        (
            f.metadata["step"],
            f.metadata["source"],
            f.checkpoint["channel_values"],
            sorted(((c, repr(v)) for _, c, v in f.pending_writes or ()), key=repr),
        )
        for f in found
    ]


@pytest.mark.timeout(240)
def test_case_29_sixteen_tasks_a_hundred_runs(backend: Backend, saver: SurefootSaver) -> None:
    memory = InMemorySaver()
    expected_state = fan_out(memory, 16).invoke({"got": []}, at("t"))
    expected = shape_of(memory.list(at("t")))
    assert Counter(c for c, _ in expected[1][3])["got"] == 16
    graph = fan_out(saver, 16)
    for n in range(100):
        assert graph.invoke({"got": []}, at(f"t{n}")) == expected_state
    reader = backend.open_saver()
    for n in range(100):
        assert shape_of(reader.list(at(f"t{n}"))) == expected, n
    counts = backend.counts()
    assert counts["surefoot_thread"] == 100
    # A super-step is one commit, however many tasks it has.
    assert counts["surefoot_frame"] <= 100 * (len(expected) + 1)


# --- values -------------------------------------------------------------------------------------------


class Spy:
    """A content store that tells of appends, and can hold them back."""

    def __init__(self, store: ContentStore, before: Callable[[Append], None]) -> None:
        self._store = store
        self._before = before

    def append(self, request: Append) -> int | None:
        self._before(request)
        return self._store.append(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def spy_on(saver: SurefootSaver, before: Callable[[Append], None]) -> None:
    ports = saver.core.ports
    saver.core.ports = dataclasses.replace(ports, store=Spy(ports.store, before))


def test_case_31_the_next_node_mutates_what_is_being_put(
    backend: Backend, saver: SurefootSaver
) -> None:
    """What `put` was called with is what is stored, however long storing takes.

    LangGraph hands over live objects and calls `put` in the background, so a mutation may come
    before the call; from the call's serialisation on, nothing that a node does is seen any more.
    """
    entered, mutated = threading.Event(), threading.Event()

    class State(TypedDict):
        items: list[int]
        done: bool

    def one(state: State) -> dict[str, Any]:
        return {"items": [*range(20)]}

    def two(state: State) -> dict[str, Any]:
        assert entered.wait(30)  # the put of the step before has serialised and is held back
        state["items"].append(99)
        state["items"][0] = -1
        mutated.set()
        return {"done": True}

    def hold_back(request: Append) -> None:
        if request.checkpoint_hash is not None and armed:
            armed.pop()()

    def at_step_one() -> None:
        entered.set()
        assert mutated.wait(30)

    # Puts come in the order: input, step 0 (nothing ran yet), step 1 (after `one`).
    armed: list[Callable[[], None]] = [at_step_one, lambda: None, lambda: None]
    spy_on(saver, hold_back)
    builder = StateGraph(State)
    builder.add_node("one", one)
    builder.add_node("two", two)
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"items": [], "done": False}, at("t"), durability="async")
    assert mutated.is_set()

    history = {
        f.metadata["step"]: f.checkpoint["channel_values"]["items"]
        for f in backend.open_saver().list(at("t"))
        if "items" in f.checkpoint["channel_values"]
    }
    assert history[1] == [*range(20)]
    # The mutated list is live state, but no channel got a new version: what is stored for
    # step 2 is what was stored for the version that step 1 wrote.
    assert history[2] == [*range(20)]


def test_case_31_a_mutated_value_with_a_new_version_is_stored_anew(saver: SurefootSaver) -> None:
    """The same object as last time is not taken for the same value."""
    run = Run(saver, "t")
    items = [*range(20)]
    run.put("c1", items=items)
    items[3] = "changed in place"
    run.put("c2", items=items)
    items.clear()
    run.put("c3", items=items)
    run.end()
    stored = [f.checkpoint["channel_values"]["items"] for f in saver.list(at("t"))]
    assert stored == [[], [0, 1, 2, "changed in place", *range(4, 20)], [*range(20)]]


FAITHFUL: dict[str, Any] = {
    "nul": "a\0b",
    "nan": float("nan"),
    "infinity": float("inf"),
    "minus infinity": float("-inf"),
    "minus zero": -0.0,
    "lone surrogate": "\ud800x",
    "surrogate key": {"\udfff": 1, 7: "int key", (1, 2): "tuple key"},
    "big integer": 2**70,
    "minus big integer": -(2**70),
    "bytes": bytes(range(256)),
    "ten megabytes": random.Random(7).randbytes(10_000_000),
    "empty": [[], {}, "", b"", None],
    "deep": [[[[[[{"a": [1]}]]]]]],
    "long": "x" * 1_000_000,
    "false": False,
}


@pytest.mark.optimized
async def test_case_33_values_come_back_as_they_were(half: Half) -> None:
    await put(half, at("t"), "c1", **FAITHFUL)
    for name, value in FAITHFUL.items():
        await half.put_writes(at("t", "c1"), [(name, value)], f"task {name}")
    found = await half.get_tuple(at("t"))
    values = found.checkpoint["channel_values"]
    written = {channel: value for _, channel, value in found.pending_writes}
    assert values.keys() == written.keys() == FAITHFUL.keys()
    for name, value in FAITHFUL.items():
        for stored in (values[name], written[name]):
            assert type(stored) is type(value), name
            assert repr(stored) == repr(value), name


def unstorable() -> dict[str, Any]:
    return {
        "lock": threading.Lock(),
        "socket": socket.socket(),
        "generator": (n for n in range(3)),
        "function": lambda: None,
        "secret": SecretStr("hunter2-secret"),
        "file": sys.stdout,
    }


@pytest.mark.optimized
@pytest.mark.parametrize("name", unstorable())
async def test_case_33_what_cannot_be_stored_is_refused_and_named(half: Half, name: str) -> None:
    config = await put(half, at("t"), "c1", ok=1)
    value = unstorable()[name]
    with pytest.raises(NotStorable) as caught:
        await put(half, config, "c2", ok=2, inner={"deep": [1, {"here": value}]})
    error = caught.value
    assert error.channel == "inner"
    assert "deep" in error.path
    assert "here" in error.path
    assert "hunter2" not in str(error)
    with pytest.raises(NotStorable) as caught:
        await half.put_writes(config, [("ok", 1), ("written", [value])], "task")
    assert caught.value.channel == "written"
    long_list = [*range(30), value]
    with pytest.raises(NotStorable) as caught:
        await put(half, config, "c2", messages=long_list)
    assert caught.value.channel == "messages"
    assert "30" in caught.value.path

    found = await half.get_tuple(at("t"))
    assert found.checkpoint["id"] == "c1"
    assert found.pending_writes == []
    await put(half, config, "c2", ok=2)
    assert await half.ids(at("t")) == ["c2", "c1"]
    if isinstance(value, socket.socket):
        value.close()


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_case_33_a_node_returns_a_lock(
    backend: Backend, saver: SurefootSaver, durability: str
) -> None:
    """The error comes out of `invoke`; under sync durability nothing runs after it."""
    ran: list[str] = []

    class State(TypedDict):
        handle: Any
        n: int

    def bad(state: State) -> dict[str, Any]:
        ran.append("bad")
        return {"handle": threading.Lock() if len(ran) == 1 else "fine"}

    def effect(state: State) -> dict[str, Any]:
        ran.append("effect")
        return {"n": 1}

    builder = StateGraph(State)
    builder.add_node("bad", bad)
    builder.add_node("effect", effect)
    builder.add_edge(START, "bad")
    builder.add_edge("bad", "effect")
    graph = builder.compile(checkpointer=saver)
    with pytest.raises(NotStorable) as caught:
        graph.invoke({"handle": None, "n": 0}, at("t"), durability=durability)
    assert caught.value.channel == "handle"
    if durability == "sync":
        assert ran == ["bad"]
    state = graph.get_state(at("t"))
    assert state.next == ("bad",)
    ran[:] = ["again"]
    assert graph.invoke(None, at("t")) == {"handle": "fine", "n": 1}
    assert ran == ["again", "bad", "effect"]


@pytest.fixture
def shop() -> Iterator[types.ModuleType]:
    """A module of the user's with a class that may be renamed."""
    module = types.ModuleType("shop_of_a_user")

    @dataclasses.dataclass
    class Order:
        amount: int

    Order.__module__, Order.__qualname__ = module.__name__, "Order"
    module.Order = Order  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


@pytest.mark.optimized
async def test_case_34_a_class_is_renamed_between_put_and_get(
    half: Half, shop: types.ModuleType
) -> None:
    order = shop.Order(7)
    config = await put(half, at("t"), "c1", order=order, other=1)
    await half.put_writes(config, [("order", order)], "task")
    found = await half.get_tuple(at("t"))
    assert found.checkpoint["channel_values"]["order"] == order
    shop.Purchase = shop.Order  # type: ignore[attr-defined]
    del shop.Order
    for read in (half.get_tuple, half.list):
        with pytest.raises(NotLoadable, match=r"shop_of_a_user\.Order") as caught:
            await read(at("t"))
        assert caught.value.type_name == "shop_of_a_user.Order"
    shop.Order = shop.Purchase  # type: ignore[attr-defined]
    assert (await half.get_tuple(at("t"))).pending_writes == [("task", "order", order)]


# --- lists --------------------------------------------------------------------------------------------


def edits(rng: random.Random, items: list[Any]) -> list[Any]:
    """Another list, as chats, trimmers and editors make it."""
    fresh = [f"item {rng.random()}" for _ in range(rng.choice([1, 1, 1, 2, 70]))]
    at_ = rng.randrange(len(items) + 1)
    return rng.choice(
        [
            lambda: [*items, *fresh],
            lambda: [*items, *fresh],
            lambda: [*items, *fresh],
            lambda: [*items[:-1], *fresh],
            lambda: items[:-1],
            lambda: [*fresh, *items],
            lambda: [*items[:at_], *fresh, *items[at_:]],
            lambda: items[-40:],
            lambda: items[at_:],
            list,
            lambda: list(items),
            lambda: [{"a": [1, None]}, (1, 2), *items],
        ]
    )()


@pytest.mark.parametrize("seed", range(3))
def test_edited_lists_come_back_at_every_step(
    backend: Backend, saver: SurefootSaver, seed: int
) -> None:
    """Appended, edited, trimmed, emptied, forked, by one process and by the next one."""
    rng = random.Random(seed)
    savers = [saver, backend.open_saver(limits=Limits(list_segments_max=3))]
    stored: dict[str, tuple[list[Any], str | None]] = {}
    number = 0
    for _ in range(8):
        run = Run(rng.choice(savers), "t")
        if stored and rng.random() < 0.4:
            run.last = rng.choice([*stored])  # a fork
        for _ in range(rng.randrange(1, 6)):
            before = stored[run.last][0] if run.last else []
            items = edits(rng, before)
            parent, name = run.last, f"c{number:03}"
            run.put(name, items=items, plain=number)
            stored[name] = (items, parent)
            number += 1
        run.end()
        reader = rng.choice(savers)
        found = {f.checkpoint["id"]: f for f in reader.list(at("t"))}
        assert list(found) == list(reversed(stored))
        for name, (items, parent) in stored.items():
            values = found[name].checkpoint["channel_values"]
            assert values["items"] == [[*i] if isinstance(i, tuple) else i for i in items], name
            config = found[name].parent_config
            assert (config and config["configurable"]["checkpoint_id"]) == parent


def append_one_by_one(saver: SurefootSaver, thread: str, count: int) -> list[HumanMessage]:
    run = Run(saver, thread)
    messages: list[HumanMessage] = []
    for n in range(count):
        messages.append(HumanMessage(f"message {n} {'word ' * 20}", id=f"{thread}-{n}"))
        run.put(f"c{n:05}", messages=list(messages), static="s" * 20_000)
    run.end()
    return messages


@pytest.mark.parametrize("name", ["append", "append and edit the last"])
def test_case_35_bytes_are_linear_in_messages(
    backend: Backend, saver: SurefootSaver, name: str
) -> None:
    """Counted, not timed: the second hundred costs what the first hundred cost."""
    run = Run(saver, "t")
    messages: list[HumanMessage] = []
    sizes = [0]
    for n in range(240):
        if messages and name != "append":
            messages[-1] = HumanMessage(f"{messages[-1].content} (edited)", id=messages[-1].id)
        messages.append(HumanMessage(f"message {n} {random.random()}" * 5, id=f"m{n}"))
        run.put(f"c{n:05}", messages=list(messages), static="s" * 20_000)
        if n + 1 in (80, 160, 240):
            sizes.append(backend.stored_bytes())
    run.end()
    first, second, third = (b - a for a, b in zip(sizes, sizes[1:], strict=False))
    assert second < 1.25 * first
    assert third < 1.25 * second
    found = backend.open_saver().get_tuple(at("t"))
    assert found is not None
    assert found.checkpoint["channel_values"]["messages"] == messages


def test_three_thousand_messages(backend: Backend, saver: SurefootSaver) -> None:
    messages = [HumanMessage(f"message {n}", id=str(n)) for n in range(3_000)]
    run = Run(saver, "t")
    run.put("c1", messages=messages[:2_900])
    for n in range(2_900, 3_000, 20):
        run.put(f"c{n}", messages=messages[: n + 20])
    run.end()
    reader = backend.open_saver()
    found = reader.get_tuple(at("t"))
    assert found is not None
    assert found.checkpoint["channel_values"]["messages"] == messages
    older = reader.get_tuple(at("t", "c2960"))
    assert older is not None
    assert older.checkpoint["channel_values"]["messages"] == messages[:2_980]


def chat_graph(checkpointer: Any) -> Any:
    class State(TypedDict):
        messages: Annotated[list[AnyMessage], add_messages]
        turns: int

    def answer(state: State) -> dict[str, Any]:
        return {"messages": [("ai", f"answer {len(state['messages'])}")], "turns": 1}

    builder = StateGraph(State)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=checkpointer)


def contents(state: Any) -> list[str]:
    return [str(m.content) for m in state.values["messages"]]


def test_a_chat_that_removes_messages(backend: Backend, saver: SurefootSaver) -> None:
    savers = [saver, backend.open_saver()]
    graphs = [*map(chat_graph, savers), chat_graph(InMemorySaver())]
    seen: list[list[str]] = []
    for turn in range(12):
        for graph in (graphs[turn % 2], graphs[2]):
            graph.invoke({"messages": [HumanMessage(f"q{turn}", id=f"q{turn}")]}, at("t"))
            if turn % 3 == 2:
                gone = [RemoveMessage(id=f"q{turn - 1}"), HumanMessage("edited", id=f"q{turn}")]
                graph.update_state(at("t"), {"messages": gone})
        seen.append(contents(graphs[0].get_state(at("t"))))
        assert seen[-1] == contents(graphs[2].get_state(at("t")))
    histories = [
        [contents(s) for s in graph.get_state_history(at("t")) if "messages" in s.values]
        for graph in graphs
    ]
    assert histories[0] == histories[1] == histories[2]
    assert all(s in histories[0] for s in seen)


# --- helpers ------------------------------------------------------------------------------------------


class Counting(TypedDict):
    n: int


def counter_graph(checkpointer: Any, steps: int = 3) -> Any:
    """Adds one at each of its steps."""
    builder = StateGraph(Counting)
    names = [START, *(f"step{n}" for n in range(steps)), END]
    for name in names[1:-1]:
        builder.add_node(name, lambda state: {"n": state.get("n", 0) + 1})
    for one, other in zip(names, names[1:], strict=False):
        builder.add_edge(one, other)
    return builder.compile(checkpointer=checkpointer)


class Run:
    """A run as LangGraph makes it: it loads, puts step after step, and is over."""

    def __init__(self, saver: SurefootSaver, thread: str, namespace: str = "") -> None:
        self._saver = saver
        self._thread = thread
        self._namespace = namespace
        self._runtime = types.SimpleNamespace(control=object(), stream_writer=lambda _: None)
        self.loaded = saver.get_tuple(self.config())
        self.last = None if self.loaded is None else self.loaded.checkpoint["id"]
        self._step = 0

    def config(self, checkpoint_id: str | None = None) -> dict[str, Any]:
        config = at(self._thread, checkpoint_id, namespace=self._namespace)
        config["configurable"]["__pregel_runtime"] = self._runtime
        return config

    def put(self, checkpoint_id: str, *, meta: dict[str, Any] | None = None, **values: Any) -> None:
        made = checkpoint(checkpoint_id, **values)
        config = self.config(self.last)
        versions = made["channel_versions"]
        self._saver.put(config, made, meta or metadata(self._step), versions)
        self.last, self._step = checkpoint_id, self._step + 1

    def writes(self, batch: Batch, task_id: str) -> None:
        self._saver.put_writes(self.config(self.last), batch, task_id)

    def end(self) -> None:
        """The run is over and collected, so the next call may have the thread."""
        del self._runtime
        gc.collect()
        self._saver.release(self._thread)
