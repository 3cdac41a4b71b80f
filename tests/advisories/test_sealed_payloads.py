"""Payloads under a valid seal: data of users stays data, and a lax writer gains nothing.

A seal says who wrote bytes, not that they are harmless. What users put may look like a
constructor (CVE-2025-68664, GHSA-c67j-w6g6-q2cm, CVE-2025-64439), and another release, or a
serialiser of somebody's own, may have written what this one never would.
"""

from __future__ import annotations

import json
import operator
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import langchain_core.messages as lc
import langgraph.checkpoint.serde as stock_room
import ormsgpack
import pytest
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from tests.advisories.payloads import CALLING, MAKERS, NESTING, Payload, extension, payloads
from tests.saver.conftest import Backend, Half, at, metadata, put

from surefoot import effect
from surefoot.errors import NotLoadable
from surefoot.langgraph.serde import StrictSerializer

pytestmark = pytest.mark.optimized


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "markers"
    made.mkdir()
    return made


# --- data of users --------------------------------------------------------------------------------


def constructors(path: str) -> list[Any]:
    """Maps that readers of other formats take for objects, functions, or secrets."""
    kwargs = {"content": "made by a constructor"}
    message = ["langchain_core", "messages", "ai", "AIMessage"]
    return [
        {"lc": 1, "type": "constructor", "id": message, "kwargs": kwargs},
        {"lc": 1, "type": "secret", "id": ["PATH"]},
        {"lc": 1, "type": "not_implemented", "id": ["os", "mkdir"], "repr": None},
        {"lc": 2, "type": "constructor", "id": ["os", "mkdir"], "args": [path]},
        {"lc": 2, "type": "constructor", "id": ["os", "mkdir"], "method": "mkdir", "args": [path]},
        {"lc": 2, "type": "constructor", "id": message, "kwargs": kwargs},
        {"__type__": "os.mkdir", "__args__": [path], "py/object": "os.mkdir", "$type": "x"},
        {"py/reduce": [{"py/function": "os.mkdir"}, {"py/tuple": [path]}]},
    ]


def data_of(folder: Path) -> dict[str, Any]:
    """Everything of that kind by name: maps, nested ones, and the bytes of every payload."""
    maps = constructors(str(folder / "map"))
    data: dict[str, Any] = {f"map {n}": value for n, value in enumerate(maps)}
    data["in a list"] = maps
    data["in a long list"] = maps * 8
    data["deep"] = {"a": [{"b": maps[0]}], "lc": 1}
    data["large"] = {"constructor": maps, "much": os.urandom(900).hex()}
    for payload in payloads(folder):
        data[f"{payload.tag} as bytes"] = payload.raw
        data[f"{payload.tag} as text"] = payload.raw.decode("latin-1")
        data[f"{payload.tag} as bytes in a map"] = {"raw": payload.raw, "lc": 2}
        data[f"{payload.tag} as a pair"] = [payload.tag, payload.raw]
    return data


def fired(folder: Path) -> list[str]:
    return [found.name for found in folder.iterdir()]


def test_stock_makes_objects_of_the_same_maps(folder: Path) -> None:
    """They are live: where they are read as JSON, they become what they say."""
    message, *_ = constructors(str(folder / "map"))
    read = JsonPlusSerializer().loads_typed(("json", json.dumps(message).encode()))
    assert type(read) is lc.AIMessage
    maps = json.dumps(constructors(str(folder / "map"))[3:4]).encode()
    JsonPlusSerializer(allowed_json_modules=True).loads_typed(("json", maps))
    assert fired(folder) == ["map"]


async def test_data_that_looks_like_a_payload_comes_back_as_data(
    backend: Backend, each_half: Half, folder: Path
) -> None:
    half, data = each_half, data_of(folder)
    meta = metadata(0, **{f"m {name}": value for name, value in data.items()})
    stored = await put(half, at("t"), "c0", meta=meta, **data)
    await half.put_writes(stored, [*data.items()], "task")
    await put(half, stored, "c1", meta=metadata(1), small=1)
    reader = half.on(backend.open_saver())
    await reader.copy_thread("t", "copy")
    for thread in ("t", "copy"):
        by_id = await reader.get_tuple(at(thread, "c0"))
        _, listed = await reader.list(at(thread))
        (by_filter,) = await reader.list(
            at(thread), filter={f"m {name}": value for name, value in data.items()}
        )
        for found in (by_id, listed, by_filter):
            assert found.checkpoint["channel_values"] == data
            assert [w[2] for w in found.pending_writes] == [*data.values()]
            assert {k: v for k, v in found.metadata.items() if k.startswith("m ")} == {
                f"m {name}": value for name, value in data.items()
            }
        history = await reader.get_delta_channel_history(config=at(thread, "c1"), channels=[*data])
        for name, value in data.items():
            assert history[name]["seed"] == value
            assert history[name]["writes"] == [("task", name, value)]
    assert fired(folder) == []


