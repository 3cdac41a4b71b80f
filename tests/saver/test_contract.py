"""What LangGraph may count on, and what goes beyond: on both stores, through both halves."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import operator
import os
import random
import signal
import socket
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AnyMessage, HumanMessage, RemoveMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph, add_messages
from pydantic import SecretStr
from tests.saver.conftest import Backend, Half, at, checkpoint, metadata, put, put_chain

from surefoot import Limits, ResumePolicy, SurefootSaver
from surefoot.errors import Busy, Closed, Misuse, NotLoadable, NotStorable, Refused
from surefoot.langgraph.serde import StrictSerializer
from surefoot.ports import Append, ContentStore, Mark

# --- list -------------------------------------------------------------------------------------


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


# --- put and get_tuple ------------------------------------------------------------------------


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


# --- pending writes ---------------------------------------------------------------------------


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


# --- values -----------------------------------------------------------------------------------


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


# --- lists ------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", ["append", "append and edit the last"])
def test_case_35_bytes_are_linear_in_messages(
    backend: Backend, saver: SurefootSaver, name: str
) -> None:
    """Counted, not timed: the second fifty cost what the first fifty cost."""
    run = Run(saver, "t")
    messages: list[HumanMessage] = []
    sizes = [0]
    for n in range(150):
        if messages and name != "append":
            messages[-1] = HumanMessage(f"{messages[-1].content} (edited)", id=messages[-1].id)
        messages.append(HumanMessage(f"message {n} {random.random()}" * 5, id=f"m{n}"))
        run.put(f"c{n:05}", messages=list(messages), static="s" * 20_000)
        if n + 1 in (50, 100, 150):
            sizes.append(backend.stored_bytes())
    run.end()
    first, second, third = (b - a for a, b in pairwise(sizes))
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


# --- whole graphs -----------------------------------------------------------------------------


def extend(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


def two_kinds_graph(checkpointer: Any) -> Any:
    """A channel of each kind: last value, reducer, and rebuilt from writes."""

    class State(TypedDict):
        n: int
        added: Annotated[list[str], operator.add]
        delta: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=4)]

    def one(state: State) -> dict[str, Any]:
        return {"n": state["n"] + 1, "delta": [f"one {state['n']}"]}

    def two(state: State) -> dict[str, Any]:
        return {"added": [f"two {state['n']} {len(state['delta'])}"], "delta": ["two"]}

    builder = StateGraph(State)
    builder.add_node("one", one)
    builder.add_node("two", two)
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    return builder.compile(checkpointer=checkpointer)


def history_of(graph: Any, thread: str = "t") -> list[tuple[Any, ...]]:
    return [
        (s.metadata["step"], s.metadata["source"], s.values, s.next)
        for s in graph.get_state_history(at(thread))
    ]


@pytest.mark.parametrize("seed", range(3))
def test_random_operations_give_what_the_memory_saver_gives(
    backend: Backend, saver: SurefootSaver, seed: int
) -> None:
    rng = random.Random(seed)
    savers = [saver, backend.open_saver()]
    ours, stock = [two_kinds_graph(s) for s in savers], two_kinds_graph(InMemorySaver())

    def everywhere(act: Callable[[Any], Any]) -> None:
        act(rng.choice(ours))
        act(stock)

    def past(graph: Any, place: float) -> Any:
        states = [s for s in graph.get_state_history(at("t")) if s.values]
        return states[int(place * len(states))].config

    everywhere(lambda g: g.invoke({"n": 0, "added": ["start"], "delta": ["start"]}, at("t")))
    for number in range(9):
        place, text = rng.random(), f"op {number}"
        act = rng.choice(
            [
                lambda g, text=text: g.invoke({"added": [text], "delta": [text] * 9}, at("t")),
                lambda g, text=text: g.invoke({"delta": [text]}, at("t")),
                lambda g, text=text: g.update_state(at("t"), {"added": [text]}, as_node="one"),
                lambda g, text=text: g.update_state(at("t"), {"delta": [text]}, as_node="two"),
                lambda g, place=place: g.invoke(None, past(g, place)),
                lambda g, place=place: g.update_state(past(g, place), {"n": 50}, as_node="one"),
                lambda g: g.invoke(None, at("t")),
            ]
        )
        everywhere(act)
        assert ours[0].get_state(at("t")).values == stock.get_state(at("t")).values, number
        assert history_of(ours[1]) == history_of(stock), number


# --- delete -----------------------------------------------------------------------------------


def mark_of(saver: SurefootSaver, thread: str) -> Mark:
    mark = saver.core.ports.marks.read(saver.core.ports.tenant, thread)
    assert mark is not None
    return mark


@pytest.mark.optimized
async def test_delete_leaves_a_tombstone_and_a_new_life_begins(
    backend: Backend, each_half: Half
) -> None:
    await put_chain(each_half, "t", "c1", "c2")
    await put(each_half, at("t", "c2"), "c3", messages=[*range(20)], big="x" * 100_000)
    await put_chain(each_half, "other", "c1")
    before = mark_of(each_half.saver, "t")
    await each_half.delete_thread("t")
    tombstone = mark_of(each_half.saver, "t")
    assert (tombstone.state, tombstone.incarnation) == ("tombstone", 1)
    assert tombstone.seq > before.seq
    assert tombstone.epoch > before.epoch
    assert backend.counts() == {
        "surefoot_thread": 1,
        "surefoot_frame": 1,
        "surefoot_value": 0,
        "surefoot_chunk": 0,
        "surefoot_run": 0,
    }
    assert await each_half.get_tuple(at("t")) is None
    assert await each_half.list(at("t")) == []
    assert await each_half.ids(None) == ["c1"]
    await each_half.delete_thread("t")  # again: nothing to do
    await each_half.delete_thread("never seen")
    assert mark_of(each_half.saver, "t") == dataclasses.replace(
        tombstone, lease_left_ms=mark_of(each_half.saver, "t").lease_left_ms
    )

    await put_chain(each_half, "t", "d1")
    reborn = mark_of(each_half.saver, "t")
    assert (reborn.state, reborn.incarnation) == ("live", 2)
    assert reborn.epoch > tombstone.epoch
    other = each_half.on(backend.open_saver())
    assert await other.ids(at("t")) == ["d1"]
    assert (await other.get_tuple(at("t"))).parent_config is None


def put_rows(backend: Backend, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    for row in rows:
        marks = ", ".join("?" * len(row))
        how = " OVERRIDING SYSTEM VALUE" if backend.name == "postgres" else ""
        backend.execute(f"INSERT INTO {table}{how} VALUES ({marks})", *row)


@pytest.mark.optimized
@pytest.mark.parametrize("reborn", [False, True], ids=["deleted", "reborn"])
@pytest.mark.parametrize("gone", [False, True], ids=["beside", "instead"])
async def test_rows_of_an_earlier_life_are_never_served(
    backend: Backend, half: Half, reborn: bool, gone: bool
) -> None:
    """Put back by SQL: beside the rows of the new life, or instead of them."""
    await put_chain(half, "t", "c1")
    await put(half, at("t", "c1"), "c2", secret="old life", items=["old life"] * 20)
    tables = ("surefoot_thread", "surefoot_frame", "surefoot_value", "surefoot_chunk")
    old = {table: backend.rows(table) for table in tables}
    await half.delete_thread("t")
    if reborn:
        await put_chain(half, "t", "d1")
        await put(half, at("t", "d1"), "d2", secret="new life")
    new = backend.rows("surefoot_thread")
    if gone:
        for table in tables:
            backend.execute(f"DELETE FROM {table}")
    if gone or not reborn:
        put_rows(backend, "surefoot_thread", old["surefoot_thread"])
        key = old["surefoot_thread"][0][0]
    else:
        key = new[0][0]
    for table in tables[1:]:
        put_rows(backend, table, [(key, *row[1:]) for row in old[table]])

    reader = half.on(backend.open_saver())
    for read in (
        lambda: reader.get_tuple(at("t")),
        lambda: reader.get_tuple(at("t", "c2")),
        lambda: reader.list(at("t")),
        lambda: reader.list(None),
    ):
        try:
            found = await read()
        except Refused:
            continue
        assert "old life" not in repr(found)
    graph = counter_graph(reader.saver)
    try:
        state = graph.invoke({"n": 0}, at("t"))
    except Refused:
        assert reborn
    else:
        assert state == {"n": 3}
        assert "old life" not in repr(await reader.list(at("t")))


# --- prune ------------------------------------------------------------------------------------


def test_prune_keeps_the_latest_of_each_namespace(backend: Backend, saver: SurefootSaver) -> None:
    half = Half(saver, is_async=False)

    async def fill() -> None:
        await put_chain(half, "t", "c1", "c2", "c3")
        await put_chain(half, "t", "d1", "d2", namespace="n")
        await put(half, at("t", "c3"), "c4", items=[*range(50)], big="x" * 50_000)
        await half.put_writes(at("t", "c4"), [("a", 1)], "task")
        await half.put_writes(at("t", "c2"), [("a", 2)], "task")
        await put_chain(half, "other", "c1", "c2")

    asyncio.run(fill())
    before = {f.checkpoint["id"]: f for f in saver.list(at("t", namespace=None))}
    saver.prune(["t", "unknown"])
    reader = backend.open_saver()
    for _ in range(2):
        after = {f.checkpoint["id"]: f for f in reader.list(at("t", namespace=None))}
        assert after == {k: before[k] for k in ("c4", "d2")}
        assert reader.get_tuple(at("t", "c3")) is None
        assert reader.get_tuple(at("t")) == before["c4"]
        saver.prune(["t"], strategy="keep_latest")
    assert [f.checkpoint["id"] for f in reader.list(at("other"))] == ["c2", "c1"]
    with pytest.raises(Misuse, match="parent"):
        asyncio.run(put(half, at("t", "c3"), "c5"))
    asyncio.run(put(half, at("t", "c4"), "c5", items=[*range(60)]))
    asyncio.run(half.put_writes(at("t", "c4"), [("late", 1)], "task2"))
    found = [*reader.list(at("t"))]
    assert [f.checkpoint["id"] for f in found] == ["c5", "c4"]
    assert found[0].checkpoint["channel_values"]["items"] == [*range(60)]
    assert found[1].checkpoint["channel_values"] == before["c4"].checkpoint["channel_values"]
    assert found[1].pending_writes == [("task", "a", 1), ("task2", "late", 1)]
    with pytest.raises(Misuse, match="strategy"):
        saver.prune(["t"], strategy="keep_all")
    with pytest.raises(Misuse, match="thread_ids"):
        saver.prune("t")
    saver.prune(["t", "other"], strategy="delete")
    assert [*reader.list(None)] == []
    assert mark_of(saver, "t").state == "tombstone"


def test_prune_really_deletes(backend: Backend, saver: SurefootSaver) -> None:
    run = Run(saver, "t")
    for n in range(40):
        run.put(f"c{n:02}", noise=random.Random(n).randbytes(4_000), items=[n] * 40)
    run.end()
    full = backend.stored_bytes()
    saver.prune(["t"])
    assert backend.stored_bytes() < full / 10
    counts = backend.counts()
    assert counts["surefoot_value"] == 1
    assert counts["surefoot_frame"] <= 3
    assert counts["surefoot_chunk"] <= 2


def test_prune_keeps_early_writes(saver: SurefootSaver) -> None:
    half = Half(saver, is_async=False)

    async def fill() -> None:
        await half.put_writes(at("t", "c2"), [("early", 1)], "task")
        await put_chain(half, "t", "c1", "c2")
        await half.put_writes(at("t", "c3"), [("earlier", 1)], "task")

    asyncio.run(fill())
    saver.prune(["t"])
    found = saver.get_tuple(at("t"))
    assert found is not None
    assert found.pending_writes == [("task", "early", 1)]
    asyncio.run(put(half, at("t", "c2"), "c3"))
    found = saver.get_tuple(at("t"))
    assert found is not None
    # Writes without a checkpoint are not kept by any strategy; both answers are whole.
    assert found.pending_writes in ([], [("task", "earlier", 1)])


@pytest.mark.parametrize("turns", [1, 2, 3, 4])
def test_case_40_prune_with_a_delta_channel(
    backend: Backend, saver: SurefootSaver, turns: int
) -> None:
    """Snapshots every four updates: pruned between, at, and after one."""
    graph, stock = two_kinds_graph(saver), two_kinds_graph(InMemorySaver())
    state: dict[str, Any] = {"n": 0, "added": ["x"], "delta": ["a", "b"]}
    for turn in range(turns):
        for g in (graph, stock):
            g.invoke(state if turn == 0 else {"delta": [f"turn {turn}"]}, at("t"))
    for round_ in range(3):
        before = graph.get_state(at("t"))
        assert before.values == stock.get_state(at("t")).values
        assert before.values["delta"]
        saver.prune(["t"])
        after = two_kinds_graph(backend.open_saver()).get_state(at("t"))
        assert after.values == before.values
        assert after.config == before.config
        for g in (graph, stock):
            g.invoke({"delta": [f"after {round_}"]}, at("t"))
    theirs = history_of(stock)
    ours = history_of(graph)
    latest = [h for h in ours if h[0] > before.metadata["step"]]
    assert latest == theirs[: len(latest)]
    assert len(latest) == 4


def test_delete_for_runs(backend: Backend, saver: SurefootSaver) -> None:
    graph, stock = two_kinds_graph(saver), two_kinds_graph(InMemorySaver())

    def turn(number: int, thread: str = "t") -> None:
        config = {**at(thread), "metadata": {"run_id": f"run{number}"}}
        for g in (graph, stock):
            g.invoke({"n": 0, "added": [f"{number}"], "delta": [f"{number}"]}, config)

    for number in range(5):
        turn(number)
    turn(1, "u")
    turn(7, "u")
    before = graph.get_state(at("t"))
    saver.delete_for_runs(["run1", "run2", "unknown"])
    reader = two_kinds_graph(backend.open_saver())
    assert reader.get_state(at("t")).values == before.values == stock.get_state(at("t")).values
    assert reader.get_state(at("u")).values == stock.get_state(at("u")).values
    turn(8)
    assert reader.get_state(at("t")).values == stock.get_state(at("t")).values
    kept = {f.metadata["run_id"] for f in backend.open_saver().list(at("t"))}
    assert {"run0", "run3", "run4", "run8"} <= kept
    for state in reader.get_state_history(at("t")):
        if state.metadata["run_id"] in ("run3", "run4", "run8"):
            same = [
                s
                for s in stock.get_state_history(at("t"))
                if (s.metadata["step"]) == state.metadata["step"]
            ]
            assert state.values == same[0].values
    with pytest.raises(Misuse, match="run_ids"):
        saver.delete_for_runs("run1")


def test_delete_for_runs_without_delta_channels_deletes_all_of_them(
    backend: Backend, saver: SurefootSaver
) -> None:
    graph = counter_graph(saver)
    for number in range(3):
        graph.invoke({"n": number * 10}, {**at("t"), "metadata": {"run_id": f"run{number}"}})
    saver.delete_for_runs(["run1"])
    found = [*backend.open_saver().list(at("t"))]
    assert {f.metadata["run_id"] for f in found} == {"run0", "run2"}
    assert found[0].checkpoint["channel_values"]["n"] == 23
    saver.delete_for_runs(["run2"])
    latest = graph.get_state(at("t"))
    assert latest.values == {"n": 3}
    assert latest.metadata["run_id"] == "run0"
    assert graph.invoke({}, at("t")) == {"n": 6}


# --- copy -------------------------------------------------------------------------------------


def test_copies_go_on_independently(backend: Backend, saver: SurefootSaver) -> None:
    """The copy has list logs with the ids of the source; neither may meet the other's."""
    graph, stock = two_kinds_graph(saver), two_kinds_graph(InMemorySaver())
    chat = chat_graph(saver)
    for n in range(12):
        chat.invoke({"messages": [HumanMessage(f"q{n}", id=f"q{n}")]}, at("chat"))
        for g in (graph, stock):
            g.invoke({"n": 0, "added": ["x"] * 3, "delta": [f"{n}"]}, at("t"))
    saver.copy_thread("chat", "chat2")
    saver.copy_thread("t", "t2")
    assert contents(chat.get_state(at("chat"))) == contents(chat.get_state(at("chat2")))
    assert history_of(graph, "t2") == history_of(graph, "t") == history_of(stock)
    other = chat_graph(backend.open_saver())
    expected = {name: contents(chat.get_state(at(name))) for name in ("chat", "chat2")}
    for n in range(3):
        for name, app in (("chat", chat), ("chat2", other), ("chat2", chat), ("chat", other)):
            text = f"{name} goes on {n}"
            app.invoke({"messages": [HumanMessage(text)]}, at(name))
            expected[name] += [text, f"answer {len(expected[name]) + 1}"]
            assert contents(app.get_state(at(name))) == expected[name]
    graph.invoke({"delta": ["only t2"]}, at("t2"))
    assert graph.get_state(at("t")).values == stock.get_state(at("t")).values
    assert "only t2" in graph.get_state(at("t2")).values["delta"]
    saver.delete_thread("chat")
    assert contents(other.get_state(at("chat2"))) == expected["chat2"]
    with pytest.raises(Misuse, match="has checkpoints"):
        saver.copy_thread("t", "t2")
    with pytest.raises(Misuse, match="source"):
        saver.copy_thread("t", "t")
    saver.copy_thread("unknown", "t3")
    assert saver.get_tuple(at("t3")) is None


