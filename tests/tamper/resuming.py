"""Edits met by what also writes: a run that resumes, a copy, a prune, a deletion, an update.

Every play has both stores to itself: a copy of the prepared ones. It edits, plays, undoes the
edit, and plays again: the second play must do what an untouched one does.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langgraph.types import Command
from tests.tamper.content import Content, Rows
from tests.tamper.reading import Refusal
from tests.tamper.world import Desk, Stores, World, at, desk_graph, opened

from surefoot import SurefootSaver
from surefoot.errors import Refused

__all__ = [
    "PLAYS",
    "Outcome",
    "Play",
    "RowEdit",
    "Stage",
    "Tally",
    "played_on_one_copy",
    "played_with_edits",
    "row_edits",
]


@dataclass
class Outcome:
    """What came of a play.

    Attributes:
        answer: What it gave, or how it was refused.
        landed: What its receiver has counted.
        nodes: How many nodes it ran.
        after: What is listed of the threads it was about.
    """

    answer: Any
    landed: dict[str, int]
    nodes: int
    after: list[Any]

    def differs(self, honest: Outcome) -> list[str]:
        """What is not as it is without an edit; a list that is refused is none of another kind."""
        mine, theirs = vars(self), vars(honest)
        if any(isinstance(shown, Refusal) for shown in self.after):
            mine, theirs = ({**of, "after": None} for of in (mine, theirs))
        return [
            f"{name}: {_first_difference(mine[name], wanted)}"
            for name, wanted in theirs.items()
            if mine[name] != wanted
        ]

    @property
    def refused(self) -> bool:
        return isinstance(self.answer, Refusal)


@dataclass(frozen=True)
class Play:
    """An operation that reads before it writes.

    Attributes:
        name: For test ids.
        thread: Whose rows it rests on.
        act: Does it.
        shows: Threads that are listed afterwards.
        makes: A thread that must not be there when it was refused.
        runs: A graph runs: in which order its subgraph is stored, and with which checkpoint its
            writes ride, differs from play to play.
    """

    name: str
    thread: str
    act: Callable[[SurefootSaver, Desk], Any]
    shows: tuple[str, ...]
    makes: str | None = None
    runs: bool = False

    def left_by_refusal(self, world: World) -> list[str]:
        """What a refused play has left behind and should not have."""
        if self.makes is None:
            return []
        world.wire.in_order(None)
        left = [*world.savers["acme"].list(at(self.makes, namespace=None))]
        return [f"refused, but {len(left)} checkpoints of {self.makes} are served"] if left else []


@dataclass
class Tally:
    """What came of the edits of a play."""

    edits: int = 0
    refused: int = 0
    problems: list[str] = field(default_factory=list)


def _resume(saver: SurefootSaver, desk: Desk) -> Any:
    return _comparable(desk_graph(saver, desk).invoke(Command(resume="yes"), at("paused")))


def _aresume(saver: SurefootSaver, desk: Desk) -> Any:
    graph = desk_graph(saver, desk)
    return _comparable(asyncio.run(graph.ainvoke(Command(resume="yes"), at("paused"))))


def _retry(saver: SurefootSaver, desk: Desk) -> Any:
    """After the crash: goes on to the question."""
    return _comparable(desk_graph(saver, desk).invoke(None, at("crashed")))


def _update(saver: SurefootSaver, desk: Desk) -> Any:
    desk_graph(saver, desk).update_state(at("finished"), {"notes": ["updated"]}, as_node="think")
    return desk_graph(saver, desk).get_state(at("finished")).values


def _comparable(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {k: v for k, v in answer.items() if k != "__interrupt__"}
    return answer


PLAYS: Sequence[Play] = (
    Play("resume", "paused", _resume, ("paused",), runs=True),
    Play("aresume", "paused", _aresume, ("paused",), runs=True),
    Play("retry", "crashed", _retry, ("crashed",), runs=True),
    Play("update_state", "finished", _update, ("finished",)),
    Play(
        "copy_thread",
        "values",
        lambda s, _: s.copy_thread("values", "target"),
        ("target",),
        "target",
    ),
    Play(
        "copy_thread delta",
        "delta",
        lambda s, _: s.copy_thread("delta", "target"),
        ("target",),
        "target",
    ),
    Play("prune", "finished", lambda s, _: s.prune(["finished"]), ("finished",)),
    Play("prune delta", "delta", lambda s, _: s.prune(["delta"]), ("delta",)),
    Play("delete_for_runs", "values", lambda s, _: s.delete_for_runs(["run-values"]), ("values",)),
)


@dataclass
class Stage:
    """Copies of prepared stores, on which plays are played.

    Attributes:
        world: The prepared stores, closed; never written to.
        rows: Their content.
        watched: How many decodes were judged.
        tripped: Decodes of bytes that nobody had verified.
        folder: Where copies go.
    """

    world: World
    rows: Rows
    folder: Path
    watched: int = 0
    tripped: list[str] = field(default_factory=list)

    @contextmanager
    def copied(self) -> Iterator[World]:
        """The two stores once more, with a saver per tenant."""
        stores: Stores = self.world.stores.copy(Path(tempfile.mkdtemp(dir=self.folder)))
        world = opened(stores)
        world.wire.known |= self.world.wire.known
        try:
            with world.wire.set():
                yield world
        finally:
            world.close()
            stores.drop()
            self.watched += world.wire.watched
            self.tripped += world.wire.tripped

    def played(self, world: World, play: Play, desk: Desk) -> Outcome:
        """Plays once, on a copy as it is now."""
        saver = world.savers["acme"]
        world.wire.in_order(None)
        try:
            answer = play.act(saver, desk)
        except Refused as error:
            answer = Refusal(error.code, tuple(error.fields.get("rules", ())))
        except Exception as error:
            answer = f"raised {error!r}"
        after: list[Any] = []
        for thread in play.shows:
            try:
                listed = [_shown(t) for t in saver.list(at(thread, namespace=None))]
                after.append(sorted(str(t[:-1]) for t in listed) if play.runs else listed)
            except Refused as error:
                after.append(Refusal(error.code))
        return Outcome(answer, dict(desk.landed), desk.nodes, after)

    def desk(self, play: Play) -> Desk:
        """The receiver as it was when the stores were prepared."""
        known = self.world.desks.get(play.thread)
        return Desk() if known is None else known.clone()

    def honest(self, play: Play) -> Outcome:
        """What an untouched play does."""
        with self.copied() as world:
            return self.played(world, play, self.desk(play))


@dataclass(frozen=True)
class RowEdit:
    """One row that is taken away, or replaced by a changed one, and can be given back.

    Attributes:
        table: Its table.
        row: As it is.
        now: As it will be; None: gone.
    """

    table: str
    row: tuple[Any, ...]
    now: tuple[Any, ...] | None

    def __str__(self) -> str:
        names = [cell if isinstance(cell, int) else cell.hex()[:8] for cell in self.row[:3]]
        return f"{self.table} {names} {'gone' if self.now is None else 'changed'}"

    def do(self, content: Content) -> None:
        """Makes the edit."""
        content.replace(self.table, self.row, self.now)

    def undo(self, content: Content) -> None:
        """Gives the row back."""
        content.replace(self.table, self.now, self.row)


def row_edits(rows: Rows, thread: tuple[str, str], seed: int, count: int) -> list[RowEdit]:
    """Seeded edits of a thread's rows: gone, a bit turned, the body of another row."""
    (key,) = [
        row[0] for row in rows["surefoot_thread"] if (row[1].decode(), row[2].decode()) == thread
    ]
    chosen = random.Random(seed)
    out: list[RowEdit] = []
    mine = {
        table: [row for row in rows[table] if row[0] == key]
        for table in ("surefoot_frame", "surefoot_value", "surefoot_chunk")
    }
    every = [(table, row) for table, found in mine.items() for row in found]
    while len(out) < count:
        table, row = every[len(out)] if len(out) < len(every) else chosen.choice(every)
        other = chosen.choice(rows[table])
        raw = bytearray(row[-1])
        raw[chosen.randrange(len(raw))] ^= 1 << chosen.randrange(8)
        head = bytearray(row[-2]) if table == "surefoot_frame" else None
        kinds: list[tuple[Any, ...] | None] = [None, (*row[:-1], bytes(raw))]
        if head is not None:
            head[chosen.randrange(len(head))] ^= 1 << chosen.randrange(8)
            kinds.append((*row[:-2], bytes(head), row[-1]))
        if other[-1] != row[-1]:
            kinds.append((*row[:-1], other[-1]))
        out.append(RowEdit(table, row, chosen.choice(kinds)))
    return out


