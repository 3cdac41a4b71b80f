"""``surefoot show``: what happened in a thread."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any

import typer

from surefoot.cli.app import app
from surefoot.cli.asking import (
    Conn,
    Encrypted,
    HighwaterOption,
    Json,
    Schema,
    Tenant,
    opened,
    progress_of,
    show,
)
from surefoot.cli.showing import columns, one_line, place
from surefoot.errors import Misuse
from surefoot.rules.events import OURS, Event
from surefoot.rules.folding import Approval, ThreadState, fold

__all__ = ["show_thread"]

#: Left out of a timeline unless all is asked for: what tasks hand over at every step.
_QUIET = frozenset({"surefoot.writes.stored", "surefoot.approval.passed_up"})
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_WIDE = 160


@app.command("show")
def show_thread(
    conn: Conn,
    thread: Annotated[str, typer.Argument(help="The thread.")],
    *,
    highwater: HighwaterOption,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Only the newest events.")
    ] = None,
    newest_first: Annotated[
        bool, typer.Option("--newest-first", help="Begin with the newest event.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also the writes that tasks hand over at every step.")
    ] = False,
    schema: Schema = None,
    tenant: Tenant = "default",
    encrypted: Encrypted = False,
    as_json: Json = False,
) -> None:
    """Show what happened in a thread, verified: a timeline of its journal, and what it is now.

    Takes no lease and raises no alarm beside live workers. Facts of your own are shown with their
    payload, reconciliations with their evidence; no other value of the state is.
    """
    with opened(
        conn,
        highwater=highwater,
        schema=schema,
        tenant=tenant,
        encrypted=encrypted,
        as_json=as_json,
    ) as saver:
        with progress_of("reading records", quiet=as_json) as tell:
            mark = saver.core.ports.marks.read(tenant, thread)
            total = 0 if mark is None else mark.seq

            def told(_: str, done: int) -> None:
                tell(done, max(total, done))

            events = saver.events(thread, progress=told)
        if not events:
            raise Misuse(
                field="THREAD",
                reason=f"neither store holds anything of a thread {thread!r} of tenant {tenant!r}",
            )
    state = fold(events)
    shown = [e for e in events if everything or as_json or e.kind not in _QUIET]
    shown = shown[-limit:] if limit else shown
    shown = shown[::-1] if newest_first else shown
    if as_json:
        show(_document(thread, tenant, state, shown))
        return
    named = {e.facts["slot"]: e.facts["effect"] for e in events if "effect" in e.facts}
    _explain(thread, state, shown, named)


# --- as a document -----------------------------------------------------------------------------


def _document(
    thread: str, tenant: str, state: ThreadState, events: Sequence[Event]
) -> dict[str, Any]:
    return {
        "thread": thread,
        "tenant": tenant,
        "status": state.status,
        "step": state.step,
        "seq": state.seq,
        "epoch": state.epoch,
        "handovers": state.handovers,
        "horizon": state.horizon,
        "effects": state.effects_by_state(),
        "approvals": [{**asdict(a), "latency_us": a.latency_us} for a in state.approvals],
        "facts": dict(state.facts),
        "events": [_plain(event.document()) for event in events],
    }


def _plain(value: Any) -> Any:
    """A value as JSON can say it; bytes become hex digits, other types their name."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return {"type": type(value).__name__}


# --- for people --------------------------------------------------------------------------------


def _explain(
    thread: str, state: ThreadState, events: Sequence[Event], named: Mapping[str, str]
) -> None:
    """Prints it; `named` holds the name of every effect of the thread by its slot."""
    typer.echo(_summary(thread, state))
    answers = {a.answered_us: a for a in state.approvals if a.answered_us}
    rows = [
        (
            str(event.seq),
            _when(event.at_us),
            str(event.epoch),
            event.kind.removeprefix(OURS),
            _details(event, answers.get(event.at_us), named),
        )
        for event in events
    ]
    typer.echo(columns(("seq", "when (UTC)", "epoch", "what", "details"), rows))


def _summary(thread: str, state: ThreadState) -> str:
    parts = [f"thread {one_line(thread)!r}: {state.status}"]
    if state.step is not None:
        parts.append(f"step {state.step}")
    parts.append(f"record {state.seq}, epoch {state.epoch}")
    if state.effects:
        found = (f"{number} {name}" for name, number in state.effects_by_state().items())
        parts.append(f"effects: {', '.join(found)}")
    if state.approvals:
        parts.append(f"approvals: {_approvals(state.approvals)}")
    if state.facts:
        found = (f"{number} {name}" for name, number in state.facts.items())
        parts.append(f"facts: {', '.join(found)}")
    return "; ".join(parts)


