"""Fingerprints are the same in every process, on every Python, before and after they are stored."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core import messages as lc
from tests.rules.fingerprint_values import PLAIN, digests, models

from surefoot.langgraph.serde import StrictSerializer
from surefoot.rules.fingerprint import fingerprint

pytestmark = pytest.mark.optimized
ROOT = Path(__file__).resolve().parents[2]
#: A digest in it never changes: an effect that was recorded before an upgrade would conflict with
#: itself. Made by `digests` of fingerprint_values.py.
VECTORS: dict[str, str] = json.loads(
    Path(__file__).with_name("fingerprints.json").read_text(encoding="utf-8")
)
NAMES = {**PLAIN, **models()}

#: What shares a fingerprint on purpose; everything else differs.
EQUAL = [
    {"float nan", "float -nan"},
    {"bytes", "bytearray"},
    {"list", "tuple"},
    {"map", "map ordered"},
    {"set", "frozenset"},
    {"datetime utc", "datetime same instant"},
    {"decimal", "decimal same"},
    {"human", "human with id"},
    {"ai", "ai again"},
    {"ai calls", "ai calls again", "ai raw calls"},
    {"ai block calls", "ai block calls again"},
    {"tool", "tool again"},
]


def test_every_vector() -> None:
    assert digests(NAMES) == VECTORS
    assert len(VECTORS) > 90


def test_what_is_equal_and_nothing_else() -> None:
    shared: dict[str, set[str]] = {}
    for name, digest in VECTORS.items():
        shared.setdefault(digest, set()).add(name)
    found = [names for names in shared.values() if len(names) > 1]
    assert sorted(map(sorted, found)) == sorted(map(sorted, EQUAL))


@cache
def pythons() -> dict[str, str]:
    """Every Python on this machine that the package supports, by its version."""
    found = {f"{sys.version_info[0]}.{sys.version_info[1]}": sys.executable}
    homes = sorted(Path.home().glob(".pyenv/versions/3.1?.*/bin/python"))
    named = (shutil.which(f"python3.{minor}") for minor in range(10, 16))
    for path in [*map(str, homes), *filter(None, named)]:
        asked = subprocess.run(
            [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
        version = asked.stdout.strip()
        if asked.returncode == 0 and tuple(map(int, version.split("."))) >= (3, 10):
            found.setdefault(version, path)
    return found


@pytest.mark.parametrize("version", sorted(pythons()))
def test_every_python_and_every_seed(version: str) -> None:
    for seed in ("0", "4242"):
        done = subprocess.run(
            [pythons()[version], "-m", "tests.rules.fingerprint_values"],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        seen = json.loads(done.stdout)
        # Run as a script, the module of its classes has another name.
        own = {"dataclass", "named tuple"}
        assert {k: v for k, v in seen.items() if k not in own} == {
            k: v for k, v in VECTORS.items() if k in PLAIN and k not in own
        }


# --- through the serialiser and back -----------------------------------------------------------

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**200), max_value=2**200)
    | st.floats()
    | st.text(st.characters(), max_size=6)
    | st.text("a\ud800\udfff\0", max_size=4)
    | st.binary(max_size=6)
    | st.decimals()
    | st.uuids()
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.datetimes()
    | st.datetimes(timezones=st.timezones())
    | st.datetimes(
        timezones=st.integers(-23 * 60, 23 * 60).map(
            lambda minutes: dt.timezone(dt.timedelta(minutes=minutes))
        )
    )
)
_HASHABLE = st.integers() | st.text(max_size=4) | st.binary(max_size=4) | st.booleans() | st.none()
_VALUES = st.recursive(
    _SCALARS | st.sets(_HASHABLE, max_size=4) | st.frozensets(_HASHABLE, max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(_HASHABLE, inner, max_size=4)
    ),
    max_leaves=10,
)


def _round(value: Any) -> Any:
    serde = StrictSerializer()
    return serde.loads_typed(serde.dumps_typed(value))


@settings(max_examples=300, deadline=None)
@given(_VALUES)
def test_a_stored_value_keeps_its_fingerprint(value: Any) -> None:
    before = fingerprint({"value": value}, effect="e")
    loaded = _round({"value": value})
    assert fingerprint(loaded, effect="e") == before
    assert fingerprint(_round(loaded), effect="e") == before


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_vector_keeps_its_fingerprint(name: str) -> None:
    assert fingerprint(_round(NAMES[name]), effect="e").hex() == VECTORS[name]


# --- messages ----------------------------------------------------------------------------------


def test_case_18_ids_that_a_model_mints_anew_do_not_count() -> None:
    def said(number: int) -> list[Any]:
        call = {"name": "pay", "args": {"amount": 42}, "id": f"call_{number}", "type": "tool_call"}
        usage = {"input_tokens": number, "output_tokens": 1, "total_tokens": number + 1}
        return [
            lc.HumanMessage("pay", id=f"h{number}"),
            lc.AIMessage(
                "",
                id=f"run-{number}",
                tool_calls=[call],
                usage_metadata=usage,  # type: ignore[arg-type]
                response_metadata={"logprobs": number},
            ),
            lc.ToolMessage("done", tool_call_id=f"call_{number}", id=f"t{number}"),
        ]

    assert fingerprint(said(1), effect="e") == fingerprint(said(2), effect="e")


def test_what_a_provider_adds_counts() -> None:
    """A conflict is seen; an old result for another request would not be."""
    one = lc.AIMessage("hi", additional_kwargs={"refusal": None})
    other = lc.AIMessage("hi", additional_kwargs={"refusal": "no"})
    assert fingerprint(one, effect="e") != fingerprint(other, effect="e")


def test_an_empty_field_of_a_later_release_does_not_count() -> None:
    class Later(lc.HumanMessage):
        later: str | None = None

    plain = Later("hi")
    assert fingerprint(plain, effect="e") == fingerprint(Later("hi", later=None), effect="e")
    assert fingerprint(plain, effect="e") != fingerprint(Later("hi", later="x"), effect="e")
    assert fingerprint(plain, effect="e") != fingerprint(lc.HumanMessage("hi"), effect="e")
