"""Transport errors of real clients on real sockets, and what the ledger makes of them (E8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import httpx2
import pytest
import requests
from tests.effects.conftest import Bench
from tests.effects.receiver_server import ReceiverServer, closed_port, deaf_port
from urllib3.util import Retry

from surefoot import NotSent, effect
from surefoot.errors import EffectConflict, EffectInDoubt
from surefoot.flows.acquire import effect_of
from surefoot.flows.views import viewing
from surefoot.rules.envelope import Kind
from surefoot.transport import httpx_outcome, requests_outcome

pytestmark = pytest.mark.optimized

CLIENTS = ["httpx", "httpx2", "requests"]
TIMEOUT_S = 0.4


@pytest.fixture
def server() -> Iterator[ReceiverServer]:
    made = ReceiverServer()
    yield made
    made.close()


def poster(client: str, *, follow: bool = False) -> Callable[[str], int]:
    """Posts with a client that is made anew for each call, as bodies mostly do."""

    def post(url: str) -> int:
        if client == "requests":
            reply: Any = requests.post(url, data=b"x", timeout=TIMEOUT_S, allow_redirects=follow)
        else:
            library: Any = httpx if client == "httpx" else httpx2
            reply = library.post(url, content=b"x", timeout=TIMEOUT_S, follow_redirects=follow)
        reply.raise_for_status()
        return int(reply.status_code)

    return post


def outcome(client: str) -> Any:
    return requests_outcome() if client == "requests" else httpx_outcome()


def ledger(bench: Bench, config: dict[str, Any]) -> list[tuple[str, str | None]]:
    """State and error of the effect records of a thread, oldest first."""
    thread = config["configurable"]["thread_id"]

    def look(chain: Any) -> list[tuple[str, str | None]]:
        found = [effect_of(thread, r) for r in chain.walk() if r.kind is Kind.EFFECT]
        return [(e.state, e.error) for e in reversed(found)]

    return viewing(bench.saver.core.ports, thread, look)


def judge(bench: Bench, body: Callable[[], Any], **settings: Any) -> tuple[str, str | None]:
    """Runs a body of class N that fails; the state and the error that the ledger keeps."""
    call = effect(name="post", **settings)(body)
    graph, config = bench.graph(lambda s: {"log": [call()]}), bench.config()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever the client raises
        graph.invoke({"log": []}, config)
    assert not isinstance(caught.value, AssertionError)
    return ledger(bench, config)[-1]


#: Behaviour of the receiver, state, and what the ledger says of the error, by the client.
FAULTS: list[tuple[str, str, dict[str, str]]] = [
    ("(closed)", "failed", {"httpx": "ConnectError (no connection)",
                            "requests": "ConnectionError (no connection)"}),
    ("(deaf)", "failed", {"httpx": "ConnectTimeout (connect timeout)",
                          "requests": "ConnectTimeout (connect timeout)"}),
    ("/hang", "in_doubt", {"httpx": "ReadTimeout (read timeout)",
                           "requests": "ReadTimeout (read timeout)"}),
    ("/drop", "in_doubt", {"httpx": "ReadError (connection dropped)",
                           "requests": "ConnectionError (connection dropped)"}),
    ("/refuse", "in_doubt", {"httpx": "ReadError (connection dropped)",
                             "requests": "ConnectionError (connection dropped)"}),
    ("/half", "in_doubt", {"httpx": "RemoteProtocolError (connection dropped)",
                           "requests": "ChunkedEncodingError (connection dropped)"}),
    *(
        (f"/status/{status}", state, {"httpx": f"HTTPStatusError (status {status})",
                                      "requests": f"HTTPError (status {status})"})
        for status, state in [
            (400, "failed"), (401, "failed"), (404, "failed"), (422, "failed"), (425, "failed"),
            (429, "failed"), (402, "in_doubt"), (406, "in_doubt"), (408, "in_doubt"),
            (409, "in_doubt"), (500, "in_doubt"), (502, "in_doubt"), (503, "in_doubt"),
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("path", "state", "seen"), FAULTS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_what_a_real_error_becomes(
    bench: Bench, server: ReceiverServer, client: str, path: str, state: str, seen: dict[str, str]
) -> None:
    post = poster(client)
    with ExitStack() as stack:
        if path.startswith("("):
            port = closed_port() if path == "(closed)" else stack.enter_context(deaf_port())
            url = f"http://127.0.0.1:{port}/"
        else:
            url = server.url(path)
        found = judge(bench, lambda: post(url), outcome_of=outcome(client))
    wanted = seen["requests" if client == "requests" else "httpx"]
    # A reset may hit the writing or the reading; only the kind is told from outside.
    assert found[0] == state
    assert found[1] is not None
    assert found[1].partition(" ")[2] == wanted.partition(" ")[2]
    if path != "/refuse":
        assert found[1] == wanted
    if state == "failed":
        assert server.landed == [], "called a proven failure, and it was carried out"


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
@pytest.mark.parametrize(
    ("path", "state"),
    [("(closed)", "failed"), ("/hang", "in_doubt"), ("/drop", "in_doubt"), ("/half", "in_doubt"),
     ("/status/422", "failed"), ("/status/503", "in_doubt")],
)  # fmt: skip
async def test_what_a_real_error_becomes_on_a_loop(
    bench: Bench, server: ReceiverServer, library: Any, path: str, state: str
) -> None:
    url = f"http://127.0.0.1:{closed_port()}/" if path == "(closed)" else server.url(path)

    @effect(outcome_of=httpx_outcome())
    async def post() -> int:
        async with library.AsyncClient(timeout=TIMEOUT_S) as client:
            return int((await client.post(url)).raise_for_status().status_code)

    async def node(state: Any) -> Any:
        return {"log": [await post()]}

    graph, config = bench.graph(node), bench.config()
    with pytest.raises(library.HTTPError):
        await graph.ainvoke({"log": []}, config)
    assert ledger(bench, config)[-1][0] == state


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_a_full_pool_sends_nothing(bench: Bench, server: ReceiverServer, library: Any) -> None:
    limits = library.Limits(max_connections=1)
    timeout = library.Timeout(5, pool=0.05)
    with (
        library.Client(limits=limits, timeout=timeout) as client,
        client.stream("POST", server.url("/half")),
    ):
        found = judge(bench, lambda: client.post(server.url("/ok")), outcome_of=httpx_outcome())
    assert found == ("failed", "PoolTimeout (no free connection in the pool)")
    assert server.landed == ["/half"]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("status", [303, 307])
def test_after_a_redirect_the_first_request_has_been_sent(
    bench: Bench, server: ReceiverServer, client: str, status: int
) -> None:
    """The place it points to refuses the connection; what pointed there had done its work."""
    post = poster(client, follow=True)
    url = server.url(f"/redirect/{status}/{closed_port()}")
    state, seen = judge(bench, lambda: post(url), outcome_of=outcome(client))
    assert state == "in_doubt"
    assert seen is not None
    assert seen.endswith("(no connection, after an earlier request)")
    assert len(server.landed) == 1


@pytest.mark.parametrize("client", CLIENTS)
def test_a_rejection_after_a_redirect_proves_nothing(
    bench: Bench, server: ReceiverServer, client: str
) -> None:
    other = ReceiverServer()
    try:
        other._behave = lambda peer, path: other._reply(peer, 404, "")  # type: ignore[method-assign]
        post = poster(client, follow=True)
        url = server.url(f"/redirect/303/{other.port}")
        state, _ = judge(bench, lambda: post(url), outcome_of=outcome(client))
    finally:
        other.close()
    assert state == "in_doubt"


@pytest.mark.parametrize(
    ("retries", "state"),
    [(Retry(connect=1, read=0, status=0, other=0), "failed"), (Retry(1), "in_doubt")],
    ids=["connecting only", "anything"],
)
def test_a_session_that_retries_proves_less(bench: Bench, retries: Retry, state: str) -> None:
    url = f"http://127.0.0.1:{closed_port()}/"

    def post() -> Any:
        with requests.Session() as session:
            session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retries))
            return session.post(url, timeout=TIMEOUT_S)

    assert judge(bench, post, outcome_of=requests_outcome())[0] == state


def test_a_transport_that_may_retry_proves_nothing(bench: Bench) -> None:
    class Retrying(httpx.BaseTransport):
        """Another one's transport; it could have sent before."""

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            with httpx.HTTPTransport() as inner:
                return inner.handle_request(request)

    def post() -> Any:
        with httpx.Client(transport=Retrying()) as client:
            return client.post(f"http://127.0.0.1:{closed_port()}/")

    assert judge(bench, post, outcome_of=httpx_outcome())[0] == "in_doubt"


