"""Case 32: what a caller hands in is data, whatever characters it has.

Filter keys became SQL in CVE-2025-67644 (GHSA-9rwj-6rc7-p77c) and CVE-2025-64104, filter
operators in CVE-2025-8709 (GHSA-4h97-wpxp-3757), filter values RediSearch queries in
CVE-2026-27022 (GHSA-5mx2-w598-339m); ids became Redis patterns and MongoDB operators in
GHSA-x3wm-3wx7-g6xm and GHSA-98xf-r82g-9mhx.
"""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from tests.saver.conftest import Backend, Half, at, metadata, put

from surefoot.errors import Misuse

pytestmark = pytest.mark.optimized

TABLES = 6
HOSTILE = [
    "'",
    '"',
    "''",
    "`",
    "\\",
    "\\'",
    ";",
    "--",
    "/*",
    "'; DROP TABLE surefoot_frame; --",
    "'; DROP TABLE surefoot_frame CASCADE; SELECT '",
    "x') OR '1'='1",
    "x') = '' UNION SELECT 1,2,3,4,5,6,7 --",
    "1 OR 1=1",
    "$",
    "$.a",
    "$[0]",
    "$gt",
    "$ne",
    "a.b",
    ".",
    "a[0]",
    "a]b[",
    "{a}",
    "a->>'b'",
    "%",
    "%s",
    "%(x)s",
    "_",
    "?",
    ":x",
    "@x",
    "*",
    "a*",
    "[ab]",
    "|",
    "a|b",
    "(a|b)",
    "@field:{*}",
    "a\nb",
    "a\rb",
    "a\tb",
    "\0",
    "a\0b",
    "\x7f",
    "\u2028",
    "\N{LATIN SMALL LETTER DOTLESS I}",
    "\ud800",
    "a\udfffb",
    "\N{PILE OF POO}",
    " ",
    " a ",
    "NULL",
    "true",
    "x" * 10_000,
]
#: Ids also have to be told apart from what differs in letter case, accents or blanks only.
ALIKE = ["id", "ID", "id ", " id", "id\0", "íd", "i\u0301d"]


def near(text: str) -> list[str]:
    """Other texts that something that normalises, cuts or matches might take for this one."""
    found = {text + "x", "x" + text, text + "%", text + "*", text + "\0", text + " ", text[:-1]}
    found |= {text.replace("\ud800", "?"), text.replace("\0", ""), text.swapcase(), "%", "*"}
    return sorted(found - {text, ""} - {*HOSTILE} - {*ALIKE})


async def still_there(backend: Backend, half: Half) -> None:
    """No table is gone, and the store works."""
    assert len(backend.counts()) == TABLES - 1
    await put(half, at("witness"), "w", n=1)


# --- filters --------------------------------------------------------------------------------------


async def test_case_32_hostile_filter_keys_and_values(backend: Backend, each_half: Half) -> None:
    half = each_half
    marked = await put(half, at("t"), "c1", meta=metadata(0, **dict.fromkeys(HOSTILE, "yes")))
    texts = metadata(1, **{f"key{n}": text for n, text in enumerate(HOSTILE)})
    await put(half, marked, "c2", meta=texts)
    for number, text in enumerate(HOSTILE):
        assert await half.ids(at("t"), filter={text: "yes"}) == ["c1"], text
        assert await half.ids(None, filter={text: "yes"}) == ["c1"], text
        assert await half.ids(at("t"), filter={text: "no"}) == [], text
        assert await half.ids(at("t"), filter={f"key{number}": text}) == ["c2"], text
        for other in near(text)[number % 3 :: 3]:
            assert await half.ids(at("t"), filter={other: "yes"}) == [], other
            assert await half.ids(at("t"), filter={f"key{number}": other}) == [], other
    await still_there(backend, half)


OPERATORS = [
    {"$gt": -1},
    {"$gte": 0},
    {"$lt": 10},
    {"$ne": "nothing"},
    {"$eq": 1},
    {"$in": [0, 1]},
    {"$regex": ".*"},
    {"$where": "true"},
    {"$exists": True},
    {"$gt') OR '1'='1": 0},
    {"or": 1},
    ["$ne", 5],
    [0, 1],
]