async def test_copy_of_a_forked_thread_with_all_kinds_of_records(
    backend: Backend, half: Half
) -> None:
    await half.put_writes(at("t", "c2"), [("early", "e" * 3_000)], "task0")
    first = await put(half, at("t"), "c1", items=[*range(20)])
    await put(half, first, "c2", items=[*range(25)])
    await put(half, first, "f2", items=[*range(20), "fork"])
    await put(half, at("t", "f2"), "f3", items=[*range(20), "fork", "on"])
    await put(half, at("t", "c2"), "c3", items=[*range(30)])
    await put(half, at("t", "c1"), "c2", items=["put again", *range(25)])
    await put_chain(half, "t", "d1", "d2", namespace="n")
    await half.put_writes(at("t", "f3"), [("a", 1)], "task1")
    await half.put_writes(at("t", "f3"), [("a", 2), ("b", 2)], "task1")
    await half.put_writes(at("t", "f3"), [("__interrupt__", "i")], "task1", "path")

    def plain(found: Any) -> list[Any]:
        return [
            (f.checkpoint, f.metadata, f.pending_writes, f.parent_config and
             f.parent_config["configurable"]["checkpoint_id"])
            for f in found
        ]  # fmt: skip

    source = plain(await half.list(at("t", namespace=None)))
    await half.copy_thread("t", "copy")
    other = half.on(backend.open_saver())
    assert plain(await other.list(at("copy", namespace=None))) == source
    for found in await other.list(at("copy", namespace=None)):
        assert await other.get_tuple(found.config) == found
        assert found.config["configurable"]["thread_id"] == "copy"
    await half.copy_thread("copy", "copy of copy")
    assert plain(await other.list(at("copy of copy", namespace=None))) == source
    for name in ("t", "copy", "copy of copy"):
        await put(half, at(name, "f3"), "f4", items=[*range(20), "fork", "on", name])
        await put(other, at(name, "c3"), "c4", items=[*range(30), name])
    for name in ("t", "copy", "copy of copy"):
        values = {f.checkpoint["id"]: f.checkpoint["channel_values"]["items"]
                  for f in await half.list(at(name))}  # fmt: skip
        assert values["f4"] == [*range(20), "fork", "on", name]
        assert values["c4"] == [*range(30), name]
        assert values["c2"] == ["put again", *range(25)]


