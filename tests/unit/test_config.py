"""Settings: what is understood, what is refused, and what is never shown."""

from __future__ import annotations

import dataclasses

import pytest

from surefoot.config import DEFAULT_CREDENTIAL_NAMES, Limits, ResumePolicy, StoreUrl
from surefoot.conninfo import parse_conninfo, shown_address
from surefoot.errors import Misconfigured


@pytest.mark.parametrize(
    ("url", "scheme", "target"),
    [
        ("sqlite:///a.db", "sqlite", "a.db"),
        ("sqlite:////var/a.db", "sqlite", "/var/a.db"),
        ("sqlite:///dir/a b?.db", "sqlite", "dir/a b?.db"),
        ("postgresql://bob:hunter2@db:5433/x", "postgresql", "postgresql://bob:hunter2@db:5433/x"),
        ("postgres://db/agents", "postgresql", "postgres://db/agents"),
        ("POSTGRESQL://db/x", "postgresql", "POSTGRESQL://db/x"),
    ],
)
def test_addresses(url: str, scheme: str, target: str) -> None:
    parsed = StoreUrl.parse(url, field_name="conn")
    assert (parsed.scheme, parsed.target) == (scheme, target)
    assert "hunter2" not in repr(parsed)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a.db",
        "/var/a.db",
        "sqlite:",
        "sqlite:///",
        "sqlite://",
        "sqlite://host/a.db",
        "sqlite:///:memory:",
        "sqlite::memory:",
        "mysql://bob:hunter2@db/x",
        "redis://db",
        "postgresql+psycopg://bob:hunter2@db/x",
        "host=db password=hunter2",
        "hunter2:x",
        "://hunter2",
    ],
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(Misconfigured, match="conn") as caught:
        StoreUrl.parse(url, field_name="conn")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("conninfo", "shown"),
    [
        (
            "postgresql://bob:hunter2@db.example:5433/agents?sslmode=require",
            "postgresql://db.example:5433/agents",
        ),
        ("postgresql://db.example/agents?password=hunter2", "postgresql://db.example/agents"),
        ("postgresql:///agents?host=/run/pg", "postgresql://(local socket)/agents"),
        ("host=db port=5432 dbname=x user=bob password=hunter2", "postgresql://db/x"),
        ("postgresql://", "postgresql://(local socket)/"),
        ("postgresql://bob:hunter%2F2@db/x", "postgresql://db/x"),
    ],
)
def test_what_is_shown_of_a_postgres_address(conninfo: str, shown: str) -> None:
    assert shown_address(parse_conninfo(conninfo, field="conn")) == shown


@pytest.mark.parametrize(
    "conninfo",
    [
        "postgresql://bob:hunter2@[::1/x",
        "postgresql://bob:hunter2@db:port/x",
        "postgresql://bob:hunter/2@db/x",
        "host=db password='hunter2",
        "hunter2",
        "postgresql://db/x?hunter2=1",
        "postgresql://db/x?password=%zhunter2",
    ],
)
def test_postgres_addresses_that_are_none(conninfo: str) -> None:
    with pytest.raises(Misconfigured, match="conn") as caught:
        parse_conninfo(conninfo, field="conn")
    assert "hunter" not in str(caught.value)
    assert caught.value.__context__ is None, "the parser's words quote the address"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("lease_ttl_ms", [1, 60_000], [0, -1]),
        ("barrier_timeout_ms", [1], [0, -1]),
        ("wait_for_lease_ms", [0, 1], [-1]),
        ("settling_ms", [0, 1], [-1]),
        ("handover_grace_ms", [0, 1], [-1]),
    ],
)
def test_policies(name: str, good: list[int], bad: list[int]) -> None:
    for value in good:
        assert getattr(ResumePolicy(**{name: value}), name) == value
    for value in bad:
        with pytest.raises(Misconfigured, match=f"ResumePolicy.{name}"):
            ResumePolicy(**{name: value})


def test_defaults() -> None:
    policy = ResumePolicy()
    assert policy.settling_ms == 5_000
    assert policy.lease_ttl_ms == 60_000
    assert policy.wait_for_lease_ms == 0


#: Settings that are no limits but one of several words.
CHOICES = {"on_fork"}


@pytest.mark.parametrize("cls", [ResumePolicy, Limits])
def test_every_limit_has_its_unit_last_and_cannot_be_changed(cls: type) -> None:
    units = ("_ms", "_bytes", "_items", "_max", "_frames", "_connections", "_threads")
    for item in dataclasses.fields(cls):
        if item.name not in CHOICES:
            assert item.name.endswith(units), item.name
            assert isinstance(item.default, int)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(cls(), item.name, 1)
        assert f"{item.name}:" in (cls.__doc__ or ""), "documented"


def test_credential_names_are_words_in_lower_case() -> None:
    assert len(set(DEFAULT_CREDENTIAL_NAMES)) == len(DEFAULT_CREDENTIAL_NAMES) > 10
    for name in DEFAULT_CREDENTIAL_NAMES:
        assert name == name.lower()
        assert name.replace("_", "").isalpha()
