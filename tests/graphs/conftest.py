"""Savers for whole graphs: ours on SQLite, or on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.postgres import fresh_database

from surefoot import Keyring, SurefootSaver

Opener = Callable[..., SurefootSaver]


class Stores:
    """Two stores and a key; every `open` gives another saver on the same ones."""

    def __init__(self, conn: str, highwater: str) -> None:
        self.conn = conn
        self.highwater = highwater
        self.keys = Keyring.generate()
        self._open = ExitStack()

    def open(self, **settings: Any) -> SurefootSaver:
        """Another saver on these stores."""
        saver = SurefootSaver(self.conn, highwater=self.highwater, keys=self.keys, **settings)
        self._open.callback(saver.close)
        saver.setup()
        return saver

    def close(self) -> None:
        """Closes all savers."""
        self._open.close()


def _stores(kind: str, folder: Path) -> Stores:
    if kind == "postgres":
        return Stores(fresh_database(), fresh_database())
    return Stores(f"sqlite:///{folder}/content.db", f"sqlite:///{folder}/marks.db")


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    """Empty stores on SQLite."""
    made = _stores("sqlite", tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def either_stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    """Empty stores on SQLite, then on PostgreSQL."""
    made = _stores(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def postgres_stores() -> Iterator[Stores]:
    """Stores on PostgreSQL, shared by a module: use threads or tenants of your own."""
    made = Stores(fresh_database(), fresh_database())
    yield made
    made.close()
