"""A small payment service in its own process: the outside world of the demo and the kill tests.

Start it with ``python -m surefoot.demo.payments --port 0 --db payments.db``. It prints
``LISTENING <port>`` and serves until its stdin closes or it gets SIGTERM. It listens on
127.0.0.1 only. What it has acknowledged is on disk (SQLite, ``synchronous=FULL``).

The receiver's side (``charges``; ``tickets`` and ``emails`` work alike):

* ``POST /charges`` with ``{invoice, amount, currency}`` and maybe ``Idempotency-Key`` answers 201.
* The path may name the mode (``/idempotent/charges``, ``/lookup/charges``, ``/neither/charges``);
  without it the mode of ``--mode`` holds.

  * ``idempotent``: same key and same body → the stored answer, 200, ``replayed: true``; same key
    and another body → 409 with both payloads. After ``--window-ms`` a key is forgotten.
  * ``lookup``: the key is stored but never deduplicates; ``GET /lookup/charges?key=…`` or
    ``?invoice=…`` lists the matches.
  * ``neither``: the key is ignored and nothing can be looked up.

For tests only (no payment service has these):

* ``GET /audit``: everything that ever landed, in order; counts by kind and invoice; and, since the
  start of this process, how many well-formed POSTs arrived by kind and invoice. May be narrowed
  by ``?kind=…&invoice=…``.
* ``POST /control`` takes any of these fields; ``GET /control`` shows the held requests, the rules
  that still wait and the settings.

  * ``hold`` ``{where, match, times, id, on_disconnect}``: matching requests block at ``where``
    (``before_commit`` or ``after_commit``). ``match`` compares ``invoice``, ``kind``, ``mode`` and
    ``key``; ``times`` is 1 if left out, ``null`` means always.
  * ``drop`` ``{where, match, times, id}``: close the connection without an answer.
  * ``fail`` ``{status, before, match, times, id}``: ``before: true`` answers with ``status`` and
    does nothing; ``before: false`` commits first and accepts a 5xx only, because a 4xx after a
    commit would be a lie that no caller can survive.
  * ``release`` ``id``: lets go what this rule holds and removes the rule.
  * ``delay_visibility_ms``, ``window_ms``, ``advance_clock_ms``: the lookup's lag, the keys'
    retention, and a clock that tests move instead of sleeping (until the process ends).

A request that becomes blocked is announced on stdout, ``HELD <id> <where> <invoice>``. If its
client leaves meanwhile, ``GONE <id> <where> <invoice> <outcome>`` follows once the outcome is
final: ``aborted``, ``landed``, ``replayed`` or ``conflict``. Both lines are barriers, so a killer
never has to sleep.

What becomes of a request held before the commit when its client leaves is a choice,
``on_disconnect`` (of the hold, or ``--on-disconnect`` for all): ``abort`` (the default) never
commits it; ``commit`` commits it at once, as a service that never looks back would; ``wait`` keeps
holding it and commits at the release: the late landing, after somebody else has taken over. A
service that stops commits no held request.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import select
import selectors
import signal
import socket
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, cast
from urllib.parse import parse_qs, urlsplit

from surefoot.statements import named_statements

Mode = Literal["idempotent", "lookup", "neither"]
Where = Literal["before_commit", "after_commit"]
OnDisconnect = Literal["abort", "commit", "wait"]
Outcome = Literal["landed", "replayed", "conflict"]
Json = dict[str, Any]

MODES: tuple[Mode, ...] = ("idempotent", "lookup", "neither")
WHERES: tuple[Where, ...] = ("before_commit", "after_commit")
ON_DISCONNECT: tuple[OnDisconnect, ...] = ("abort", "commit", "wait")

# The fields of each kind. All of them refer to an invoice, so that one match rule serves them all.
KINDS: dict[str, tuple[str, ...]] = {
    "charges": ("invoice", "amount", "currency"),
    "tickets": ("invoice", "title"),
    "emails": ("invoice", "to", "subject"),
}
ID_PREFIX = {"charges": "ch", "tickets": "tk", "emails": "em"}

BODY_MAX_BYTES = 64 * 1024
NAME_MAX_CHARS = 255
AMOUNT_MAX = 10**12

_SQL = named_statements("surefoot.demo", "payments.sql")


class Refusal(Exception):
    """The answer to a request that was not executed: a status and a reason."""

    def __init__(self, status: int, code: str, message: str) -> None:
        """Keeps what the client gets to see."""
        super().__init__(status, code, message)
        self.status = status
        self.code = code
        self.message = message


class Dropped(Exception):
    """The connection is to be closed without an answer."""


@dataclass(frozen=True)
class Call:
    """One well-formed POST from a payer."""

    kind: str
    mode: Mode
    key: str | None
    body: Json

    @property
    def invoice(self) -> str:
        """The invoice that the request is about."""
        return str(self.body["invoice"])


@dataclass(frozen=True)
class Landed:
    """One thing that happened, as it is on disk."""

    seq: int
    kind: str
    mode: str
    key: str | None
    invoice: str
    body: Json
    landed_at_ms: int

    def answer(self) -> Json:
        """The representation that the payer gets, the same at every replay."""
        moment = datetime.datetime.fromtimestamp(self.landed_at_ms / 1000, datetime.timezone.utc)
        return {
            "id": f"{ID_PREFIX[self.kind]}_{self.seq:06d}",
            **self.body,
            "key": self.key,
            "created_at": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }


class Ledger:
    """What landed, in one SQLite file; every commit is on disk before it returns."""

    def __init__(self, path: str) -> None:
        """Opens or creates the file.

        Raises:
            sqlite3.Error: it cannot be opened or is no database.
        """
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(_SQL["schema"].text)

    def land(self, call: Call, now_ms: int, window_ms: int | None) -> tuple[Outcome, Landed]:
        """Executes a call, or finds that its key was used; the check and the insert are one commit.

        Returns:
            The outcome, and the row that landed now or earlier.
        """
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                earlier = self._holder_of_key(call, now_ms, window_ms)
                landed = self._insert(call, now_ms) if earlier is None else earlier
                self._db.execute("COMMIT")
            except BaseException:
                self._db.rollback()
                raise
        if earlier is None:
            return "landed", landed
        return ("replayed" if earlier.body == call.body else "conflict"), landed

    def select(
        self,
        *,
        kind: str | None = None,
        mode: str | None = None,
        key: str | None = None,
        invoice: str | None = None,
        until_ms: int | None = None,
    ) -> list[Landed]:
        """What landed, oldest first; ``None`` does not restrict."""
        wanted = {
            "kind": kind,
            "mode": mode,
            "key": key,
            "invoice": invoice,
            "until_ms": until_ms,
        }
        with self._lock:
            return [_landed(row) for row in self._db.execute(_SQL["select"].text, wanted)]

    def close(self) -> None:
        """Waits for the commit under way, if any, and closes the file."""
        with self._lock:
            self._db.close()

    def _holder_of_key(self, call: Call, now_ms: int, window_ms: int | None) -> Landed | None:
        if call.mode != "idempotent" or call.key is None:
            return None
        row = self._db.execute(
            _SQL["newest_with_key"].text, (call.kind, call.mode, call.key)
        ).fetchone()
        if row is None:
            return None
        earlier = _landed(row)
        forgotten = window_ms is not None and now_ms - earlier.landed_at_ms >= window_ms
        return None if forgotten else earlier

    def _insert(self, call: Call, now_ms: int) -> Landed:
        key = None if call.mode == "neither" else call.key
        body = json.dumps(call.body, sort_keys=True)
        row = (call.kind, call.mode, key, call.invoice, body, now_ms)
        seq = int(self._db.execute(_SQL["insert"].text, row).lastrowid or 0)
        return Landed(seq, call.kind, call.mode, key, call.invoice, call.body, now_ms)


def _landed(row: Sequence[Any]) -> Landed:
    seq, kind, mode, key, invoice, body, landed_at_ms = row
    fields = json.loads(body)
    ordered = {name: fields[name] for name in KINDS[kind]}
    return Landed(seq, kind, mode, key, invoice, ordered, landed_at_ms)


@dataclass
class Rule:
    """One fault to inject, and how often it still applies (``None``: always)."""

    id: str
    action: Literal["hold", "drop", "fail"]
    where: Where
    match: Mapping[str, str]
    times: int | None
    on_disconnect: OnDisconnect = "abort"
    status: int = 0

    def applies(self, where: Where, call: Call) -> bool:
        """Whether this call at this point is meant."""
        facts = {"invoice": call.invoice, "kind": call.kind, "mode": call.mode, "key": call.key}
        return self.where == where and all(facts[name] == v for name, v in self.match.items())


@dataclass(eq=False)
class Held:
    """One blocked request, and the socket that wakes it."""

    rule: Rule
    call: Call
    wake: socket.socket

    def report(self) -> Json:
        """What ``GET /control`` shows of it."""
        call = self.call
        return {
            "id": self.rule.id,
            "where": self.rule.where,
            "invoice": call.invoice,
            "kind": call.kind,
            "mode": call.mode,
            "key": call.key,
        }


@dataclass
class Settings:
    """What the control endpoint can change while the service runs."""

    on_disconnect: OnDisconnect = "abort"
    window_ms: int | None = None
    delay_visibility_ms: int = 0
    clock_offset_ms: int = 0

    def now_ms(self) -> int:
        """The service's own clock."""
        return time.time_ns() // 1_000_000 + self.clock_offset_ms


