"""Effects in the content store's own database: rows and record are one commit (rule E2).

There is nothing to look up and no intent: what the effect did and the record of it are stored
together, or neither is. B is told beforehand that this worker still holds the thread, and the gate
of the append refuses it if somebody else has written meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from surefoot.errors import TransactionEnded
from surefoot.flows import effects, journal
from surefoot.flows.reads import store as store_reads
from surefoot.flows.values import writer_for
from surefoot.ports import Ports, Serializer
from surefoot.rules.bodies import BODY_SCHEMAS
from surefoot.rules.envelope import Kind, Record
from surefoot.session import Session

__all__ = ["run"]


def run(
    ports: Ports,
    session: Session,
    serde: Serializer,
    step: effects.Step,
    body: Callable[[Any], Any],
    seen: Callable[[BaseException], str],
) -> Any:
    """Runs a body and records its outcome in one transaction of the content store.

    The session's lock is held throughout, and taken before a connection is: a save that holds the
    lock and waits for the connection, or for SQLite's write lock, would otherwise wait for us while
    we wait for it.

    Args:
        ports: Stores.
        session: Whose journal.
        serde: Serialiser of the run.
        step: The call, decided and not recorded.
        body: Gets the connection. It may run again after the transaction was undone.
        seen: Class and kind of what it raises, for the ledger.

    Returns:
        The result as a later replay would give it.

    Raises:
        NotStorable: The result cannot be stored; everything is taken back.
        TransactionEnded: The body ended the transaction, so a person decides.
        Fenced: Another worker has the thread; everything is taken back.
        StoreUnavailable: A store did not answer; the next run finds out what was committed.
    """

    def work(connection: Any) -> journal.Done:
        result = body(connection)
        writer = writer_for(ports, session, serde)
        done = replace(
            step.body,
            state="succeeded",
            result=writer.value(result, channel=f"(result of {step.body.name})"),
            error=None,
            at_us=ports.host.now_us(),
        )
        record = Record(Kind.EFFECT, BODY_SCHEMAS["E"], done.slot[:16], done.pack())
        returned = serde.loads_typed(serde.dumps_typed(result))
        return journal.Done([record], [*step.rows, *writer.rows], (done, returned))

    with session.lock:
        try:
            store_reads(ports, session)  # the arguments may depend on them
            journal.publish(ports, session)
            done, returned = journal.append_within(ports, session, work)
        except BaseException as error:
            session.running.discard(step.body.slot)
            if session.latched is None:  # the body raised: all of it is undone
                ended = isinstance(error, TransactionEnded)
                effects.fail(ports, session, step, error, proven=not ended, seen=seen(error))
            raise
        effects.recorded(session, done)
        session.running.discard(done.slot)
        return returned
