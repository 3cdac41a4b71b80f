"""A wire between psycopg and PostgreSQL that can be cut, held, and made to lose replies.

It reads the messages of the protocol in both directions, so that a cut falls exactly between two
of them, and it knows which SQL a connection carries out, so that the reply of one statement can
be lost after the server has committed it.
"""

from __future__ import annotations

import re
import shutil
import socket
import struct
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict
from tests.postgres import with_parts

__all__ = ["Cut", "Hold", "LostReply", "Wire"]

_PORT = "5432"


@dataclass(frozen=True)
class Cut:
    """All connections end before this message is handed on.

    Attributes:
        direction: ``to`` the server or ``from`` it; ``statement`` counts only the message that
            sends a statement, so each is one call of a store.
        number: Which message in that direction since `Wire.plan`, from 1, over all connections.
        lasting: Whoever connects afterwards is turned away, until `Wire.mend`.
    """

    direction: str
    number: int
    lasting: bool = False

    def __str__(self) -> str:
        return f"cut before message {self.number} {self.direction} the server" + (
            ", for good" * self.lasting
        )


@dataclass(frozen=True)
class LostReply:
    """The server carries a statement out and is ready again; nothing of its answer arrives.

    Attributes:
        sql: Pattern of the statement.
        number: Which statement of the pattern, from 1.
        lasting: Whoever connects afterwards is turned away, until `Wire.mend`.
    """

    sql: str
    number: int
    lasting: bool = False

    def __str__(self) -> str:
        return f"lost reply of {self.sql} #{self.number}" + ", for good" * self.lasting


@dataclass(frozen=True)
class Hold:
    """A statement's answer waits until `Wire.let_go`; the server has carried it out."""

    sql: str
    number: int


