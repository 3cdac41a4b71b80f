"""The payment service and its client, with real processes, sockets and kills."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from surefoot.demo import payments_client
from surefoot.demo.payments_client import (
    KeyConflict,
    LookupFailed,
    NotExecuted,
    OutcomeUnknown,
    PaymentError,
    PaymentService,
    ServiceFailed,
    charge,
    find,
    send,
)

SOURCE = Path(payments_client.__file__).resolve().parents[2]
PAY = "import sys; from surefoot.demo.payments_client import charge; "
PAY += "charge(sys.argv[1], sys.argv[2], sys.argv[3], 100, 'EUR', 'key-1', timeout=60)"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[PaymentService]:
    with PaymentService(tmp_path / "payments.db") as running:
        yield running


@pytest.fixture(scope="module")
def untouched() -> Iterator[PaymentService]:
    """One service for the tests in which nothing may happen."""
    with PaymentService() as running:
        yield running
        assert running.audit().landed == []


def start_payer(service: PaymentService, mode: str, invoice: str) -> subprocess.Popen[bytes]:
    """A process that pays once; killed by the caller."""
    return subprocess.Popen(
        [sys.executable, "-c", PAY, service.url, mode, invoice],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stderr=subprocess.DEVNULL,
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL, and proof that it was this that ended it."""
    process.kill()
    assert process.wait(30) == -signal.SIGKILL


# -- the three modes ---------------------------------------------------------------------------


def test_a_charge_has_the_promised_fields(service: PaymentService) -> None:
    got = charge(service.url, "idempotent", "inv-1", 100, "EUR", "key-1")
    assert list(got) == ["id", "invoice", "amount", "currency", "key", "created_at"]
    assert (got["invoice"], got["amount"], got["currency"], got["key"]) == (
        "inv-1",
        100,
        "EUR",
        "key-1",
    )


def test_idempotent_same_key_same_body_is_replayed(service: PaymentService) -> None:
    body = {"invoice": "inv-1", "amount": 100, "currency": "EUR"}
    first = send(service.url, "/idempotent/charges", body, key="key-1")
    second = send(service.url, "/idempotent/charges", body, key="key-1")
    assert (first.status, second.status) == (201, 200)
    assert second.body == {**first.body, "replayed": True}
    assert service.audit().count("inv-1") == 1
    assert service.audit().attempted("inv-1") == 2


def test_the_client_returns_a_replay_like_the_first_answer(service: PaymentService) -> None:
    pay = [charge(service.url, "idempotent", "inv-1", 100, "EUR", "key-1") for _ in range(2)]
    assert pay[0] == pay[1]


@pytest.mark.parametrize("other", [("inv-1", 101, "EUR"), ("inv-1", 100, "USD")])
def test_idempotent_same_key_other_body_shows_both(
    service: PaymentService, other: tuple[str, int, str]
) -> None:
    charge(service.url, "idempotent", "inv-1", 100, "EUR", "key-1")
    with pytest.raises(KeyConflict) as caught:
        charge(service.url, "idempotent", *other, "key-1")
    assert caught.value.status == 409
    assert caught.value.stored == {"invoice": "inv-1", "amount": 100, "currency": "EUR"}
    assert caught.value.sent == dict(zip(("invoice", "amount", "currency"), other, strict=True))
    assert len(service.audit().landed) == 1


def test_idempotent_without_a_key_does_not_deduplicate(service: PaymentService) -> None:
    for _ in range(2):
        charge(service.url, "idempotent", "inv-1", 100, "EUR")
    assert service.audit().count("inv-1") == 2


def test_a_key_protects_until_its_window_ends(tmp_path: Path) -> None:
    day_ms = 24 * 3600 * 1000
    with PaymentService(tmp_path / "payments.db", window_ms=day_ms) as service:
        first = charge(service.url, "idempotent", "inv-1", 100, "EUR", "key-1")
        service.configure(advance_clock_ms=day_ms - 60_000)
        assert charge(service.url, "idempotent", "inv-1", 100, "EUR", "key-1") == first
        service.configure(advance_clock_ms=60_000)
        later = charge(service.url, "idempotent", "inv-1", 100, "EUR", "key-1")
        assert later["id"] != first["id"]
        assert service.audit().count("inv-1") == 2
        # The newest charge holds the key now.
        assert charge(service.url, "idempotent", "inv-1", 100, "EUR", "key-1") == later


