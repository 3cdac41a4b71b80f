"""Effects that no checkpoint of the branch has consumed (rule E4b).

A task may come back at another position: new input follows a failed fan-out, an update skips it, a
fork runs it again. What it did stands in the journal under its old slot. Each root checkpoint
carries the list of such effects, as a value that is stored again only when it changes; a call at a
fresh slot looks there for an equal one and takes it over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from surefoot.errors import Misuse, TamperDetected
from surefoot.flows.acquire import effect_of
from surefoot.flows.chain import Chain
from surefoot.flows.cover import cover_of
from surefoot.flows.find import find_checkpoint
from surefoot.flows.values import Loader, Writer
from surefoot.ports import Ports, Serializer
from surefoot.rules.bodies import BODY_SCHEMAS, BodyError, EffectBody, Typed
from surefoot.rules.effects import (
    PROVEN_NOTHING,
    Loose,
    Receiver,
    decide_adoption,
    decide_never_sent,
    may_adopt,
)
from surefoot.rules.envelope import Kind
from surefoot.rules.reads import READ
from surefoot.rules.writes import decide_writes
from surefoot.session import NO_HORIZON, Known, LooseEffect, Session

__all__ = ["Leaving", "find", "leave", "of_origin", "take"]


# --- a call at a fresh slot ----------------------------------------------------------------------


def find(
    ports: Ports,
    session: Session,
    serde: Serializer,
    root: Known | None,
    *,
    name: str,
    fingerprint: bytes,
) -> LooseEffect | None:
    """The oldest unconsumed effect that equals a call, or None.

    Args:
        ports: Stores.
        session: Whose journal.
        serde: Serialiser of the calling saver.
        root: Root checkpoint that the call runs under.
        name: Name of the effect.
        fingerprint: Of the call's arguments.

    Raises:
        Misuse: A fork so far back that more effects would have to be read than the limit allows.
    """
    if root is None:
        return None
    loose = [*_loose_at(ports, session, serde, root), *_left_at_exit(session, root)]
    facts = [_facts(found) for found in loose]
    at = decide_adoption(name, fingerprint, facts, ports.policy.on_fork)
    return None if at is None else loose[at]


def _left_at_exit(session: Session, root: Known) -> list[LooseEffect]:
    """Under ``exit``: what an earlier run did in the step behind the checkpoint that it left.

    No checkpoint lists it, because new input is stored with the end of the run only. What this
    run has come to again is no longer left.
    """
    if session.durability != "exit":
        return []
    return [
        LooseEffect(session.effects[slot], fork=False)
        for slot in session.unfolded
        if slot not in session.origins and _root_of(session.effects[slot]) == root.checkpoint_id
    ]


def of_origin(
    ports: Ports, session: Session, serde: Serializer, root: Known | None, origin: bytes
) -> LooseEffect | None:
    """The unconsumed effect that was first recorded under a slot, or None."""
    loose = [] if root is None else _loose_at(ports, session, serde, root)
    return next((found for found in loose if found.body.origin == origin), None)


def take(session: Session, found: LooseEffect, place: EffectBody) -> EffectBody:
    """The record of an adoption: what is known of the effect, at the place that took it over.

    Args:
        session: Whose journal.
        found: The effect; no other call of this branch may adopt it from now on.
        place: The record that a fresh start would have had.
    """
    session.loose = [held for held in session.loose if held is not found]
    session.loose_moved = True
    if found.body.state == "succeeded":
        _drop_inner(session, found.body.slot)
    if session.unfolded.pop(found.body.slot, None) is not None:
        del session.effects[found.body.slot]
    return replace(
        found.body,
        slot=place.slot,
        position=place.position,
        namespace=place.namespace,
        checkpoint_id=place.checkpoint_id,
        root=place.root,
        task=place.task,
        family=place.family,
        adopted=found.body.origin,
        at_us=place.at_us,
    )


def _drop_inner(session: Session, slot: bytes) -> None:
    """What happened in the body of an effect that is done belongs to it, and to no other call."""
    inner = [held for held in session.loose if held.body.within == slot]
    session.loose = [held for held in session.loose if held.body.within != slot]
    for held in inner:
        _drop_inner(session, held.body.slot)


def _facts(found: LooseEffect) -> Loose:
    return Loose(found.body.name, found.body.fingerprint, found.body.state, found.fork)


# --- a root checkpoint ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leaving:
    """What a root checkpoint does with the effects of the step before it.

    Attributes:
        folds: Slots whose results are part of its state.
        gone: Slots that this session need not keep any longer.
        loose: Unconsumed effects, oldest first; None when they are not at hand and did not change.
        typed: The same as a value; None when there are none.
    """

    folds: tuple[bytes, ...]
    gone: tuple[bytes, ...]
    loose: list[LooseEffect] | None
    typed: Typed | None


def leave(
    ports: Ports,
    session: Session,
    serde: Serializer,
    writer: Writer,
    *,
    parent: Known | None,
    source: str,
    seen: Mapping[str, Any],
    born: bool,
    checkpoint_id: str,
) -> Leaving:
    """Decides what becomes of the effects under a root checkpoint's parent.

    The loop's next checkpoint folds them all. New input, an update or a fork drops what the
    tasks have written, so their effects stay unconsumed; only an update that clears the tasks
    (``as_node=END``) applies the writes of those that have finished.

    Args:
        ports: Stores.
        session: Whose journal.
        serde: Serialiser of the calling saver.
        writer: Collects the rows of the append.
        parent: The checkpoint it follows; None when it is the first.
        source: ``metadata["source"]``.
        seen: ``versions_seen`` of the checkpoint.
        born: It begins a branch.
        checkpoint_id: Its id.

    Raises:
        Misuse: A fork so far back that more effects would have to be read than the limit allows.
    """
    passed: set[bytes] = set()
    if session.durability == "exit" and source == "loop":
        # Of the run's checkpoints only the last one is stored; it holds the steps before it.
        passed = {s for s in session.unfolded if _root_of(session.effects[s]) != checkpoint_id}
    if parent is None:
        return Leaving(tuple(passed), tuple(passed), [], None)
    place = ("", parent.checkpoint_id)
    own = {slot for slot, at in session.unfolded.items() if at == place} | passed
    folded = tuple(own) if source == "loop" else ()
    if born:
        left = [found for found in _above(ports, session, parent) if found.body.slot not in folded]
        return _leaving(ports, session, serde, writer, parent, folded, (), left)
    if source == "loop":
        return _leaving(ports, session, serde, writer, parent, folded, (), [])
    under = {slot: body for slot, body in session.effects.items() if _root_of(body) == place[1]}
    done: frozenset[str] = frozenset()
    if under and source == "update" and _clears(ports, session, serde, parent, seen, under):
        done = _finished_tasks(ports, session, parent.checkpoint_id)
    folds = tuple(slot for slot in own if _task_id(session.effects[slot]) in done)
    left = [
        LooseEffect(body, fork=False)
        for slot, body in sorted(under.items(), key=lambda item: session.effect_at[item[0]])
        if _task_id(body) not in done and not never_sent(session, body)
    ]
    return _leaving(ports, session, serde, writer, parent, folds, tuple(under), left)


def _leaving(
    ports: Ports,
    session: Session,
    serde: Serializer,
    writer: Writer,
    parent: Known,
    folds: tuple[bytes, ...],
    gone: tuple[bytes, ...],
    left: Sequence[LooseEffect],
) -> Leaving:
    held = session.bodies.get(("", parent.checkpoint_id))
    stored = None if held is None else held.loose
    #: An adoption, or a decision about an effect of the list, is on the chain above it.
    news = any(
        body.adopted or body.compensates or _root_of(body) != parent.checkpoint_id
        for body in session.effects.values()
    )
    at_hand = session.loose_of == parent.checkpoint_id
    if not left and not news and not at_hand:
        return Leaving(folds, (*folds, *gone), None, stored)
    before = _loose_at(ports, session, serde, parent)
    nobodys = undone(session)
    origins = {found.body.origin for found in left} | nobodys
    loose = [found for found in before if found.body.origin not in origins]
    loose += [
        found for found in left if may_adopt(_facts(found)) and found.body.origin not in nobodys
    ]
    if not left and not session.loose_moved and loose == before:
        return Leaving(folds, (*folds, *gone), before, stored)
    typed = None if not loose else writer.value(_packed(loose), channel="(unconsumed effects)")
    return Leaving(folds, (*folds, *gone), loose, typed)


def undone(session: Session) -> set[bytes]:
    """Slots of effects that an effect at hand has undone: they are nobody's to adopt."""
    return {
        body.compensates
        for body in session.effects.values()
        if body.compensates and body.state not in PROVEN_NOTHING
    }