async def test_copy_of_a_pruned_thread(backend: Backend, half: Half) -> None:
    await put_chain(half, "t", "c1", "c2", "c3")
    await half.put_writes(at("t", "c3"), [("a", 1)], "task")
    await half.prune(["t"])
    await half.copy_thread("t", "copy")
    await half.delete_thread("t")
    found = await half.on(backend.open_saver()).list(at("copy"))
    assert [f.checkpoint["id"] for f in found] == ["c3"]
    assert found[0].pending_writes == [("task", "a", 1)]
    await put(half, at("copy", "c3"), "c4")
    assert await half.ids(at("copy")) == ["c4", "c3"]


# --- all direct calls against a model ---------------------------------------------------------


class Model:
    """What a thread should look like after direct calls, as plain as possible."""

    def __init__(self) -> None:
        self.order: list[tuple[str, str]] = []
        self.stored: dict[tuple[str, str], tuple[list[Any], dict[str, Any], str | None]] = {}
        self.writes: dict[tuple[str, str], dict[tuple[str, int], tuple[str, Any]]] = {}

    def copy(self) -> Model:
        made = Model()
        made.order, made.stored = list(self.order), dict(self.stored)
        made.writes = {place: dict(w) for place, w in self.writes.items()}
        return made

    def keep(self, places: Sequence[tuple[str, str]]) -> None:
        if len(places) < len(self.order):
            self.order = [p for p in self.order if p in places]
            self.stored = {p: self.stored[p] for p in self.order}
            self.writes = {p: w for p, w in self.writes.items() if p in places}

    def latest(self) -> list[tuple[str, str]]:
        return [*dict(self.order).items()]

    def shown(self, place: tuple[str, str]) -> tuple[Any, ...]:
        items, meta, parent = self.stored[place]
        standing = sorted(self.writes.get(place, {}).items())
        return (place, items, meta, parent, [(task, c, v) for (task, _), (c, v) in standing])


