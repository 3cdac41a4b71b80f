"""A worker whose server keeps dying: it runs errands to their end, whatever it takes.

Started as ``python -m tests.failover.worker ORDER`` with a JSON document. It prints, one line
each::

    PAID <invoice>          an effect was sent to the service
    ERROR <json>            a run raised: reaction and class; it waits for a line before it goes on
    DONE <thread>           one errand is at its end
    LOG <message>           something was logged
    END

Checks here are explicit, because ``assert`` vanishes under ``python -O``.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from typing import Any

from tests.storage_faults.errand import Errand, Stores, Till

from surefoot import Keyring, Limits
from surefoot.demo import payments_client
from surefoot.errors import SurefootError


class Service(Till):
    """The payment service as a till."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url

    def charge(self, mode: str, invoice: str, key: str) -> dict[str, Any]:
        payments_client.charge(self._url, mode, invoice, 700, "EUR", key, timeout=60)
        say("PAID", invoice)
        return {"invoice": invoice, "amount": 700}

    def find(self, key: str) -> list[dict[str, Any]]:
        found = payments_client.find(self._url, key=key)
        return [{"invoice": match["invoice"], "amount": match["amount"]} for match in found]


_whole = threading.Lock()


def say(word: str, what: str = "") -> None:
    """Prints one line whole: what another thread says never lands inside of it."""
    with _whole:
        sys.stdout.write(f"{word} {what}".rstrip() + "\n")
        sys.stdout.flush()


class _Aloud(logging.Handler):
    """Says what is logged, from whatever thread."""

    def emit(self, record: logging.LogRecord) -> None:
        say("LOG", record.getMessage().replace("\n", " "))


def main(order: dict[str, Any]) -> None:
    """Runs all threads of the order, one after the other."""
    logging.basicConfig(handlers=[_Aloud()], level=logging.WARNING)
    limits = Limits(connect_timeout_ms=500)
    keys = Keyring.from_file(order["key_file"])
    stores = Stores(order["url"], order["highwater"], keys, limits)
    saver = stores.open()
    for thread in order["threads"]:
        errand = Errand(stores, thread, is_async=order["is_async"], durability="async")
        errand.till = Service(order["service"])
        while (error := errand.attempt(saver)) is not None:
            reaction = error.reaction if isinstance(error, SurefootError) else "raw"
            say("ERROR", json.dumps([reaction, type(error).__name__, str(error)]))
            if not sys.stdin.readline():
                raise SystemExit("nobody says when to go on")
        say("DONE", thread)
    saver.close()
    say("END")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
