"""The protocol, explored exhaustively on a small model.

Every state that a configuration can reach is visited: every order of the indivisible actions of
two workers, readers, operators, the network, the clock and an adversary. What the explorer calls
to judge is `surefoot.rules` itself: `decide_resume`, `decide_tail`, `decide_gate`,
`decide_publish`, `decide_call`, `decide_absent`, `decide_barrier`, `decide_acquire`. The order of
the calls, which in the product is in `surefoot.flows`, is written again in `worker.py`; that the
product keeps this order is the business of `tests/crash` and `tests/saver`.

Modelled:

- A: authentic records by (seq, epoch) with the digest of their predecessor, in the order of their
  commits, and the head row that gates appends. A refused append, the look at the head row, the
  look for the predecessor and the look at B are separate actions.
- B: seq and digest, epoch, lease, clean, tainted, step, intents, horizon.
- Workers with a program of one to three steps: acquire, load, doubt, ledger of effects, intent,
  guard, send, reply, time-out, proven failure, lookup (also one whose first answer lags), pending
  writes on their own, checkpoint, publish, acknowledgement, prune and late collection, release.
  Between any two actions it may die, or sleep while its lease runs out and wake up after others
  took over. Nodes may give another result each time they run. `durability` async (as sync) and
  exit.
- The network: a request lands late, also after its sender died, or never.
- Lost requests and replies of A and B.
- An adversary without the key who edits A: cuts, any subset, older states, siblings, orphans, the
  head row. Putting back and taking away again where there are two edits.
- A failover of A that loses its newest commits.
- An operator's restore (B is never lowered; every step up to the lost head is tainted), and the
  adoption of A after B has lost its row, when all workers have been stopped.
- A reader of the whole history, at any time: B, A, and B again before any alarm.

Not modelled: the bytes (seals, encodings, keys: a record cannot be forged here by construction);
several records in one frame; namespaces, branches and forks; deletion and incarnations; several
readers; clocks that are wrong by more than the margin: whoever holds a guard holds the lease, and
what is under way lands before the settling time ends; a body that sleeps between the guard and
the request for longer than that; liveness beyond "no worker is stuck".

A state is kept whole, as one integer, so nothing is lost to collisions of fingerprints. See how a
mistake shows with ``make campaign-model ARGS='--trace "no parent check"'``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.pool import AsyncResult, Pool
from pathlib import Path

import pytest
from tests.model.campaign import LEAST, coverage, explore, line, processes, report, show
from tests.model.configurations import ACTIONS, CAMPAIGN, MISTAKES, QUICK, Mistake
from tests.model.explorer import Found
from tests.model.state import INVARIANTS, Config

pytestmark = pytest.mark.timeout(600)

Running = Mapping[Config, "AsyncResult[Found]"]


def honest(mistake: Mistake) -> Config:
    """The same configuration without the mistake, and with open eyes."""
    return mistake.config._replace(name="", broken="", blind=frozenset())


TWINS: tuple[Config, ...] = tuple({honest(mistake): None for mistake in MISTAKES})


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with processes() as pool:
        yield pool


def begun(pool: Pool, configs: Sequence[Config]) -> Running:
    return {config: pool.apply_async(explore, (config,)) for config in configs}


@pytest.fixture(scope="module")
def quick(pool: Pool) -> Running:
    return begun(pool, QUICK)


@pytest.fixture(scope="module")
def twins(pool: Pool) -> Running:
    return begun(pool, TWINS)


@functools.cache
def broken(mistake: Mistake) -> Found:
    return explore(mistake.config)


@pytest.mark.parametrize("config", QUICK, ids=lambda config: config.name)
def test_configuration_holds(config: Config, quick: Running) -> None:
    found = quick[config].get()
    print(line(found))
    assert found.violation is None
    assert found.whole
    assert found.actions.keys() <= ACTIONS, "an action without a name in the table"
    assert found.actions["publish: release"] or config.name == "exit refuses", "no run ends"


def test_enough_is_visited_and_every_action_fires(quick: Running) -> None:
    founds = [result.get() for result in quick.values()]
    visited = sum(found.states for found in founds)
    table = coverage(founds)
    print(f"{visited:,} states in {len(founds)} configurations")
    print("\n".join(f"{name:42} {count:>10,}" for name, count in sorted(table.items())))
    assert visited >= 1_000_000
    assert not ACTIONS - table.keys(), "an action that never fires checks nothing"


@pytest.mark.optimized
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.config.name)
def test_mistake_is_caught(mistake: Mistake) -> None:
    found = broken(mistake)
    print("\n".join(found.trace))
    assert found.invariant in mistake.harms, found.violation
    assert len(found.trace) > 3
    assert found.trace[-1].startswith("  => ")


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.config.name)
def test_without_the_mistake_it_holds(mistake: Mistake, twins: Running) -> None:
    found = twins[honest(mistake)].get()
    assert found.violation is None
    assert found.states > broken(mistake).states, "it must go on where the mistake was caught"


def test_a_trace_is_shown_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    assert show("publish before commit") == 0
    shown = capsys.readouterr().out
    assert "worker of epoch 1: create" in shown
    assert "=> false alarm" in shown
    assert show("no such mistake") == 2


def test_a_report_can_be_read_back(tmp_path: Path) -> None:
    founds = [broken(mistake) for mistake in MISTAKES[:3]]
    report(str(tmp_path / "model.json"), founds, 1.5)
    read = json.loads((tmp_path / "model.json").read_text(encoding="utf-8"))
    assert read["states"] == sum(found.states for found in founds) > 0
    assert read["actions"]["create"] > 0
    assert [c["violation"] for c in read["configurations"]] == [f.violation for f in founds]


def test_the_lists_are_whole() -> None:
    names = [config.name for config in (*QUICK, *CAMPAIGN)]
    names += [mistake.config.name for mistake in MISTAKES]
    assert len(names) == len(set(names))
    assert len(MISTAKES) >= 22
    assert {harm for mistake in MISTAKES for harm in mistake.harms} <= INVARIANTS.keys()
    assert LEAST >= 25_000_000