def never_sent(session: Session, body: EffectBody) -> bool:
    """True when a start of the present step was never announced in B, so it was not sent (E5)."""
    announced = body.slot in session.intents or bool(body.adopted)
    lost = session.horizon is not None and session.horizon > NO_HORIZON
    return decide_never_sent(Receiver(body.receiver), body.state, intent=announced or lost)


def _root_of(body: EffectBody) -> str:
    """Root checkpoint that an effect ran under; older records name only the innermost one."""
    return body.root or (body.checkpoint_id if body.namespace == "" else "")


def _task_id(body: EffectBody) -> str:
    return body.task.partition(":")[2]


def _clears(
    ports: Ports,
    session: Session,
    serde: Serializer,
    parent: Known,
    seen: Mapping[str, Any],
    under: Mapping[bytes, EffectBody],
) -> bool:
    """Whether an update marked the tasks themselves as done, which only ``as_node=END`` does."""
    body = session.bodies.get(("", parent.checkpoint_id))
    if body is None:
        return False
    loader = Loader(cover_of(ports, session.identity), ports.store, session.key or 0, serde)
    loader.fetch([body.skeleton])
    before: Mapping[str, Any] = loader.load(body.skeleton).get("versions_seen", {})
    nodes = {effect.task.partition(":")[0] for effect in under.values()}
    return any((before.get(node) or {}) != (seen.get(node) or {}) for node in nodes)