@pytest.mark.parametrize("operator", OPERATORS, ids=repr)
async def test_case_32_a_map_of_operators_is_a_value(half: Half, operator: Any) -> None:
    """It matches metadata that is equal to it, and nothing else."""
    plain = await put(half, at("t"), "c1", meta=metadata(1, n=1))
    await put(half, plain, "c2", meta=metadata(2, n=operator))
    assert await half.ids(at("t"), filter={"n": operator}) == ["c2"]
    for key in ("step", "source", "unknown"):
        assert await half.ids(at("t"), filter={key: operator}) == []
    assert await half.ids(at("t"), filter={"$or": [{"n": 1}, {"n": operator}]}) == []


async def test_case_32_keys_that_are_no_texts_match_nothing(half: Half) -> None:
    await put(half, at("t"), "c1", meta=metadata(1, n=1))
    for key in (1, None, b"n", ("n",), 1.5):
        assert await half.ids(at("t"), filter={key: 1}) == []
    assert await half.ids(at("t"), filter={"n": 1}) == ["c1"]


# --- ids ------------------------------------------------------------------------------------------

IDS = [*HOSTILE, *ALIKE]


def test_the_ids_are_all_different() -> None:
    assert len({*IDS}) == len(IDS) > 50
    assert all(near(text) for text in IDS)


async def test_threads_with_hostile_ids(backend: Backend, half: Half) -> None:
    for number, text in enumerate(IDS):
        await put(half, at(text), "c", meta=metadata(number), n=number)
    reader = half.on(backend.open_saver())
    for number, text in enumerate(IDS):
        found = await reader.get_tuple(at(text))
        assert found.config["configurable"]["thread_id"] == text
        assert found.checkpoint["channel_values"] == {"n": number}
        assert len(await reader.list(at(text))) == 1
    for text in IDS[::5]:
        for other in near(text):
            assert await reader.get_tuple(at(other)) is None, other
    assert {t.config["configurable"]["thread_id"] for t in await reader.list(None)} == {*IDS}
    # Deleting and copying meet exactly the thread that is named.
    for number, text in enumerate(IDS[:20]):
        await half.delete_thread(text)
        assert await reader.get_tuple(at(text)) is None
        assert len(await reader.list(None)) == len(IDS) - number - 1
    await half.prune([f"{IDS[-1]}%"], strategy="delete")
    assert len(await reader.list(None)) == len(IDS) - 20
    await still_there(backend, half)


async def test_checkpoints_namespaces_tasks_and_channels_with_hostile_names(
    backend: Backend, half: Half
) -> None:
    for number, text in enumerate(IDS):
        stored = await put(half, at("t", namespace=text), text, **{text: number})
        await half.put_writes(stored, [(text, number)], text, text)
    reader = half.on(backend.open_saver())
    for number, text in enumerate(IDS):
        for config in (at("t", namespace=text), at("t", text, namespace=text)):
            found = await reader.get_tuple(config)
            assert found.config == at("t", text, namespace=text)
            assert found.checkpoint["id"] == text
            assert found.checkpoint["channel_values"] == {text: number}
            assert found.pending_writes == [(text, text, number)]
    for text in IDS[::6]:
        assert await reader.ids(at("t", namespace=text)) == [text]
    for text in IDS[::12]:
        for other in near(text):
            assert await reader.get_tuple(at("t", namespace=other)) is None, other
            assert await reader.get_tuple(at("t", other, namespace=text)) is None, other
    assert len(await reader.list(at("t", namespace=None))) == len(IDS)
    await still_there(backend, half)


