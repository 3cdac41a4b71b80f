"""What a transport error proves about an effect (rule E8)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

__all__ = [
    "NEVER_PROOF",
    "REJECTED",
    "Judged",
    "TransportFacts",
    "Trouble",
    "decide_declarable",
    "decide_failed",
    "decide_transport",
]


class Trouble(Enum):
    """Kind of a transport error, in the words that the ledger keeps."""

    REFUSED = "no connection"
    CONNECT_TIMEOUT = "connect timeout"
    NO_SLOT = "no free connection in the pool"
    NOT_BUILT = "request not built"
    READ_TIMEOUT = "read timeout"
    WRITE_TIMEOUT = "write timeout"
    TIMEOUT = "timeout"
    DROPPED = "connection dropped"
    STATUS = "status"
    OTHER = "other"


#: The request had no connection yet to leave by.
_BEFORE_SENDING = frozenset(
    {Trouble.REFUSED, Trouble.CONNECT_TIMEOUT, Trouble.NO_SLOT, Trouble.NOT_BUILT}
)

#: Statuses whose definition says that the request was not applied: "has not been applied" (401),
#: "cannot or will not process" (400), "refuses to" (403, 411, 413, 414, 415, 426), no target that
#: could have acted (404, 405, 410), not forwarded (407), safe to send again whatever the method
#: (421), unable to process (422), all in RFC 9110, 15.5; unwilling to risk processing (425, RFC
#: 8470); the request has to change first, or later (428, 429, 431, RFC 6585); denied (451, RFC
#: 7725).
#:
#: Left out on purpose: 402 has no meaning yet; 406 may be found after the work is done, when no
#: form of the answer fits; 408 is a time-out; 409 and 412 may mean that it is there already,
#: perhaps from an attempt of ours; 416, 417, 423 and 424 do not say.
REJECTED: frozenset[int] = frozenset(
    {400, 401, 403, 404, 405, 407, 410, 411, 413, 414, 415, 421, 422, 425, 426, 428, 429, 431, 451}
)

#: May not be declared as a rejection: a time-out (408), and whatever is no 4xx. A 503 may come
#: from a gateway that had passed the request on, and ``Retry-After`` says when to ask, not what was
#: done.
NEVER_PROOF: frozenset[int] = frozenset({408})


@dataclass(frozen=True, slots=True)
class TransportFacts:
    """What is known about a request that failed.

    Attributes:
        trouble: Kind of the error.
        status: Status of the response, when there was one.
        earlier: A request of the same call may have reached a receiver before this one: a
            redirect was followed, or something below retried.
        rejected: Statuses by which the receiver is declared to say that nothing happened.
    """

    trouble: Trouble
    status: int | None = None
    earlier: bool = False
    rejected: Collection[int] = REJECTED


@dataclass(frozen=True, slots=True)
class Judged:
    """What an error proves.

    Attributes:
        not_sent: Proven: nothing happened. Otherwise the outcome is unknown.
        seen: Kind of the error, for the ledger; no values.
    """

    not_sent: bool
    seen: str


def decide_transport(facts: TransportFacts) -> Judged:
    """Decides rule E8: what a transport error proves.

    ======================================================  =========================
    error                                                   outcome
    ======================================================  =========================
    no connection, connect timeout, no free connection,     not sent
    request not built
    status among ``rejected``                               not sent
    any other status, also 5xx with ``Retry-After``         unknown
    read or write timeout, connection dropped, other        unknown
    any of them, when a request had left before             unknown
    ======================================================  =========================

    A timeout is never a proven failure once the request may have left.
    """
    seen = facts.trouble.value
    if facts.trouble is Trouble.STATUS:
        status = facts.status or 0
        seen = f"status {status}"
        proven = 400 <= status < 500 and status in facts.rejected and status not in NEVER_PROOF
    else:
        proven = facts.trouble in _BEFORE_SENDING
    if proven and facts.earlier:
        return Judged(not_sent=False, seen=f"{seen}, after an earlier request")
    return Judged(not_sent=proven, seen=seen)


def decide_declarable(facts: TransportFacts) -> bool:
    """Decides whether a declaration may make a proof of an error (rule E8).

    What a receiver's answer means is the user's to say, and so is what was sent before a connection
    failed. That a request which may have left did nothing is nobody's: a status that is never a
    proof, a timeout, a lost connection.
    """
    if facts.trouble is Trouble.STATUS:
        status = facts.status or 0
        return 400 <= status < 500 and status not in NEVER_PROOF
    return facts.trouble in _BEFORE_SENDING


def decide_failed(*, not_sent: bool, resent: bool, ambiguous: bool) -> bool:
    """Decides whether an effect is proven to have failed (rules E3, E8).

    An attempt that was not sent proves nothing about an earlier one: after a resend, or where an
    earlier start may have been lost (E3), the effect stays in doubt, and its arguments stay bound.
    """
    return not_sent and not resent and not ambiguous
