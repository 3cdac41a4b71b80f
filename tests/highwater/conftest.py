"""A database of its own for every test, and a private cluster for tests that stop servers."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.postgres import Cluster, fresh_database


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A private server that a test may restart and reconfigure."""
    cluster = Cluster()
    yield cluster
    cluster.remove()


@pytest.fixture
def postgres_url() -> str:
    return fresh_database()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user may look into; pytest's own is closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="surefoot-highwater-"))
    folder.chmod(0o755)
    yield folder
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.fixture
def unprivileged(open_folder: Path) -> Iterator[Callable[[], None]]:
    """Gives up root until the end of the test, because permissions do not bind root."""
    before = os.geteuid()

    def drop() -> None:
        if before == 0:
            for path in (open_folder, *open_folder.iterdir()):
                os.chown(path, 65_534, 65_534)
            os.seteuid(65_534)

    yield drop
    if os.geteuid() != before:
        os.seteuid(before)
