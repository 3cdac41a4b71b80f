"""Finding the effects that ran for tool calls which never got a result.

New input on a thread that stopped between a model's message and its tools begins another step,
at another place, so the calls are not reached again. Their records are still in the journal,
under the checkpoint whose state ends in the message that asked for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from surefoot.flows.acquire import checkpoint_of, effect_of
from surefoot.flows.chain import Chain
from surefoot.flows.load import loader_for
from surefoot.flows.values import Loader
from surefoot.flows.views import viewing
from surefoot.ports import Ports, Serializer
from surefoot.rules.bodies import CheckpointBody, EffectBody
from surefoot.rules.effects import call_in
from surefoot.rules.envelope import Kind
from surefoot.session import Session

__all__ = ["Trace", "traces"]

_Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Trace:
    """An effect of an interrupted step.

    Attributes:
        body: Its newest record.
        call: Its call id within the task, or its number.
        values: Channel values of the checkpoint it ran under; None when that is not stored.
    """

    body: EffectBody
    call: str
    values: Mapping[str, Any] | None


def traces(
    ports: Ports,
    session: Session,
    serde: Serializer,
    at: _Place | None,
    holds: Callable[[Mapping[str, Any]], bool],
) -> list[Trace]:
    """Effects that ran under checkpoints whose state may hold the interrupted calls.

    Args:
        ports: Stores.
        session: Whose journal.
        serde: Serialiser of the run.
        at: The checkpoint (namespace, id) to begin at, published; None looks at everything.
        holds: Whether a state holds one of the calls. The search ends at the first ancestor
            that does not, behind those that do: nothing ran for a call before it was asked for.

    Raises:
        TamperDetected: Something does not verify.
    """

    def work(chain: Chain | None) -> list[Trace]:
        if chain is None:
            return []
        return list(_walk(chain, loader_for(ports, chain, serde), session, at, holds))

    return viewing(ports, session.identity.thread, work)


def _walk(
    chain: Chain,
    loader: Loader,
    session: Session,
    at: _Place | None,
    holds: Callable[[Mapping[str, Any]], bool],
) -> Iterator[Trace]:
    thread = chain.identity.thread
    found: dict[_Place, dict[bytes, EffectBody]] = {}
    held = False
    newest: dict[_Place, CheckpointBody] = {}
    for record in chain.walk():
        if record.kind is Kind.EFFECT:
            effect = effect_of(thread, record)
            of_place = found.setdefault((effect.namespace, effect.checkpoint_id), {})
            of_place.setdefault(effect.slot, session.effects.get(effect.slot, effect))
        if record.kind is not Kind.CHECKPOINT:
            continue
        body = checkpoint_of(thread, record)
        place = (body.namespace, body.checkpoint_id)
        if body.extra.get("of") is not None:
            newest.setdefault(place, body)  # put again; effects may lie between the two
            continue
        body = newest.pop(place, body)
        effects = found.pop(place, {})
        if place != at and not effects:
            continue
        values = _values(loader, body)
        yield from (Trace(e, call_in(e.position), values) for e in effects.values())
        if place == at:
            if holds(values):
                held = True
            elif held:
                break
            at = (body.namespace, body.parent_id) if held and body.parent_id else None
    for effects in found.values():
        yield from (Trace(e, call_in(e.position), None) for e in effects.values())


def _values(loader: Loader, body: CheckpointBody) -> dict[str, Any]:
    loader.fetch(v.value for v in body.values)
    return {v.channel: loader.load(v.value) for v in body.values}