def _extend(state: list[Any], writes: list[list[Any]]) -> list[Any]:
    return [*state, *(item for write in writes for item in write)]


async def test_a_graph_gets_its_data_back_as_data(
    backend: Backend, each_half: Half, folder: Path
) -> None:
    """Through state, channels of deltas, effects, interrupts and answers, in another process."""
    data, half = [*data_of(folder).values()], each_half

    class State(TypedDict, total=False):
        given: Any
        log: Annotated[list[Any], operator.add]
        delta: Annotated[list[Any], DeltaChannel(_extend, snapshot_frequency=4)]

    @effect(name="act", idempotent=True)
    def act(what: Any, *, idempotency_key: str) -> Any:
        return {"sent": what}

    def one(state: State) -> State:
        return {"log": [act(item) for item in data], "delta": data}

    def two(state: State) -> State:
        return {"log": [act(data), interrupt({"ask": data})]}

    def graph(half: Half) -> Any:
        builder = StateGraph(State)
        builder.add_node("one", one)
        builder.add_node("two", two)
        builder.add_edge(START, "one")
        builder.add_edge("one", "two")
        return builder.compile(checkpointer=half.saver)

    async def call(half: Half, name: str, *args: Any) -> Any:
        if half.is_async:
            return await getattr(graph(half), f"a{name}")(*args)
        return getattr(graph(half), name)(*args)

    await call(half, "invoke", {"given": data, "delta": []}, at("t"))
    half.saver.release("t")
    other = half.on(backend.open_saver())
    waiting = await call(other, "get_state", at("t"))
    assert waiting.interrupts[0].value == {"ask": data}
    result = await call(other, "invoke", Command(resume=data), at("t"))
    assert result["given"] == data
    assert result["delta"] == data
    assert result["log"] == [*({"sent": item} for item in data), {"sent": data}, data]
    assert (await call(other, "get_state", at("t"))).values == result
    assert fired(folder) == []


# --- a lax writer ---------------------------------------------------------------------------------


class Lax(StrictSerializer):
    """Writes whatever it is given as (tag, bytes), as a writer without any care would."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        inside = [*obj.values()] if type(obj) is dict else []
        for found in (obj, *inside):
            if isinstance(found, Payload):
                return found.tag, found.raw
        return super().dumps_typed(obj)


def of_extension(code: int) -> Callable[[Path], Payload]:
    def make(folder: Path) -> Payload:
        path = folder / f"ext {code}"
        raw = ormsgpack.packb({"x": extension(code, str(path))})
        return Payload("msgpack", raw, (path,), JsonPlusSerializer())

    return make


SEALED = {
    **{f"ext {code}": of_extension(code) for code in (*CALLING, *NESTING)},
    **MAKERS,
}


@pytest.mark.parametrize("kind", SEALED)
async def test_what_a_lax_writer_sealed_is_refused_by_name(
    backend: Backend, half: Half, folder: Path, kind: str
) -> None:
    payload = SEALED[kind](folder)
    payload.stock.loads_typed((payload.tag, payload.raw))
    assert payload.fired()
    payload.clear()
    lax = half.on(backend.open_saver(serde=Lax()))
    stored = await put(lax, at("value"), "c0", n=payload)
    await put(lax, stored, "c1", n=1)
    await lax.put_writes(await put(lax, at("write"), "c0", n=1), [("n", payload)], "task")
    await put(lax, at("meta"), "c0", meta=metadata(0, x=payload), n=1)
    for thread in ("value", "write", "meta"):
        reader = half.on(backend.open_saver())
        names = [thread]
        if thread == "meta":  # a copy has to read metadata
            await refused(reader.copy_thread(thread, "copy of it"))
        else:
            names.append(f"copy of {thread}")
            await reader.copy_thread(*names)
        for name in names:
            await refused(reader.get_tuple(at(name, "c0")))
            await refused(reader.list(at(name)))
            await refused(reader.list(None))
    delta = reader.get_delta_channel_history(config=at("value", "c1"), channels=["n"])
    await refused(delta)
    await refused(reader.prune(["meta"]))
    assert payload.fired() == []
    # What has nothing of it is served.
    assert (await half.get_tuple(at("value"))).checkpoint["channel_values"] == {"n": 1}
    await half.prune(["value", "write"])
    assert payload.fired() == []


async def refused(call: Awaitable[Any]) -> None:
    with pytest.raises(NotLoadable) as caught:
        await call
    assert caught.value.fields["type_name"]


def test_whatever_the_base_class_is_told_changes_nothing(folder: Path) -> None:
    loose = StrictSerializer()
    loose.pickle_fallback = True
    loose._allowed_json_modules = True
    loose._allowed_msgpack_modules = True
    widened = loose.with_msgpack_allowlist([("collections", "OrderedDict")])
    for kind, make in SEALED.items():
        payload = make(folder)
        for serde in (loose, widened):
            with pytest.raises(NotLoadable):
                serde.loads_typed((payload.tag, payload.raw))
        assert payload.fired() == [], kind


# --- the environment ------------------------------------------------------------------------------

#: Switches of the stock serialisers, and what they are about.
SWITCHES = {
    "LANGGRAPH_STRICT_MSGPACK",  # which types msgpack may build
    "LANGGRAPH_AES_KEY",  # the key of the stock encryption, which is not used here
}
SETTINGS = [
    {"LANGGRAPH_STRICT_MSGPACK": "false", "LANGGRAPH_AES_KEY": "0" * 32},
    {"LANGGRAPH_STRICT_MSGPACK": "true"},
    {},
]
CHILD = """
import json, pathlib
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from surefoot.errors import NotLoadable

