"""What a transport error proves (rule E8), as a table, and what a declaration may say."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import itertools
from typing import Any

import pytest

from surefoot import NotSent, effect
from surefoot.errors import Misconfigured
from surefoot.rules.transport import (
    REJECTED,
    Judged,
    TransportFacts,
    Trouble,
    decide_failed,
    decide_transport,
)
from surefoot.transport import httpx_outcome, judged, requests_outcome

pytestmark = pytest.mark.optimized

BEFORE = {Trouble.REFUSED, Trouble.CONNECT_TIMEOUT, Trouble.NO_SLOT, Trouble.NOT_BUILT}


@pytest.mark.parametrize("trouble", Trouble)
def test_only_what_came_before_sending_is_a_proof(trouble: Trouble) -> None:
    assert decide_transport(TransportFacts(trouble)).not_sent == (trouble in BEFORE)
    assert not decide_transport(TransportFacts(trouble, earlier=True)).not_sent


def test_every_status() -> None:
    proofs = {
        status
        for status in range(100, 600)
        if decide_transport(TransportFacts(Trouble.STATUS, status)).not_sent
    }
    assert proofs == REJECTED
    assert not {402, 406, 408, 409, 412, 500, 502, 503, 504} & proofs


@pytest.mark.parametrize("status", [200, 204, 302, 408, 500, 503])
def test_no_declaration_makes_a_proof_of_what_is_none(status: int) -> None:
    facts = TransportFacts(Trouble.STATUS, status, rejected={status})
    assert not decide_transport(facts).not_sent
    for outcome in (httpx_outcome, requests_outcome):
        with pytest.raises(Misconfigured, match=f"status {status} proves nothing"):
            outcome(rejected=[400, status])


def test_a_status_may_be_declared_for_a_receiver() -> None:
    assert decide_transport(TransportFacts(Trouble.STATUS, 409, rejected={409})).not_sent
    assert not decide_transport(TransportFacts(Trouble.STATUS, 400, rejected={409})).not_sent


def test_a_failure_counts_only_where_no_earlier_attempt_may_have_landed() -> None:
    for not_sent, resent, ambiguous in itertools.product([True, False], repeat=3):
        failed = decide_failed(not_sent=not_sent, resent=resent, ambiguous=ambiguous)
        assert failed == (not_sent and not resent and not ambiguous)


# --- the declaration ---------------------------------------------------------------------------


class Declined(Exception):
    """The receiver said no."""


class SlowTimeout(Exception):
    """Not one of Python's timeouts, but called one."""


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"timeout_is": "failed"}, "can only be 'unknown'"),
        ({"timeout_is": None}, "can only be 'unknown'"),
        ({"failed_when": TimeoutError}, "never a proven failure"),
        ({"failed_when": (Declined, asyncio.TimeoutError)}, "never a proven failure"),
        ({"failed_when": [SlowTimeout]}, "never a proven failure"),
        ({"failed_when": Exception}, "too wide"),
        ({"failed_when": ConnectionError}, "too wide"),
        ({"failed_when": "Declined"}, "exception classes"),
        ({"failed_when": [int]}, "exception classes"),
        ({"outcome_of": httpx_outcome}, r"with its \(\)"),
        ({"outcome_of": "unknown"}, "function of the exception"),
        ({"outcome_of": lambda: None}, "function of the exception"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_declaration_is_refused_at_decoration(settings: Any, says: str) -> None:
    with pytest.raises(Misconfigured, match=says):
        effect(**settings)(lambda: None)


def test_what_may_be_declared() -> None:
    for settings in (
        {"timeout_is": "unknown"},
        {"failed_when": Declined},
        {"failed_when": [Declined, ConnectionRefusedError], "outcome_of": requests_outcome()},
    ):
        effect(**settings)(lambda: None)


# --- errors of a body --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "proof"),
    [("not_sent", True), ("unknown", False), (None, False), (True, False), ("failed", False)],
)
def test_what_a_declaration_returns(said: Any, proof: bool) -> None:
    assert judged(lambda error: said, Declined()).not_sent is proof


def returning(said: Any, error: BaseException) -> Any:
    return said


def test_a_timeout_of_pythons_own_is_never_a_proof() -> None:
    timeouts = TimeoutError(), asyncio.TimeoutError(), concurrent.futures.TimeoutError()
    for error in timeouts:
        for said in ("not_sent", Judged(not_sent=True, seen="x")):
            assert not judged(functools.partial(returning, said), error).not_sent


