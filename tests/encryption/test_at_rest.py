"""Nothing that users make stands in the stores, and everything behaves as without encryption."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.encryption.conftest import everything_in
from tests.encryption.planted import PLACES, Planted
from tests.graphs.playing import differences
from tests.saver.conftest import Backend

from surefoot import Keyring, ResumePolicy

SOON = ResumePolicy(settling_ms=0)


def found_in(backend: Backend, words: dict[str, str]) -> set[str]:
    """Places whose secret stands anywhere in the stores."""
    pieces = everything_in(backend)
    return {place for place in PLACES if any(words[place].encode() in piece for piece in pieces)}


def played(backend: Backend, words: dict[str, str] | None = None, **settings: Any) -> Planted:
    """Stores with everything in them; the saver is closed, so that nothing is only in memory."""
    saver = backend.open_saver(policy=SOON, **settings)
    world = Planted(saver, words)
    world.play()
    return world


@pytest.mark.optimized
@pytest.mark.parametrize("own_ring", [False, True])
def test_a_dump_holds_no_secret_and_its_plain_twin_holds_all(
    new_backend: Callable[[], Backend], own_ring: bool
) -> None:
    """The twin proves that the search finds what is there, and that nothing else differs."""
    open_, closed = new_backend(), new_backend()
    twin = played(open_, encryption=False)
    assert found_in(open_, twin.words) == set(PLACES)
    ring: Any = Keyring.generate() if own_ring else True
    world = played(closed, twin.words, encryption=ring)
    assert found_in(closed, twin.words) == set()
    assert len(world.log) == len(twin.log) > 40
    assert "\n".join(differences(twin.log, world.log)) == ""
    world.saver.close()
    assert found_in(closed, twin.words) == set()


def test_ids_of_threads_and_tenants_stay_readable(backend: Backend) -> None:
    """They are how rows are found; the documents say so."""
    saver = backend.open_saver(encryption=True, tenant="the tenant")
    Planted(saver)._of({"n": lambda _: {}}).invoke({"log": []}, Planted.config("the thread"))
    pieces = everything_in(backend)
    assert any(b"the thread" in piece for piece in pieces)
    assert any(b"the tenant" in piece for piece in pieces)