class _Connection:
    """Both ends of one connection."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.begun = False
        self.statements: dict[bytes, str] = {}
        self.fault: LostReply | Hold | None = None

    def end(self) -> None:
        for end in (self.client, self.server):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it has ended already


class Wire:
    """Stands between clients and one server.

    Attributes:
        url: Address to connect to, instead of the server's.
        counts: Messages by direction since `plan`.
        executed: SQL of every statement that was sent since `plan`.
        hits: Faults that happened.
        held: Set while an answer is being held.
    """

    def __init__(self, server_url: str, *, tcp: bool = False) -> None:
        self.counts: Counter[str] = Counter()
        self.executed: list[str] = []
        self.hits: list[str] = []
        self.held = threading.Event()
        self.down = False
        self._fault: Cut | LostReply | Hold | None = None
        self._matched = 0
        self._on_hit: Callable[[str], None] = lambda _: None
        self._go = threading.Event()
        self._lock = threading.RLock()
        self._live: set[_Connection] = set()
        self._server = {k: str(v) for k, v in conninfo_to_dict(server_url).items()}
        self._folder: Path | None = None
        if tcp:
            self._listener = socket.create_server(("127.0.0.1", 0))
            place = {"host": "127.0.0.1", "port": str(self._listener.getsockname()[1])}
        else:
            self._folder = Path(tempfile.mkdtemp(prefix="surefoot-wire-"))
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(self._folder / f".s.PGSQL.{_PORT}"))
            self._listener.listen(64)
            place = {"host": str(self._folder), "port": _PORT}
        self.url = with_parts(server_url, **place, sslmode="disable", gssencmode="disable")
        threading.Thread(target=self._accept, name="wire", daemon=True).start()

    def plan(
        self,
        fault: Cut | LostReply | Hold | None,
        on_hit: Callable[[str], None] | None = None,
    ) -> None:
        """Counts from here on, and lets this happen."""
        with self._lock:
            self.counts.clear()
            self.executed = []
            self.hits = []
            self._fault, self._matched = fault, 0
            self._on_hit = on_hit or (lambda _: None)
            self.held.clear()
            self._go.clear()

    def mend(self) -> None:
        """Hands everything through again."""
        with self._lock:
            self._fault = None
            self.down = False
        self._go.set()

    def let_go(self) -> None:
        """Hands on what is held."""
        self._go.set()

    def cut(self, *, lasting: bool = False) -> None:
        """Ends all connections now."""
        with self._lock:
            self.down = self.down or lasting
            live = list(self._live)
        for connection in live:
            connection.end()

    def close(self) -> None:
        """Ends everything."""
        self.cut(lasting=True)
        self._go.set()
        self._listener.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # --- connections ----------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            if self.down:
                client.close()
                continue
            try:
                connection = _Connection(client, self._connected())
            except OSError:
                client.close()
                continue
            with self._lock:
                self._live.add(connection)
            for pump in (self._to_server, self._from_server):
                threading.Thread(target=pump, args=(connection,), daemon=True).start()

    def _connected(self) -> socket.socket:
        host, port = self._server.get("host", ""), self._server.get("port") or _PORT
        if host.startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{host}/.s.PGSQL.{port}")
            return server
        return socket.create_connection((host or "127.0.0.1", int(port)))

    def _to_server(self, connection: _Connection) -> None:
        self._pump(connection, connection.client, connection.server, "to")

    def _from_server(self, connection: _Connection) -> None:
        self._pump(connection, connection.server, connection.client, "from")

    def _pump(
        self, connection: _Connection, source: socket.socket, target: socket.socket, direction: str
    ) -> None:
        pending = b""
        try:
            while data := source.recv(65_536):
                pending += data
                while True:
                    untyped = direction == "to" and not connection.begun
                    at = 0 if untyped else 1
                    if len(pending) < at + 4:
                        break
                    (length,) = struct.unpack_from(">i", pending, at)
                    if len(pending) < at + length:
                        break
                    message, pending = pending[: at + length], pending[at + length :]
                    connection.begun = connection.begun or untyped
                    if not self._hand_on(connection, message, target, direction, untyped=untyped):
                        return
        except OSError:
            return  # the other end has gone, or the wire was cut
        finally:
            connection.end()
            with self._lock:
                self._live.discard(connection)

    # --- faults ---------------------------------------------------------------------------------

    def _hand_on(
        self,
        connection: _Connection,
        message: bytes,
        target: socket.socket,
        direction: str,
        *,
        untyped: bool,
    ) -> bool:
        with self._lock:
            counted = [direction]
            if direction == "to" and not untyped and message[:1] in (b"B", b"Q"):
                counted.append("statement")
            self.counts.update(counted)
            fault = self._fault
            cuts = (
                isinstance(fault, Cut)
                and fault.direction in counted
                and self.counts[fault.direction] == fault.number
            )
            if cuts:
                self._hit(fault, lasting=fault.lasting)  # type: ignore[union-attr]
        if cuts:
            self.cut()
            return False
        if direction == "to":
            if not untyped:
                self._follow(connection, message)
            target.sendall(message)
            return True
        return self._answer(connection, message, target)

    def _hit(self, fault: object, *, lasting: bool) -> None:
        self._fault = None
        self.down = self.down or lasting
        self.hits.append(str(fault))
        self._on_hit(str(fault))

    def _follow(self, connection: _Connection, message: bytes) -> None:
        """Learns which statement is carried out."""
        kind, body = message[:1], message[5:]
        if kind == b"P":
            name, sql, _ = body.split(b"\0", 2)
            connection.statements[name] = sql.decode(errors="replace")
            return
        if kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            sql_text = connection.statements.get(name, "")
        elif kind == b"Q":
            sql_text = body.rstrip(b"\0").decode(errors="replace")
        else:
            return
        with self._lock:
            self.executed.append(sql_text)
            fault = self._fault
            if isinstance(fault, LostReply | Hold) and re.search(fault.sql, sql_text):
                self._matched += 1
                if self._matched == fault.number:
                    self._fault = None
                    connection.fault = fault

    def _answer(self, connection: _Connection, message: bytes, target: socket.socket) -> bool:
        fault = connection.fault
        if fault is None or message[:1] == b"N":
            target.sendall(message)
            return True
        if isinstance(fault, Hold):
            connection.fault = None
            self.hits.append(str(fault))
            self.held.set()
            self._go.wait()
            target.sendall(message)
            return True
        if message[:1] == b"E":
            raise AssertionError(f"the server refused what was to be carried out: {message!r}")
        if message[:1] == b"Z":  # the server is ready again: it has committed
            with self._lock:
                self._hit(fault, lasting=fault.lasting)
            self.cut()
            return False
        return True