def test_lookup_stores_the_key_and_does_not_deduplicate(service: PaymentService) -> None:
    first = charge(service.url, "lookup", "inv-1", 100, "EUR", "key-1")
    second = charge(service.url, "lookup", "inv-1", 250, "EUR", "key-1")
    other = charge(service.url, "lookup", "inv-2", 100, "EUR", "key-2")
    assert find(service.url, key="key-1") == [first, second]
    assert find(service.url, invoice="inv-2") == [other]
    assert find(service.url, key="key-1", invoice="inv-2") == []
    assert find(service.url, key="never") == []


def test_lookup_sees_only_its_own_mode_and_kind(service: PaymentService) -> None:
    charge(service.url, "idempotent", "inv-1", 100, "EUR", "key-1")
    send(service.url, "/lookup/tickets", {"invoice": "inv-1", "title": "t"}, key="key-1")
    assert find(service.url, key="key-1") == []


def test_an_eventually_consistent_lookup_finds_it_later(service: PaymentService) -> None:
    service.configure(delay_visibility_ms=3_600_000)
    made = charge(service.url, "lookup", "inv-1", 100, "EUR", "key-1")
    assert find(service.url, key="key-1") == []
    service.configure(advance_clock_ms=3_600_000)
    assert find(service.url, key="key-1") == [made]


def test_neither_keeps_no_key_and_offers_no_lookup(service: PaymentService) -> None:
    for _ in range(2):
        assert charge(service.url, "neither", "inv-1", 100, "EUR", "key-1")["key"] is None
    assert [row["key"] for row in service.audit().landed] == [None, None]
    for mode in ("neither", "idempotent"):
        address = f"{service.url}/{mode}/charges?key=key-1"
        with pytest.raises(LookupFailed) as caught:
            payments_client._read(address, 10)
        assert caught.value.status == 405


@pytest.mark.parametrize("mode", ["idempotent", "lookup", "neither"])
def test_the_instance_has_a_mode_and_the_path_overrides_it(tmp_path: Path, mode: str) -> None:
    with PaymentService(tmp_path / "payments.db", mode=mode) as service:
        charge(service.url, None, "inv-1", 100, "EUR", "key-1")
        charge(service.url, "lookup", "inv-1", 100, "EUR", "key-1")
        assert [row["mode"] for row in service.audit().landed] == [mode, "lookup"]


def test_keys_of_different_modes_and_kinds_do_not_meet(service: PaymentService) -> None:
    charge(service.url, "idempotent", "inv-1", 100, "EUR", "key-1")
    ticket = {"invoice": "inv-1", "title": "call back"}
    email = {"invoice": "inv-1", "to": "a@example.org", "subject": "paid"}
    for _ in range(2):
        send(service.url, "/idempotent/tickets", ticket, key="key-1")
        send(service.url, "/neither/emails", email)
    counts = service.audit().counts
    assert counts == {"charges": {"inv-1": 1}, "tickets": {"inv-1": 1}, "emails": {"inv-1": 2}}
    assert [row["kind"] for row in service.audit().landed] == [
        "charges",
        "tickets",
        "emails",
        "emails",
    ]
    assert [row["id"] for row in service.audit(kind="tickets").landed] == ["tk_000002"]


def test_sixteen_posts_at_once_with_one_key_make_one_charge(service: PaymentService) -> None:
    together = threading.Barrier(16)

    def pay(_: int) -> dict[str, Any]:
        together.wait(30)
        return charge(service.url, "idempotent", "inv-1", 100, "EUR", "key-1")

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(pay, range(16)))
    assert all(answer == answers[0] for answer in answers)
    audit = service.audit()
    assert (audit.count("inv-1"), audit.attempted("inv-1")) == (1, 16)


