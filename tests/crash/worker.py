"""A worker that gets killed: a real process, forked from a template that has imported everything.

Started as ``python -m tests.crash.worker FD``, it is the template: it opens nothing, and forks a
child for each order that comes over the socket. A child runs one workload on one thread; it
prints, one line each::

    AT <boundary>          it stands at this boundary and waits to be killed (or for ``go``)
    FAILED                 the error of a task is stored
    ANSWERED <json>        one invocation returned; only when it was told to wait in between
    RAISED <json>          an invocation raised: the error's class and fields
    TRACE <json>           boundaries of the whole run
    DONE <json>            final values and steps of the history

Checks here are explicit, because ``assert`` vanishes under ``python -O``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.crash.shapes import MATRIX
from tests.crash.stores import Place
from tests.crash.workloads import FAILING, Move, Pay, Stumble, make, shown

from surefoot import ResumePolicy, SurefootSaver
from surefoot.demo import payments_client
from surefoot.errors import EffectInDoubt
from surefoot.highwater.sqlite import SqliteHighWater
from surefoot.ports import Host
from surefoot.rules.intents import unpack_intents
from surefoot.rules.lease import HolderFacts, ProcessFacts
from surefoot.store import sqlite as sqlite_store
from surefoot.testing.faults import Fault, FaultyHighWater, FaultyStore, Plan

__all__ = ["Order"]

_RUNS_MAX = 8


@dataclass(frozen=True)
class Order:
    """What a child is to do.

    Attributes:
        place: Fields of the `Place`.
        url: Of the payment service.
        thread: Thread id.
        workload: Name of the workload.
        durability: LangGraph's.
        is_async: Colour.
        stops: Boundaries at which to wait for the killer.
        policy: Settings of the `ResumePolicy` besides the tests' own.
        boot_id: Pretend to run on another host with this boot id.
        runs: At most this many invocations.
        inputs: What to give to the graph instead of what the state asks for.
        wait: Wait for a line on standard input after this many invocations.
        settling: Of the lookup, in seconds.
        fail: The workload's failing branch fails.
        form: In which effects are called.
    """

    place: Mapping[str, str]
    url: str
    thread: str
    workload: str = "linear"
    durability: str = "sync"
    is_async: bool = False
    stops: tuple[str, ...] = ()
    policy: Mapping[str, int] = field(default_factory=dict)
    boot_id: str | None = None
    runs: int = _RUNS_MAX
    inputs: tuple[Any, ...] | None = None
    wait: int | None = None
    settling: float = 0.25
    fail: bool = False
    form: str = "function"


class Shop:
    """The payment service as a receiver."""

    def __init__(self, url: str, plan: Plan) -> None:
        self._url, self._plan = url, plan

    def charge(self, mode: str, invoice: str, key: str) -> dict[str, Any]:
        made = self._plan.around(
            "effect.charge",
            lambda: payments_client.charge(self._url, mode, invoice, 700, "EUR", key, timeout=60),
        )
        return _shown(made)

    def find(self, key: str) -> list[dict[str, Any]]:
        found = self._plan.around("effect.find", lambda: payments_client.find(self._url, key=key))
        return [_shown(match) for match in found]


def _shown(charge: Mapping[str, Any]) -> dict[str, Any]:
    """What is the same at every run."""
    return {"invoice": charge["invoice"], "amount": charge["amount"]}


class ForeignHost:
    """This process as it would look from another host."""

    def __init__(self, inner: Host, boot_id: str) -> None:
        self._inner, self._boot_id = inner, boot_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def describe(self) -> str:
        return json.dumps({**json.loads(self._inner.describe()), "boot": self._boot_id})

    def holder(self, owner: str) -> HolderFacts:
        seen = self._inner.holder(owner)
        here = ProcessFacts(self._boot_id, seen.here.pid_namespace, seen.here.pid, seen.here.start)
        return HolderFacts(seen.holder, here, 0)


class WatchedSaver(SurefootSaver):
    """A saver with boundaries around ``put_writes``, which LangGraph orders with nothing."""

    plan: Plan

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        self.plan.around(
            "saver.put_writes",
            lambda: super(WatchedSaver, self).put_writes(config, writes, task_id, task_path),
        )
        _tell_failure(writes)

    async def aput_writes(
        self, config: Any, writes: Any, task_id: str, task_path: str = ""
    ) -> None:
        await asyncio.to_thread(self.plan.around, "saver.put_writes", lambda: None)
        await super().aput_writes(config, writes, task_id, task_path)
        _tell_failure(writes)


def _tell_failure(writes: Any) -> None:
    """The error of a task is stored, and the lease was given back with it."""
    if any(channel == "__error__" for channel, _ in writes):
        say("FAILED")


def _inside_transactions(plan: Plan) -> None:
    """Boundaries between the statements of a SQLite transaction, and around its commit."""
    session = sqlite_store._Session
    execute, many = session.__call__, session.many
    commit = SqliteHighWater._commit

    def watched(self: Any, name: str, /, **params: Any) -> Any:
        return plan.around(f"sql.{name}", lambda: execute(self, name, **params))

    def watched_many(self: Any, name: str, rows: Any) -> None:
        plan.around(f"sql.{name}", lambda: many(self, name, rows))

    def watched_commit(self: Any, conn: Any, what: str) -> Any:
        return plan.around("sql.commit_mark", lambda: commit(self, conn, what))

    session.__call__ = watched  # type: ignore[method-assign]
    session.many = watched_many  # type: ignore[method-assign]
    SqliteHighWater._commit = watched_commit  # type: ignore[method-assign]


# --- one child ------------------------------------------------------------------------------------


def say(word: str, what: object = None) -> None:
    """Prints one line; whoever reads it knows that this point was reached.

    The line is written whole: what another thread says or logs never lands inside of it.
    """
    line = word if what is None else f"{word} {json.dumps(what, sort_keys=True)}"
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def work(order: Order) -> None:
    """Runs the order until nothing is left to do, or until its invocations are used up."""
    plan = Plan(dict.fromkeys(order.stops, Fault.STOP))
    _listen(plan)
    place = Place(**order.place)
    if place.backend == "sqlite":
        _inside_transactions(plan)
    saver = _opened(place, order, plan)
    spec = next(w for w in (*MATRIX, FAILING) if w.name == order.workload)
    pay = Pay(
        Shop(order.url, plan),
        order.thread,
        is_async=order.is_async,
        settling=order.settling,
        form=order.form,
    )
    if order.fail:
        pay.before_failing = _gate.wait
    graph = spec.compile(pay, saver)
    looking = spec.compile(pay, place.open())
    config = {**spec.config, "configurable": {"thread_id": order.thread}}
    inputs = None if order.inputs is None else list(order.inputs)
    for number in range(1, order.runs + 1):
        move = spec.next_move(looking, config) if inputs is None else Move(inputs.pop(0))
        if move is None:
            break
        try:
            values = make(move, graph, config, durability=order.durability, is_async=order.is_async)
        except Stumble:
            continue
        except Exception as error:
            say("RAISED", _error(error, saver, order.thread))
            break
        if order.wait == number:
            say("ANSWERED", len(values["paid"]))
            _gate.wait()
    else:
        if inputs is None and order.runs == _RUNS_MAX:
            say("RAISED", {"error": "NeverDone"})
    if order.inputs is not None:
        saver.close()
        return
    history = list(looking.get_state_history(config))
    steps = [(s.metadata or {}).get("step") for s in history]
    say("TRACE", plan.trace)
    saver.close()
    if history and not history[0].tasks:
        say(
            "DONE",
            shown(history[0].values, steps, order.thread),
        )


_gate = threading.Event()


def _listen(plan: Plan) -> None:
    """``go`` ends a wait between invocations, ``go BOUNDARY`` one at a boundary."""

    def listen() -> None:
        for line in sys.stdin:
            word, _, boundary = line.strip().partition(" ")
            if word == "go" and boundary:
                plan.go_on(boundary)
            elif word == "go":
                _gate.set()

    threading.Thread(target=listen, daemon=True).start()


def _opened(place: Place, order: Order, plan: Plan) -> SurefootSaver:
    policy = ResumePolicy(
        **{
            "lease_ttl_ms": 3_600_000,
            "settling_ms": 250,
            "handover_grace_ms": 0,
            **order.policy,
        }
    )
    saver = place.open(policy=policy, saver_class=WatchedSaver)
    saver.plan = plan  # type: ignore[attr-defined]
    ports = saver.core.ports
    host: Host = ports.host
    if order.boot_id is not None:
        host = ForeignHost(host, order.boot_id)  # type: ignore[assignment]
    saver.core.ports = replace(
        ports,
        store=FaultyStore(ports.store, plan),
        marks=FaultyHighWater(ports.marks, plan),
        host=host,
    )
    return saver


def _error(error: Exception, saver: SurefootSaver, thread: str) -> dict[str, Any]:
    found: dict[str, Any] = {"error": type(error).__name__, "text": str(error)}
    if isinstance(error, EffectInDoubt):
        ports = saver.core.ports
        mark = ports.marks.read(ports.tenant, thread)
        slots = {} if mark is None else unpack_intents(mark.intents)
        found["effect"] = error.fields["effect"]
        slot = bytes.fromhex(error.fields["slot"])
        bodies = [session.effects.get(slot) for session in saver.core.sessions.all()]
        # What was adopted had its intent under another slot, and that may have left B since.
        found["intent"] = slot in slots or any(body and body.adopted for body in bodies)
    return found


# --- the template ---------------------------------------------------------------------------------


def template(control: socket.socket) -> None:
    """Forks a child per order; tells its pid, and on request how it ended."""
    pending = b""
    while True:
        data, fds, _, _ = socket.recv_fds(control, 65_536, 2)
        if not data:
            return
        pending += data
        held = fds
        while not pending.endswith(b"\n"):
            pending += control.recv(65_536)
        order, pending = json.loads(pending), b""
        if "reap" in order:
            _, status = os.waitpid(order["reap"], 0)
            control.sendall(b"%d\n" % status)
            continue
        pid = os.fork()
        if pid == 0:
            _child(control, held, order)
        for fd in held:
            os.close(fd)
        control.sendall(b"%d\n" % pid)


def _child(control: socket.socket, fds: list[int], order: dict[str, Any]) -> None:
    code = 1
    try:
        control.close()
        os.dup2(fds[0], 0)
        os.dup2(fds[1], 1)
        for fd in fds:
            os.close(fd)
        sys.stdin = os.fdopen(0, "r", closefd=False)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        logging.basicConfig(stream=sys.stdout, format="LOG %(message)s")
        order["stops"] = tuple(order.get("stops", ()))
        work(Order(**order))
        code = 0
    except BaseException as error:
        say("RAISED", {"error": type(error).__name__, "text": str(error), "in": "worker"})
    finally:
        sys.stdout.flush()
        os._exit(code)


def _warm() -> None:
    """Imports everything that a run needs, and opens nothing."""
    import psycopg_pool  # noqa: F401
    from langgraph.pregel import Pregel  # noqa: F401

    import surefoot.highwater.postgres
    import surefoot.langgraph.serde
    import surefoot.store.postgres

    _ = (surefoot.highwater.postgres, surefoot.langgraph.serde, surefoot.store.postgres)


if __name__ == "__main__":
    _warm()
    template(socket.socket(fileno=int(sys.argv[1])))
