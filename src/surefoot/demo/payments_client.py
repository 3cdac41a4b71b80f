"""How the demo and the tests pay: plain functions, and a service started as a child process.

``charge`` tells three outcomes apart, because what may be done next depends on it:

* it returns: the charge landed;
* ``NotExecuted``: proven, nothing happened (the connection was refused, or the service said 4xx);
* ``OutcomeUnknown``: a timeout, a dropped connection, a 5xx. The charge may have landed.

``find`` raises ``LookupFailed`` only: a lookup that did not answer says nothing about the charge.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

Json = dict[str, Any]

TIMEOUT_S = 10.0
STDERR_LINES = 200

# A proxy of the environment must not sit between a test and its service on 127.0.0.1.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class PaymentError(Exception):
    """Root of what the client raises; ``status`` and ``body`` are the service's answer, if any."""

    def __init__(self, message: str, status: int | None = None, body: Json | None = None) -> None:
        """Keeps the answer beside the message; survives pickling."""
        super().__init__(message, status, body)
        self.message = message
        self.status = status
        self.body = body

    def __str__(self) -> str:
        """The message alone."""
        return self.message


class NotExecuted(PaymentError):
    """Proven: nothing happened. It is safe to try again or to do something else."""


class KeyConflict(NotExecuted):
    """The key was used with another body; nothing was executed now."""

    @property
    def stored(self) -> Json:
        """The body that the key stands for."""
        return dict((self.body or {}).get("stored", {}))

    @property
    def sent(self) -> Json:
        """The body that was sent now."""
        return dict((self.body or {}).get("sent", {}))


class OutcomeUnknown(PaymentError):
    """It may have happened or not; only the service knows."""


class LookupFailed(PaymentError):
    """The lookup did not answer, which says nothing about the charge."""


class ServiceFailed(PaymentError):
    """The service did not start, ended too early, or missed a deadline of the test."""


@dataclass(frozen=True)
class Answer:
    """A status and a JSON object, as they came."""

    status: int
    body: Json


