"""Every bit of every stored column is promised something; a seeded share of them is turned here.

``make campaign-tamper`` turns all of them.
"""

from __future__ import annotations

import hmac
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.tamper.campaign import Campaign
from tests.tamper.conftest import backends, finished
from tests.tamper.content import COLUMNS
from tests.tamper.edits import PROMISES, Cell, Flip, Place, Promise, flips, sampled
from tests.tamper.world import World, opened

from surefoot import SurefootSaver
from surefoot.rules import envelope

pytestmark = pytest.mark.optimized

#: Bits turned per test. Together these tests turn more than 20,000; under ``-O`` a tenth of it.
SHARE = 3_600 if __debug__ else 360
PARTS = [
    *(("sqlite", part) for part in range(5)),
    *(pytest.param("postgres", part, marks=pytest.mark.postgres) for part in (5, 6)),
]


@pytest.mark.parametrize(("prepared", "part"), PARTS, indirect=["prepared"])
def test_case_43_a_bit_of_a_column_turned(campaign: Campaign, part: int) -> None:
    count = SHARE // 2 if campaign.content.postgres else SHARE
    campaign.run(sampled(campaign.cells, count, seed=part))
    report = finished(campaign)
    assert report.edits.total() + report.blocked == count
    assert report.edits.total() > count * 0.98
    for name, count in report.edits.items():
        if name.endswith(Promise.DETECTED.value):
            assert report.refused[name] == count, name
    assert report.controls >= count // 25


@backends
def test_case_43_every_bit_of_a_head_and_of_its_keys(campaign: Campaign) -> None:
    """One frame in full: nothing in it is a blind spot."""
    thread = ("acme", "reborn")
    mine = [c for c in campaign.cells if c.thread == thread and c.table == "surefoot_frame"]
    wanted = [c for c in mine if c.column not in ("body", "checkpoint_hash")]
    campaign.run(flips(wanted))
    report = finished(campaign)
    bits = sum(cell.bits for cell in wanted)
    assert bits > 1_000
    assert report.edits.total() + report.blocked == bits == report.refused.total() + report.blocked


@backends
def test_every_column_has_a_promise(world: World) -> None:
    """A new column comes with a promise, or this fails."""
    content = world.stores.content()
    for table, columns in COLUMNS.items():
        row = content.execute(f"SELECT * FROM {table} LIMIT 1")
        assert tuple(d[0] for d in row.description) == columns
        assert tuple(PROMISES[table]) == columns
    if content.postgres:
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    else:
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
    assert {name for (name,) in content.execute(tables).fetchall()} == set(COLUMNS)
    content.close()


@backends
def test_the_stores_hold_every_kind_of_row(campaign: Campaign) -> None:
    """Cells of every column of every table, needed ones and some beyond the head."""
    columns = {(c.table, c.column) for c in campaign.cells if c.place is Place.NEEDED}
    assert columns == {(t, column) for t, names in COLUMNS.items() for column in names}
    assert any(c.place is Place.BEYOND for c in campaign.cells)
    assert sum(c.bits for c in campaign.cells) > 500_000
    assert len(campaign.world.threads()) == 14
    assert campaign.close().problems == []


def test_a_flip_turns_one_bit() -> None:
    for value, bits in ((5, 64), (-1, 64), (7, 32), (b"ab", 16), ("ab", 16)):
        cell = Cell("surefoot_frame", (), "head", value, None, Place.NEEDED, bits)
        turned = [flip.value for flip in flips([cell])]
        assert len(set(turned)) == bits
        assert value not in turned
        assert all(type(now) is type(value) for now in turned)
        if isinstance(value, int):
            assert all(-(2 ** (bits - 1)) <= now < 2 ** (bits - 1) for now in turned)
            assert all(((now ^ value) & (2**bits - 1)).bit_count() == 1 for now in turned)
    assert [f.bit for f in flips([cell, cell], 15, 18)] == [15, 0, 1]


# --- the bars can be missed ---------------------------------------------------------------------


def test_the_campaign_notices_what_is_served_changed(
    worlds: Callable[[str], World], monkeypatch: pytest.MonkeyPatch, memory: Path
) -> None:
    """With the seal of frames unchecked, turned bits are served, and decoded: both are noticed."""
    stores = worlds("sqlite").stores.copy(Path(tempfile.mkdtemp(dir=memory)))
    world = opened(stores)
    world.snapshots = worlds("sqlite").snapshots
    with world.wire.set():
        campaign = Campaign(world, seed=1, every=1)
        unchecked = SimpleNamespace(compare_digest=lambda *_: True, digest=hmac.digest)
        monkeypatch.setattr(envelope, "hmac", unchecked)
        bodies = [c for c in campaign.cells if c.column == "body" and c.table == "surefoot_frame"]
        campaign.run(Flip(cell, 8 * (len(cell.value) // 2)) for cell in bodies)
        monkeypatch.undo()
        report = campaign.close()
    world.close()
    assert any("were not verified" in problem for problem in report.problems)
    assert any("not detected" in problem for problem in report.problems)
    assert world.wire.tripped


def test_a_saver_is_what_is_read_through(worlds: Callable[[str], World]) -> None:
    assert {type(s) for s in worlds("sqlite").savers.values()} == {SurefootSaver}