# -- killed while held ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["idempotent", "lookup", "neither"])
@pytest.mark.parametrize(
    ("where", "outcome", "landed"), [("before_commit", "aborted", 0), ("after_commit", "landed", 1)]
)
def test_a_client_killed_while_held(
    service: PaymentService, mode: str, where: str, outcome: str, landed: int
) -> None:
    held_by = service.hold(where, invoice="inv-1", id="barrier")
    payer = start_payer(service, mode, "inv-1")
    held = service.wait_held(held_by)
    assert (held.where, held.invoice) == (where, "inv-1")
    assert service.held() == [held]
    assert service.audit().count("inv-1") == landed
    kill(payer)
    assert service.wait_gone(held_by).outcome == outcome
    assert service.held() == []
    assert service.release(held_by) == 0
    assert service.audit().count("inv-1") == landed
    charge(service.url, mode, "inv-1", 100, "EUR", "key-1")
    assert service.audit().count("inv-1") == (1 if mode == "idempotent" else landed + 1)


def test_a_release_after_the_kill_does_not_commit(service: PaymentService) -> None:
    """The release may win the race for the thread's attention; the dead client still decides."""
    for number in range(10):
        held_by = service.hold("before_commit", invoice="inv-1")
        with socket.create_connection(("127.0.0.1", service.port)) as client:
            body = json.dumps({"invoice": "inv-1", "amount": number + 1, "currency": "EUR"})
            head = f"POST /neither/charges HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}"
            client.sendall(f"{head}\r\n\r\n{body}".encode())
            service.wait_held(held_by)
        service.release(held_by)
        assert service.wait_gone(held_by).outcome == "aborted"
    assert service.audit().landed == []


def test_on_disconnect_commit_lands_without_its_client(service: PaymentService) -> None:
    held_by = service.hold("before_commit", invoice="inv-1", on_disconnect="commit")
    payer = start_payer(service, "neither", "inv-1")
    service.wait_held(held_by)
    kill(payer)
    assert service.wait_gone(held_by).outcome == "landed"
    assert service.audit().count("inv-1") == 1


def test_on_disconnect_wait_lands_at_the_release(service: PaymentService) -> None:
    held_by = service.hold("before_commit", invoice="inv-1", on_disconnect="wait")
    payer = start_payer(service, "lookup", "inv-1")
    service.wait_held(held_by)
    kill(payer)
    assert find(service.url, key="key-1") == []  # absent now …
    assert service.release(held_by) == 1
    assert service.wait_gone(held_by).outcome == "landed"
    assert len(find(service.url, key="key-1")) == 1  # … and late


def test_a_late_landing_meets_the_key_of_its_successor(service: PaymentService) -> None:
    held_by = service.hold("before_commit", invoice="inv-1", on_disconnect="wait")
    payer = start_payer(service, "idempotent", "inv-1")
    service.wait_held(held_by)
    kill(payer)
    charge(service.url, "idempotent", "inv-1", 100, "EUR", "key-1")
    service.release(held_by)
    assert service.wait_gone(held_by).outcome == "replayed"
    assert service.audit().count("inv-1") == 1


@pytest.mark.parametrize("where", ["before_commit", "after_commit"])
def test_a_released_request_is_answered(service: PaymentService, where: str) -> None:
    held_by = service.hold(where, invoice="inv-1", times=2)
    with ThreadPoolExecutor(2) as pool:
        paying = [
            pool.submit(charge, service.url, "neither", "inv-1", 100, "EUR") for _ in range(2)
        ]
        service.wait_held(held_by, count=2)
        charge(service.url, "neither", "inv-2", 100, "EUR")  # not matched, not held
        assert service.release(held_by) == 2
        ids = {pay.result(30)["id"] for pay in paying}
    assert len(ids) == service.audit().count("inv-1") == 2


def test_a_request_sent_early_does_not_look_like_leaving(service: PaymentService) -> None:
    held_by = service.hold("before_commit", invoice="inv-1")
    body = b'{"invoice": "inv-1", "amount": 1, "currency": "EUR"}'
    head = b"POST /neither/charges HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as client:
        client.sendall(head + body)
        service.wait_held(held_by)
        client.sendall(head + body)
        assert service.held()
        service.release(held_by)
        with client.makefile("rb") as answers:
            assert answers.readline().split()[1] == b"201"
    assert service.audit().count("inv-1") >= 1


def test_stopping_the_service_commits_no_held_request(tmp_path: Path) -> None:
    with PaymentService(tmp_path / "payments.db") as service:
        held_by = service.hold("before_commit", on_disconnect="commit")
        payer = start_payer(service, "neither", "inv-1")
        service.wait_held(held_by)
        service.stop()
        assert payer.wait(30) != 0
        service.start()
        assert service.audit().landed == []


