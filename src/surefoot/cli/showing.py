"""How effects are shown, to people and as documents; nothing stored reaches a terminal raw."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any

from rich.cells import cell_len

from surefoot.flows.doubts import EffectRecord, InDoubt

__all__ = [
    "columns",
    "counted",
    "doubt_document",
    "doubts_table",
    "one_line",
    "place",
    "plain",
    "records_table",
    "shown_doubt",
]

_LONGEST = 2_000
#: A position as it is stored: namespace, steps, path of the task, call.
_POSITION = re.compile(r"(.*) step ([0-9.-]+) task (.*) call (.*)", re.DOTALL)
#: What helps first, by class of the receiver.
_FIRST = {
    "K": "running the thread again sends it with the same key, and settles it",
    "L": "running the thread again asks the receiver, which may settle it",
    "N": "look at the receiver for the key; only a person can settle it",
}


def one_line(text: str) -> str:
    """Text that moves no cursor and hides nothing: what is not printable is escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def place(position: str, effect: str) -> str:
    """A stored position as people say it; a call that is the first of its task is not counted."""
    found = _POSITION.fullmatch(position)
    if found is None:
        return position
    where, step, task, call = found.groups()
    if not task:  # a business operation has no place in any graph
        return f"operation {call!r} of effect {effect!r}"
    return f"{where}, step {step}" + ("" if call == "0" else f", call {call}")


def columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """One line for each row, two spaces between its cells; no cell is torn or cut off.

    A terminal that is too narrow wraps the lines itself: what is copied from it, or read by
    another program, stays whole.
    """
    cells = [[one_line(cell) for cell in row] for row in (names, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in cells
    )


def counted(number: int, noun: str) -> str:
    """A number of things, in words: ``1 thread``, ``2 threads``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def plain(value: Any) -> Any:
    """A value as JSON can hold it; what JSON has no form for is shown as Python shows it."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(part) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    return repr(value)


def doubt_document(item: InDoubt | EffectRecord) -> dict[str, Any]:
    """An item as a part of a JSON document."""
    document: dict[str, Any] = plain(item)
    return document


def doubts_table(items: Sequence[InDoubt]) -> str:
    """The queue as a table."""
    rows = []
    for item in items:
        risk = f"{item.risk}, OVERDUE" if item.overdue else item.risk
        age = "?" if item.opened_at is None else _span(item.age_s)
        name = f"{item.effect} ({item.receiver})" if item.effect else "?"
        rows.append((risk, age, name, item.state, repr(item.thread), item.key, item.slot[:16]))
    return columns(("risk", "age", "effect", "state", "thread", "key", "slot"), rows)


def records_table(thread: str, records: Sequence[EffectRecord]) -> str:
    """The history of a thread's effects as a table, newest first."""
    if not records:
        return f"thread {thread!r} has no effects"
    rows = [
        (
            str(one.seq),
            f"{one.at:%Y-%m-%d %H:%M:%S}",
            _happened(one),
            f"{one.effect} ({one.receiver})",
            str(one.attempt),
            "lookup" if one.event == "asked" else one.source,
            one.why or one.error or "",
            one.slot[:16],
        )
        for one in records
    ]
    names = ("seq", "when (UTC)", "what", "effect", "attempt", "by", "why", "slot")
    return columns(names, rows)


def _happened(one: EffectRecord) -> str:
    """What it became, or what happened while it stayed as it was."""
    if one.event == "asked":
        return f"asked: {one.answer}"
    if one.event == "conflicted":
        return f"conflict: {', '.join(one.differs)}" if one.differs else "conflict"
    if one.event == "recorded":
        return "read"
    return "noted" if one.event == "noted" else one.state


def shown_doubt(item: InDoubt) -> str:
    """Everything that is known of a doubt, for whoever decides about it."""
    lines = [f"thread {item.thread!r}: {item.effect or 'an effect'} is {item.state}"]
    lines.append(f"  why        {item.reason}")
    if item.effect:
        opened = "" if item.opened_at is None else f"{item.opened_at:%Y-%m-%d %H:%M:%S} UTC, "
        lines += [
            f"  position   {place(item.position, item.effect)}, attempt {item.attempt}",
            f"  opened     {opened}{_span(item.age_s)} ago",
            f"  risk       {item.risk}{_deadline(item)}",
            f"  key        {item.key}   (look for it at the receiver)",
            f"  arguments  {_value(item, 'arguments')}",
            f"  receipt    {_value(item, 'receipt')}",
            f"  lookup     {_value(item, 'evidence')}",
            *_of_some(item),
            f"  last error {item.error or 'none was recorded'}",
            f"  class      {item.receiver}: {_FIRST.get(item.receiver, 'unknown')}",
        ]
    if item.slot:
        lines.append(f"  slot       {item.slot}")
    return "\n".join(map(one_line, lines))


def _of_some(item: InDoubt) -> list[str]:
    """What only some doubts have."""
    lines = []
    if item.conflict is not None or "conflict" in item.unshown:
        lines.append(f"  proposed   {_proposed(item)}   (by a later call)")
    if item.operation:
        lines.append(f"  operation  {item.operation!r}, called by thread {item.caller!r}")
    return lines


def _proposed(item: InDoubt) -> str:
    """The arguments of a later call; its fingerprint tells a person nothing."""
    if "conflict" in item.unshown or not isinstance(item.conflict, Mapping):
        return _value(item, "conflict")
    return _shortened(item.conflict.get("arguments"))


def _value(item: InDoubt, name: str) -> str:
    if name in item.unshown:
        return "is stored, but of a type that cannot be loaded here (see allowed_types=)"
    return _shortened(getattr(item, name))


def _shortened(value: Any) -> str:
    if value is None:
        return "none"
    text = repr(plain(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"


def _deadline(item: InDoubt) -> str:
    if item.deadline is None:
        return ""
    when = f"{item.deadline:%Y-%m-%d %H:%M:%S} UTC"
    return f", OVERDUE since {when}" if item.overdue else f", to be settled by {when}"


def _span(seconds: float) -> str:
    """A time span, rounded down to seconds."""
    return str(timedelta(seconds=int(seconds)))