def send(
    url: str, path: str, body: Json, *, key: str | None = None, timeout: float = TIMEOUT_S
) -> Answer:
    """Posts once and returns a 2xx answer as it came, with the ``replayed`` flag.

    Args:
        url: the service, without a path.
        path: for example ``/idempotent/charges``.
        body: the JSON object to send.
        key: the ``Idempotency-Key``.
        timeout: seconds for each network operation.

    Raises:
        NotExecuted: nothing happened; ``KeyConflict`` on 409 with both payloads.
        OutcomeUnknown: it may have happened.
    """
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Idempotency-Key"] = key
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers, method="POST")
    try:
        answer = _exchange(request, timeout)
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionRefusedError):
            raise NotExecuted(f"{url} refused the connection") from error
        raise OutcomeUnknown(f"no answer from {url}{path}: {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise OutcomeUnknown(f"no answer from {url}{path}: {error!r}") from error
    if answer.status in (200, 201):
        return answer
    message = f"{answer.status} from {path}: {answer.body.get('message', answer.body)}"
    if answer.status == 409 and "stored" in answer.body:
        raise KeyConflict(message, answer.status, answer.body)
    if 400 <= answer.status < 500 and answer.status != 408:  # 408 is a timeout, whoever says so
        raise NotExecuted(message, answer.status, answer.body)
    raise OutcomeUnknown(message, answer.status, answer.body)


def charge(
    url: str,
    mode: str | None,
    invoice: str,
    amount: int,
    currency: str,
    key: str | None = None,
    *,
    timeout: float = TIMEOUT_S,
) -> Json:
    """Charges an invoice; a replayed answer equals the first one.

    Args:
        url: the service.
        mode: ``idempotent``, ``lookup`` or ``neither``; ``None`` takes the service's own.
        invoice: what is paid.
        amount: in the currency's smallest unit.
        currency: three capital letters.
        key: the ``Idempotency-Key``.
        timeout: seconds for each network operation.

    Returns:
        ``{id, invoice, amount, currency, key, created_at}``.

    Raises:
        NotExecuted: nothing happened; ``KeyConflict`` if the key belongs to another body.
        OutcomeUnknown: the charge may have landed.
    """
    path = "/charges" if mode is None else f"/{mode}/charges"
    body = {"invoice": invoice, "amount": amount, "currency": currency}
    answer = send(url, path, body, key=key, timeout=timeout)
    return {name: value for name, value in answer.body.items() if name != "replayed"}


def find(
    url: str,
    *,
    key: str | None = None,
    invoice: str | None = None,
    kind: str = "charges",
    timeout: float = TIMEOUT_S,
) -> list[Json]:
    """Looks up what landed in the mode ``lookup``, oldest first; both criteria must hold.

    Raises:
        LookupFailed: no usable answer; the charge is as unknown as before.
    """
    wanted = {name: v for name, v in (("key", key), ("invoice", invoice)) if v is not None}
    answer = _read(f"{url}/lookup/{kind}?{urllib.parse.urlencode(wanted)}", timeout)
    return list(answer["matches"])


def _read(address: str, timeout: float) -> Json:
    try:
        answer = _exchange(urllib.request.Request(address), timeout)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise LookupFailed(f"no answer from {address}: {error}") from error
    if answer.status != 200:
        message = f"{answer.status} from {address}: {answer.body.get('message', '')}"
        raise LookupFailed(message, answer.status, answer.body)
    return answer.body


def _exchange(request: urllib.request.Request, timeout: float) -> Answer:
    try:
        with _OPENER.open(request, timeout=timeout) as response:
            status, raw = int(response.status), response.read()
    except urllib.error.HTTPError as error:
        with error:
            status, raw = error.code, error.read()
    body = json.loads(raw)
    if not isinstance(body, dict):
        raise ValueError(f"expected a JSON object, got {raw[:80]!r}")
    return Answer(status, body)


@dataclass(frozen=True)
class HeldRequest:
    """A request that the service has blocked, as it announced it."""

    id: str
    where: str
    invoice: str


@dataclass(frozen=True)
class GoneRequest:
    """A held request whose client left, and its final outcome.

    ``outcome`` is ``aborted``, ``landed``, ``replayed`` or ``conflict``.
    """

    id: str
    where: str
    invoice: str
    outcome: str


@dataclass(frozen=True)
class Audit:
    """What ever landed, in order, and how many POSTs arrived since the service started."""

    landed: list[Json]
    counts: dict[str, dict[str, int]]
    attempts: dict[str, dict[str, int]]

    def count(self, invoice: str, kind: str = "charges") -> int:
        """How many things of this kind landed for an invoice."""
        return self.counts.get(kind, {}).get(invoice, 0)

    def attempted(self, invoice: str, kind: str = "charges") -> int:
        """How many POSTs arrived for it, with whatever outcome."""
        return self.attempts.get(kind, {}).get(invoice, 0)


class PaymentService:
    """A payment service as a child process; use it as a context manager.

    It outlives its callers' crashes but not this process: it stops when its stdin closes.
    """

    def __init__(
        self,
        db: str | os.PathLike[str] | None = None,
        *,
        mode: str = "idempotent",
        window_ms: int | None = None,
        on_disconnect: str = "abort",
        port: int = 0,
        start_timeout: float = 30.0,
    ) -> None:
        """Notes how to start it.

        Args:
            db: the file that keeps what landed; ``None`` makes one that goes with the service.
            mode: for paths that name none.
            window_ms: forget idempotency keys after this time.
            on_disconnect: ``abort``, ``commit`` or ``wait``, see the service.
            port: 0 takes a free one.
            start_timeout: seconds until it must listen.
        """
        self._db = None if db is None else Path(db)
        self._options = ["--mode", mode, "--on-disconnect", on_disconnect, "--port", str(port)]
        if window_ms is not None:
            self._options += ["--window-ms", str(window_ms)]
        self._start_timeout = start_timeout
        self._scratch: str | None = None
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []
        self._lines: list[str] = []
        self._ended = False
        self._news = threading.Condition()
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._url: str | None = None

    def __enter__(self) -> PaymentService:
        """Starts the service and waits until it listens."""
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stops it."""
        self.stop()

    @property
    def url(self) -> str:
        """``http://127.0.0.1:<port>``.

        Raises:
            ServiceFailed: it is not running.
        """
        if self._url is None:
            raise ServiceFailed("the payment service is not running")
        return self._url

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.url.rsplit(":", 1)[1])

    @property
    def pid(self) -> int:
        """The process id of the service."""
        if self._process is None:
            raise ServiceFailed("the payment service is not running")
        return self._process.pid

    @property
    def stderr(self) -> str:
        """The last lines that the service wrote to stderr."""
        return "".join(self._stderr)

    def start(self) -> PaymentService:
        """Starts the service and returns once it listens; may be called again after a stop.

        Raises:
            ServiceFailed: it ended or missed the deadline; the message ends with its stderr.
        """
        if self._process is not None:
            raise ServiceFailed("the payment service is running already")
        if self._db is None and self._scratch is None:
            self._scratch = tempfile.mkdtemp(prefix="payments-")
        db = self._db or Path(self._scratch or "", "payments.db")
        command = [sys.executable, "-m", "surefoot.demo.payments", "--db", str(db), *self._options]
        self._lines, self._ended = [], False
        self._stderr.clear()
        self._process = process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(),
            start_new_session=True,  # Ctrl-C reaches the caller first, who then stops it in order
        )
        self._readers = [
            threading.Thread(target=self._read_stdout, args=(process.stdout,), daemon=True),
            threading.Thread(target=self._read_stderr, args=(process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        try:
            line = self._wait_line(
                lambda lines: next((ln for ln in lines if ln.startswith("LISTENING ")), None),
                self._start_timeout,
                "start listening",
            )
        except BaseException:
            self.stop()
            raise
        self._url = f"http://127.0.0.1:{line.split()[1]}"
        return self

    def stop(self) -> None:
        """Closes its stdin and waits; kills it if it does not react. Held requests never commit."""
        self._end(at_once=False)
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def kill(self) -> None:
        """Ends it with SIGKILL, as a crash would; ``start`` brings it back on the same file."""
        self._end(at_once=True)

    def audit(self, *, kind: str | None = None, invoice: str | None = None) -> Audit:
        """Everything that ever landed, or what of it is of one kind or one invoice."""
        wanted = {name: v for name, v in (("kind", kind), ("invoice", invoice)) if v is not None}
        answer = _read(f"{self.url}/audit?{urllib.parse.urlencode(wanted)}", TIMEOUT_S)
        return Audit(answer["landed"], answer["counts"], answer["attempts"])

    def hold(
        self,
        where: str,
        *,
        invoice: str | None = None,
        match: Mapping[str, str] | None = None,
        times: int | None = 1,
        id: str | None = None,
        on_disconnect: str | None = None,
    ) -> str:
        """Makes matching requests block at ``before_commit`` or ``after_commit``.

        Args:
            where: the point.
            invoice: short for ``match={"invoice": …}``.
            match: of ``invoice``, ``kind``, ``mode``, ``key``; empty matches everything.
            times: how many requests; ``None`` means all.
            id: a name for the barrier, never used before; made up if left out.
            on_disconnect: what becomes of them when their client leaves before the commit.

        Returns:
            The id, for ``wait_held`` and ``release``.
        """
        own = {} if on_disconnect is None else {"on_disconnect": on_disconnect}
        return self._arm("hold", invoice, match, times, id, {"where": where, **own})

    def drop(
        self,
        where: str = "after_commit",
        *,
        invoice: str | None = None,
        match: Mapping[str, str] | None = None,
        times: int | None = 1,
        id: str | None = None,
    ) -> str:
        """Closes the connection of matching requests without an answer; returns the rule's id."""
        return self._arm("drop", invoice, match, times, id, {"where": where})

    def fail(
        self,
        status: int = 402,
        *,
        before: bool = True,
        invoice: str | None = None,
        match: Mapping[str, str] | None = None,
        times: int | None = 1,
        id: str | None = None,
    ) -> str:
        """Answers matching requests with an error status; returns the rule's id.

        With ``before=True`` nothing happens; with ``before=False`` it has, and only a 5xx may
        say so.
        """
        return self._arm("fail", invoice, match, times, id, {"status": status, "before": before})

    def configure(
        self, *, delay_visibility_ms: int | None = None, advance_clock_ms: int | None = None
    ) -> None:
        """Sets how late the lookup sees what landed, or moves the service's clock forward."""
        numbers = {"delay_visibility_ms": delay_visibility_ms, "advance_clock_ms": advance_clock_ms}
        self.control({name: value for name, value in numbers.items() if value is not None})

    def release(self, id: str) -> int:
        """Lets go what a rule holds and removes the rule; returns how many were held."""
        return int(self.control({"release": id})["released"])

    def control(self, body: Json) -> Json:
        """Sends a control request as it is.

        Raises:
            NotExecuted: the service does not accept it.
        """
        return send(self.url, "/control", body).body

    def held(self) -> list[HeldRequest]:
        """The requests that are blocked right now."""
        answer = _read(f"{self.url}/control", TIMEOUT_S)
        return [HeldRequest(held["id"], held["where"], held["invoice"]) for held in answer["held"]]

    def wait_held(self, id: str, timeout: float = 30.0, *, count: int = 1) -> HeldRequest:
        """Waits for the service's printed word that ``count`` requests were held by a rule.

        Returns:
            The last of them.

        Raises:
            ServiceFailed: not within ``timeout`` seconds, or the service ended.
        """
        line = self._wait_line(_nth("HELD", id, count), timeout, f"hold {count} by {id!r}")
        return HeldRequest(*line.split()[1:])

    def wait_gone(self, id: str, timeout: float = 30.0, *, count: int = 1) -> GoneRequest:
        """Waits until the service noticed that the client of a held request left.

        Returns:
            What became of it; this is final.

        Raises:
            ServiceFailed: not within ``timeout`` seconds, or the service ended.
        """
        line = self._wait_line(_nth("GONE", id, count), timeout, f"lose {count} held by {id!r}")
        return GoneRequest(*line.split()[1:])

    def _arm(
        self,
        action: str,
        invoice: str | None,
        match: Mapping[str, str] | None,
        times: int | None,
        rule_id: str | None,
        own: Json,
    ) -> str:
        wanted = dict(match or {})
        if invoice is not None:
            wanted["invoice"] = invoice
        rule = {"match": wanted, "times": times, **own}
        if rule_id is not None:
            rule["id"] = rule_id
        return str(self.control({action: rule})["ids"][0])

    def _wait_line(
        self, choose: Callable[[list[str]], str | None], timeout: float, what: str
    ) -> str:
        """Waits for a line of stdout; a service that ended is noticed at once."""
        deadline = time.monotonic() + timeout
        with self._news:
            while (line := choose(self._lines)) is None:
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    break
                self._news.wait(left)
        if line is not None:
            return line
        why = "it ended" if self._ended else f"not within {timeout:g} s"
        if self._ended:
            self._readers[1].join(5)  # its last words explain the most
        raise ServiceFailed(
            f"the payment service did not {what}: {why}; stderr:\n{self.stderr or '(empty)'}"
        )

    def _read_stdout(self, stream: IO[str]) -> None:
        for line in stream:
            with self._news:
                self._lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _read_stderr(self, stream: IO[str]) -> None:
        for line in stream:
            self._stderr.append(line)

    def _end(self, *, at_once: bool) -> None:
        process, self._process, self._url = self._process, None, None
        if process is None:
            return
        if at_once:
            process.kill()
        if process.stdin is not None:
            try:
                process.stdin.close()
            except OSError:
                pass  # it has ended already
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for reader in self._readers:
            reader.join(10)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _nth(word: str, rule_id: str, count: int) -> Callable[[list[str]], str | None]:
    def choose(lines: list[str]) -> str | None:
        ours = [line for line in lines if line.split()[:2] == [word, rule_id]]
        return ours[count - 1] if len(ours) >= count else None

    return choose


def _environment() -> dict[str, str]:
    """The child finds this package wherever the parent found it, installed or not."""
    source = str(Path(__file__).resolve().parents[2])
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{path}" if path else source}
