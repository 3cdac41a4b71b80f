"""What a lookup answered without settling anything: it is kept, and the effect stays as it was.

Such a record is for the trail alone. It stands under another subject than the transitions of its
slot, and whoever wants to know what an effect is passes over it: an answer that proves nothing
must not make a step that was lost (E6) look recorded, nor an intent without a record (E5).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from surefoot.errors import NotStorable
from surefoot.flows import journal
from surefoot.flows.values import Writer, writer_for
from surefoot.ports import Ports, Serializer
from surefoot.rules.answers import Absent, Unknown
from surefoot.rules.bodies import BODY_SCHEMAS, EffectBody, Typed
from surefoot.rules.envelope import Kind, Record
from surefoot.session import Session

__all__ = ["evidence_of", "keep"]


def keep(
    ports: Ports,
    session: Session,
    serde: Serializer,
    body: EffectBody,
    answer: Absent | Unknown,
    why: str,
) -> None:
    """Stores that a receiver was asked, what it answered, and why that settles nothing.

    Args:
        ports: Stores.
        session: Whose journal.
        serde: Serialiser of the run.
        body: The newest record of the effect.
        answer: Of the lookup.
        why: It does not count, for people.

    Raises:
        Fenced: Another worker has the thread.
        SaveFailed: An earlier save of this run failed.
        StoreUnavailable: The database did not answer.
    """
    with session.lock:
        writer = writer_for(ports, session, serde)
        absent = isinstance(answer, Absent)
        told = replace(
            body,
            arguments=None,
            result=None,
            receipt=None,
            conflict=None,
            evidence=evidence_of(writer, body.name, getattr(answer, "evidence", None)),
            asked_us=ports.host.now_us(),
            answer="absent" if absent else "unknown",
            why=why,
        )
        record = Record(Kind.EFFECT, BODY_SCHEMAS["E"], told.slot[16:], told.pack())
        journal.append(ports, session, [record], rows=writer.rows)


def evidence_of(writer: Writer, name: str, evidence: Any) -> Typed | None:
    """Evidence is kept for people; what cannot be stored is kept as its description."""
    if evidence is None:
        return None
    try:
        return writer.value(evidence, channel=f"(evidence of {name})")
    except NotStorable:
        return writer.value(
            f"{type(evidence).__qualname__} that cannot be stored", channel="(evidence)"
        )