# -- lost answers and failures -------------------------------------------------------------------


@pytest.mark.parametrize(("where", "landed"), [("before_commit", 0), ("after_commit", 1)])
def test_a_dropped_connection_is_unknown(service: PaymentService, where: str, landed: int) -> None:
    service.drop(where, invoice="inv-1")
    with pytest.raises(OutcomeUnknown):
        charge(service.url, "lookup", "inv-1", 100, "EUR", "key-1")
    assert len(find(service.url, key="key-1")) == landed
    charge(service.url, "lookup", "inv-1", 100, "EUR", "key-1")  # once means once


def test_a_timeout_is_unknown(service: PaymentService) -> None:
    service.hold("after_commit", invoice="inv-1")
    with pytest.raises(OutcomeUnknown):
        charge(service.url, "lookup", "inv-1", 100, "EUR", "key-1", timeout=0.2)
    assert len(find(service.url, key="key-1")) == 1


def test_a_4xx_is_proof_and_stays_retryable(service: PaymentService) -> None:
    service.fail(402, invoice="inv-1", times=2)
    for _ in range(2):
        with pytest.raises(NotExecuted) as caught:
            charge(service.url, "idempotent", "inv-1", 100, "EUR", "key-1")
        assert caught.value.status == 402
    assert service.audit().landed == []
    charge(service.url, "idempotent", "inv-1", 200, "EUR", "key-1")
    assert service.audit().count("inv-1") == 1


@pytest.mark.parametrize(("before", "landed"), [(True, 0), (False, 1)])
def test_a_5xx_is_unknown(service: PaymentService, before: bool, landed: int) -> None:
    service.fail(503, before=before, invoice="inv-1")
    with pytest.raises(OutcomeUnknown) as caught:
        charge(service.url, "idempotent", "inv-1", 100, "EUR", "key-1")
    assert caught.value.status == 503
    assert service.audit().count("inv-1") == landed


def test_a_request_timeout_status_is_no_proof(service: PaymentService) -> None:
    service.fail(408, invoice="inv-1")
    with pytest.raises(OutcomeUnknown):
        charge(service.url, "idempotent", "inv-1", 100, "EUR", "key-1")


def test_a_4xx_after_the_commit_cannot_be_asked_for(service: PaymentService) -> None:
    with pytest.raises(NotExecuted, match="at least 500"):
        service.fail(402, before=False)


def test_a_refused_connection_is_proof_but_not_for_a_lookup() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(NotExecuted):
            charge(url, "lookup", "inv-1", 100, "EUR", "key-1", timeout=5)
        with pytest.raises(LookupFailed):
            find(url, key="key-1", timeout=5)


def test_a_proxy_of_the_environment_is_not_used(
    service: PaymentService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    charge(service.url, "neither", "inv-1", 100, "EUR")


# -- what is refused -----------------------------------------------------------------------------

GOOD = {"invoice": "inv-1", "amount": 100, "currency": "EUR"}


@pytest.mark.parametrize(
    "body",
    [
        {"invoice": "inv-1", "amount": 100},
        {**GOOD, "tip": 5},
        {**GOOD, "amount": 0},
        {**GOOD, "amount": -1},
        {**GOOD, "amount": 1.5},
        {**GOOD, "amount": True},
        {**GOOD, "amount": "100"},
        {**GOOD, "amount": 10**30},
        {**GOOD, "currency": "eur"},
        {**GOOD, "currency": "EURO"},
        {**GOOD, "invoice": ""},
        {**GOOD, "invoice": "two words"},
        {**GOOD, "invoice": "line\nbreak"},
        {**GOOD, "invoice": "\ud800"},
        {**GOOD, "invoice": "x" * 256},
        {**GOOD, "invoice": 7},
    ],
)
def test_a_malformed_charge_is_refused(untouched: PaymentService, body: dict[str, Any]) -> None:
    with pytest.raises(NotExecuted) as caught:
        send(untouched.url, "/idempotent/charges", body, key="key-1")
    assert caught.value.status == 400
    assert untouched.audit().landed == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"unknown": 1},
        {"hold": {"where": "between"}},
        {"hold": {"where": "before_commit", "times": 0}},
        {"hold": {"where": "before_commit", "match": {"colour": "red"}}},
        {"hold": {"where": "before_commit", "id": "two words"}},
        {"hold": {"where": "before_commit", "on_disconnect": "guess"}},
        {"drop": {}},
        {"fail": {"status": 200}},
        {"delay_visibility_ms": -1},
    ],
)
def test_a_malformed_control_changes_nothing(
    untouched: PaymentService, body: dict[str, Any]
) -> None:
    before = payments_client._read(f"{untouched.url}/control", 10)
    with pytest.raises(NotExecuted):
        untouched.control({"advance_clock_ms": 1, **body} if body else body)
    assert payments_client._read(f"{untouched.url}/control", 10) == before


