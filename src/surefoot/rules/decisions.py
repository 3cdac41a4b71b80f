"""Decisions of operators: the document, its canonical form, and whether it holds here and now.

A decision is bound to one thread as it stood when it was signed: tenant, thread, incarnation,
the head's seq and digest, the action and everything the action touches, a nonce, and a time
window. Whatever has moved since makes it void. Signing and checking signatures is done by
`surefoot.signing`; carrying one out by `surefoot.flows.decide`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from surefoot.errors import Misuse
from surefoot.rules.envelope import tlv

__all__ = [
    "ACTIONS",
    "Decision",
    "DecisionFacts",
    "SignedDecision",
    "decide_decision",
    "signed_bytes",
]

ACTIONS = ("restore", "adopt", "abort", "approve", "replan")
_MAX_DOCUMENT = 1_000_000
_MAX_LIFE = timedelta(days=31)
_FIRST_YEAR, _LAST_YEAR = 1970, 9000
_NOTHING = "0" * 64

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Seq = Annotated[int, Field(ge=0, lt=2**62)]


class _Document(BaseModel):
    """Unknown fields are refused: what nobody checks must not look signed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Decision(_Document):
    """What an operator decided about one thread.

    Attributes:
        version: Of this layout.
        action: ``restore`` (go back to a stored record), ``adopt`` (make a lost mark anew),
            ``abort`` (freeze for good), ``approve`` (settle an effect), ``replan``.
        tenant: Of the thread.
        thread: Id of the thread.
        incarnation: Life of the thread id.
        head_seq: Number of the head it was decided on: the mark's, and for ``adopt`` that of
            the record that becomes the mark.
        head_digest: Digest of that head.
        to_seq: For ``restore``: number of the record to go back to; 0 means nothing.
        to_digest: For ``restore``: its digest; 64 zeros when nothing.
        horizon: For ``restore`` and ``adopt``: every root step up to it is tainted.
        trusted_keys: For ``restore`` and ``adopt``: retired keys whose seals count in what is gone
            back to; only name one whose secret nobody else can know.
        slot: For ``approve``: the effect's slot.
        outcome: For ``approve``: ``succeeded`` (with ``result``), ``absent`` (proven: nothing
            happened, it may run again), ``abandoned`` (given up, whether it happened or not) or
            ``compensated`` (it happened, and was undone).
        result: For ``succeeded``: what the effect returns from now on, as JSON gives it back (a
            tuple is a list). It has to be given, also when it is None: a forgotten one would be
            handed to the run as if it were the answer.
        recorded_intent: For ``approve``: fingerprint of the recorded arguments.
        proposed_intent: For ``approve``: fingerprint of the arguments that are to stand.
        receipt_digest: For ``approve``: digest of the receipt that was looked at; 64 zeros
            when there was none.
        evidence: For ``approve``: what it was decided on, e.g. what the receiver's records show;
            for people.
        evidence_digest: For ``approve``: digest of what a lookup had found and was looked at;
            64 zeros when there was nothing.
        reason: Why, for the record.
        nonce: 16 random bytes; each is consumed once.
        not_before: From when on it holds.
        expires: Until when; at most 31 days later.
    """

    version: Literal[1] = 1
    action: Literal["restore", "adopt", "abort", "approve", "replan"]
    tenant: Annotated[str, Field(min_length=1)]
    thread: Annotated[str, Field(min_length=1)]
    incarnation: Annotated[int, Field(ge=1, lt=2**62)]
    head_seq: Seq
    head_digest: Digest
    to_seq: Seq | None = None
    to_digest: Digest | None = None
    horizon: Annotated[int, Field(gt=-(2**62), lt=2**62)] | None = None
    trusted_keys: list[Annotated[str, Field(min_length=1)]] | None = None
    slot: Digest | None = None
    outcome: Literal["succeeded", "absent", "abandoned", "compensated"] | None = None
    result: Any = None
    recorded_intent: Digest | None = None
    proposed_intent: Digest | None = None
    receipt_digest: Digest | None = None
    evidence: Annotated[str, Field(min_length=1, max_length=2_000)] | None = None
    evidence_digest: Digest | None = None
    reason: Annotated[str, Field(min_length=1, max_length=2_000)]
    nonce: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    not_before: Annotated[datetime, Field(strict=False)]
    expires: Annotated[datetime, Field(strict=False)]

    @field_validator("not_before", "expires")
    @classmethod
    def _utc(cls, value: datetime) -> datetime:
        if value.tzinfo is None:
            raise ValueError("needs a time zone, e.g. 2030-01-31T12:00:00Z")
        # At the ends of the calendar there may be no such moment in UTC, or no end of a life; and
        # how years before 1000 are written differs between systems.
        if 1 < value.year < 9999:
            value = value.astimezone(timezone.utc).replace(microsecond=0)
        if not _FIRST_YEAR <= value.year <= _LAST_YEAR:
            raise ValueError(f"needs a year from {_FIRST_YEAR} to {_LAST_YEAR}, in UTC")
        return value

    @field_validator("result", mode="before")
    @classmethod
    def _as_json(cls, value: Any) -> Any:
        """What the signed document will say, so that the object says nothing else."""
        problem = ""
        try:
            text = json.dumps(value, allow_nan=False, default=_refuse_type)
            _check_names(value)
            return json.loads(text)
        except TypeError:
            problem = "holds an object with names that are no text"
        except RecursionError:
            problem = "is nested too deeply"
        raise ValueError(problem)

    @model_validator(mode="after")
    def _complete(self) -> Decision:
        if not self.not_before < self.expires <= self.not_before + _MAX_LIFE:
            raise ValueError("expires must be after not_before, by at most 31 days")
        wanted = _FIELDS_OF[self.action]
        given = {name for name in _OPTIONAL if getattr(self, name) is not None}
        if self.action == "approve" and self.outcome == "succeeded":
            wanted = wanted | {"result"}
            given |= {"result"} & self.model_fields_set  # None is a result as well, if it is given
        if missing := sorted(wanted - given):
            raise ValueError(f"{self.action} needs {', '.join(missing)}")
        if extra := sorted(given - wanted - _MAY_HAVE.get(self.action, set())):
            raise ValueError(f"{', '.join(extra)} does not belong to {self.action}")
        if self.action == "adopt" and self.head_seq == 0:
            raise ValueError("head_seq must name a stored record; with none, a thread is new")
        if self.to_seq is not None and self.to_seq > self.head_seq:
            raise ValueError("to_seq lies beyond head_seq; a restore goes back")
        if self.to_seq is not None and (self.to_seq == 0) != (self.to_digest == _NOTHING):
            raise ValueError("to_digest is 64 zeros for to_seq 0, and for no other")
        self.canonical()  # refuses a result that no JSON can hold
        return self

    def canonical(self) -> bytes:
        """Canonical JSON: sorted keys, no spaces, ASCII; equal for equal decisions."""
        document = self.model_dump(mode="python", exclude_none=True)
        if self.outcome == "succeeded" and "result" in self.model_fields_set:
            document["result"] = self.result  # also when it is None: that was decided
        return _canonical(document)

    @classmethod
    def parse(cls, decision: Decision) -> Decision:
        """The decision as its document says it, with every rule checked anew.

        Raises:
            Misuse: It breaks a rule, or no JSON can hold it; names the field and its place.
        """
        problem = ""
        try:
            return cls.model_validate(json.loads(decision.canonical()))
        except ValidationError as error:
            problem = _first_of(error)
        except (ValueError, TypeError, RecursionError) as error:
            problem = f"no document can hold it ({error})"
        raise Misuse(field="decision", reason=problem)


