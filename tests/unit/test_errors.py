"""The tree of errors: one reaction each, codes for ever, and they survive every transport."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import GraphBubbleUp

import surefoot
from surefoot import errors
from surefoot.errors import (
    Busy,
    EffectInDoubt,
    Fenced,
    Misuse,
    NotStorable,
    Refused,
    StoreUnavailable,
    SurefootError,
    Unavailable,
)
from surefoot.langgraph.bubble import bubbling
from surefoot.langgraph.serde import StrictSerializer

pytestmark = pytest.mark.optimized

GROUPS: dict[str, type[SurefootError]] = {
    "refuse": Refused,
    "busy": Busy,
    "unavailable": Unavailable,
    "misuse": Misuse,
}
#: Append-only: a code is never renamed, given to another class, or moved to another reaction.
CODES = {
    "REFUSED": ("Refused", "refuse"),
    "RESUME_REFUSED": ("ResumeRefused", "refuse"),
    "ROLLBACK": ("RollbackDetected", "refuse"),
    "TAMPER": ("TamperDetected", "refuse"),
    "FENCED": ("Fenced", "refuse"),
    "EFFECT_CONFLICT": ("EffectConflict", "refuse"),
    "EFFECT_IN_DOUBT": ("EffectInDoubt", "refuse"),
    "EFFECT_RESULT_LOST": ("EffectResultLost", "refuse"),
    "STALE_INPUT": ("StaleInput", "refuse"),
    "NOT_LOADABLE": ("NotLoadable", "refuse"),
    "KEY_MISSING": ("KeyMissing", "refuse"),
    "MARK_CORRUPT": ("MarkCorrupt", "refuse"),
    "MIGRATION_REFUSED": ("MigrationRefused", "refuse"),
    "DECISION_REFUSED": ("DecisionRefused", "refuse"),
    "BUSY": ("Busy", "busy"),
    "UNAVAILABLE": ("Unavailable", "unavailable"),
    "STORE_UNAVAILABLE": ("StoreUnavailable", "unavailable"),
    "OUTCOME_UNKNOWN": ("OutcomeUnknown", "unavailable"),
    "SAVE_FAILED": ("SaveFailed", "unavailable"),
    "BARRIER_TIMEOUT": ("BarrierTimeout", "unavailable"),
    "MISUSE": ("Misuse", "misuse"),
    "MISCONFIGURED": ("Misconfigured", "misuse"),
    "NOT_SET_UP": ("NotSetUp", "misuse"),
    "NOT_STORABLE": ("NotStorable", "misuse"),
    "CHUNK_TAKEN": ("ChunkTaken", "unavailable"),
    "CLOSED": ("Closed", "misuse"),
    "TRANSACTION_ENDED": ("TransactionEnded", "misuse"),
    "UNFINGERPRINTABLE": ("Unfingerprintable", "misuse"),
    "UNKNOWN_EVENT": ("UnknownEvent", "refuse"),
    "EFFECT_ON_FORK": ("EffectOnFork", "refuse"),
}
#: Known by class inside the package only; whoever catches one gets what it is a kind of.
INSIDE = {"NeverRan"}


def descendants(cls: type[SurefootError]) -> set[type[SurefootError]]:
    found = set()
    for child in cls.__subclasses__():
        inside = child.__name__ in INSIDE or child.__name__.startswith("_")
        if not issubclass(child, GraphBubbleUp) and not inside:
            found |= {child} | descendants(child)
    return found


def every_error() -> list[type[SurefootError]]:
    """All classes of the package, also those beside `surefoot.errors`."""
    for module in pkgutil.walk_packages(surefoot.__path__, "surefoot."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ImportError:
                continue  # an extra that is not installed
    ours = [c for c in descendants(SurefootError) if c.__module__.startswith("surefoot.")]
    return sorted(ours, key=lambda c: c.code)


ERRORS = every_error()


def filled(cls: type[SurefootError]) -> SurefootError:
    """An error with every field that its template names."""
    return cls(
        thread="t\nwith {braces}",
        what="w",
        seq=3,
        reason="because {x} %s \\",
        field="f",
        effect="pay",
        holder=None,
        store="s",
        receipt={"id": "ch_1"},
        rules=["R1", "R3"],
        left_ms=5,
    )


def test_the_codes_are_the_ones_that_were_released() -> None:
    seen = {cls.code: (cls.__name__, cls.reaction) for cls in ERRORS}
    assert {code: seen.get(code) for code in CODES} == CODES
    assert seen == CODES, "a new error: append its code to the list above"
    assert len(ERRORS) == len(CODES)


@pytest.mark.parametrize("cls", ERRORS, ids=lambda c: c.__name__)
def test_every_error_asks_for_exactly_one_reaction(cls: type[SurefootError]) -> None:
    groups = [name for name, group in GROUPS.items() if issubclass(cls, group)]
    assert groups == [cls.reaction]


@pytest.mark.parametrize("cls", ERRORS, ids=lambda c: c.__name__)
def test_every_error_is_documented(cls: type[SurefootError]) -> None:
    assert cls.__doc__
    assert cls.__doc__ != SurefootError.__doc__
    assert "code" in vars(cls), "its own code, not its parent's"


def test_everything_public_is_listed() -> None:
    public = {n for n, v in vars(errors).items() if inspect.isclass(v) and not n.startswith("_")}
    assert {n for n in public if issubclass(getattr(errors, n), SurefootError)} == {*errors.__all__}


@pytest.mark.parametrize("cls", [SurefootError, *ERRORS], ids=lambda c: c.__name__)
def test_a_message_renders_with_no_field_at_all(cls: type[SurefootError]) -> None:
    assert str(cls()).startswith(f"[{cls.code}] ")
    assert "{" not in str(cls())


@pytest.mark.parametrize("cls", ERRORS, ids=lambda c: c.__name__)
def test_a_message_ends_with_what_to_do(cls: type[SurefootError]) -> None:
    error = filled(cls)
    assert str(error).startswith(f"[{cls.code}] ")
    if cls.remedy:
        assert str(error).endswith(cls.remedy)


@pytest.mark.parametrize("cls", ERRORS, ids=lambda c: c.__name__)
def test_fields_are_attributes(cls: type[SurefootError]) -> None:
    error = filled(cls)
    assert error.fields["receipt"] == {"id": "ch_1"}
    for name, value in error.fields.items():
        assert getattr(error, name) == value


def same(one: BaseException, other: BaseException) -> None:
    assert type(other) is type(one)
    assert str(other) == str(one)
    assert other.fields == one.fields  # type: ignore[attr-defined]
    assert other.code == one.code  # type: ignore[attr-defined]
    assert isinstance(other, SurefootError)
    for name, value in other.fields.items():
        assert getattr(other, name) == value


def transports(error: Any) -> list[Any]:
    made = [pickle.loads(pickle.dumps(error, p)) for p in range(pickle.HIGHEST_PROTOCOL + 1)]
    return [*made, copy.copy(error), copy.deepcopy(error)]


@pytest.mark.parametrize("cls", [SurefootError, *ERRORS], ids=lambda c: c.__name__)
def test_errors_travel(cls: type[SurefootError]) -> None:
    for error in (cls(), filled(cls)):
        for other in transports(error):
            same(error, other)


@pytest.mark.parametrize("cls", ERRORS, ids=lambda c: c.__name__)
def test_their_bubbling_twins_travel(cls: type[SurefootError]) -> None:
    error = filled(cls)
    twin = bubbling(error)
    assert isinstance(twin, cls)
    assert isinstance(twin, GraphBubbleUp)
    assert str(twin) == str(error)
    for other in transports(twin):
        same(twin, other)
        assert isinstance(other, GraphBubbleUp)


def test_a_twin_is_made_once() -> None:
    twin = bubbling(Fenced(thread="t", epoch=1, current_epoch=2, reason="r"))
    assert bubbling(twin) is twin
    assert type(twin) is type(bubbling(Fenced()))
    assert type(twin).__name__ == "Fenced"
    assert type(twin).__doc__ == Fenced.__doc__


def test_a_twin_keeps_the_cause() -> None:
    error = EffectInDoubt(effect="e")
    error.__cause__ = ValueError("why")
    assert bubbling(error).__cause__ is error.__cause__


def test_the_plain_error_does_not_bubble() -> None:
    """LangGraph's executor silently drops what bubbles, so the saver must raise the plain class."""
    for cls in ERRORS:
        assert not issubclass(cls, GraphBubbleUp)


@pytest.mark.parametrize("cls", ERRORS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("serde", [JsonPlusSerializer(), StrictSerializer()], ids=["stock", "ours"])
def test_langgraph_can_store_them(cls: type[SurefootError], serde: Any) -> None:
    """A task's error is itself a write (fact of the host)."""
    for error in (filled(cls), bubbling(filled(cls))):
        loaded = serde.loads_typed(serde.dumps_typed(error))
        assert cls.code in str(loaded)


def test_fields_only() -> None:
    with pytest.raises(TypeError):
        Busy("a message")  # type: ignore[call-arg]


def test_a_handler_reads_fields() -> None:
    error = NotStorable(channel="c", path="$.a", type_name="lock", reason="no form")
    with pytest.raises(Misuse) as caught:
        raise error
    assert caught.value is error
    assert (error.channel, error.path, error.type_name) == ("c", "$.a", "lock")
    with pytest.raises(Unavailable):
        raise StoreUnavailable(store="s", reason="r")