def shown(found: Any) -> tuple[Any, ...]:
    where = found.config["configurable"]
    parent = found.parent_config and found.parent_config["configurable"]["checkpoint_id"]
    values = found.checkpoint["channel_values"]["items"]
    place = (where["checkpoint_ns"], where["checkpoint_id"])
    return (place, values, found.metadata, parent, found.pending_writes)


class Player:
    """Makes the same random call on the saver and on the model."""

    def __init__(self, rng: random.Random, halves: Sequence[Half]) -> None:
        self.rng = rng
        self.halves = halves
        self.threads: dict[str, Model] = {"t0": Model()}
        self.count = 0

    async def step(self) -> None:
        acts = [self.put] * 6 + [self.put_again, self.prune, self.delete_run, self.copy]
        acts += [self.write] * 4 + [self.delete]
        name = self.rng.choice([*self.threads])
        await self.rng.choice(acts)(self.rng.choice(self.halves), name, self.threads[name])

    def fresh(self) -> str:
        self.count += 1
        return f"{self.rng.randrange(1_000):03}-{self.count}"

    async def put(self, half: Half, name: str, model: Model) -> None:
        namespace = self.rng.choice(["", "", "", "n"])
        early = [c for ns, c in model.writes if ns == namespace and (ns, c) not in model.stored]
        checkpoint_id = self.rng.choice(early) if early else self.fresh()
        before = [c for ns, c in model.order if ns == namespace]
        parent = None
        if before:
            parent = before[-1] if self.rng.random() < 0.7 else self.rng.choice(before)
        await self.store(half, name, model, (namespace, checkpoint_id), parent)
        model.order.append((namespace, checkpoint_id))

    async def store(
        self, half: Half, name: str, model: Model, place: tuple[str, str], parent: str | None
    ) -> None:
        old = model.stored.get((place[0], parent or ""), ([], {}, None))[0]
        items = [i for i in edits(self.rng, old) if isinstance(i, str)]
        meta = metadata(self.count, run_id=f"run{self.rng.randrange(4)}")
        await put(half, at(name, parent, namespace=place[0]), place[1], meta=meta, items=items)
        model.stored[place] = (items, meta, parent)

    async def put_again(self, half: Half, name: str, model: Model) -> None:
        if model.order:
            place = self.rng.choice(model.order)
            parent = model.stored[place][2]
            if parent is None or (place[0], parent) in model.stored:
                await self.store(half, name, model, place, parent)

    async def write(self, half: Half, name: str, model: Model) -> None:
        namespace = self.rng.choice(["", "n"])
        known = [c for ns, c in model.order if ns == namespace]
        checkpoint_id = self.rng.choice(known) if known and self.rng.random() < 0.8 else None
        place = (namespace, checkpoint_id or self.fresh())
        special = self.rng.random() < 0.3
        batch: list[tuple[str, Any]] = [("__interrupt__", self.rng.random())]
        if not special:
            batch = [(f"c{n}", "w" * self.rng.choice([1, 2_000])) for n in range(2)]
        task = f"task{self.rng.randrange(2)}"
        await half.put_writes(at(name, place[1], namespace=place[0]), batch, task)
        held = model.writes.setdefault(place, {})
        for n, (channel, value) in enumerate(batch):
            key = (task, -3 if special else n)
            if special or key not in held:
                held[key] = (channel, value)

    async def prune(self, half: Half, name: str, model: Model) -> None:
        await half.prune([name])
        model.keep(model.latest())

    async def delete_run(self, half: Half, name: str, model: Model) -> None:
        run = f"run{self.rng.randrange(4)}"
        await half.delete_for_runs([run])
        for each in self.threads.values():
            each.keep([p for p in each.order if each.stored[p][1]["run_id"] != run])

    async def copy(self, half: Half, name: str, model: Model) -> None:
        target = f"t{self.rng.randrange(4)}"
        there = self.threads.get(target, Model())
        anything = bool(model.order or model.writes)
        if target == name or (anything and there.order):
            with pytest.raises(Misuse):
                await half.copy_thread(name, target)
        elif not (there.order or there.writes):
            await half.copy_thread(name, target)
            self.threads[target] = model.copy()

    async def delete(self, half: Half, name: str, model: Model) -> None:
        await half.delete_thread(name)
        self.threads[name] = Model()

    async def look(self) -> None:
        half = self.rng.choice(self.halves)
        for name, model in self.threads.items():
            expected = [model.shown(place) for place in reversed(model.order)]
            assert [shown(f) for f in await half.list(at(name, namespace=None))] == expected
            for place in model.order[-3:]:
                found = await half.get_tuple(at(name, place[1], namespace=place[0]))
                assert shown(found) == model.shown(place)
            for place in model.latest():
                found = await half.get_tuple(at(name, namespace=place[0]))
                assert shown(found) == model.shown(place)


