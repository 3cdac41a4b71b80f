"""What reads before it writes meets the same edits: nothing runs, lands or stays behind."""

from __future__ import annotations

import pytest
from tests.tamper.content import COLUMNS
from tests.tamper.resuming import (
    PLAYS,
    Play,
    RowEdit,
    Stage,
    played_on_one_copy,
    played_with_edits,
    row_edits,
)

pytestmark = pytest.mark.optimized


@pytest.mark.parametrize("prepared", ["sqlite"], indirect=True)
@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.name)
def test_case_43_met_by_what_writes(stage: Stage, play: Play) -> None:
    """A refusal sends nothing and decodes nothing unverified; after the repair all is done."""
    edits = row_edits(stage.rows, ("acme", play.thread), seed=1, count=28)
    tally = played_with_edits(stage, play, edits)
    assert tally.problems == []
    assert tally.edits == 28
    assert tally.refused >= 3
    assert stage.watched > 28
    assert stage.tripped == []


ON_POSTGRES = [p for p in PLAYS if p.name in ("aresume", "retry", "copy_thread", "prune")]


@pytest.mark.postgres
@pytest.mark.parametrize("prepared", ["postgres"], indirect=True)
@pytest.mark.parametrize("play", ON_POSTGRES, ids=lambda play: play.name)
def test_case_43_met_by_what_writes_on_postgres(stage: Stage, play: Play) -> None:
    edits = row_edits(stage.rows, ("acme", play.thread), seed=1, count=12)
    frames = [edit for edit in edits if edit.table == "surefoot_frame"]
    newest = sorted(frames, key=lambda edit: -edit.row[1])
    tally = played_on_one_copy(stage, play, newest)
    assert tally.problems == []
    assert tally.refused >= 3
    assert stage.watched > 0
    assert stage.tripped == []


@pytest.mark.parametrize("prepared", ["sqlite"], indirect=True)
@pytest.mark.parametrize("play", [p for p in PLAYS if p.runs], ids=lambda play: play.name)
def test_the_gate_columns_never_change_an_outcome(stage: Stage, play: Play) -> None:
    """Whoever edits where writers expect the head gets a refusal or the honest outcome."""
    (row,) = [r for r in stage.rows["surefoot_thread"] if r[2].decode() == play.thread]
    edits: list[RowEdit] = []
    for column in ("incarnation", "head_seq", "head_epoch", "head_digest", "updated_us"):
        at = COLUMNS["surefoot_thread"].index(column)
        others = [0, row[at] + 1, row[at] ^ 2**40] if isinstance(row[at], int) else [bytes(32), b""]
        edits += [RowEdit("surefoot_thread", row, (*row[:at], v, *row[at + 1 :])) for v in others]
    tally = played_with_edits(stage, play, edits)
    assert tally.problems == []
    assert tally.edits == 14
    assert stage.tripped == []