def _approvals(approvals: Sequence[Approval]) -> str:
    counted = dict.fromkeys(("open", "answered", "left"), 0)
    for one in approvals:
        counted[one.state] += 1
    text = ", ".join(f"{number} {name}" for name, number in counted.items() if number)
    waits = [a.latency_us for a in approvals if a.latency_us is not None]
    return f"{text} (longest answer took {_lasted(max(waits))})" if waits else text


def _when(at_us: int) -> str:
    if not at_us:
        return "-"
    try:
        return f"{_EPOCH + timedelta(microseconds=at_us):%Y-%m-%d %H:%M:%S.%f}"[:-3]
    except OverflowError:
        return "-"


def _lasted(microseconds: int) -> str:
    seconds = microseconds / 1_000_000
    if seconds < 120:
        return f"{seconds:.3f} s"
    return str(timedelta(seconds=round(seconds)))


def _details(event: Event, answered: Approval | None, named: Mapping[str, str]) -> str:
    facts = event.facts
    if not event.kind.startswith(OURS):
        version = "" if event.schema == 1 else f" (schema {event.schema})"
        return f"{_short(event.value)}{version}"
    name = event.kind.removeprefix(OURS)
    if name.startswith("effect."):
        return _effect(event)
    if name == "read.recorded":
        return f"{facts['effect']}, read at {place(facts['position'], facts['effect'])}"
    if name == "decision.carried_out":
        return _decision(facts, named)
    if name == "checkpoint.saved":
        again = ", put again" if facts["again"] else ""
        where = f" in {facts['namespace']}" if facts["namespace"] else ""
        return f"step {facts['step']} ({facts['source'] or '-'}){where}{again}"
    if name == "approval.answered" and answered is not None and answered.latency_us is not None:
        return f"{facts['id']} after {_lasted(answered.latency_us)}"
    if name.startswith("approval."):
        return str(facts["id"])
    if name == "epoch.began":
        return _epoch(facts)
    if name == "writes.stored":
        return f"{len(facts['writes'])} on {facts['checkpoint_id']}"
    return ", ".join(f"{key}={value}" for key, value in facts.items() if value is not None)


def _epoch(facts: Any) -> str:
    if not facts["before"]:
        return "the first worker"
    text = f"taken over from epoch {facts['before']}"
    if facts["silent"]:
        text += f", {facts['silent']} between wrote nothing that counts"
    if facts["left_started"]:
        text += f", {facts['left_started']} effects were left started"
    return text


def _effect(event: Event) -> str:
    facts = event.facts
    where = place(facts["position"], facts["effect"])
    # An operation's place names its effect.
    what = where if facts.get("operation") else f"{facts['effect']} at {where}"
    parts = [what, f"attempt {facts['attempt']}"]
    if event.kind.endswith(".asked"):
        why = f" ({facts['why']})" if facts.get("why") else ""
        parts.append(f"asked: {facts['answer']}{why}")
    elif event.kind.endswith((".reconciled", ".decided")):
        parts.append(f"{facts['state']} by {facts['source']} ({facts['rule']})")
    elif facts["error"]:
        parts.append(f"{facts['error']} ({facts['rule']})")
    parts.append(f"class {facts['receiver']}, key {facts['key']}")
    if event.value is not None:
        parts.append(f"evidence {_short(event.value)}")
    return ", ".join(parts)


def _decision(facts: Any, named: Mapping[str, str]) -> str:
    """What was decided about what, by whom, why and on which evidence; `--json` has the rest."""
    text = str(facts["action"])
    if facts.get("outcome"):
        text += f": {facts['outcome']}"
    if facts.get("slot"):
        known = named.get(facts["slot"])
        text += f" of {known or 'the effect of slot ' + facts['slot'][:16]}"
    if facts.get("to_seq") is not None:
        text += f" to record {facts['to_seq']}"
    text += f", by {facts['key_id'] or 'nobody who is named'}"
    for name in ("reason", "evidence"):
        if facts.get(name):
            text += f", {name}: {facts[name]}"
    return text


def _short(value: Any) -> str:
    if value is None:
        return ""
    text = json.dumps(_plain(value), ensure_ascii=True)
    if len(text) <= _WIDE or not sys.stdout.isatty():
        return text  # another program gets all of it
    return f"{text[:_WIDE]}…"
