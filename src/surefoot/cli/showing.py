"""How effects are shown, to people and as documents; nothing stored reaches a terminal raw."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from surefoot.flows.doubts import EffectRecord, InDoubt

__all__ = [
    "doubt_document",
    "doubts_table",
    "one_line",
    "plain",
    "records_table",
    "shown_doubt",
]

_WIDTH = 150
_LONGEST = 2_000
#: What helps first, by class of the receiver.
_FIRST = {
    "K": "running the thread again sends it with the same key, and settles it",
    "L": "running the thread again asks the receiver, which may settle it",
    "N": "look at the receiver for the key; only a person can settle it",
}


def one_line(text: str) -> str:
    """Text that moves no cursor and hides nothing: what is not printable is escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


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
    table = Table("risk", "age", "effect", "state", "thread", "key", "slot", box=None)
    for item in items:
        risk = f"{item.risk}, OVERDUE" if item.overdue else item.risk
        age = "?" if item.opened_at is None else _span(item.age_s)
        name = f"{item.effect} ({item.receiver})" if item.effect else "?"
        cells = (risk, age, name, item.state, repr(item.thread), item.key, item.slot[:16])
        table.add_row(*(Text(one_line(cell), overflow="fold") for cell in cells))
    return _rendered(table)


def records_table(thread: str, records: Sequence[EffectRecord]) -> str:
    """The history of a thread's effects as a table, newest first."""
    if not records:
        return f"thread {thread!r} has no effects"
    table = Table("record", "when", "effect", "state", "attempt", "by", "why", "slot", box=None)
    for one in records:
        cells = (
            str(one.seq),
            f"{one.at:%Y-%m-%d %H:%M:%S}",
            f"{one.effect} ({one.receiver})",
            one.state,
            str(one.attempt),
            one.source,
            one.error or "",
            one.slot[:16],
        )
        table.add_row(*(Text(one_line(cell), overflow="fold") for cell in cells))
    return _rendered(table)


def shown_doubt(item: InDoubt) -> str:
    """Everything that is known of a doubt, for whoever decides about it."""
    lines = [f"thread {item.thread!r}: {item.effect or 'an effect'} is {item.state}"]
    lines.append(f"  why        {item.reason}")
    if item.effect:
        opened = "" if item.opened_at is None else f"{item.opened_at:%Y-%m-%d %H:%M:%S} UTC, "
        lines += [
            f"  position   {item.position}, attempt {item.attempt}",
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
        lines.append(f"  proposed   {_value(item, 'conflict')}   (by a later call)")
    if item.operation:
        lines.append(f"  operation  {item.operation!r}, called by thread {item.caller!r}")
    return lines


def _value(item: InDoubt, name: str) -> str:
    if name in item.unshown:
        return "is stored, but of a type that cannot be loaded here (see allowed_types=)"
    value = getattr(item, name)
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


def _rendered(table: Table) -> str:
    """The table as text; wide enough that keys stay whole, also in a pipe."""
    out = io.StringIO()
    console = Console(file=out, width=max(Console().width, _WIDTH), color_system=None)
    console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
