"""Effects that name a business operation (rule E4c).

An operation is known by its own name, across threads and runs of a tenant: it has a journal and a
mark of its own, as a thread has. So whoever calls it takes its lease first, what is recorded of it
is sealed and cannot be rolled back, and nobody has to look through other threads.
"""

from __future__ import annotations

from dataclasses import replace

from surefoot.flows.acquire import acquire, release
from surefoot.flows.effects import CallPlace, CallRequest, guard_lease
from surefoot.ports import Ports
from surefoot.rules.doubts import is_open
from surefoot.rules.effects import operation_thread
from surefoot.session import Session

__all__ = ["close_operation", "open_operation", "request_of"]

#: An operation has no place in any graph.
_NOWHERE = CallPlace(
    levels=(),
    saved=False,
    step=0,
    namespace="",
    path="",
    task=("", 0, 0),
    family=("", ""),
    origin="",
)


def open_operation(ports: Ports, session: Session, request: CallRequest) -> Session:
    """Takes the lease of an operation and loads what is recorded of it; does not wait for it.

    A thread that waited here would be one of those that the holder needs to finish with.

    Args:
        ports: Stores.
        session: The run that calls; it must still own its thread.
        request: The call.

    Raises:
        Busy: Another worker is carrying it out right now.
        Fenced: Another worker has the thread.
        Refused: The operation's journal does not verify.
    """
    with session.lock:
        session.check()
        guard_lease(ports, session)
    name = request.name if request.undo is None else request.undo.name
    operation, _ = acquire(ports, operation_thread(name, request.operation), None, wait=False)
    operation.serde = session.serde
    return operation


def request_of(session: Session, request: CallRequest) -> CallRequest:
    """The call as the operation's journal sees it: the same from wherever it is made."""
    return replace(
        request, place=_NOWHERE, call_id=request.operation, caller=session.identity.thread
    )


def close_operation(ports: Ports, operation: Session) -> None:
    """Publishes the outcome and gives the operation's lease back.

    Raises:
        Fenced: Another worker has taken the operation over.
        StoreUnavailable: B could not be reached; the lease runs out by itself.
    """
    with operation.lock:
        for slot, body in operation.effects.items():
            if not is_open(body.state):
                operation.intents.pop(slot, None)
        operation.running.clear()
    release(ports, operation)
