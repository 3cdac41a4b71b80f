"""Tool calls that never got a result: what the ledger says becomes their result.

Providers refuse messages in which a call has no result, and a model that is told nothing asks for
the same thing again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command

from surefoot.errors import BarrierTimeout, EffectResultLost, Misuse, SurefootError
from surefoot.flows import effects as flow
from surefoot.flows import orphans as search
from surefoot.flows.operations import close_operation, request_of
from surefoot.langgraph.bubble import bubbling
from surefoot.langgraph.definition import EffectSpec
from surefoot.langgraph.effects import asked, lists_of, opened, step_aside
from surefoot.langgraph.place import Here, here
from surefoot.langgraph.returns import as_tool_message, recorded_answer, updates_of
from surefoot.langgraph.shells import Flow, Published, Steps, act, act_async, pump, pump_async
from surefoot.ports import Serializer
from surefoot.rules.bodies import EffectBody
from surefoot.rules.effects import Receiver, Verdict
from surefoot.rules.orphans import Fate, OrphanFacts, decide_orphan
from surefoot.session import Session

__all__ = ["Orphan", "answer", "answer_async", "orphans_in"]

_NAME = "answer_orphans"
#: Call ids of effects that were taken over to answer a call.
_TAKEN = "orphan:"
_NOTHING = "Not carried out: the run stopped before this call, and new input came."
_NO_RESULT = "No result: the run stopped during this call, and new input came."
_LOST = "Carried out; what it returned could not be stored."
_SILENT = "Carried out."
_PARTLY = "No result: the run stopped during this call, after some of it was done: "

SpecOf = Callable[[str], "EffectSpec | None"]


@dataclass(frozen=True, slots=True)
class Orphan:
    """A tool call without a result.

    Attributes:
        message: Index of the message that asks for it.
        place: Its position among the calls of the message.
        name: Name of the tool.
        call_id: Its id.
        arguments: What the model gave.
        turn: How many calls without a result stand before it under the same id.
    """

    message: int
    place: int
    name: str
    call_id: str
    arguments: Mapping[str, Any]
    turn: int = 0


def orphans_in(messages: Sequence[Any]) -> list[Orphan]:
    """The tool calls of messages that have no result.

    A result belongs to the message before it that asked last under its id: some models number
    their calls anew in every turn.
    """
    asked: dict[str, int] = {}
    answered: set[tuple[int, str]] = set()
    calls: list[tuple[int, int, Any]] = []
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage) and message.tool_call_id in asked:
            answered.add((asked[message.tool_call_id], message.tool_call_id))
        if isinstance(message, AIMessage):
            own = [(place, call) for place, call in enumerate(message.tool_calls) if call["id"]]
            calls += [(index, place, call) for place, call in own]
            asked |= {str(call["id"]): index for _, call in own}
    found: list[Orphan] = []
    for index, place, call in calls:
        call_id = str(call["id"])
        if (index, call_id) not in answered:
            turn = sum(1 for orphan in found if orphan.call_id == call_id)
            arguments = call.get("args") or {}
            found.append(Orphan(index, place, call["name"], call_id, arguments, turn))
    return found


def answer(spec_of: SpecOf, messages: Sequence[Any], key: str, config: Any) -> Any:
    """The update that gives every call a result, or None; see `ToolEffects.orphans_node`."""
    orphans = orphans_in(messages)
    if not orphans:
        return None
    at: Here | None = None
    try:
        at = here(_NAME, [config])
        found = pump(_answers(at, spec_of, messages, orphans, key), functools.partial(act, at))
    except SurefootError as error:
        if at is not None:
            step_aside(at, error)
        raise bubbling(error) from error.__cause__
    return _update(messages, found, key)


async def answer_async(spec_of: SpecOf, messages: Sequence[Any], key: str, config: Any) -> Any:
    """Async twin of `answer`."""
    orphans = orphans_in(messages)
    if not orphans:
        return None
    at: Here | None = None
    try:
        at = here(_NAME, [config])
        found = await pump_async(
            _answers(at, spec_of, messages, orphans, key), functools.partial(act_async, at)
        )
    except SurefootError as error:
        if at is not None:
            await at.core.offload.run(step_aside, at, error)
        raise bubbling(error) from error.__cause__
    return _update(messages, found, key)


# --- what the ledger says ----------------------------------------------------------------------


def _answers(
    at: Here, spec_of: SpecOf, messages: Sequence[Any], orphans: Sequence[Orphan], key: str
) -> Steps:
    """Looks the calls up, asks about the open ones, and gives each its result (rule E7)."""
    session = at.session
    serde = session.serde
    if serde is None:
        raise Misuse(field=_NAME, reason="the run has not loaded its thread")
    begin = yield from _begin(at)
    holds = _holds({orphan.call_id for orphan in orphans}, key)
    found: list[search.Trace] = yield Flow(
        lambda: search.traces(at.core.ports, session, serde, begin, holds)
    )
    results: list[tuple[Orphan, Any]] = []
    for orphan in orphans:
        spec = spec_of(orphan.name)
        if spec is not None and spec.operation_id is not None:
            told = yield from _answer_of_operation(at, serde, spec, orphan)
        else:
            others = _ids_of([m for i, m in enumerate(messages) if i != orphan.message])
            told = yield from _answer(at, serde, spec, orphan, found, others)
        results.append((orphan, told))
    return results


def _ids_of(messages: Sequence[Any]) -> set[str]:
    return {m.id for m in messages if isinstance(m, AIMessage) and m.id is not None}


def _begin(at: Here) -> Steps:
    """Where to begin to search: the checkpoint of this step, once it is published."""
    session, levels = at.session, at.place.levels
    if session.durability == "exit" or not levels:
        started = session.started_at
        return None if started is None else (started.namespace, started.checkpoint_id)
    timeout_ms = at.core.ports.policy.barrier_timeout_ms
    passed = yield Published(
        timeout_ms, lambda: session.stopped or all(session.is_published(*lv) for lv in levels)
    )
    session.check()
    if not passed:
        raise BarrierTimeout(
            effect=_NAME,
            thread=session.identity.thread,
            waited_ms=timeout_ms,
            checkpoint_id=levels[-1][1],
        )
    return levels[-1]


def _holds(ids: Set[str], key: str) -> search.Holds:
    """Whether a state holds one of these calls.

    The messages may lie in a DeltaChannel, of which most checkpoints store nothing.
    """

    def holds(values: Mapping[str, Any], missing: Set[str]) -> bool | None:
        if ids & _open_calls_of(values):
            return True
        messages = any(isinstance(m, BaseMessage) for part in _lists(values) for m in part)
        if key in missing or (missing and not messages):
            return None
        return False

    return holds


def _lists(values: Mapping[str, Any]) -> list[list[Any]]:
    """The lists of a stored state, also those in snapshots of a DeltaChannel."""
    return lists_of({k: v.value if isinstance(v, _DeltaSnapshot) else v for k, v in values.items()})


def _open_calls_of(values: Mapping[str, Any]) -> set[str]:
    """Ids of the tool calls that a state holds without a result."""
    return {orphan.call_id for messages in _lists(values) for orphan in orphans_in(messages)}


def _runs_next(values: Mapping[str, Any], orphan: Orphan, others: Set[str]) -> bool:
    """Whether the last message of the model in a state asks for a call: those run next.

    Not when it is one of the ``others``: messages of which it is known that they are not the one
    that asks for the orphan, although their calls may have the same id.
    """
    for messages in _lists(values):
        last = next((m for m in reversed(messages) if isinstance(m, AIMessage)), None)
        if last is None or last.id in others:
            continue
        if any(str(call["id"]) == orphan.call_id for call in last.tool_calls):
            return True
    return False


def _answer(
    at: Here,
    serde: Serializer,
    spec: EffectSpec | None,
    orphan: Orphan,
    found: Sequence[search.Trace],
    others: Set[str],
) -> Steps:
    """The result of one call, from the effects of the step it was to run in."""
    news: dict[bytes, EffectBody] = {}
    for trace in found:
        news.setdefault(trace.body.origin, trace.body)  # newest first
    near = [t for t in found if t.values is None or _runs_next(t.values, orphan, others)]
    place = f"tool:{orphan.place}"
    own = [news[t.body.origin] for t in near if t.call == place]
    loose = [t.body for t in near if not t.call.startswith(("tool:", _TAKEN))]
    maybe = (t for t in found if t.call == place or not t.call.startswith(("tool:", _TAKEN)))
    _require_read(orphan, [news[t.body.origin].state for t in maybe if t.unread])
    told = yield from _told(
        at, serde, spec, orphan, own, loose, lambda held: _request(at, serde, spec, orphan, held)
    )
    return told


def _require_read(orphan: Orphan, unread: Sequence[str]) -> None:
    """Refuses to answer while an effect may be that of this call or of another one.

    Raises:
        Misuse: The messages of its checkpoint cannot be read.
    """
    facts = OrphanFacts((), (), askable=False, unread=unread)
    if decide_orphan(facts) is Fate.UNREAD:
        raise Misuse(
            field=f"tool {orphan.name!r}, a call without a result",
            reason=(
                "something was done under a checkpoint that does not store its messages (a "
                "DeltaChannel between two snapshots), so nobody can tell for which call; add the "
                "call's result with update_state, and keep messages in an ordinary channel"
            ),
        )


def _answer_of_operation(at: Here, serde: Serializer, spec: EffectSpec, orphan: Orphan) -> Steps:
    """The same from the journal of the operation that the call names (E4c)."""
    ports = at.core.ports
    bound = spec.signature.bind(arguments=dict(orphan.arguments), call=None)
    request = spec.request(at, bound, None)
    made: list[Session] = []
    try:
        yield from opened(at, request, made)
        inside = Here(at.core, made[0], at.place)
        named = request_of(at.session, request)
        own = list(made[0].effects.values())
        told = yield from _told(inside, serde, spec, orphan, own, (), lambda _: named)
    finally:
        for operation in made:
            yield Flow(functools.partial(close_operation, ports, operation))
    return told


def _told(
    at: Here,
    serde: Serializer,
    spec: EffectSpec | None,
    orphan: Orphan,
    own: Sequence[EffectBody],
    loose: Sequence[EffectBody],
    request: Callable[[EffectBody], flow.CallRequest],
) -> Steps:
    """What the model is told: a message, a command, or a list of them (rule E7)."""
    ports, session = at.core.ports, at.session
    askable = spec is not None and spec.reconcile is not None
    askable = askable and len(own) == 1 and own[0].name == spec.name  # type: ignore[union-attr]
    fate = decide_orphan(
        OrphanFacts([b.state for b in own], [b.state for b in loose], askable=askable)
    )
    if fate is Fate.NOTHING:
        return _said(orphan, _NO_RESULT if spec is None else _NOTHING)
    if fate is Fate.PARTLY:
        names = sorted({b.name for b in [*own, *loose] if b.state == "succeeded"})
        return _said(orphan, _PARTLY + ", ".join(names))
    if fate is Fate.DOUBT:
        open_ = next(b for b in [*own, *loose] if b.state not in _SETTLED)
        raise flow.in_doubt(
            session, open_, "its turn was interrupted by new input, and nobody can be asked"
        )
    (held,) = [b for b in own if b.state not in _NOTHING_HAPPENED]
    step: flow.Step = yield Flow(lambda: flow.take_over(ports, session, serde, request(held), held))
    if step.asks and spec is not None:
        step = yield from asked(spec, at, serde, step, flow.settled)
        if step.verdict is not Verdict.REPLAY:
            return _said(orphan, _NOTHING)
        return _recorded(orphan, step.result)
    try:
        stored = yield Flow(lambda: flow.result_of(ports, session, serde, step.body))
    except EffectResultLost:
        return as_tool_message(_LOST, name=orphan.name, call_id=orphan.call_id)
    return _recorded(orphan, stored)


_NOTHING_HAPPENED = frozenset({"failed", "absent", "compensated"})
_SETTLED = _NOTHING_HAPPENED | {"succeeded"}


def _request(
    at: Here, serde: Serializer, spec: EffectSpec | None, orphan: Orphan, held: EffectBody
) -> flow.CallRequest:
    """Where the call's effect is taken over to; what is open is asked about, never run again."""
    return flow.CallRequest(
        name=held.name,
        place=at.place,
        call_id=_TAKEN + orphan.call_id + (f"@{orphan.turn}" if orphan.turn else ""),
        receiver=Receiver(held.receiver),
        arguments=flow.loaded(at.core.ports, at.session, serde, held.arguments) or {},
        fingerprint=held.fingerprint,
        compare=() if spec is None else spec.compare,
        settling_ms=None if spec is None else spec.settling_ms,
        strong=spec is not None and spec.strong,
    )


