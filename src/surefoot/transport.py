"""Transport errors of HTTP clients, as what they prove about an effect (rule E8).

``@effect(outcome_of=httpx_outcome())`` tells a request that never left from one whose answer was
lost. No client is imported: exceptions are recognised by the names of their classes.

The judgement is about one request. Declare it for a body that makes one; a body that makes several
raises `NotSent` where it knows that none of them did anything.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FrameType
from typing import Any, TypeAlias

from surefoot.errors import Misconfigured
from surefoot.rules.answers import NotSent
from surefoot.rules.transport import (
    NEVER_PROOF,
    REJECTED,
    Judged,
    TransportFacts,
    Trouble,
    decide_declarable,
    decide_transport,
)

__all__ = ["OutcomeOf", "declared", "httpx_outcome", "judged", "requests_outcome"]

#: What ``outcome_of=`` is: takes what the body raised, and says ``"not_sent"``, ``"unknown"``, a
#: `Judged`, or None when it does not know.
OutcomeOf: TypeAlias = Callable[[BaseException], Any]

#: On Python 3.10 these are three classes.
_TIMEOUTS = (TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError)
_DROPPED = (BrokenPipeError, ConnectionAbortedError, ConnectionResetError)
#: So wide that a timeout or a lost connection is among them.
_TOO_WIDE = (BaseException, Exception, OSError, ConnectionError, RuntimeError)

_HTTPX: Mapping[str, Trouble] = {
    "ConnectTimeout": Trouble.CONNECT_TIMEOUT,
    "PoolTimeout": Trouble.NO_SLOT,
    "ReadTimeout": Trouble.READ_TIMEOUT,
    "WriteTimeout": Trouble.WRITE_TIMEOUT,
    "TimeoutException": Trouble.TIMEOUT,
    "ConnectError": Trouble.REFUSED,
    "UnsupportedProtocol": Trouble.NOT_BUILT,
    "InvalidURL": Trouble.NOT_BUILT,
    "ReadError": Trouble.DROPPED,
    "WriteError": Trouble.DROPPED,
    "CloseError": Trouble.DROPPED,
    "RemoteProtocolError": Trouble.DROPPED,
    "HTTPStatusError": Trouble.STATUS,
}
_URLLIB3: Mapping[str, Trouble] = {
    "ConnectTimeoutError": Trouble.CONNECT_TIMEOUT,
    "NewConnectionError": Trouble.REFUSED,
    "EmptyPoolError": Trouble.NO_SLOT,
    "LocationValueError": Trouble.NOT_BUILT,
    "ReadTimeoutError": Trouble.READ_TIMEOUT,
    "TimeoutError": Trouble.TIMEOUT,
    "ProtocolError": Trouble.DROPPED,
}
_REQUESTS: Mapping[str, Trouble] = {
    "ConnectTimeout": Trouble.CONNECT_TIMEOUT,
    "ReadTimeout": Trouble.READ_TIMEOUT,
    "Timeout": Trouble.TIMEOUT,
    "ProxyError": Trouble.OTHER,
    "SSLError": Trouble.OTHER,
    "ConnectionError": Trouble.DROPPED,
    "ChunkedEncodingError": Trouble.DROPPED,
    "MissingSchema": Trouble.NOT_BUILT,
    "InvalidSchema": Trouble.NOT_BUILT,
    "InvalidURL": Trouble.NOT_BUILT,
    "HTTPError": Trouble.STATUS,
}
#: Libraries of which an error that is not known as "not sent" may have come after the request.
_CLIENTS = ("httpx", "httpx2", "requests", "urllib3")
#: Below these a request of this call has been answered already.
_LATER_REQUESTS = frozenset({"resolve_redirects", "dispatch_hook"})


def httpx_outcome(*, rejected: Collection[int] = REJECTED) -> OutcomeOf:
    """What an exception of httpx (or httpx2) proves, for ``@effect(outcome_of=…)``.

    A connection that was refused or timed out, and a full pool, prove that nothing was sent. A
    status among ``rejected`` (raised by ``raise_for_status()``) proves that nothing was done.
    Everything else is unknown, also when a redirect was followed or a transport that is not
    httpx's own made the request, because it may retry.

    Args:
        rejected: Statuses by which the receiver says that nothing happened; 4xx, without 408. By
            default those whose definition says so, see `surefoot.rules.transport.REJECTED`.

    Raises:
        Misconfigured: A status in ``rejected`` can prove nothing.
    """
    return _classifier(_from_httpx, _statuses(rejected))


def requests_outcome(*, rejected: Collection[int] = REJECTED) -> OutcomeOf:
    """What an exception of requests proves, for ``@effect(outcome_of=…)``.

    A connection that could not be made proves that nothing was sent, unless a redirect had been
    followed or the session retries more than connecting (``HTTPAdapter(max_retries=…)``). For
    ``rejected`` and everything else see `httpx_outcome`.

    Raises:
        Misconfigured: A status in ``rejected`` can prove nothing.
    """
    return _classifier(_from_requests, _statuses(rejected))


def _classifier(
    read: Callable[[BaseException, frozenset[int]], TransportFacts | None],
    rejected: frozenset[int],
) -> OutcomeOf:
    def outcome(error: BaseException) -> Judged | None:
        facts = read(error, rejected)
        return None if facts is None else decide_transport(facts)

    return outcome


def _statuses(rejected: Collection[int]) -> frozenset[int]:
    for status in sorted(rejected):
        if not 400 <= status < 500 or status in NEVER_PROOF:
            raise Misconfigured(
                field="rejected",
                reason=(
                    f"a status {status} proves nothing: a request that timed out, or failed behind "
                    "a gateway, may have been carried out (rule E8); where your receiver documents "
                    "otherwise, raise NotSent in the body"
                ),
            )
    return frozenset(rejected)


# --- the declaration ---------------------------------------------------------------------------


def declared(where: str, settings: Mapping[str, Any]) -> OutcomeOf | None:
    """Checks ``timeout_is=``, ``failed_when=`` and ``outcome_of=``, and makes them one function.

    Raises:
        Misconfigured: A declaration would take a timeout for a proof, or is no such thing.
    """
    if settings["timeout_is"] != "unknown":
        raise Misconfigured(
            field=where,
            reason=(
                "timeout_is can only be 'unknown': a request that timed out may have been carried "
                "out (rule E8). That no connection was made in time is another thing, and "
                "outcome_of=httpx_outcome() or requests_outcome() tells the two apart"
            ),
        )
    failures = _failures(where, settings["failed_when"])
    outcome_of: OutcomeOf | None = settings["outcome_of"]
    if outcome_of is not None and not _takes_an_error(outcome_of):
        raise Misconfigured(
            field=where,
            reason="outcome_of= is a function of the exception, e.g. httpx_outcome() with its ()",
        )
    if not failures:
        return outcome_of

    def outcome(error: BaseException) -> Any:
        if isinstance(error, failures):
            return "not_sent"
        return None if outcome_of is None else outcome_of(error)

    return outcome


def _failures(where: str, given: Any) -> tuple[type[BaseException], ...]:
    failures = (
        given if isinstance(given, tuple) else tuple(given or ()) if _many(given) else (given,)
    )
    for failure in failures:
        if not (isinstance(failure, type) and issubclass(failure, BaseException)):
            raise Misconfigured(field=where, reason="failed_when= is one or more exception classes")
        if failure in _TOO_WIDE:
            raise Misconfigured(
                field=where,
                reason=(
                    f"failed_when={failure.__name__} is too wide: a lost connection is one as "
                    "well, and proves nothing (rule E8); name what the receiver's refusal raises"
                ),
            )
        if issubclass(failure, _TIMEOUTS) or "timeout" in failure.__name__.lower():
            raise Misconfigured(
                field=where,
                reason=(
                    f"failed_when={failure.__name__}: a timeout is never a proven failure (rule "
                    "E8); outcome_of=httpx_outcome() or requests_outcome() tells a timeout while "
                    "connecting from one after the request had left"
                ),
            )
    return failures


def _many(given: Any) -> bool:
    return given is None or isinstance(given, (list, set, frozenset))


def _takes_an_error(outcome_of: Any) -> bool:
    if not callable(outcome_of) or inspect.iscoroutinefunction(outcome_of):
        return False
    try:
        inspect.signature(outcome_of).bind(None)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True


def judged(outcome_of: OutcomeOf | None, error: BaseException) -> Judged:
    """What an error of a body proves, with its class and kind in words for the ledger.

    Only `NotSent` and what the effect declares prove anything. What may have come after the
    request had left never does, whatever is declared (rule E8), nor does a declaration that fails
    itself.
    """
    name = type(error).__qualname__
    if isinstance(error, NotSent):
        return Judged(not_sent=True, seen=name)
    facts = _seen(error)
    may_be_proof = facts is None or decide_declarable(facts)
    kind = "" if facts is None else f" ({decide_transport(facts).seen})"
    if outcome_of is None or not isinstance(error, Exception):
        return Judged(not_sent=False, seen=name + kind)
    try:
        said = outcome_of(error)
    except Exception as broken:  # noqa: BLE001 - a declaration that fails proves nothing
        note = f"; outcome_of= raised {type(broken).__qualname__}"
        return Judged(not_sent=False, seen=name + kind + note)
    if isinstance(said, Judged):
        return Judged(said.not_sent and may_be_proof, f"{name} ({said.seen})")
    if said not in (None, "not_sent", "unknown"):
        note = f"; outcome_of= returned {type(said).__qualname__}"
        return Judged(not_sent=False, seen=name + kind + note)
    return Judged(said == "not_sent" and may_be_proof, name + kind)


def _seen(error: BaseException) -> TransportFacts | None:
    """What kind of transport error it is, whatever is declared; None when it is no such thing."""
    return (
        _from_python(error)
        or _from_httpx(error, REJECTED)
        or _from_requests(error, REJECTED)
        or _from_urllib3(error)
        or _from_client(error)
    )


def _from_client(error: BaseException) -> TransportFacts | None:
    """An error of a client's own that is in none of the tables; a class of the user's is not."""
    own = type(error).__module__.partition(".")[0] in _CLIENTS
    return TransportFacts(Trouble.OTHER) if own else None


def _from_urllib3(error: BaseException) -> TransportFacts | None:
    """Kind of an error of urllib3; it says nothing of what was sent before."""
    trouble = _named(error, ("urllib3",), _URLLIB3)
    return None if trouble is None else TransportFacts(trouble)


def _from_python(error: BaseException) -> TransportFacts | None:
    """Kind of an error of Python's own sockets; it says nothing of when it came."""
    if isinstance(error, _TIMEOUTS):
        return TransportFacts(Trouble.TIMEOUT)
    if isinstance(error, ConnectionRefusedError):
        return TransportFacts(Trouble.REFUSED)
    if isinstance(error, _DROPPED) or type(error) is ConnectionError:
        return TransportFacts(Trouble.DROPPED)
    return None