@dataclass
class Faults:
    """The rules, the requests that they hold, and the settings."""

    settings: Settings
    stopping: bool = False
    _rules: list[Rule] = field(default_factory=list)
    _held: list[Held] = field(default_factory=list)
    _ids: set[str] = field(default_factory=set)
    _attempts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, call: Call) -> None:
        """Notes that a well-formed POST arrived."""
        with self._lock:
            self._attempts[call.kind, call.invoice] += 1

    def attempts(self) -> list[tuple[str, str]]:
        """The kind and invoice of every POST since the start."""
        with self._lock:
            return list(self._attempts.elements())

    def change(self, rules: Sequence[Rule], release: str | None) -> int:
        """Arms rules and releases an earlier one: all of it or nothing.

        A release lets go what the rule holds and removes it.

        Returns:
            How many requests the release let go.

        Raises:
            Refusal: a new id was used before (a barrier must name one thing), or the id to
                release was never used.
        """
        with self._lock:
            fresh = [rule.id for rule in rules]
            if self._ids.intersection(fresh) or len(set(fresh)) < len(fresh):
                raise Refusal(409, "id_used", f"one of these ids was used before: {fresh}")
            if release is not None and release not in self._ids:
                raise Refusal(404, "unknown_id", f"there is no rule {release!r}")
            self._ids.update(fresh)
            self._rules = [rule for rule in self._rules if rule.id != release] + list(rules)
            return self._wake([held for held in self._held if held.rule.id == release])

    def fresh_id(self, action: str) -> str:
        """An id that no rule had."""
        with self._lock:
            number = len(self._ids) + 1
            while f"{action}-{number}" in self._ids:
                number += 1
            return f"{action}-{number}"

    def take(self, action: str, where: Where, call: Call) -> Rule | None:
        """The first rule that applies to this call at this point, with one use taken off it."""
        with self._lock:
            for rule in self._rules:
                if rule.action == action and rule.applies(where, call):
                    if rule.times is not None:
                        rule.times -= 1
                        if rule.times == 0:
                            self._rules.remove(rule)
                    return rule
        return None

    def hold(self, rule: Rule, call: Call, client: socket.socket) -> Held | None:
        """Blocks until the rule is released, the client leaves or the service stops.

        Returns:
            The held request if its client has left by then, otherwise ``None``.

        Raises:
            Dropped: the service is stopping.
        """
        sleeper, wake = socket.socketpair()
        held = Held(rule, call, wake)
        with sleeper, wake:
            with self._lock:
                if self.stopping:
                    raise Dropped
                self._held.append(held)
            announce(f"HELD {rule.id} {rule.where} {call.invoice}")
            try:
                _wait_for_release(sleeper, None if rule.on_disconnect == "wait" else client)
            finally:
                with self._lock:
                    if held in self._held:
                        self._held.remove(held)
        if self.stopping:
            raise Dropped
        return held if _has_left(client) else None

    def stop(self) -> None:
        """Lets everything go for good: held requests end without a commit or an answer."""
        with self._lock:
            self.stopping = True
            self._wake(list(self._held))

    def report(self) -> Json:
        """What ``GET /control`` answers."""
        with self._lock:
            return {
                "held": [held.report() for held in self._held],
                "rules": [{**vars(rule), "match": dict(rule.match)} for rule in self._rules],
                "settings": vars(self.settings),
            }

    def _wake(self, chosen: list[Held]) -> int:
        for held in chosen:
            self._held.remove(held)
            held.wake.send(b"!")
        return len(chosen)