def _maybe_sent() -> list[BaseException]:
    httpx = pytest.importorskip("httpx")
    requests = pytest.importorskip("requests")
    urllib3 = pytest.importorskip("urllib3").exceptions
    request = httpx.Request("POST", "http://receiver")
    status = [
        httpx.HTTPStatusError("", request=request, response=httpx.Response(n)) for n in (408, 503)
    ]
    return [
        *(httpx.ReadTimeout(""), httpx.WriteTimeout(""), httpx.ReadError(""), httpx.CloseError("")),
        *(httpx.RemoteProtocolError(""), httpx.DecodingError(""), httpx.TooManyRedirects("")),
        *(httpx.TransportError(""), *status),
        *(requests.ReadTimeout(), requests.Timeout(), requests.ConnectionError()),
        *(requests.exceptions.ChunkedEncodingError(), requests.JSONDecodeError("", "", 0)),
        *(requests.TooManyRedirects(), requests.exceptions.SSLError(), requests.HTTPError()),
        *(urllib3.ReadTimeoutError(None, "", ""), urllib3.ProtocolError()),
        *(urllib3.MaxRetryError(None, ""), urllib3.IncompleteRead(0, 1)),
        *(ConnectionResetError(), BrokenPipeError(), ConnectionError()),
    ]


def test_what_may_have_been_sent_is_never_a_proof() -> None:
    for error in _maybe_sent():
        for said in ("not_sent", Judged(not_sent=True, seen="x")):
            assert not judged(functools.partial(returning, said), error).not_sent, error


def test_what_was_not_sent_and_what_others_raise_may_be_declared() -> None:
    httpx = pytest.importorskip("httpx")
    requests = pytest.importorskip("requests")
    urllib3 = pytest.importorskip("urllib3").exceptions

    class Rejected(httpx.HTTPError):  # type: ignore[misc,name-defined]
        """The user's own."""

    class Offline(ConnectionError):
        """The user's own."""

    response = httpx.Response(402)
    request = httpx.Request("POST", "http://receiver")
    for error in (
        *(httpx.ConnectError(""), httpx.ConnectTimeout(""), httpx.PoolTimeout("")),
        *(httpx.InvalidURL(""), httpx.HTTPStatusError("", request=request, response=response)),
        *(requests.ConnectTimeout(), requests.exceptions.InvalidURL()),
        *(urllib3.NewConnectionError(None, ""), ConnectionRefusedError(), Declined()),
        *(Rejected(""), Offline()),
    ):
        assert judged(lambda error: "not_sent", error).not_sent, error


def test_nothing_is_a_proof_without_a_declaration_but_not_sent() -> None:
    assert judged(None, NotSent()).not_sent
    assert judged(lambda error: "unknown", NotSent()).not_sent
    for error in (ConnectionRefusedError(), Declined(), TimeoutError(), KeyboardInterrupt()):
        assert not judged(None, error).not_sent
    assert not judged(lambda error: "not_sent", KeyboardInterrupt()).not_sent


def test_a_declaration_that_fails_proves_nothing() -> None:
    def broken(error: BaseException) -> Any:
        raise ValueError("hunter2")

    seen = judged(broken, Declined())
    assert not seen.not_sent
    assert seen.seen == "Declined; outcome_of= raised ValueError"


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (TimeoutError("hunter2"), "TimeoutError (timeout)"),
        (ConnectionRefusedError("hunter2"), "ConnectionRefusedError (no connection)"),
        (ConnectionResetError(), "ConnectionResetError (connection dropped)"),
        (BrokenPipeError(), "BrokenPipeError (connection dropped)"),
        (Declined("hunter2"), "Declined"),
        (NotSent("hunter2"), "NotSent"),
    ],
    ids=repr,
)
def test_the_ledger_keeps_the_class_and_the_kind(error: BaseException, seen: str) -> None:
    assert judged(None, error).seen == seen


def test_an_exception_that_shows_no_call_proves_nothing() -> None:
    """Made elsewhere, or its frames are gone: nobody saw that it was the first request."""
    httpx = pytest.importorskip("httpx")
    requests = pytest.importorskip("requests")
    assert not judged(httpx_outcome(), httpx.ConnectError("x")).not_sent
    assert not judged(requests_outcome(), requests.ConnectTimeout("x")).not_sent
    assert judged(httpx_outcome(), requests.ConnectTimeout("x")).seen.startswith("ConnectTimeout")
