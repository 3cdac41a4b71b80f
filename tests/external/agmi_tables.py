"""Prints the tables of `agmi-check` for SurefootSaver, as that program prints them.

``python -m tests.external.agmi_tables`` takes a word of the adapters' names to choose some.
"""

from __future__ import annotations

import logging
import sys

from agmi import check
from tests.external import agmi_adapter
from tests.external.agmi_adapter import REFERRED, SEALED

NOTE = """\
A forged value or chunk is ACCEPTED and means nothing: no record refers to it, so it is never
read. tests/external/test_agmi.py checks that what is served does not change by it.
"""


def main(word: str = "") -> int:
    """Runs the suite over every adapter whose name has the word; non-zero if any edit passed."""
    # One table each is what is wanted; that both databases are on one server is said once.
    said: set[str] = set()
    logging.lastResort.addFilter(  # type: ignore[union-attr]
        lambda record: not (record.getMessage() in said or said.add(record.getMessage()))  # type: ignore[func-returns-value]
    )
    chosen = [kind for kind in (*SEALED, *REFERRED) if word.lower() in kind.__name__.lower()]
    worst = 0 if chosen else 2
    for kind in chosen:
        name = f"{agmi_adapter.__name__}:{kind.__name__}"
        lenient = ["--fail-on", "none"] if kind in REFERRED else []
        worst = max(worst, check.main(["--adapter", name, *lenient]))
        print(flush=True)
    if set(chosen) & set(REFERRED):
        print(NOTE)
    return worst


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
