"""PostgreSQL addresses: parsed by the library that uses them, shown without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from surefoot.errors import Misconfigured

__all__ = ["parse_conninfo", "shown_address"]

_DEFAULT_PORT = "5432"


def parse_conninfo(conninfo: str, *, field: str) -> dict[str, Any]:
    """Options of a connection string.

    Args:
        conninfo: URL or key-value string.
        field: Name of the parameter, for the message.

    Raises:
        Misconfigured: It cannot be parsed, or a password in it swallowed the host; the message
            quotes nothing of it.
    """
    options: dict[str, Any] | None
    try:
        options = dict(conninfo_to_dict(conninfo))
    except psycopg.Error:
        options = None  # the parser's message may quote any part of it, also the password
    if options is None:
        raise Misconfigured(field=field, reason="it is no PostgreSQL connection string")
    ports = str(options.get("port") or _DEFAULT_PORT).split(",")
    if "@" in str(options.get("dbname") or "") or not all(p.strip().isdigit() for p in ports):
        raise Misconfigured(
            field=field,
            reason="user and password must be percent-encoded (a “/” is written %2F, “@” %40)",
        )
    return options


def shown_address(options: Mapping[str, Any]) -> str:
    """The address without user, password and options, for messages."""
    host = str(options.get("host") or "")
    where = "(local socket)" if not host or host.startswith(("/", "@")) else host
    port = str(options.get("port") or _DEFAULT_PORT)
    tail = "" if port == _DEFAULT_PORT or where == "(local socket)" else f":{port}"
    return f"postgresql://{where}{tail}/{options.get('dbname') or ''}"