@pytest.mark.parametrize("seed", range(2))
async def test_random_direct_calls_give_what_a_model_gives(
    backend: Backend, half: Half, seed: int
) -> None:
    player = Player(random.Random(seed), [half, half.on(backend.open_saver())])
    for _ in range(60):
        await player.step()
        if player.rng.random() < 0.3:
            await player.look()
    await player.look()


# --- credentials ------------------------------------------------------------------------------

TOKEN = "sk-zyx-9876543210-credential"


class ListeningSerializer(StrictSerializer):
    """Keeps what it wrote, before it is compressed."""

    def __init__(self) -> None:
        super().__init__()
        self.wrote: list[bytes] = []

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        tag, raw = super().dumps_typed(obj)
        self.wrote.append(raw)
        return tag, raw


@pytest.mark.optimized
def test_case_51_credentials_never_reach_the_database(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    serde = ListeningSerializer()
    saver = backend.open_saver(serde=serde)
    graph = counter_graph(saver)
    names = ["api_key", "x-api-key", "openaiApiKey", "Authorization", "session_token", "password"]
    config = at("t")
    config["configurable"] |= {name: f"{TOKEN}-{name}" for name in names}
    config["configurable"] |= {"user_id": "kept-user", "tokens_used": 17, "author": "kept-author"}
    config["metadata"] = {"Cookie": f"{TOKEN}-cookie", "ticket": "kept-ticket"}
    with caplog.at_level(logging.WARNING, logger="surefoot"):
        for _ in range(2):
            graph.invoke({"n": 0}, config)
    for name in [*names, "Cookie"]:
        told = [r for r in caplog.records if f"{name!r}" in r.getMessage()]
        assert len(told) == 1, name
    assert TOKEN not in caplog.text
    found = graph.get_state(at("t")).metadata
    assert {k: found[k] for k in ("user_id", "tokens_used", "author", "ticket")} == {
        "user_id": "kept-user",
        "tokens_used": 17,
        "author": "kept-author",
        "ticket": "kept-ticket",
    }
    assert not {*names, "Cookie"} & found.keys()
    saver.close()
    assert TOKEN.encode() not in backend.dump()
    assert serde.wrote
    assert not [raw for raw in serde.wrote if TOKEN.encode() in raw]
    assert any(b"kept-ticket" in raw for raw in serde.wrote), "the test listens at all"


def test_case_51_the_list_of_names_is_configurable(backend: Backend) -> None:
    saver = backend.open_saver(credential_names=["floor_plan"])
    config = at("t")
    config["configurable"] |= {"api_key": "wanted", "floorPlan": TOKEN}
    counter_graph(saver).invoke({"n": 0}, config)
    found = saver.get_tuple(at("t"))
    assert found is not None
    assert found.metadata["api_key"] == "wanted"  # type: ignore[typeddict-item]
    assert "floorPlan" not in found.metadata


def test_case_51_secret_types_are_refused(backend: Backend, saver: SurefootSaver) -> None:
    class State(TypedDict):
        login: Any

    builder = StateGraph(State)
    builder.add_node("node", lambda state: {"login": {"password": SecretStr(TOKEN)}})
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=saver)
    with pytest.raises(NotStorable) as caught:
        graph.invoke({"login": None}, at("t"), durability="sync")
    assert "password" in caught.value.path
    assert TOKEN not in str(caught.value)
    saver.close()
    assert TOKEN.encode() not in backend.dump()


