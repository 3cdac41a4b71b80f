"""Shows two runs of the same graph side by side; draws only, runs nothing.

The driver fills a ``Comparison`` with what it saw; ``judge`` says what it means, ``render`` draws
it and ``as_json`` writes it for machines. Nothing here reads a clock, a process or a store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any, Literal

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

Tone = Literal["plain", "kill", "good", "bad"]

SIDE_BY_SIDE_COLUMNS = 84
STYLES: dict[Tone, str] = {"plain": "", "kill": "bold magenta", "good": "green", "bad": "bold red"}

EXIT_SHOWN = 0
EXIT_WRONG = 1
EXIT_INCONCLUSIVE = 2


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened in a run, in the words that the reader gets to see."""

    actor: str
    what: str
    at_ms: int
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Run:
    """One graph, one saver, one kill and one resume.

    ``charges`` is what the payment service's audit says, not what the run believes; ``killed``
    is whether the kill landed where it was meant; ``final`` is the resumed run's answer, ``None``
    if it gave none; ``notes`` are further facts worth one line each.
    """

    saver: str
    events: tuple[Event, ...]
    charges: int
    killed: bool
    final: str | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same payment through the stock saver and through ours."""

    invoice: str
    amount: str
    kill_point: str
    stock: Run
    surefoot: Run


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line, and the exit code that says the same."""

    exit_code: int
    line: str


def judge(receiver: str, comparison: Comparison) -> Verdict:
    """Decides what the two runs against one receiver show.

    Args:
        receiver: ``idempotent``, ``lookup`` or ``neither``. The last can neither deduplicate nor
            be asked, so ours has to stop and ask a person instead of answering.
        comparison: The two runs.

    Returns:
        ``EXIT_WRONG`` if ours did not end with one charge and an answer (or, for ``neither``,
        one charge and a stop); ``EXIT_INCONCLUSIVE`` if a kill missed, or if the stock saver did
        not charge twice, so that nothing was shown; otherwise ``EXIT_SHOWN``.
    """
    stock, ours = comparison.stock, comparison.surefoot
    missed = [run.saver for run in (stock, ours) if not run.killed]
    if missed:
        line = f"Inconclusive: the kill did not land where it was meant ({', '.join(missed)})."
        return Verdict(EXIT_INCONCLUSIVE, line)
    if ours.charges != 1:
        line = f"Wrong: {ours.saver} charged {_times(ours.charges)}, expected once."
        return Verdict(EXIT_WRONG, line)
    stops = receiver == "neither"
    if stops and (ours.final is not None or not ours.notes):
        return Verdict(EXIT_WRONG, f"Wrong: {ours.saver} had to stop in doubt and did not.")
    if not stops and ours.final is None:
        line = f"Wrong: {ours.saver} charged once, but the resumed run gave no answer."
        return Verdict(EXIT_WRONG, line)
    if stock.charges < 2:
        line = f"Inconclusive: {stock.saver} charged {_times(stock.charges)}; nothing to compare."
        return Verdict(EXIT_INCONCLUSIVE, line)
    line = (
        f"Same graph, same kill: {stock.saver} charged {_times(stock.charges)}, "
        f"{ours.saver} charged once."
    )
    return Verdict(EXIT_SHOWN, line)


def judge_all(runs: Mapping[str, Comparison]) -> Verdict:
    """The verdict over all receivers: the first that is not as claimed, otherwise that all are.

    Raises:
        ValueError: There is nothing to judge.
    """
    if not runs:
        raise ValueError("no runs: nothing was shown")
    verdicts = [judge(receiver, comparison) for receiver, comparison in runs.items()]
    for bad in (EXIT_WRONG, EXIT_INCONCLUSIVE):
        for verdict in verdicts:
            if verdict.exit_code == bad:
                return verdict
    return verdicts[0]


def render_all(runs: Mapping[str, Comparison], console: Console | None = None) -> Verdict:
    """Draws one receiver in full, the others as a table, and the verdict.

    Returns:
        The verdict, for the exit code.
    """
    console = console or console_for(None)
    verdict = judge_all(runs)
    shown = runs.get("lookup") or next(iter(runs.values()))
    head = f"Invoice {shown.invoice}, {shown.amount}. SIGKILL {shown.kill_point}."
    console.print(Text(head, style="bold"))
    pair = (shown.stock, shown.surefoot)
    beside = console.width >= SIDE_BY_SIDE_COLUMNS
    for group in [pair] if beside else [(run,) for run in pair]:
        console.print(_table(group))
    console.print(_receivers(runs))
    style = "bold green" if verdict.exit_code == EXIT_SHOWN else "bold red"
    console.print(Text(verdict.line, style=style), soft_wrap=True)
    return verdict


def json_of(runs: Mapping[str, Comparison]) -> str:
    """The same facts and the verdicts, as one JSON object; its keys are sorted."""
    whole: dict[str, Any] = {
        "receivers": {
            name: {**asdict(comparison), "verdict": asdict(judge(name, comparison))}
            for name, comparison in runs.items()
        },
        "verdict": asdict(judge_all(runs)),
    }
    return json.dumps(whole, indent=2, sort_keys=True)


def console_for(stream: IO[str] | None) -> Console:
    """A console that colours only on a terminal (``None``: stdout) and then heeds NO_COLOR."""
    console = Console(file=stream, highlight=False)
    if console.file.isatty():
        return console
    return Console(file=stream, highlight=False, force_terminal=False, color_system=None)


def _table(runs: Sequence[Run]) -> Table:
    """One column a run: the events above, what came out of them below."""
    table = Table(expand=True)
    for run in runs:
        table.add_column(Text(run.saver), ratio=1)
    table.add_row(*map(_events, runs), end_section=True)
    table.add_row(*map(_outcome, runs))
    return table


_RECEIVERS = {
    "idempotent": "deduplicates on a key",
    "lookup": "can be asked",
    "neither": "neither",
}


def _receivers(runs: Mapping[str, Comparison]) -> Table:
    """One row a receiver: what each saver's run came to."""
    table = Table(title="charges by what the service can do", title_justify="left")
    table.add_column("the service")
    first = next(iter(runs.values()))
    for run in (first.stock, first.surefoot):
        table.add_column(run.saver)
    for name, comparison in runs.items():
        cells = [_cell(run) for run in (comparison.stock, comparison.surefoot)]
        table.add_row(Text(_RECEIVERS.get(name, name)), *cells)
    return table


def _cell(run: Run) -> Text:
    what = f"answer: {run.final}" if run.final is not None else "; ".join(run.notes) or "no answer"
    text = Text(
        f"charged {_times(run.charges)}", style=STYLES["good" if run.charges == 1 else "bad"]
    )
    return text.append(f"  ({what})", style="not bold default")


def _events(run: Run) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for event in run.events:
        stamp = Text(f"{event.at_ms / 1000:.1f}s")
        grid.add_row(stamp, Text(event.actor), Text(event.what, style=STYLES[event.tone]))
    return grid


def _outcome(run: Run) -> RenderableType:
    good = run.charges == 1 and run.final is not None
    charged = Text(f"charged {_times(run.charges)}", style=STYLES["good" if good else "bad"])
    return Group(*map(Text, run.notes), Text(f"answer: {run.final or 'none'}"), charged)


def _times(count: int) -> str:
    return {0: "not at all", 1: "once", 2: "twice"}.get(count, f"{count} times")