async def test_runs_with_hostile_ids(backend: Backend, half: Half) -> None:
    """Deleting what a run made meets that run only."""
    for text in IDS:
        config: Any = {**at("t"), "metadata": {"run_id": text}}
        latest = await half.get_tuple(at("t"))
        if latest is not None:
            config["configurable"].update(latest.config["configurable"])
        await put(half, config, f"c-{text}")
    assert len(await half.list(at("t"))) == len(IDS)
    await half.delete_for_runs(sorted({other for text in IDS for other in near(text)}))
    assert len(await half.list(at("t"))) == len(IDS)
    for number, text in enumerate(
        chosen := ["'; DROP TABLE surefoot_frame; --", "%", "\ud800", "\0"]
    ):
        await half.delete_for_runs([text])
        left = {t.metadata["run_id"] for t in await half.list(at("t"))}
        assert left == {*IDS} - {*chosen[: number + 1]}
    await still_there(backend, half)


def test_tenants_with_hostile_names(backend: Backend) -> None:
    texts = [*HOSTILE[:40:4], "\ud800", "\0", "x" * 10_000]
    for number, text in enumerate(texts):
        saver = backend.open_saver(tenant=f"{backend.tenant}{text}")
        made = {"v": 1, "id": "c", "ts": "", "channel_values": {"n": number},
                "channel_versions": {"n": 1}, "versions_seen": {}}  # fmt: skip
        saver.put(at("t"), made, metadata(), {"n": 1})  # type: ignore[arg-type]
        saver.close()
    for number, text in enumerate(texts):
        reader = backend.open_saver(tenant=f"{backend.tenant}{text}", setup=False)
        (found,) = reader.list(None)
        assert found.checkpoint["channel_values"] == {"n": number}
        reader.close()
        for other in near(text)[:1]:
            stranger = backend.open_saver(tenant=f"{backend.tenant}{other}", setup=False)
            assert [*stranger.list(None)] == []
            assert stranger.get_tuple(at("t")) is None
            stranger.close()


async def test_a_whole_graph_on_a_hostile_thread(half: Half) -> None:
    builder = StateGraph(dict)
    builder.add_node("node", lambda state: {"n": state["n"] + 1})
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=half.saver)
    for text in ("'; DROP TABLE surefoot_thread; --", "a\0b", "\ud800", "x" * 10_000):
        config: Any = at(text)
        if half.is_async:
            await graph.ainvoke({"n": 1}, config)
            assert (await graph.aget_state(config)).values == {"n": 2}
            assert len([s async for s in graph.aget_state_history(config)]) == 3
        else:
            graph.invoke({"n": 1}, config)
            assert graph.get_state(config).values == {"n": 2}
            assert len([*graph.get_state_history(config)]) == 3


NO_TEXTS: list[Any] = [{"$ne": None}, {"$gt": ""}, ["a"], ("a",), b"a", 1.5, True, object()]


@pytest.mark.parametrize("value", NO_TEXTS, ids=lambda value: type(value).__name__)
async def test_an_id_that_is_no_text_is_refused_by_name(half: Half, value: Any) -> None:
    """An operator in place of an id is never a pattern, and never turned into a text."""
    stored = await put(half, at("t"), "c", n=1)
    calls = {
        "thread_id": lambda: half.get_tuple({"configurable": {"thread_id": value}}),
        "checkpoint_ns": lambda: half.get_tuple(
            {"configurable": {"thread_id": "t", "checkpoint_ns": value}}
        ),
        "checkpoint_id": lambda: half.get_tuple(
            {"configurable": {"thread_id": "t", "checkpoint_id": value}}
        ),
        "before": lambda: half.list(at("t"), before={"configurable": {"checkpoint_id": value}}),
        "task_id": lambda: half.put_writes(stored, [("n", 1)], value),
        "run_ids": lambda: half.delete_for_runs([value]),
        "thread_ids": lambda: half.prune([value], strategy="delete"),
        "source_thread_id": lambda: half.copy_thread(value, "u"),
        "target_thread_id": lambda: half.copy_thread("t", value),
    }
    for field, call in calls.items():
        with pytest.raises(Misuse) as refused:
            await call()
        assert field in refused.value.fields["field"], field
    with pytest.raises(Misuse, match="thread_id"):
        await half.delete_thread(value)
    assert await half.ids(None) == ["c"]