# --- health, closing, loops -------------------------------------------------------------------


def test_health(backend: Backend, saver: SurefootSaver) -> None:
    report = saver.health()
    assert report["ok"] is True
    assert report["content_store"]["ok"] is report["highwater"]["ok"] is True
    assert report["degraded"] is (backend.name == "postgres")  # one server for both in tests
    assert (report["live_threads"], report["waiting_writes"]) == (0, 0)
    run = Run(saver, "t")
    run.put("c1", a=1)
    assert saver.health()["live_threads"] == 1
    run.end()
    assert saver.health()["live_threads"] == 0


def test_health_names_the_store_that_is_broken(backend: Backend, saver: SurefootSaver) -> None:
    backend.execute("DROP TABLE surefoot_thread")
    report = saver.health()
    assert report["ok"] is False
    assert report["content_store"]["ok"] is False
    assert "NOT_SET_UP" in report["content_store"]["error"]
    assert report["highwater"]["ok"] is True
    assert report["degraded"] is None


ENDPOINTS: dict[str, tuple[Any, ...]] = {
    "get_tuple": (at("t"),),
    "list": (at("t"),),
    "put": (at("t"), checkpoint("c9"), metadata(), {}),
    "put_writes": (at("t", "c1"), [("a", 1)], "task"),
    "delete_thread": ("t",),
    "delete_for_runs": (["run"],),
    "copy_thread": ("t", "u"),
    "prune": (["t"],),
    "setup": (),
}


