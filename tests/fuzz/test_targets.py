"""Every entry point that takes bytes returns, or raises what it documents, and nothing else."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import ormsgpack
import pytest
import tests.fuzz.targets as targets_module
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.fuzz.targets import (
    BODY_READERS,
    DECISION,
    DECISION_FIELDS,
    KEY_ID,
    SERIALISERS,
    TARGETS,
    Finding,
    check_built,
    dumps,
    secrets_in,
    seeds,
)

from surefoot import Keyring
from surefoot.errors import DecisionRefused, KeyMissing, Misconfigured, Misuse, NotLoadable
from surefoot.langgraph.serde import StrictSerializer
from surefoot.rules.bodies import unpack_stored
from surefoot.rules.decisions import Decision, SignedDecision
from surefoot.signing import Reviewers, SigningKey

#: `SUREFOOT_FUZZ_FACTOR=20 make test ARGS=tests/fuzz` looks longer.
FACTOR = int(os.environ.get("SUREFOOT_FUZZ_FACTOR", "1"))
SEEDS = seeds()
ALL = sorted(TARGETS)


def examples(count: int) -> Any:
    """Settings for about so many examples; the seed of a failure is printed."""
    return settings(
        max_examples=count * FACTOR,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


# --- the targets themselves -----------------------------------------------------------------------


def test_there_is_a_target_and_a_seed_for_every_entry_point() -> None:
    assert set(SEEDS) == set(TARGETS)
    assert len(ALL) >= 19
    assert {f"body_{kind}" for kind in BODY_READERS} < set(ALL)
    assert all(SEEDS.values())


@pytest.mark.parametrize("name", ALL)
def test_a_seed_is_accepted(name: str) -> None:
    assert sum(TARGETS[name](seed) for seed in SEEDS[name]) > 0


def test_an_undocumented_error_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(raw: bytes) -> dict[bytes, int]:
        raise IndexError(len(raw))

    monkeypatch.setattr(targets_module, "unpack_intents", broken)
    with pytest.raises(IndexError):
        TARGETS["intents"](b"")


@pytest.mark.optimized
def test_what_is_run_or_built_by_a_load_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    gullible = StrictSerializer(allowed_types=[("os", "system"), ("types", "SimpleNamespace")])
    monkeypatch.setitem(SERIALISERS, "lax", gullible)
    with pytest.raises(Finding, match=r"os\.system"):
        TARGETS["loads"](extension(0, ["os", "system", "true"]))
    with pytest.raises(Finding, match="SimpleNamespace"):
        TARGETS["loads"](extension(2, ["types", "SimpleNamespace", {"a": 1}]))


def test_a_secret_in_an_error_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def chatty(path: Any) -> Keyring:
        raise Misconfigured(field="keys", reason=path.read_text())

    monkeypatch.setattr(Keyring, "from_file", staticmethod(chatty))
    with pytest.raises(Finding, match="secret"):
        TARGETS["keyring"](SEEDS["keyring"][1])


# --- any bytes, and almost valid ones -----------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@examples(60)
@given(data=st.binary(max_size=400))
def test_any_bytes(name: str, data: bytes) -> None:
    TARGETS[name](data)


@st.composite
def mutated(draw: Any, name: str) -> bytes:
    """A seed with a few edits: bits, bytes, cuts, repeats, numbers that are far too large."""
    raw = bytearray(draw(st.sampled_from(SEEDS[name])))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(raw) - 1)))
        kind = draw(st.integers(0, 5))
        if kind == 0 and raw:
            raw[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == 1 and raw:
            raw[at] = draw(st.integers(0, 255))
        elif kind == 2:
            raw[at:at] = draw(st.binary(max_size=12))
        elif kind == 3:
            del raw[at : at + draw(st.integers(1, 40))]
        elif kind == 4:
            raw[at:at] = raw[at : at + draw(st.integers(1, 40))]
        else:
            raw[at : at + 8] = draw(
                st.sampled_from([b"\xff" * 4, b"\0" * 8, b"\x7f" + b"\xff" * 7])
            )
    return bytes(raw)


@pytest.mark.parametrize("name", ALL)
@examples(120)
@given(data=st.data())
def test_almost_valid_bytes(name: str, data: st.DataObject) -> None:
    TARGETS[name](data.draw(mutated(name)))


# --- bodies: a valid document in which one place holds something else --------------------------

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=40)
)
documents = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def places(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of every place in a document."""
    found = [at]
    inner = document.items() if isinstance(document, dict) else ()
    if isinstance(document, list):
        inner = enumerate(document)
    for key, value in inner:
        found += places(value, (*at, key))
    return found


