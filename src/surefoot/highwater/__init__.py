"""The high-water stores: one small row per thread, kept apart from the content store.

A store of your own implements `surefoot.ports.HighWater` and is checked with
`surefoot.testing.run_highwater_conformance`.
"""

from __future__ import annotations

from surefoot.config import Limits, StoreUrl
from surefoot.highwater.postgres import PostgresHighWater
from surefoot.highwater.sqlite import SqliteHighWater

__all__ = ["PostgresHighWater", "SqliteHighWater", "open_highwater"]

_LIMITS = Limits()


def open_highwater(
    url: str, *, schema: str | None = None, limits: Limits = _LIMITS
) -> PostgresHighWater | SqliteHighWater:
    """Opens the high-water store at an address; connects only when it is used.

    Args:
        url: ``sqlite:///path`` or ``postgresql://…``.
        schema: Schema of the table, PostgreSQL only.
        limits: Bounds of connections and waits.

    Raises:
        Misconfigured: The address is malformed or its scheme unknown.
    """
    address = StoreUrl.parse(url, field_name="highwater")
    if address.scheme == "sqlite":
        return SqliteHighWater(address.target, limits=limits)
    return PostgresHighWater(address.target, schema=schema, limits=limits)