@pytest.mark.parametrize("client", CLIENTS)
def test_without_a_declaration_every_error_is_in_doubt(bench: Bench, client: str) -> None:
    post = poster(client)
    url = f"http://127.0.0.1:{closed_port()}/"
    state, seen = judge(bench, lambda: post(url))
    assert state == "in_doubt"
    assert seen is not None
    assert "(no connection)" in seen


# --- what follows from it ----------------------------------------------------------------------


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("path", ["/drop", "/hang", "/half"])
def test_case_08_the_lost_answer(
    either: Bench, server: ReceiverServer, client: str, path: str
) -> None:
    """The receiver executed and the answer was lost: unknown, never failed, never sent again."""
    send = poster(client)
    post = effect(name="post", outcome_of=outcome(client))(lambda: send(server.url(path)))
    graph, config = either.graph(lambda s: {"log": [post()]}), either.config()
    with pytest.raises((httpx.HTTPError, httpx2.HTTPError, requests.RequestException)):
        graph.invoke({"log": []}, config)
    server.mended = True
    for _ in range(2):
        with pytest.raises(EffectInDoubt):
            graph.invoke(None, config)
    assert server.landed == [path]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("path", ["/status/422", "/status/429"])
def test_case_17_a_proven_failure_stays_retryable(
    either: Bench, server: ReceiverServer, client: str, path: str
) -> None:
    """Refused before anything happened: run again, as often as it takes, never done for ever."""
    send = poster(client)
    amounts = iter([1, 2, 3, 3])

    @effect(outcome_of=outcome(client))
    def post(amount: int) -> int:
        return send(server.url(path))

    graph, config = either.graph(lambda s: {"log": [post(next(amounts))]}), either.config()
    given: Any
    for given in ({"log": []}, None):
        with pytest.raises((httpx.HTTPError, httpx2.HTTPError, requests.RequestException)):
            graph.invoke(given, config)
    assert server.landed == []
    server.mended = True
    assert graph.invoke(None, config)["log"] == [200]
    assert [state for state, _ in ledger(either, config)].count("failed") == 2
    assert server.landed == [path]