def _finished_tasks(ports: Ports, session: Session, checkpoint_id: str) -> frozenset[str]:
    """Tasks under a root checkpoint that have written their results."""
    chain = _chain(ports, session)
    found = None if chain is None else find_checkpoint(chain, ports, "", checkpoint_id)
    if found is None:
        return frozenset()
    return frozenset(w.task_id for w in decide_writes(found.writes) if w.idx >= 0)


# --- where they are ------------------------------------------------------------------------------


def _loose_at(ports: Ports, session: Session, serde: Serializer, root: Known) -> list[LooseEffect]:
    """Unconsumed effects as of a root checkpoint, without those adopted since, oldest first."""
    if session.loose_of == root.checkpoint_id:
        return session.loose
    body = session.bodies.get(("", root.checkpoint_id))
    loose = [] if body is None or body.loose is None else _load(ports, session, serde, body.loose)
    if session.started_behind and root is session.started_at:
        # It runs again under a checkpoint that the thread has moved past.
        loose += _above(ports, session, root)
    taken = {held.adopted for held in session.effects.values() if held.adopted} | undone(session)
    current = [
        replace(found, body=session.effects.get(found.body.slot, found.body))
        for found in loose
        if found.body.origin not in taken
    ]
    session.loose = [found for found in current if may_adopt(_facts(found))]
    session.loose_of, session.loose_moved = root.checkpoint_id, session.loose != loose
    return session.loose


def _above(ports: Ports, session: Session, root: Known) -> list[LooseEffect]:
    """The newest record of each effect that lies above a checkpoint on the chain, oldest first.

    What another branch has adopted from below the checkpoint did not happen above it: the branch of
    the checkpoint has consumed it, or has it on its list.
    """
    chain = _chain(ports, session)
    if chain is None:
        return []
    thread = session.identity.thread
    met: dict[bytes, EffectBody] = {}
    slots: set[bytes] = set()
    for record in chain.walk():
        if record.link.seq <= root.seq:
            break
        if record.kind is Kind.EFFECT:
            body = effect_of(thread, record)
            if body.receiver != READ and not body.only_asked:  # a fork reads anew
                met.setdefault(body.origin, body)
                slots.add(body.slot)
        if len(met) > ports.limits.adoptable_effects_max:
            raise Misuse(
                field=f"thread {thread!r}",
                reason=(
                    f"a fork from checkpoint {root.checkpoint_id} lies below more than "
                    f"{ports.limits.adoptable_effects_max} effects; raise "
                    "Limits.adoptable_effects_max"
                ),
            )
    gone = {b.compensates for b in met.values() if b.state not in PROVEN_NOTHING}
    return [
        LooseEffect(body, fork=True)
        for origin, body in reversed(met.items())
        if origin not in gone and origin in slots
    ]


def _chain(ports: Ports, session: Session) -> Chain | None:
    identity = session.identity
    row, rows = ports.store.read_newest(
        identity.tenant, identity.thread, limit=ports.limits.read_page_frames
    )
    return None if row is None else Chain(ports, identity, row, session.head, rows)


def _packed(loose: Sequence[LooseEffect]) -> list[list[object]]:
    return [[found.fork, BODY_SCHEMAS["E"], found.body.pack()] for found in loose]


def _load(ports: Ports, session: Session, serde: Serializer, typed: Typed) -> list[LooseEffect]:
    loader = Loader(cover_of(ports, session.identity), ports.store, session.key or 0, serde)
    loader.fetch([typed])
    try:
        return [
            LooseEffect(EffectBody.unpack(schema, packed), fork=fork is True)
            for fork, schema, packed in loader.load(typed)
        ]
    except (BodyError, TypeError, ValueError) as error:
        raise TamperDetected(
            thread=session.identity.thread,
            what="a list of effects",
            seq=None,
            reason=f"it has a layout that this release does not know ({type(error).__name__})",
        ) from None
