"""Undoing an effect by its declared inverse (``compensate=``).

The inverse is an effect of its own: it has its own entry in the ledger, which names the effect
that it undoes, so nothing is undone twice, from whatever place or branch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from surefoot.errors import EffectInDoubt
from surefoot.flows.acquire import effect_of
from surefoot.flows.chain import Chain
from surefoot.flows.cover import cover_of
from surefoot.flows.values import Loader
from surefoot.ports import Ports, Serializer
from surefoot.rules.bodies import EffectBody
from surefoot.rules.effects import PROVEN_NOTHING
from surefoot.rules.envelope import Kind
from surefoot.rules.reads import READ
from surefoot.session import Session

__all__ = ["Target", "Undo", "find_target"]


@dataclass(frozen=True, slots=True)
class Undo:
    """Which effect a call wants undone.

    Attributes:
        name: Name of the effect.
        fingerprint: Of the arguments it was called with.
    """

    name: str
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class Target:
    """The effect that is undone.

    Attributes:
        slot: Where it was first recorded.
        given: What is known of it, by name: its arguments, ``result`` and ``receipt``.
    """

    slot: bytes
    given: dict[str, Any]


def find_target(ports: Ports, session: Session, serde: Serializer, undo: Undo) -> Target | None:
    """The newest effect of this name and these arguments that nothing has undone yet.

    Returns:
        None when there is nothing to undo: it never happened, or it is undone already.

    Raises:
        EffectInDoubt: Nobody knows whether it happened, so it cannot be undone yet.
        TamperDetected: The journal does not verify.
    """
    found = _candidates(ports, session, undo)
    for body in found:
        if body.state == "succeeded":
            return Target(body.origin, _given(ports, session, serde, body))
        if body.state in ("started", "in_doubt", "needs_review"):
            raise EffectInDoubt(
                effect=body.name,
                thread=session.identity.thread,
                key=body.key,
                slot=body.slot.hex(),
                state=body.state,
                reason="it cannot be undone before it is known whether it happened",
                position=body.position,
            )
    return None


def _candidates(ports: Ports, session: Session, undo: Undo) -> list[EffectBody]:
    """The newest record of each effect that may be meant, newest first, without those undone."""
    identity = session.identity
    row, rows = ports.store.read_newest(
        identity.tenant, identity.thread, limit=ports.limits.read_page_frames
    )
    if row is None:
        return []
    newest: dict[bytes, EffectBody] = {}
    for record in Chain(ports, identity, row, session.head, rows).walk():
        if record.kind is Kind.EFFECT:
            body = effect_of(identity.thread, record)
            if body.receiver != READ and not body.only_asked:
                newest.setdefault(body.origin, body)
    undone = {b.compensates for b in newest.values() if b.state not in PROVEN_NOTHING}
    return [
        body
        for origin, body in newest.items()
        if origin not in undone and (body.name, body.fingerprint) == (undo.name, undo.fingerprint)
    ]


def _given(ports: Ports, session: Session, serde: Serializer, body: EffectBody) -> dict[str, Any]:
    loader = Loader(cover_of(ports, session.identity), ports.store, session.key or 0, serde)
    parts = (body.arguments, body.result, body.receipt)
    loader.fetch([typed for typed in parts if typed is not None])
    arguments, result, receipt = (None if t is None else loader.load(t) for t in parts)
    return {**(arguments or {}), "result": result, "receipt": receipt or {}}
