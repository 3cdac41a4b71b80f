"""File systems of a few megabytes, for what a full disk does."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

#: Whom a private PostgreSQL runs as when the tests run as an administrator.
_NOBODY = 65_534


class SmallDisk:
    """A mounted file system that can be filled and emptied."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._ballast = place / "ballast"
        self.block = os.statvfs(place).f_frsize

    @property
    def free(self) -> int:
        """Blocks that are left."""
        return os.statvfs(self.place).f_bavail

    def fill(self, blocks: int) -> None:
        """Leaves this many blocks.

        Raises:
            RuntimeError: It did not come to that.
        """
        with self._ballast.open("wb") as filled:
            os.posix_fallocate(filled.fileno(), 0, (self.free - blocks) * self.block)
        if self.free != blocks:
            raise RuntimeError(f"{self.free} blocks are free instead of {blocks}")

    def empty(self) -> None:
        """Frees everything again."""
        self._ballast.unlink()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter too; pytest shuts its own to them, again and again."""
    folder = Path(tempfile.mkdtemp(prefix="surefoot-open-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def small_disk(open_folder: Path) -> Iterator[Callable[[int], SmallDisk]]:
    """Mounts a file system of so many megabytes; only an administrator may."""
    mounted: list[Path] = []

    def mount(megabytes: int) -> SmallDisk:
        place = open_folder / f"disk-{len(mounted)}"
        place.mkdir()
        options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "surefoot-test", str(place)]
        done = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"no file system may be mounted: {done.stderr.strip()}")
        mounted.append(place)
        if os.geteuid() == 0:
            os.chown(place, _NOBODY, -1)
        return SmallDisk(place)

    yield mount
    for place in mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
