"""Finding the effects that ran for tool calls which never got a result.

New input on a thread that stopped between a model's message and its tools begins another step,
at another place, so the calls are not reached again. Their records are still in the journal,
under the checkpoint whose state ends in the message that asked for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

from surefoot.flows.acquire import checkpoint_of, effect_of
from surefoot.flows.chain import Chain
from surefoot.flows.load import loader_for
from surefoot.flows.values import Loader
from surefoot.flows.views import viewing
from surefoot.ports import Ports, Serializer
from surefoot.rules.bodies import CheckpointBody, EffectBody
from surefoot.rules.effects import call_in
from surefoot.rules.envelope import Kind
from surefoot.rules.reads import READ
from surefoot.session import Session

__all__ = ["Holds", "Trace", "traces"]

_Place = tuple[str, str]
#: Takes the values of a checkpoint and the names of those that it does not store (DeltaChannels
#: between two snapshots), and says whether the state holds a call; None when that is not known.
Holds: TypeAlias = Callable[[Mapping[str, Any], Set[str]], "bool | None"]


@dataclass(frozen=True, slots=True)
class Trace:
    """An effect of an interrupted step.

    Attributes:
        body: Its newest record.
        call: Its call id within the task, or its number.
        values: Channel values of the checkpoint it ran under; None when that is not stored.
        unread: Nobody can tell from them which calls they hold, and no later checkpoint of this
            history has folded the effect.
    """

    body: EffectBody
    call: str
    values: Mapping[str, Any] | None
    unread: bool = False


def traces(
    ports: Ports,
    session: Session,
    serde: Serializer,
    at: _Place | None,
    holds: Holds,
) -> list[Trace]:
    """Effects that ran under checkpoints whose state may hold the interrupted calls.

    Args:
        ports: Stores.
        session: Whose journal.
        serde: Serialiser of the run.
        at: The checkpoint (namespace, id) to begin at, published; None looks at everything.
        holds: Whether a state holds one of the calls. The search ends at the first ancestor
            that does not, behind those that do: nothing ran for a call before it was asked for.
            Where it is not known, the search goes on.

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
    holds: Holds,
) -> Iterator[Trace]:
    thread = chain.identity.thread
    found: dict[_Place, dict[bytes, EffectBody]] = {}
    held = False
    folded: set[bytes] = set()
    newest: dict[_Place, CheckpointBody] = {}
    for record in chain.walk():
        if record.kind is Kind.EFFECT:
            effect = effect_of(thread, record)
            if effect.only_asked:
                continue
            if effect.receiver == READ:
                continue  # it did nothing
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
        values, missing = _values(loader, body)
        holding = holds(values, missing)
        for e in effects.values():
            unread = holding is None and e.slot not in folded
            yield Trace(e, call_in(e.position), values, unread)
        if place == at:
            folded.update(body.folds)
            if holding:
                held = True
            elif held and holding is not None:
                break
            onward = held or holding is None
            at = (body.namespace, body.parent_id) if onward and body.parent_id else None
    for effects in found.values():
        yield from (Trace(e, call_in(e.position), None) for e in effects.values())


def _values(loader: Loader, body: CheckpointBody) -> tuple[dict[str, Any], Set[str]]:
    """What a checkpoint stores, and the names of DeltaChannels that it does not store."""
    loader.fetch([body.metadata, *(v.value for v in body.values)])
    values = {v.channel: loader.load(v.value) for v in body.values}
    counters = loader.load(body.metadata).get("counters_since_delta_snapshot") or {}
    return values, frozenset(counters) - values.keys()
