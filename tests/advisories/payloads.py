"""Forged payloads: decoding one makes a folder, so that it shows.

Each is made for the stock serialiser, which does as it is told; a test proves that first.

* ``msgpack``: every extension code of LangGraph's format (CVE-2026-28277, GHSA-g48c-2wqr-h844).
* ``dataclass``: one that even the strict serialiser rebuilds, because users store such, so that
  only the order of things protects: nothing is decoded before its seal was verified.
* ``json``: constructors of ``lc`` 2 (CVE-2025-64439, GHSA-wwqv-p2pp-99h5), also with the
  ``method`` field (GHSA-fjqc-hq36-qh5p).
* ``pickle``: the fallback of caches (CVE-2026-27794, GHSA-mhr3-j7m5-c7c9).
"""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

#: Codes of the stock format: constructors by one argument, by position, by name, pydantic 1
#: and 2.
CALLING = (0, 1, 2, 4, 5)
#: Methods (only one is still called), arrays and snapshots: what is inside them is decoded by
#: the same hook.
NESTING = (3, 6, 7)


@dataclass
class Marking:
    """A data class as users have them, whose construction leaves a mark."""

    path: str

    def __post_init__(self) -> None:
        Path(self.path).mkdir()


class Marker:
    """Pickles to a call that makes a folder."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@dataclass(frozen=True)
class Payload:
    """Bytes that act when they are decoded.

    Attributes:
        tag: Type tag under which the stock serialiser takes them.
        raw: The bytes.
        markers: Folders that decoding makes.
        stock: A stock serialiser that decodes them.
    """

    tag: str
    raw: bytes
    markers: tuple[Path, ...]
    stock: JsonPlusSerializer

    def fired(self) -> list[str]:
        """Names of the folders that are there."""
        return [marker.name for marker in self.markers if marker.exists()]

    def clear(self) -> None:
        """Removes them."""
        for marker in self.markers:
            if marker.exists():
                marker.rmdir()


def _ext(code: int, payload: Any) -> ormsgpack.Ext:
    return ormsgpack.Ext(code, ormsgpack.packb(payload))


def _calling(code: int, path: str) -> ormsgpack.Ext:
    arguments: dict[int, Any] = {0: path, 1: [path]}
    return _ext(code, ["os", "mkdir", arguments.get(code, {"path": path})])


def extension(code: int, path: str) -> ormsgpack.Ext:
    """A payload of one extension code that makes a folder."""
    if code in NESTING:
        inner = _calling(0, path)
        around = {
            3: ["datetime", "datetime", inner, "fromisoformat"],
            6: ["<f8", [1], "C", inner],
            7: inner,
        }
        return _ext(code, around[code])
    return _calling(code, path)


def of_msgpack(folder: Path) -> Payload:
    """All extension codes in one list."""
    bombs: dict[str, ormsgpack.Ext] = {}
    for code in (*CALLING, *NESTING):
        bombs[f"ext {code}"] = extension(code, str(folder / f"ext {code}"))
    raw = ormsgpack.packb([*bombs.values()])
    return Payload("msgpack", raw, tuple(folder / n for n in bombs), JsonPlusSerializer())


def of_dataclass(folder: Path) -> Payload:
    """A data class of the caller's."""
    path = folder / "dataclass"
    raw = ormsgpack.packb(_ext(2, [Marking.__module__, "Marking", {"path": str(path)}]))
    return Payload("msgpack", raw, (path,), JsonPlusSerializer())


def of_json(folder: Path) -> Payload:
    """Constructors of ``lc`` 2, with arguments, keywords, and a method to be called."""
    said = {"lc": 2, "type": "constructor"}
    names = ("json args", "json kwargs", "json method")
    args, kwargs, method = (str(folder / name) for name in names)
    document = [
        {**said, "id": ["os", "mkdir"], "args": [args]},
        {**said, "id": ["os", "mkdir"], "kwargs": {"path": kwargs}},
        {**said, "id": ["os", "mkdir"], "method": "mkdir", "args": [method]},
    ]
    # Current releases refuse these unless told otherwise; the advisory is about those before.
    stock = JsonPlusSerializer(allowed_json_modules=True)
    return Payload("json", json.dumps(document).encode(), tuple(folder / n for n in names), stock)


def of_pickle(folder: Path) -> Payload:
    """A pickle that calls."""
    raw = pickle.dumps(Marker(str(folder / "pickle")))
    return Payload("pickle", raw, (folder / "pickle",), JsonPlusSerializer(pickle_fallback=True))


#: What no release of ours builds, sealed or not.
MAKERS = {"msgpack": of_msgpack, "json": of_json, "pickle": of_pickle}
#: What must not be built from bytes that are not sealed.
UNSEALED = {"dataclass": of_dataclass, **MAKERS}


def payloads(folder: Path) -> list[Payload]:
    """One payload of every format, with markers in a folder."""
    return [make(folder) for make in MAKERS.values()]