def replaced(document: Any, at: tuple[Any, ...], new: Any) -> Any:
    """The document with something else at one place."""
    if not at:
        return new
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[at[0]] = replaced(copy[at[0]], at[1:], new)
    return copy


@pytest.mark.optimized
@pytest.mark.parametrize("kind", sorted(BODY_READERS))
@examples(120)
@given(data=st.data())
def test_one_place_of_a_body_holds_something_else(kind: str, data: st.DataObject) -> None:
    whole = ormsgpack.unpackb(unpack_stored(SEEDS[f"body_{kind}"][1]))
    at = data.draw(st.sampled_from(places(whole)))
    changed = replaced(whole, at, data.draw(documents))
    TARGETS[f"body_{kind}"](ormsgpack.packb(changed))


# --- the serialiser -------------------------------------------------------------------------------


def extension(code: int, payload: Any) -> bytes:
    """Bytes of one extension."""
    return ormsgpack.packb(_nested(code, payload))


def _nested(code: int, payload: Any) -> Any:
    return ormsgpack.Ext(code, ormsgpack.packb(payload, option=_OPTION))


_OPTION = ormsgpack.OPT_NON_STR_KEYS
modules = st.sampled_from(
    [
        *("builtins", "os", "subprocess", "pickle", "datetime", "collections", "pathlib", "re"),
        *("langgraph.types", "langchain_core.messages.ai", "numpy", "surefoot.keys", "sys", ""),
        *("importlib", "no_such_module", "uuid", "zoneinfo", ".", "http", "tests.fuzz.targets"),
    ]
)
names = st.sampled_from(
    [
        *("set", "system", "Popen", "loads", "datetime", "deque", "Path", "compile", "Send"),
        *("AIMessage", "ndarray", "Key", "Keyring", "exit", "HTTPStatus", "UUID", "ZoneInfo"),
        *("", "__import__", "eval", "Finding", "os.system", "Interrupt", "Command", "__class__"),
    ]
)
payloads = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=3)
        | st.builds(_nested, st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 64, 65, 66, 99, 127]), inner)
        | st.builds(
            lambda code, *parts: _nested(code, [*parts]),
            st.integers(0, 5),
            modules,
            names,
            inner,
            st.sampled_from(["fromisoformat", "construct", None]),
        )
    ),
    max_leaves=10,
)


@examples(400)
@given(value=payloads)
@example(value=_nested(6, ["|u1", [4], "C", 2**40]))
@example(value=_nested(1, ["builtins", "eval", ["1"]]))
@example(value=_nested(6, ["8i4", [1], "C", bytes(32)]))
def test_any_names_in_a_serialised_value(value: Any) -> None:
    TARGETS["loads"](ormsgpack.packb(value, option=_OPTION))


@pytest.mark.optimized
@pytest.mark.parametrize(
    "dtype", ["8i4", "i4,f8", "(2,3)<f8", "<O8", "O", ["a", "b"], {"names": ["a"]}, b"<i4", 3, None]
)
def test_an_array_of_a_dtype_that_is_never_stored_is_refused(dtype: Any) -> None:
    for serde in SERIALISERS.values():
        with pytest.raises(NotLoadable, match="numpy"):
            serde.loads_typed(("msgpack", extension(6, [dtype, [1], "C", bytes(48)])))


@pytest.mark.parametrize(
    "dtype",
    [
        *("?", "i1", "u8", ">i4", "<f2", "f8", "c16", "longdouble", "S3", "U5", "V7"),
        *("M8", "M8[ns]", "M8[25s]", "m8[D]", ">M8[ms]"),
    ],
)
def test_an_array_of_every_plain_dtype_comes_back(dtype: str) -> None:
    array = np.zeros((2, 2), dtype=dtype)
    for serde in SERIALISERS.values():
        again = serde.loads_typed(serde.dumps_typed(array))
        assert again.dtype == array.dtype
        assert again.tobytes() == array.tobytes()


@pytest.mark.optimized
def test_named_code_is_never_called() -> None:
    for module, name in (("os", "system"), ("builtins", "eval"), ("surefoot.keys", "Keyring")):
        for code in range(6):
            for serde in SERIALISERS.values():
                with pytest.raises(NotLoadable):
                    serde.loads_typed(("msgpack", extension(code, [module, name, "1", "x"])))