raw, folder, *tags = sys.argv[1:]
said = {}
for tag in tags:
    try:
        saver.get_tuple({"configurable": {"thread_id": tag}})
    except NotLoadable as error:
        said[tag] = error.code
said["ours"] = sorted(p.name for p in pathlib.Path(folder).iterdir())
JsonPlusSerializer().loads_typed(("msgpack", pathlib.Path(raw).read_bytes()))
said["stock"] = sorted(p.name for p in pathlib.Path(folder).iterdir())
print(json.dumps(said))
saver.close()
"""


def test_every_switch_of_the_stock_serialisers_is_known() -> None:
    """A new one may loosen what a release before did not: look, then add it to SETTINGS."""
    (room,) = stock_room.__path__
    text = "".join(p.read_text(encoding="utf-8") for p in Path(room).glob("*.py"))
    found = {*re.findall(r"getenv\(\s*[\"'](\w+)", text)}
    found |= {*re.findall(r"environ(?:\.get)?[(\[]\s*[\"'](\w+)", text)}
    assert "LANGGRAPH_STRICT_MSGPACK" in found
    assert found <= SWITCHES


def test_no_switch_of_the_environment_loosens_anything(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lax = backend.open_saver(serde=Lax())
    tried: list[tuple[dict[str, str], list[Payload], Any]] = []
    # The switch is read when a module is imported, so each needs a process; the store is the
    # same to all of them.
    chosen = SETTINGS if backend.name == "sqlite" else SETTINGS[:1]
    for number, settings in enumerate(chosen):
        folder = tmp_path / f"markers {number}"
        folder.mkdir()
        made = payloads(folder)
        for payload in made:
            document = {"v": 1, "id": "c", "ts": "", "channel_values": {"n": payload},
                        "channel_versions": {"n": 1}, "versions_seen": {}}  # fmt: skip
            thread = at(f"{number} {payload.tag}")
            lax.put(thread, document, metadata(), {"n": 1})  # type: ignore[arg-type]
        (tmp_path / f"raw {number}").write_bytes(made[0].raw)
        with monkeypatch.context() as switched:
            switched.delenv("LANGGRAPH_STRICT_MSGPACK", raising=False)
            for name, value in settings.items():
                switched.setenv(name, value)
            tags = [f"{number} {p.tag}" for p in made]
            child = backend.child(CHILD, str(tmp_path / f"raw {number}"), str(folder), *tags)
            tried.append((settings, made, child))
    assert tried
    for number, (settings, made, child) in enumerate(tried):
        output, errors = child.communicate(timeout=100)
        assert child.returncode == 0, errors
        said = json.loads(output)
        assert {said[f"{number} {p.tag}"] for p in made} == {"NOT_LOADABLE"}
        assert said["ours"] == []
        # The stock serialiser in the same process shows that the switch was read.
        is_strict = settings.get("LANGGRAPH_STRICT_MSGPACK") == "true"
        assert said["stock"] == ([] if is_strict else sorted(m.name for m in made[0].markers))