def _said(orphan: Orphan, text: str) -> ToolMessage:
    return ToolMessage(text, name=orphan.name, tool_call_id=orphan.call_id, status="error")


def _recorded(orphan: Orphan, stored: Any) -> Any:
    return recorded_answer(stored, name=orphan.name, call_id=orphan.call_id)


# --- the update --------------------------------------------------------------------------------


def _update(messages: Sequence[Any], found: Sequence[tuple[Orphan, Any]], key: str) -> Any:
    """All messages, each result behind the message that asked for it, and other updates."""
    behind: dict[int, list[Any]] = {}
    more: list[Command[Any]] = []
    for orphan, told in found:
        mine: list[Any] = []
        for part in told if isinstance(told, list) else [told]:
            if not isinstance(part, Command):
                mine.append(part)
                continue
            for name, value in updates_of(part):
                if name == key:
                    mine += value if isinstance(value, list) else [value]
                elif part.graph is None:
                    more.append(Command(update={name: value}))
        if not any(getattr(m, "tool_call_id", None) == orphan.call_id for m in mine):
            mine.append(as_tool_message(_SILENT, name=orphan.name, call_id=orphan.call_id))
        behind.setdefault(orphan.message, []).extend(mine)
    whole: list[Any] = []
    waiting: list[Any] = []
    for index, message in enumerate(messages):
        if not isinstance(message, ToolMessage):
            whole += waiting
            waiting = []
        whole.append(message)
        waiting += behind.get(index, [])
    update = {key: [RemoveMessage(REMOVE_ALL_MESSAGES), *whole, *waiting]}
    return [update, *more] if more else update