def test_the_id_of_a_barrier_is_never_used_twice(service: PaymentService) -> None:
    service.hold("before_commit", id="barrier")
    with pytest.raises(NotExecuted, match="used before"):
        service.hold("before_commit", id="barrier")
    with pytest.raises(NotExecuted, match="no rule"):
        service.release("never")


def test_unknown_paths_are_proof_that_nothing_happened(untouched: PaymentService) -> None:
    for path in ("/refunds", "/sometimes/charges", "/lookup/charges/1", "/"):
        with pytest.raises(NotExecuted) as caught:
            send(untouched.url, path, GOOD)
        assert caught.value.status == 404


# -- the process ---------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [PaymentService.stop, PaymentService.kill])
def test_a_restart_keeps_what_landed(tmp_path: Path, end: Callable[[PaymentService], None]) -> None:
    with PaymentService(tmp_path / "payments.db") as service:
        first = charge(service.url, "idempotent", "inv-1", 100, "EUR", "key-1")
        looked = charge(service.url, "lookup", "inv-2", 100, "EUR", "key-2")
        before = service.audit().landed
        end(service)
        service.start()
        assert service.audit().landed == before
        assert charge(service.url, "idempotent", "inv-1", 100, "EUR", "key-1") == first
        assert find(service.url, key="key-2") == [looked]


@pytest.mark.parametrize("how", ["stdin", "SIGTERM"])
def test_it_ends_by_itself(tmp_path: Path, how: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "surefoot.demo.payments", "--db", str(tmp_path / "payments.db")],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process, process.stdout as stdout, process.stdin as stdin:
        assert stdout.readline().startswith("LISTENING ")
        if how == "stdin":
            stdin.close()
        else:
            process.terminate()
        assert process.wait(30) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["payments.db"]


def test_a_failed_start_shows_why(tmp_path: Path) -> None:
    with pytest.raises(ServiceFailed, match="cannot open"):
        PaymentService(tmp_path / "no" / "such" / "folder.db").start()
    (tmp_path / "text.db").write_text("this is no database, it is only a text of some length\n" * 9)
    with pytest.raises(ServiceFailed, match="not a database"):
        PaymentService(tmp_path / "text.db").start()
    with PaymentService() as first, pytest.raises(ServiceFailed, match="cannot listen"):
        PaymentService(port=first.port).start()


def test_a_service_that_dies_is_noticed_while_waiting(service: PaymentService) -> None:
    os.kill(service.pid, signal.SIGKILL)
    with pytest.raises(ServiceFailed, match="it ended"):
        service.wait_held("barrier", timeout=60)


def test_a_missed_barrier_is_an_error(service: PaymentService) -> None:
    with pytest.raises(ServiceFailed, match="not within"):
        service.wait_held("barrier", timeout=0.01)


def test_its_own_file_goes_with_it() -> None:
    with PaymentService() as service:
        charge(service.url, "neither", "inv-1", 100, "EUR")
        assert service._scratch is not None
        scratch = Path(service._scratch)
        assert scratch.is_dir()
    assert not scratch.exists()


@pytest.mark.parametrize(
    "kind", [PaymentError, NotExecuted, KeyConflict, OutcomeUnknown, LookupFailed, ServiceFailed]
)
def test_errors_survive_pickling(kind: type[PaymentError]) -> None:
    error = kind("why", 409, {"stored": {"amount": 1}})
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), again.status, again.body) == ("why", 409, {"stored": {"amount": 1}})
