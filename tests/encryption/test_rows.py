"""When an encrypted row stands for an equal value: only if it is there, or about to be."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from surefoot import Keyring
from surefoot.encryption import ThreadCiphers
from surefoot.flows.cover import Cover
from surefoot.flows.values import Writer
from surefoot.langgraph.serde import StrictSerializer
from surefoot.ports import Ciphers
from surefoot.rules.bodies import Row
from surefoot.rules.envelope import Identity
from surefoot.session import Session

pytestmark = pytest.mark.optimized

IDENTITY = Identity("tenant", "thread", 1)
LARGE = secrets.token_bytes(2_000)


@pytest.fixture
def ciphers() -> Ciphers:
    return ThreadCiphers(Keyring.generate())


@pytest.fixture
def session() -> Session:
    return Session(IDENTITY, 1, "owner", None)


def writer(session: Session, ciphers: Ciphers | None, **more: Any) -> Writer:
    return Writer(session, Cover(IDENTITY, ciphers), StrictSerializer(), 512, 8, 24, **more)


def row(of: Writer, value: Any) -> Row:
    ref = of.value(value, channel="c").ref
    assert isinstance(ref, Row)
    return ref


def test_a_row_that_waits_elsewhere_does_not_stand_for_a_value(
    session: Session, ciphers: Ciphers
) -> None:
    """Its append may never come; what a checkpoint names has to be stored with it."""
    waiting, now = writer(session, ciphers), writer(session, ciphers)
    assert row(waiting, LARGE) != row(now, LARGE)
    assert [digest for digest, _ in now.rows] == [row(now, LARGE).digest]


def test_a_row_of_the_same_append_stands_for_a_value(session: Session, ciphers: Ciphers) -> None:
    waiting = writer(session, ciphers)
    first = row(waiting, LARGE)
    now = writer(session, ciphers, riding={first.digest})
    assert row(now, LARGE) == first == row(waiting, LARGE)
    assert now.rows == []
    assert len(waiting.rows) == 1


def test_a_row_that_is_stored_stands_for_a_value(session: Session, ciphers: Ciphers) -> None:
    first = row(writer(session, ciphers), LARGE)
    session.note_stored(first.digest, 10)
    now = writer(session, ciphers)
    assert row(now, LARGE) == first
    assert now.rows == []


def test_another_value_tag_or_session_gets_a_row_of_its_own(
    session: Session, ciphers: Ciphers
) -> None:
    now = writer(session, ciphers)
    rows = [row(now, LARGE), row(now, LARGE + b"!"), row(now, bytearray(LARGE))]
    rows.append(row(writer(Session(IDENTITY, 2, "owner", None), ciphers), LARGE))
    assert len({r.digest for r in rows}) == 4


def test_memory_for_equal_values_is_bounded(session: Session, ciphers: Ciphers) -> None:
    now = writer(session, ciphers)
    for number in range(2_000):
        now.rows.clear()
        row(now, LARGE + number.to_bytes(4, "big"))
    assert 0 < len(session.twins) <= 1_024


def test_without_encryption_equal_values_have_one_address(session: Session) -> None:
    assert row(writer(session, None), LARGE) == row(writer(session, None), LARGE)
    assert session.twins == {}