storable = st.recursive(
    leaves | st.integers(-(2**80), 2**80) | st.characters(categories=["Cs"]) | st.uuids(),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.tuples(inner, inner)
        | st.dictionaries(leaves | st.tuples(st.integers()), inner, max_size=4)
        | st.frozensets(leaves, max_size=4)
        | st.builds(lambda x: {"s": {x}}, leaves)
        | st.datetimes(timezones=st.none() | st.timezones())
        | st.builds(object)
    ),
    max_leaves=15,
)


@examples(300)
@given(value=storable, name=st.sampled_from(sorted(SERIALISERS)))
def test_any_value_is_stored_and_loaded_again_or_refused(value: Any, name: str) -> None:
    dumps(value, name)


@examples(100)
@given(value=st.lists(storable, max_size=20))
def test_lists_in_pieces(value: list[Any]) -> None:
    dumps(value)


def test_what_may_be_built_is_told_from_what_may_not() -> None:
    check_built([DECISION, {"a": {1, (2,)}}], strict=False)
    for alien in (object(), Keyring, len, Keyring.generate(), b"".join):
        with pytest.raises(Finding):
            check_built([alien], strict=False)
    with pytest.raises(Finding):
        check_built(DECISION, strict=True)


# --- decisions -----------------------------------------------------------------------------------

moments = st.datetimes().map(lambda t: t.isoformat() + "Z") | st.sampled_from(
    ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "0999-06-01T00:00:00Z", "now", ""]
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | moments,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@examples(200)
@given(data=st.data())
def test_one_field_of_a_decision_holds_something_else(data: st.DataObject) -> None:
    fields = dict(DECISION_FIELDS)
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from([*fields, "to_seq", "horizon", "trusted_keys", "extra"]))
        fields[name] = data.draw(json_values)
    document = {"decision": fields, "key_id": "ops", "signature": "00" * 64}
    TARGETS["decision"](json.dumps(document).encode())


@pytest.mark.optimized
@pytest.mark.parametrize(
    ("not_before", "expires"),
    [
        ("0001-01-01T00:00:00+14:00", "0001-01-02T00:00:00Z"),
        ("9999-12-31T00:00:00Z", "9999-12-31T23:59:59Z"),
        ("9999-12-31T23:59:59-14:00", "9999-12-31T23:59:59-14:00"),
        ("0999-12-31T00:00:00Z", "0999-12-31T01:00:00Z"),
        ("1970-01-01T00:00:00+14:00", "1970-01-01T00:00:00Z"),
    ],
)
def test_moments_at_the_ends_of_the_calendar_are_refused_by_name(
    not_before: str, expires: str
) -> None:
    fields = {**DECISION_FIELDS, "not_before": not_before, "expires": expires}
    document = {"decision": fields, "key_id": "ops", "signature": "00" * 64}
    with pytest.raises(Misuse, match=r"decision\.not_before: .*year from 1970"):
        SignedDecision.parse(json.dumps(document))


def test_the_first_moment_is_read_in_every_zone() -> None:
    fields = {**DECISION_FIELDS, "not_before": "1970-01-01T14:00:00+14:00"}
    fields["expires"] = "1970-01-01T12:00:00-12:00"
    document = json.dumps({"decision": fields, "key_id": "ops", "signature": "00" * 64})
    signed = SignedDecision.parse(document)
    assert signed.decision.not_before.isoformat() == "1970-01-01T00:00:00+00:00"
    assert SignedDecision.parse(signed.render()) == signed


KEY = SigningKey("ops", bytes(range(32)))
TRUSTED = Reviewers({"ops": KEY.public()})
other_values: dict[str, Any] = {
    "tenant": st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
    "thread": st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
    "incarnation": st.integers(1, 2**62 - 1),
    "head_seq": st.integers(0, 2**62 - 1),
    "outcome": st.sampled_from(["absent", "abandoned", "compensated"]),
    "result": documents.filter(lambda v: v is not None),
    "reason": st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30),
    "nonce": st.binary(min_size=16, max_size=16).map(bytes.hex),
    "not_before": st.just("2030-01-31T12:00:01Z"),
    "expires": st.just("2030-01-31T13:00:01Z"),
    **dict.fromkeys(
        ("head_digest", "slot", "recorded_intent", "proposed_intent", "receipt_digest"),
        st.binary(min_size=32, max_size=32).map(bytes.hex),
    ),
}