# --- reading exceptions ------------------------------------------------------------------------


def _named(error: BaseException, libraries: Collection[str], known: Mapping[str, Trouble]) -> Any:
    """Kind of an exception by the nearest class of a library that is known; None for others."""
    for cls in type(error).__mro__:
        if cls.__module__.partition(".")[0] in libraries and cls.__name__ in known:
            return known[cls.__name__]
    return None


def _frames(error: BaseException) -> Iterator[FrameType]:
    """Frames that the exception went through, outermost first."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _status(response: Any, rejected: frozenset[int], *, earlier: bool) -> TransportFacts:
    status = getattr(response, "status_code", None)
    return TransportFacts(
        Trouble.STATUS, status if isinstance(status, int) else 0, earlier, rejected
    )


def _answered(history: Any) -> bool:
    """Whether a request before this one may have been applied: a 401 says that it was not."""
    return any(getattr(response, "status_code", 0) != 401 for response in history or ())


def _from_httpx(error: BaseException, rejected: frozenset[int]) -> TransportFacts | None:
    trouble = _named(error, ("httpx", "httpx2"), _HTTPX)
    if trouble is None:
        return None
    if trouble is Trouble.STATUS:
        response = getattr(error, "response", None)
        earlier = response is None or _answered(response.history)
        return _status(response, rejected, earlier=earlier)
    return TransportFacts(trouble, earlier=not _first_of_httpx(error))


def _first_of_httpx(error: BaseException) -> bool:
    """Whether the exception came from the first request of one call of httpx's own transport.

    httpx does not say so in the exception; the frames that it went through do. Where they are
    missing, nothing is proven.
    """
    sending = [f for f in _frames(error) if f.f_code.co_name == "_send_handling_redirects"]
    single = [f for f in _frames(error) if f.f_code.co_name == "_send_single_request"]
    if len(sending) != 1 or len(single) != 1:
        return False
    transport = type(single[0].f_locals.get("transport"))
    own = transport.__module__.partition(".")[0] in ("httpx", "httpx2")
    return own and not _answered(sending[0].f_locals.get("history", (None,)))


def _from_requests(error: BaseException, rejected: frozenset[int]) -> TransportFacts | None:
    trouble = _named(error, ("requests",), _REQUESTS)
    if trouble is None:
        return None
    if trouble is Trouble.STATUS:
        response = getattr(error, "response", None)
        earlier = response is None or _answered(response.history) or _retried(response)
        return _status(response, rejected, earlier=earlier)
    if trouble is Trouble.DROPPED and _never_connected(error):
        trouble = Trouble.REFUSED
    return TransportFacts(trouble, earlier=not _first_of_requests(error, trouble))


def _never_connected(error: BaseException) -> bool:
    """Whether urllib3 says that it got no connection; its classes name the reason."""
    reason = getattr(error.args[0], "reason", None) if error.args else None
    names = {cls.__name__ for cls in type(reason).__mro__}
    return "NewConnectionError" in names


def _first_of_requests(error: BaseException, trouble: Trouble) -> bool:
    """Whether the exception came from a session's first request, sent once."""
    frames = [f for f in _frames(error) if _module(f).partition(".")[0] == "requests"]
    if any(f.f_code.co_name in _LATER_REQUESTS for f in frames):
        return False
    sending = [f for f in frames if (_module(f), f.f_code.co_name) == ("requests.adapters", "send")]
    if trouble is Trouble.NOT_BUILT:
        return bool(frames) and not sending
    if len(sending) != 1:
        return False
    retries = getattr(sending[0].f_locals.get("self"), "max_retries", None)
    # Without a total nothing is retried; with one, only connecting is safe to retry.
    parts = [getattr(retries, part, None) for part in ("read", "status", "other")]
    return getattr(retries, "total", None) == 0 or all(
        p in (0, False) and p is not None for p in parts
    )


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _retried(response: Any) -> bool:
    """Whether urllib3 had sent the request before the one that was answered."""
    retries = getattr(getattr(response, "raw", None), "retries", None)
    for entry in getattr(retries, "history", None) or ():
        names = {cls.__name__ for cls in type(getattr(entry, "error", None)).__mro__}
        if not names & {"NewConnectionError", "ConnectTimeoutError"}:
            return True
    return False
