"""Explores everything, quick and heavy configurations, and prints a report.

    make campaign-model                 # all configurations, two at a time
    make campaign-model JSON=out.json   # the report also as JSON
    make campaign-model ARGS='--trace "no parent check"'   # how a mistake shows

Each configuration has a process of its own, so its memory is given back when it is done.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.model.configurations import ACTIONS, CAMPAIGN, MISTAKES, QUICK
from tests.model.explorer import Explorer, Found
from tests.model.state import Config

LEAST = 25_000_000
_EVERY_S = 15.0


def explore(config: Config) -> Found:
    """Explores one configuration; a trace is kept where a mistake is made on purpose."""
    return Explorer(config, tracing=bool(config.broken)).run()


def explore_aloud(config: Config) -> Found:
    """The same, saying now and then how far it is."""
    last = time.monotonic()

    def progress(depth: int, states: int) -> None:
        nonlocal last
        if time.monotonic() - last > _EVERY_S:
            last = time.monotonic()
            print(f"    {config.name}: {states:,} states, depth {depth}", flush=True)

    return Explorer(config).run(progress=progress)


def processes() -> multiprocessing.pool.Pool:
    """Two at a time, on a machine that has them; one configuration each."""
    count = min(2, os.cpu_count() or 1)
    return multiprocessing.get_context("spawn").Pool(count, maxtasksperchild=1)


def all_of(configs: Sequence[Config]) -> Iterator[Found]:
    with processes() as pool:
        yield from pool.imap_unordered(explore_aloud, configs)


def line(found: Found) -> str:
    verdict = found.violation or "holds"
    return (
        f"{found.name:36} {found.states:>11,} states {found.transitions:>12,} transitions "
        f"{found.depth:>4} deep {found.seconds:>7.1f} s {found.peak_mb:>5} MB  {verdict}"
    )


def coverage(founds: Iterable[Found]) -> Counter[str]:
    """How often each kind of action was worked out, over all configurations."""
    total: Counter[str] = Counter()
    for found in founds:
        total.update(found.actions)
    return total


def show(name: str) -> int:
    """Prints how a mistake shows."""
    for mistake in MISTAKES:
        if mistake.config.name == name:
            found = explore(mistake.config)
            print("\n".join(found.trace))
            return 0
    print(f"no mistake {name!r}; there are: {', '.join(m.config.name for m in MISTAKES)}")
    return 2


def report(path: str, founds: Sequence[Found], seconds: float) -> None:
    text = json.dumps(
        {
            "states": sum(f.states for f in founds),
            "transitions": sum(f.transitions for f in founds),
            "seconds": round(seconds, 1),
            "peak_mb_of_one_process": max(f.peak_mb for f in founds),
            "collisions": "none: states are kept whole, not as fingerprints",
            "actions": dict(sorted(coverage(founds).items())),
            "configurations": [{**vars(f), "actions": dict(f.actions)} for f in founds],
        },
        indent=2,
    )
    Path(path).write_text(text + "\n", encoding="utf-8")


def caught() -> bool:
    """Whether every mistake shows by one of its harms."""
    good = True
    for mistake in MISTAKES:
        found = explore(mistake.config)
        hit = found.invariant in mistake.harms
        good &= hit
        print(
            f"{mistake.config.name:36} {found.states:>11,} states  "
            f"{'caught' if hit else 'NOT CAUGHT'}: {found.violation}",
            flush=True,
        )
    return good


def main(arguments: Sequence[str]) -> int:
    """Explores everything; 0 when all holds, all is caught and enough was visited."""
    parser = argparse.ArgumentParser(prog="make campaign-model", description=__doc__)
    parser.add_argument("--trace", metavar="MISTAKE", help="show how a mistake shows, and stop")
    parser.add_argument("--json", default=os.environ.get("JSON", ""), metavar="PATH")
    options = parser.parse_args(arguments)
    if options.trace is not None:
        return show(options.trace)
    began = time.monotonic()
    good = caught()
    founds: list[Found] = []
    for found in all_of([*CAMPAIGN, *QUICK]):
        founds.append(found)
        visited = sum(f.states for f in founds)
        print(
            f"[{len(founds)}/{len(CAMPAIGN) + len(QUICK)}] {line(found)}  sum {visited:,}",
            flush=True,
        )
    seconds = time.monotonic() - began
    table = coverage(founds)
    print("\nactions, and in how many situations each was worked out:")
    for name, count in sorted(table.items()):
        print(f"    {name:42} {count:>12,}")
    unheard = sorted(ACTIONS - table.keys())
    visited = sum(f.states for f in founds)
    good &= not unheard and visited >= LEAST and all(f.violation is None for f in founds)
    print(
        f"\n{visited:,} states in {len(founds)} configurations, {seconds:.0f} s, at most "
        f"{max(f.peak_mb for f in founds)} MB in a process; never fired: {unheard or 'none'}"
    )
    if options.json:
        report(options.json, founds, seconds)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