@examples(150)
@given(data=st.data())
def test_a_changed_field_has_no_signature(data: st.DataObject) -> None:
    """With a real Ed25519 key: the signature stands for this document and for no other one."""
    signed = KEY.sign(DECISION)
    TRUSTED.check(SignedDecision.parse(signed.render()))
    name = data.draw(st.sampled_from(sorted(other_values)))
    document = json.loads(signed.render())
    new = data.draw(other_values[name].filter(lambda v: v != document["decision"][name]))
    document["decision"][name] = new
    if name == "outcome":
        del document["decision"]["result"]
    try:
        changed = SignedDecision.parse(json.dumps(document))
    except (Misuse, TypeError):
        return  # a result that no JSON holds
    if changed.decision == signed.decision and changed.render() == signed.render():
        return  # another spelling of the same decision
    with pytest.raises(DecisionRefused):
        TRUSTED.check(changed)


def test_every_field_that_can_change_is_drawn_above() -> None:
    assert set(other_values) == set(DECISION_FIELDS) - {"version", "action"}
    assert set(DECISION_FIELDS) < set(Decision.model_fields)


@pytest.mark.optimized
@pytest.mark.parametrize("name", sorted(other_values))
@examples(3)
@given(data=st.data())
def test_each_field_is_bound_by_the_signature(name: str, data: st.DataObject) -> None:
    signed = KEY.sign(DECISION)
    document = json.loads(signed.render())
    strategy = st.integers(2, 9) if name == "result" else other_values[name]
    old = document["decision"][name]
    document["decision"][name] = data.draw(strategy.filter(lambda v: v != old))
    if name == "outcome":
        del document["decision"]["result"]
    changed = SignedDecision.parse(json.dumps(document))
    with pytest.raises(DecisionRefused):
        TRUSTED.check(changed)


@pytest.mark.optimized
@examples(100)
@given(bit=st.integers(0, 511), key_id=st.sampled_from(["ops", "other"]))
def test_a_changed_signature_or_signer_is_refused(bit: int, key_id: str) -> None:
    signed = KEY.sign(DECISION)
    raw = bytearray(bytes.fromhex(signed.signature))
    raw[bit // 8] ^= 1 << bit % 8
    forged = signed.model_copy(update={"signature": bytes(raw).hex()})
    both = Reviewers({"ops": KEY.public(), "other": KEY.public()})
    with pytest.raises(DecisionRefused):
        both.check(forged)
    renamed = signed.model_copy(update={"key_id": key_id})
    if key_id == "ops":
        both.check(renamed)
    else:
        with pytest.raises(DecisionRefused):
            both.check(renamed)


def test_an_id_that_no_document_can_hold_signs_nothing() -> None:
    with pytest.raises(Misconfigured, match="signing key"):
        SigningKey("\ud800", bytes(32))


# --- keys ----------------------------------------------------------------------------------------

secret_texts = st.sampled_from(
    ["c2VjcmV0" * 6, "c2VjcmV0" * 2, "not base64 but secret", "ünïcode-secret-text", "5" * 64]
)
odd = st.none() | st.integers() | st.text(max_size=4) | st.lists(st.integers(), max_size=2)
key_entries = st.fixed_dictionaries(
    {},
    optional={
        "id": st.sampled_from(["a", "b", "", "\ud800", "x" * 300]) | odd,
        "secret": secret_texts | odd,
        "state": st.sampled_from(["primary", "enabled", "retired", "lost"]) | odd,
        "more": odd,
    },
)


@examples(300)
@given(entries=st.lists(key_entries, max_size=4), wrap=st.sampled_from(["keys", "key", None]))
def test_no_document_of_keys_shows_a_secret(entries: list[Any], wrap: str | None) -> None:
    document = json.dumps(entries if wrap is None else {wrap: entries}).encode()
    TARGETS["keyring"](document)
    TARGETS["reviewers"](document)


@examples(100)
@given(entry=key_entries, name=st.sampled_from(["signing_key", "keys"]))
def test_no_document_of_a_signing_key_shows_a_secret(entry: Any, name: str) -> None:
    TARGETS["signing_key"](json.dumps({name: entry}).encode())


@examples(100)
@given(entries=st.lists(key_entries, max_size=3), tail=st.sampled_from(["", "]", "}", "\x01"]))
def test_keys_in_the_environment_show_no_secret(
    entries: list[Any], tail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = json.dumps({"keys": entries}) + tail
    monkeypatch.setenv("SUREFOOT_KEYS", document)
    try:
        Keyring.from_env()
    except (Misconfigured, KeyMissing) as error:
        shown = f"{error}{error!r}{error.__context__!r}{error.__cause__!r}"
        assert not any(secret in shown for secret in secrets_in(document.encode()))


def test_the_key_of_the_targets_is_named() -> None:
    assert KEY_ID in repr(Keyring.generate(KEY_ID))