_OPTIONAL = (
    "to_seq",
    "to_digest",
    "horizon",
    "trusted_keys",
    "slot",
    "outcome",
    "result",
    "recorded_intent",
    "proposed_intent",
    "receipt_digest",
    "evidence",
    "evidence_digest",
)
_FIELDS_OF: dict[str, set[str]] = {
    "restore": {"to_seq", "to_digest", "horizon"},
    "adopt": {"horizon"},
    "abort": set(),
    "approve": {"slot", "outcome", "recorded_intent", "proposed_intent", "receipt_digest"},
    "replan": set(),
}
#: What a document may lack: an earlier release made it without.
_MAY_HAVE: dict[str, set[str]] = {
    "restore": {"trusted_keys"},
    "adopt": {"trusted_keys"},
    "approve": {"evidence", "evidence_digest"},
}


def _canonical(document: Any) -> bytes:
    def shown(value: object) -> str:
        if isinstance(value, datetime):
            return value.strftime("%Y-%m-%dT%H:%M:%SZ")
        raise TypeError(f"a {type(value).__name__} has no place in a decision")

    text = json.dumps(
        document,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=True,
        allow_nan=False,
        default=shown,
    )
    return text.encode("ascii")


class SignedDecision(_Document):
    """A decision with the id of the key that signed it, and the signature."""

    decision: Decision
    key_id: Annotated[str, Field(min_length=1, max_length=255)]
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]

    @classmethod
    def parse(cls, raw: str | bytes) -> SignedDecision:
        """Reads a document; what it says is worth nothing before its signature is checked.

        Raises:
            Misuse: It is no such document; names the field and its place.
        """
        if len(raw) > _MAX_DOCUMENT:
            raise Misuse(field="decision", reason=f"is larger than {_MAX_DOCUMENT} bytes")
        problem = ""
        try:
            text = raw.decode("utf-8") if isinstance(raw, bytes) else raw
            found = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
            return cls.model_validate(found)
        except ValidationError as error:
            problem = _first_of(error)
        except (ValueError, RecursionError) as error:
            problem = f"is no JSON document of a decision ({type(error).__name__}: {error})"
        raise Misuse(field="decision", reason=problem)

    def render(self) -> bytes:
        """The document as it is kept and handed on: canonical JSON."""
        return _canonical(
            {
                "decision": json.loads(self.decision.canonical()),
                "key_id": self.key_id,
                "signature": self.signature,
            }
        )


