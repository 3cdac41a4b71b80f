"""The prepared stores, made once per backend, and a campaign on them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.tamper.campaign import Campaign, Report
from tests.tamper.resuming import Stage
from tests.tamper.world import World, build, opened

BACKENDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
backends = pytest.mark.parametrize("prepared", BACKENDS, indirect=True)


@pytest.fixture(scope="session")
def memory() -> Iterator[Path]:
    """A folder in memory, where there is one: no test here takes the power away."""
    memory = Path("/dev/shm")
    parent = memory if os.access(memory, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="surefoot-tamper-", dir=parent))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def worlds(memory: Path) -> Callable[[str], World]:
    """Prepared stores by backend. They are closed, and stay as they are: take copies."""
    made: dict[str, World] = {}

    def world(backend: str) -> World:
        if backend not in made:
            folder = memory / backend
            folder.mkdir()
            made[backend] = build(backend, folder)
            made[backend].close()
        return made[backend]

    return world


@pytest.fixture
def prepared(request: pytest.FixtureRequest, worlds: Callable[[str], World]) -> World:
    """The closed stores of one backend; parametrise it with `backends`."""
    return worlds(request.param)


def _copied(prepared: World, memory: Path) -> World:
    """A copy of prepared stores, opened, with the same past."""
    copied = opened(prepared.stores.copy(Path(tempfile.mkdtemp(dir=memory))))
    copied.wire.known |= prepared.wire.known
    copied.desks, copied.snapshots = prepared.desks, prepared.snapshots
    return copied


@pytest.fixture(scope="session")
def copies() -> Iterator[dict[str, World]]:
    """By backend, the copy on which all campaigns of this session work: each undoes its edits."""
    made: dict[str, World] = {}
    yield made
    for world in made.values():
        world.close()
        world.stores.drop()


@pytest.fixture
def world(prepared: World, copies: dict[str, World], memory: Path) -> Iterator[World]:
    """The copy, with the tripwire set."""
    backend = prepared.stores.backend
    if backend not in copies:
        copies[backend] = _copied(prepared, memory)
    with copies[backend].wire.set():
        yield copies[backend]


@pytest.fixture
def campaign(world: World) -> Iterator[Campaign]:
    """A campaign on the copy; `finished` closes it."""
    made = Campaign(world, seed=1)
    yield made
    made.content.close()


@pytest.fixture
def loose_campaign(prepared: World, memory: Path) -> Iterator[Campaign]:
    """A campaign on a copy of its own, whose tables have lost their constraints and types."""
    world = _copied(prepared, memory)
    with world.wire.set():
        made = Campaign(world, seed=1)
        made.content.loosen()
        yield made
        made.content.close()
    world.close()
    world.stores.drop()


@pytest.fixture
def stage(prepared: World, memory: Path) -> Stage:
    """Plays on copies of the stores."""
    return Stage(prepared, prepared.snapshots[-1].rows, memory)


def finished(campaign: Campaign) -> Report:
    """Closes a campaign; nothing may have gone wrong, and something must have been tried."""
    report = campaign.close()
    if report.problems:
        shown = "\n".join(report.problems[:20])
        pytest.fail(f"{len(report.problems)} problems:\n{shown}", pytrace=False)
    if not (report.edits.total() and report.controls and report.watched):
        pytest.fail(f"nothing was tried: {report.shown()}", pytrace=False)
    return report