@pytest.mark.optimized
async def test_case_39_after_close_everything_says_so(each_half: Half) -> None:
    await put_chain(each_half, "t", "c1")
    await each_half.close()
    await each_half.close()
    for name, arguments in ENDPOINTS.items():
        with pytest.raises(Closed):
            await getattr(each_half, name)(*arguments)
    assert each_half.saver.health()["ok"] is False


def test_closing_during_a_run_gives_the_thread_back(backend: Backend, saver: SurefootSaver) -> None:
    run = Run(saver, "t")
    run.put("c1", a=1)
    run.writes([("w", 1)], "task")
    saver.close()
    with pytest.raises(Closed):
        run.put("c2", a=2)
    other = never_waits(backend.open_saver())
    following = Run(other, "t")
    assert following.loaded is not None
    assert following.loaded.pending_writes == [("task", "w", 1)]
    following.end()


async def test_case_39_sync_methods_inside_a_running_loop(
    backend: Backend, saver: SurefootSaver
) -> None:
    half = Half(saver, is_async=False)
    await put_chain(half, "t", "c1", "c2")
    await half.put_writes(at("t", "c2"), [("a", 1)], "task")
    assert (await half.get_tuple(at("t"))).pending_writes == [("task", "a", 1)]
    assert await half.ids(at("t")) == ["c2", "c1"]
    await half.copy_thread("t", "u")
    await half.prune(["u"])
    await half.delete_for_runs(["run"])
    assert await half.ids(at("u")) == ["c2"]
    await half.delete_thread("t")
    assert counter_graph(saver).invoke({"n": 0}, at("g")) == {"n": 3}
    assert saver.health()["ok"]
    with backend.open_saver() as other:
        other.setup()
        assert other.get_tuple(at("g")) is not None


def test_case_39_one_saver_in_several_loops(saver: SurefootSaver) -> None:
    graph = counter_graph(saver)
    for turn in range(3):
        assert asyncio.run(graph.ainvoke({"n": turn}, at("t"))) == {"n": turn + 3}

    failures: list[BaseException] = []

    def elsewhere(number: int) -> None:
        try:
            for turn in range(3):
                result = asyncio.run(graph.ainvoke({"n": turn}, at(f"t{number}")))
                assert result == {"n": turn + 3}
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=elsewhere, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


async def test_async_with_closes(backend: Backend) -> None:
    async with SurefootSaver.from_conn_string(
        backend.url,
        highwater=backend.highwater,
        keys=backend.keys,
        schema=backend.schema,
        tenant=backend.tenant,
    ) as saver:
        await saver.asetup()
        assert await counter_graph(saver).ainvoke({"n": 0}, at("t")) == {"n": 3}
    with pytest.raises(Closed):
        await saver.aget_tuple(at("t"))


# --- who holds a thread -----------------------------------------------------------------------


def never_waits(saver: SurefootSaver) -> SurefootSaver:
    """A saver for which waiting for a lease is a failure."""

    class Impatient:
        def __init__(self, host: Any) -> None:
            self._host = host

        def pause(self, milliseconds: int) -> None:
            raise AssertionError("waited for a lease")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._host, name)

    saver.core.ports = dataclasses.replace(saver.core.ports, host=Impatient(saver.core.ports.host))
    return saver


@pytest.mark.optimized
def test_case_52_the_next_turn_is_served_elsewhere_at_once(backend: Backend) -> None:
    graphs = [chat_graph(never_waits(backend.open_saver())) for _ in range(2)]
    for turn in range(10):
        graph = graphs[turn % 2]
        state = graph.invoke({"messages": [HumanMessage(f"q{turn}")]}, at("t"))
        assert len(state["messages"]) == 2 * turn + 2
        assert contents(graphs[(turn + 1) % 2].get_state(at("t")))[-1] == f"answer {2 * turn + 1}"


async def test_case_52_the_next_turn_is_served_elsewhere_at_once_async(backend: Backend) -> None:
    graphs = [chat_graph(never_waits(backend.open_saver())) for _ in range(2)]
    for turn in range(6):
        state = await graphs[turn % 2].ainvoke({"messages": [HumanMessage(f"q{turn}")]}, at("t"))
        assert len(state["messages"]) == 2 * turn + 2


def test_direct_calls_of_two_savers_alternate(backend: Backend) -> None:
    halves = [Half(never_waits(backend.open_saver()), is_async=False) for _ in range(2)]

    async def alternate() -> None:
        config = at("t")
        for n in range(10):
            config = await put(halves[n % 2], config, f"c{n}", n=n)
            await halves[(n + 1) % 2].put_writes(config, [("w", n)], "task")
        for half in halves:
            found = await half.list(at("t"))
            assert [f.pending_writes for f in found] == [
                [("task", "w", n)] for n in reversed(range(10))
            ]

    asyncio.run(alternate())