def _wait_for_release(sleeper: socket.socket, client: socket.socket | None) -> None:
    """Returns when ``sleeper`` is woken or ``client`` (if given) has left."""
    with selectors.DefaultSelector() as selector:
        selector.register(sleeper, selectors.EVENT_READ)
        if client is not None:
            selector.register(client, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if sleeper in ready:
                return
            if client is None or _has_left(client):
                return
            selector.unregister(client)  # it sent its next request early, so it is there


def _has_left(client: socket.socket) -> bool:
    """Whether the peer closed its side; takes nothing from the stream."""
    timeout_s = client.gettimeout()
    client.settimeout(0)
    try:
        return client.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        client.settimeout(timeout_s)


def announce(line: str) -> None:
    """Writes one whole line to stdout at once; a reader that left is no reason to fail."""
    try:
        os.write(1, f"{line}\n".encode())
    except OSError:
        pass


# -- what a request may look like ------------------------------------------------------------------


def parse_call(kind: str, mode: Mode, key: str | None, body: object) -> Call:
    """Decides whether a POST is well formed.

    Raises:
        Refusal: 400, with the field that is wrong.
    """
    if not isinstance(body, dict) or set(body) != set(KINDS[kind]):
        names = ", ".join(KINDS[kind])
        raise Refusal(400, "bad_body", f"{kind} take an object with exactly: {names}")
    _name(body["invoice"], "invoice")
    if key is not None:
        _name(key, "Idempotency-Key")
    if kind == "charges":
        _whole(body["amount"], "amount", low=1, high=AMOUNT_MAX)
        currency = body["currency"]
        good = isinstance(currency, str) and len(currency) == 3 and currency.isascii()
        if not (good and currency.isalpha() and currency.isupper()):
            raise Refusal(400, "bad_body", "currency must be three capital letters")
    else:
        for name in KINDS[kind][1:]:
            if not isinstance(body[name], str) or not body[name]:
                raise Refusal(400, "bad_body", f"{name} must be a text that is not empty")
    return Call(kind, mode, key, {name: body[name] for name in KINDS[kind]})


def parse_rule(action: Literal["hold", "drop", "fail"], raw: object, faults: Faults) -> Rule:
    """Reads one rule of a control request.

    Raises:
        Refusal: 400, with the field that is wrong.
    """
    own = {"hold": {"where", "on_disconnect"}, "drop": {"where"}, "fail": {"status", "before"}}
    if not isinstance(raw, dict) or not set(raw) <= own[action] | {"match", "times", "id"}:
        raise Refusal(400, "bad_control", f"{action}: unknown field, or no object")
    match = raw.get("match", {})
    if not isinstance(match, dict) or not set(match) <= {"invoice", "kind", "mode", "key"}:
        raise Refusal(400, "bad_control", "match compares invoice, kind, mode and key")
    times = raw.get("times", 1)
    if times is not None:
        _whole(times, "times", low=1)
    rule_id = _name(raw.get("id") or faults.fresh_id(action), "id")
    rule = Rule(rule_id, action, "after_commit", match, times)
    if action == "fail":
        before = raw.get("before", True)
        if not isinstance(before, bool):
            raise Refusal(400, "bad_control", "before must be true or false")
        rule.where = "before_commit" if before else "after_commit"
        rule.status = _whole(raw.get("status"), "status", low=400 if before else 500, high=599)
    else:
        rule.where = cast(Where, _one_of(raw.get("where"), "where", WHERES))
    if action == "hold":
        chosen = raw.get("on_disconnect", faults.settings.on_disconnect)
        rule.on_disconnect = cast(OnDisconnect, _one_of(chosen, "on_disconnect", ON_DISCONNECT))
    return rule


def _name(value: object, field_name: str) -> str:
    """A word that fits into one line of stdout and one header."""
    good = isinstance(value, str) and 0 < len(value) <= NAME_MAX_CHARS and value.isprintable()
    if not good or any(character.isspace() for character in str(value)):
        raise Refusal(400, "bad_name", f"{field_name} must be printable, without blanks")
    return str(value)


def _whole(value: object, field_name: str, *, low: int, high: int | None = None) -> int:
    good = isinstance(value, int) and not isinstance(value, bool)
    if not good or cast(int, value) < low or (high is not None and cast(int, value) > high):
        upper = "" if high is None else f" and at most {high}"
        raise Refusal(400, "bad_number", f"{field_name} must be an integer, at least {low}{upper}")
    return cast(int, value)


def _one_of(value: object, field_name: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise Refusal(400, "bad_control", f"{field_name} must be one of: {', '.join(allowed)}")
    return str(value)


# -- HTTP ------------------------------------------------------------------------------------------


class PaymentServer(ThreadingHTTPServer):
    """The listening socket and what the handlers share."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, ledger: Ledger, mode: Mode, faults: Faults) -> None:
        """Binds to 127.0.0.1 only."""
        self.ledger = ledger
        self.mode: Mode = mode
        self.faults = faults
        super().__init__(("127.0.0.1", port), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stays silent about clients that left and about our own stopping."""
        if not (self.faults.stopping or isinstance(sys.exc_info()[1], ConnectionError)):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection. An unexpected error closes it without an answer: unknown, not failed."""

    protocol_version = "HTTP/1.1"
    server_version = "payments"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave in one packet
    server: PaymentServer

    def do_GET(self) -> None:
        """Answers lookups, the audit and the control report."""
        self._guarded(self._get)

    def do_POST(self) -> None:
        """Takes payments and control requests."""
        self._guarded(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """Writes no access log."""

    def _guarded(self, serve: Callable[[], None]) -> None:
        try:
            serve()
        except Refusal as refusal:
            self._answer(refusal.status, {"error": refusal.code, "message": refusal.message})
        except Dropped:
            self.close_connection = True

    def _get(self) -> None:
        url = urlsplit(self.path)
        query = self._query(url.query)
        if url.path == "/audit":
            self._answer(200, self._audit(query))
        elif url.path == "/control":
            self._answer(200, self.server.faults.report())
        else:
            mode, kind = self._route(url.path)
            self._answer(200, self._find(mode, kind, query))

    def _post(self) -> None:
        body = self._read_json()
        path = urlsplit(self.path).path
        if path == "/control":
            self._answer(200, self._control(body))
        else:
            mode, kind = self._route(path)
            self._execute(parse_call(kind, mode, self.headers.get("Idempotency-Key"), body))

    def _execute(self, call: Call) -> None:
        """The life of one payment: the point before, the commit, the point after, the answer."""
        faults, settings = self.server.faults, self.server.faults.settings
        faults.count(call)
        left = self._pass("before_commit", call)
        if left is not None and left.rule.on_disconnect == "abort":
            self._leave(left, "aborted")
        outcome, landed = self.server.ledger.land(call, settings.now_ms(), settings.window_ms)
        if left is None and outcome != "conflict":
            left = self._pass("after_commit", call)
        if left is not None:
            self._leave(left, outcome)
        if outcome == "conflict":
            both = {"stored": landed.body, "sent": call.body}
            message = f"the key {call.key!r} was used with another body"
            self._answer(409, {"error": "key_conflict", "message": message, **both})
        elif outcome == "replayed":
            self._answer(200, {**landed.answer(), "replayed": True})
        else:
            self._answer(201, landed.answer())

    def _pass(self, where: Where, call: Call) -> Held | None:
        """Lets the rules of one point act; returns the held request if its client left there."""
        faults = self.server.faults
        left = None
        while left is None and (hold := faults.take("hold", where, call)) is not None:
            left = faults.hold(hold, call, self.connection)
        if left is not None:
            return left
        if faults.take("drop", where, call) is not None:
            raise Dropped
        if (fail := faults.take("fail", where, call)) is not None:
            raise Refusal(fail.status, "injected", f"made to fail {where.replace('_', ' the ')}")
        return None

    def _leave(self, left: Held, outcome: str) -> None:
        """Says what became of a request whose client is gone."""
        announce(f"GONE {left.rule.id} {left.rule.where} {left.call.invoice} {outcome}")
        raise Dropped

    def _find(self, mode: Mode, kind: str, query: Mapping[str, str]) -> Json:
        if mode != "lookup":
            raise Refusal(405, "no_lookup", f"the mode {mode} offers no lookup")
        if not query or not set(query) <= {"key", "invoice"}:
            raise Refusal(400, "bad_query", "look up by key or by invoice")
        settings = self.server.faults.settings
        until_ms = settings.now_ms() - settings.delay_visibility_ms
        lag = {"until_ms": until_ms} if settings.delay_visibility_ms else {}
        found = self.server.ledger.select(kind=kind, mode=mode, **lag, **query)  # type: ignore[arg-type]
        return {"matches": [landed.answer() for landed in found]}

    def _audit(self, query: Mapping[str, str]) -> Json:
        if not set(query) <= {"kind", "invoice"}:
            raise Refusal(400, "bad_query", "narrow the audit by kind or invoice")
        rows = self.server.ledger.select(**query)  # type: ignore[arg-type]
        attempts = [
            (kind, invoice)
            for kind, invoice in self.server.faults.attempts()
            if query.get("kind", kind) == kind and query.get("invoice", invoice) == invoice
        ]
        whole = [{"kind": row.kind, "mode": row.mode, **row.answer()} for row in rows]
        counts = _tally([(row.kind, row.invoice) for row in rows])
        return {"landed": whole, "counts": counts, "attempts": _tally(attempts)}

    def _control(self, body: object) -> Json:
        """Checks the whole request before any of it takes effect."""
        faults, settings = self.server.faults, self.server.faults.settings
        numbers = {"delay_visibility_ms", "window_ms", "advance_clock_ms"}
        known = {"hold", "drop", "fail", "release"} | numbers
        if not isinstance(body, dict) or not body or not set(body) <= known:
            raise Refusal(400, "bad_control", f"takes any of: {', '.join(sorted(known))}")
        for name in numbers & set(body):
            if not (name == "window_ms" and body[name] is None):
                _whole(body[name], name, low=0)
        actions: tuple[Literal["hold", "drop", "fail"], ...] = ("hold", "drop", "fail")
        rules = [parse_rule(act, body[act], faults) for act in actions if act in body]
        release = _name(body["release"], "release") if "release" in body else None
        released = faults.change(rules, release)
        settings.delay_visibility_ms = body.get("delay_visibility_ms", settings.delay_visibility_ms)
        settings.window_ms = body.get("window_ms", settings.window_ms)
        settings.clock_offset_ms += body.get("advance_clock_ms", 0)
        return {"ids": [rule.id for rule in rules], "released": released}

    def _route(self, path: str) -> tuple[Mode, str]:
        parts = path.strip("/").split("/")
        mode: str = self.server.mode if len(parts) == 1 else parts[0]
        if len(parts) > 2 or mode not in MODES or parts[-1] not in KINDS:
            raise Refusal(404, "unknown_path", f"there is nothing at {path}")
        return mode, parts[-1]

    def _query(self, raw: str) -> dict[str, str]:
        values = parse_qs(raw, keep_blank_values=True)
        if any(len(several) != 1 for several in values.values()):
            raise Refusal(400, "bad_query", "each parameter once")
        return {name: several[0] for name, several in values.items()}

    def _read_json(self) -> object:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or int(length) > BODY_MAX_BYTES:
            self.close_connection = True  # what follows on this connection cannot be told apart
            raise Refusal(413, "bad_length", f"Content-Length needed, at most {BODY_MAX_BYTES}")
        raw = self.rfile.read(int(length))
        if len(raw) < int(length):
            raise Dropped  # the client left while sending
        try:
            return cast(object, json.loads(raw))
        except (ValueError, RecursionError):
            raise Refusal(400, "bad_json", "the body is no JSON") from None

    def _answer(self, status: int, body: Json) -> None:
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(payload)


def _tally(pairs: list[tuple[str, str]]) -> dict[str, dict[str, int]]:
    tally: dict[str, dict[str, int]] = {}
    for kind, invoice in pairs:
        of_kind = tally.setdefault(kind, {})
        of_kind[invoice] = of_kind.get(invoice, 0) + 1
    return tally


# -- the process -----------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until stdin closes or a signal asks to stop.

    Returns:
        0 after a clean stop, 1 if the database or the port cannot be opened.
    """
    options = _parser().parse_args(argv)
    stop_reading, stop_writing = os.pipe()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.write(stop_writing, b"!") and None)
    settings = Settings(options.on_disconnect, options.window_ms)
    try:
        ledger = Ledger(options.db)
    except sqlite3.Error as error:
        print(f"payments: cannot open {options.db}: {error}", file=sys.stderr)
        return 1
    try:
        server = PaymentServer(options.port, ledger, options.mode, Faults(settings))
    except OSError as error:
        ledger.close()
        print(f"payments: cannot listen on port {options.port}: {error}", file=sys.stderr)
        return 1
    serving = threading.Thread(target=server.serve_forever, name="accept", daemon=True)
    serving.start()
    announce(f"LISTENING {server.server_address[1]}")
    _wait_for_stop(stop_reading, None if options.ignore_stdin else 0)
    # Not `shutdown()`, which takes half a second: once the ledger is closed nothing can land, and
    # the threads that still accept or answer end with the process.
    server.faults.stop()
    ledger.close()
    return 0


def _wait_for_stop(stop_reading: int, stdin: int | None) -> None:
    watched = [stop_reading] if stdin is None else [stop_reading, stdin]
    while True:
        try:
            ready, _, _ = select.select(watched, [], [])
            if stop_reading in ready or not os.read(watched[-1], 4096):
                return
        except OSError:
            return  # stdin was never open


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m surefoot.demo.payments",
        description="A payment service for the demo and for kill tests.",
    )
    parser.add_argument("--db", required=True, help="the SQLite file that keeps what landed")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--mode", choices=MODES, default="idempotent")
    parser.add_argument("--window-ms", type=int, help="forget idempotency keys after this time")
    parser.add_argument("--on-disconnect", choices=ON_DISCONNECT, default="abort")
    parser.add_argument(
        "--ignore-stdin", action="store_true", help="go on when stdin closes; stop by SIGTERM"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