def _first_of(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(map(str, first["loc"])) or "the document"
    return f"{place}: {first['msg']}"


def _refuse_type(value: object) -> Any:
    raise ValueError(f"holds a {type(value).__name__}, which JSON has no form for")


def _check_names(value: Any) -> None:
    """Refuses names that JSON would turn into text; the value is no circle (it was dumped)."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            for name in part:
                if not isinstance(name, str):
                    raise ValueError(
                        f"holds an object with a name of type {type(name).__name__}; "
                        "in JSON names are text"
                    )
            waiting += part.values()
        elif isinstance(part, (list, tuple)):
            waiting += part


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def signed_bytes(decision: Decision, key_id: str) -> bytes:
    """What is signed: the purpose, the key's id and the canonical document."""
    return tlv("surefoot/decision/v1", key_id, decision.canonical())


# --- does it hold here and now? ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DecisionFacts:
    """The thread as it is when a decision is to be carried out.

    Attributes:
        tenant: Of the saver.
        thread: Of the stores.
        incarnation: In B (for ``adopt``: in A).
        head_seq: In B (for ``adopt``: of the record that was found in A).
        head_digest: Likewise.
        now: On this worker's clock.
        consumed: The nonce is named by a published record already.
    """

    tenant: str
    thread: str
    incarnation: int
    head_seq: int
    head_digest: bytes
    now: datetime
    consumed: bool


def decide_decision(decision: Decision, facts: DecisionFacts) -> list[str]:
    """Decides whether a decision holds; reports every reason against it, none means it does."""
    against = [
        f"it is about another {name}"
        for name in ("tenant", "thread", "incarnation")
        if getattr(decision, name) != getattr(facts, name)
    ]
    if (decision.head_seq, decision.head_digest) != (facts.head_seq, facts.head_digest.hex()):
        against.append(
            f"it was made for head {decision.head_seq} ({decision.head_digest[:12]}…), and the "
            f"thread is at {facts.head_seq} ({facts.head_digest.hex()[:12]}…)"
        )
    if facts.now < decision.not_before:
        against.append(f"it does not hold before {decision.not_before:%Y-%m-%d %H:%M:%S} UTC")
    if facts.now >= decision.expires:
        against.append(f"it expired at {decision.expires:%Y-%m-%d %H:%M:%S} UTC")
    if facts.consumed:
        against.append("its nonce is consumed: it was carried out already")
    return against