class Declined(Exception):
    """The receiver said no."""


def test_a_declared_exception_is_a_proven_failure(either: Bench) -> None:
    faults: list[Exception] = [Declined(), KeyError("other")]

    @effect(failed_when=Declined)
    def post() -> int:
        raise faults.pop(0)

    graph, config = either.graph(lambda s: {"log": [post()]}), either.config()
    with pytest.raises(Declined):
        graph.invoke({"log": []}, config)
    with pytest.raises(KeyError):
        graph.invoke(None, config)
    with pytest.raises(EffectInDoubt):
        graph.invoke(None, config)
    assert ledger(either, config)[-1] == ("in_doubt", "KeyError")


def test_a_resend_that_is_not_sent_proves_nothing_about_the_first_one(either: Bench) -> None:
    """K: the first attempt may have landed, so its arguments stay bound."""
    faults: list[Exception] = [TimeoutError(), NotSent()]

    @effect(idempotent=True)
    def post(amount: int, *, idempotency_key: str) -> int:
        either.world.send(amount, idempotency_key)
        if faults:
            raise faults.pop(0)
        return amount

    amounts = [1, 1, 2, 1]
    graph = either.graph(lambda s: {"log": [post(amounts[len(calls) - 1])]})
    calls: list[int] = []
    config = either.config()
    for expected in (TimeoutError, NotSent, EffectConflict):
        calls.append(1)
        with pytest.raises(expected):
            graph.invoke({"log": []} if len(calls) == 1 else None, config)
    calls.append(1)
    assert graph.invoke(None, config)["log"] == [1]
    assert either.world.sent == [1, 1, 1]
    assert len(set(either.world.keys)) == 1


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"failed_when": httpx.TransportError}, httpx.ReadTimeout("")),
        ({"failed_when": httpx.HTTPError}, httpx.ReadTimeout("")),
        ({"failed_when": requests.RequestException}, requests.ReadTimeout()),
        ({"failed_when": requests.ConnectionError}, requests.ConnectionError()),
        ({"outcome_of": lambda error: "not_sent"}, httpx.ReadTimeout("")),
    ],
    ids=["TransportError", "HTTPError", "RequestException", "ConnectionError", "outcome_of"],
)
def test_a_read_timeout_is_never_a_proof(
    bench: Bench, settings: dict[str, Any], error: Exception
) -> None:
    """Also below a class that is wider than what it means."""

    @effect(name="pay", **settings)
    def pay(what: int) -> str:
        bench.world.send(what)
        if bench.world.count == 1:
            raise error
        return "paid"

    config = bench.config()
    graph = bench.graph(lambda state: {"log": [pay(1)]})
    with pytest.raises(type(error)):
        graph.invoke({"n": 1}, config)
    with pytest.raises(EffectInDoubt):
        graph.invoke(None, config)
    assert bench.world.sent == [1]