def played_on_one_copy(stage: Stage, play: Play, edits: Sequence[RowEdit]) -> Tally:
    """Edits, plays and repairs again and again on one copy, as long as each play is refused."""
    tally, honest = Tally(), stage.honest(play)
    before = dict(stage.desk(play).landed)
    with stage.copied() as world:
        content, desk = world.stores.content(), stage.desk(play)
        for edit in edits:
            edit.do(content)
            outcome = stage.played(world, play, desk)
            tally.edits += 1
            if not outcome.refused:
                break
            tally.refused += 1
            if outcome.landed != before:
                tally.problems.append(f"{play.name}: {edit}: {outcome.landed} landed")
            tally.problems += play.left_by_refusal(world)
            edit.undo(content)
        else:
            outcome = stage.played(world, play, desk)
        content.close()
        outcome.nodes = honest.nodes
        tally.problems += [f"{play.name}: another {d}" for d in outcome.differs(honest)]
    tally.problems += stage.tripped
    return tally


def played_with_edits(stage: Stage, play: Play, edits: Sequence[RowEdit]) -> Tally:
    """Plays each edit on stores of its own, and judges."""
    tally, honest = Tally(), stage.honest(play)
    if honest.refused:
        raise AssertionError(f"{play.name} is refused untouched: {honest.answer}")
    before = dict(stage.desk(play).landed)
    for edit in edits:
        tripped = len(stage.tripped)
        with stage.copied() as world:
            content, desk = world.stores.content(), stage.desk(play)
            edit.do(content)
            outcome = stage.played(world, play, desk)
            where = f"{play.name}: {edit}"
            tally.edits += 1
            if not outcome.refused:
                tally.problems += [f"{where}: another {d}" for d in outcome.differs(honest)]
                content.close()
                continue
            tally.refused += 1
            if outcome.landed != before:
                tally.problems.append(f"{where}: refused, but {outcome.landed} landed")
            tally.problems += [f"{where}: {t}" for t in play.left_by_refusal(world)]
            edit.undo(content)
            content.close()
            again = stage.played(world, play, desk)
            again.nodes = honest.nodes  # what was refused in the middle of a run has run some
            tally.problems += [f"{where}: repaired, another {d}" for d in again.differs(honest)]
        tally.problems += [f"{where}: {text}" for text in stage.tripped[tripped:]]
    return tally


def _first_difference(one: Any, other: Any) -> str:
    """Where two nested lists part ways."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) == len(other):
            at = next(
                n for n, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]
            )
            return f"[{at}] {_first_difference(one[at], other[at])}"
        return (
            f"{len(one)} instead of {len(other)} of them: {str(one)[-600:]} | {str(other)[-600:]}"
        )
    return f"{str(one)[:300]} instead of {str(other)[:300]}"


def _shown(found: Any) -> Any:
    """A checkpoint without what is made anew at each play: ids, times, random versions."""
    return (
        found.config["configurable"]["checkpoint_ns"].split(":")[0],
        found.metadata.get("step"),
        found.metadata.get("source"),
        found.checkpoint["channel_values"].get("notes"),
        found.checkpoint["channel_values"].get("paid"),
        sorted(found.checkpoint["channel_versions"]),
        [(channel, str(type(value))) for _, channel, value in found.pending_writes],
    )