def blocking_graph(checkpointer: Any, entered: threading.Event, go_on: threading.Event) -> Any:
    def node(state: Counting) -> dict[str, Any]:
        entered.set()
        assert go_on.wait(60)
        return {"n": state["n"] + 1}

    builder = StateGraph(Counting)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    return builder.compile(checkpointer=checkpointer)


@pytest.mark.optimized
@pytest.mark.parametrize("where", ["other process", "same process"])
def test_a_second_live_run_is_busy(backend: Backend, where: str) -> None:
    policy = ResumePolicy(handover_grace_ms=0)
    first = backend.open_saver(policy=policy)
    second = first if where == "same process" else backend.open_saver(policy=policy)
    entered, go_on = threading.Event(), threading.Event()
    results: list[Any] = []
    graph = blocking_graph(first, entered, go_on)
    # "sync", so that the checkpoint is there before its node runs.
    runner = threading.Thread(
        target=lambda: results.append(graph.invoke({"n": 0}, at("t"), durability="sync"))
    )
    runner.start()
    try:
        assert entered.wait(60)
        ran = threading.Event()
        intruder = blocking_graph(second, ran, go_on)
        half = Half(second, is_async=False)
        calls: list[Callable[[], Any]] = [
            lambda: intruder.invoke({"n": 5}, at("t")),
            lambda: intruder.update_state(at("t"), {"n": 5}),
            lambda: asyncio.run(put(half, at("t"), "c1")),
            lambda: second.put_writes(at("t", "c1"), [("a", 1)], "task"),
            lambda: second.delete_thread("t"),
            lambda: second.prune(["t"]),
            lambda: second.release("t"),
        ]
        for call in calls[: len(calls) if where == "same process" else -1]:
            with pytest.raises(Busy) as caught:
                call()
            assert "'t'" in caught.value.what
            assert 0 < caught.value.left_ms <= policy.lease_ttl_ms
            holder = caught.value.holder
            assert "another run" in holder if where == "same process" else "pid " in holder
        assert not ran.is_set()
        # Looking is never blocked.
        assert intruder.get_state(at("t")).next == ("node",)
        assert len([*second.list(at("t"))]) == 2
    finally:
        go_on.set()
        runner.join(60)
    assert results == [{"n": 1}]
    assert intruder.invoke({"n": 5}, at("t")) == {"n": 6}


CHILD = """
from tests.saver.test_contract import at, killed_graph
graph = killed_graph(saver, barrier=True)
graph.invoke({"n": 0}, at("t"), durability="sync")
"""


def killed_graph(checkpointer: Any, *, barrier: bool) -> Any:
    def first(state: Counting) -> dict[str, Any]:
        return {"n": state["n"] + 1}

    def second(state: Counting) -> dict[str, Any]:
        if barrier:
            print("inside", flush=True)
            sys.stdin.read()
        return {"n": state["n"] + 10}

    builder = StateGraph(Counting)
    builder.add_node("first", first)
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile(checkpointer=checkpointer)


@pytest.mark.optimized
@pytest.mark.parametrize("reaped", [True, False], ids=["reaped", "zombie"])
def test_case_52_a_killed_worker_is_taken_over_at_once(
    backend: Backend, saver: SurefootSaver, reaped: bool
) -> None:
    child = backend.child(CHILD)
    assert child.stdout is not None
    line = child.stdout.readline()
    if line != "inside\n":
        child.kill()
        pytest.fail(f"the child did not get there: {child.communicate()[1]}")
    before = mark_of(saver, "t")
    assert before.lease_left_ms > 10_000
    policy = ResumePolicy(handover_grace_ms=0)
    with pytest.raises(Busy) as caught:
        counter_graph(backend.open_saver(policy=policy)).invoke(None, at("t"))
    assert f"pid {child.pid} " in caught.value.holder
    child.send_signal(signal.SIGKILL)
    if reaped:
        assert child.wait(30) == -signal.SIGKILL
    else:
        # It is dead, and nobody has reaped it: a pipe would close a moment before that.
        ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        assert ended.si_status == signal.SIGKILL
    graph = killed_graph(never_waits(saver), barrier=False)
    assert mark_of(saver, "t").lease_left_ms > 5_000, "the lease has not run out by itself"
    assert graph.invoke(None, at("t")) == {"n": 11}
    after = mark_of(saver, "t")
    assert after.epoch == before.epoch + 1
    assert [h[0] for h in history_of(graph)] == [2, 1, 0, -1]


# --- helpers ----------------------------------------------------------------------------------


class Counting(TypedDict):
    n: int


def counter_graph(checkpointer: Any, steps: int = 3) -> Any:
    """Adds one at each of its steps."""
    builder = StateGraph(Counting)
    names = [START, *(f"step{n}" for n in range(steps)), END]
    for name in names[1:-1]:
        builder.add_node(name, lambda state: {"n": state.get("n", 0) + 1})
    for one, other in pairwise(names):
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
