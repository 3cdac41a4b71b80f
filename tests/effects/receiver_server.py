"""A real HTTP receiver that misbehaves as its path says, and ports that do not answer."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

#: Closing sends a reset instead of an end.
_RESET = struct.pack("ii", 1, 0)


class ReceiverServer:
    """Carries requests out, and then answers, or not.

    ``/ok`` 200; ``/status/503`` that status (2xx and 5xx carry out, 4xx do not); ``/hang`` never
    answers; ``/drop`` resets after the request is carried out; ``/half`` breaks off within the
    answer; ``/refuse`` resets before the request is read; ``/redirect/303/<port>`` carries out and
    points to that port.

    Attributes:
        landed: Paths of the requests that were carried out.
        mended: Everything is answered with 200 from now on.
    """

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.landed: list[str] = []
        self.mended = False
        self._hanging: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def url(self, path: str) -> str:
        """Address of a behaviour."""
        return f"http://127.0.0.1:{self.port}{path}"

    def close(self) -> None:
        """Ends the thread."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)
        for each in self._hanging:
            each.close()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with contextlib.suppress(OSError):
                self._answer(peer)

    def _answer(self, peer: socket.socket) -> None:
        line = b""
        while b"\r\n" not in line:  # looked at, not taken: a reset comes before it is read
            line = peer.recv(65_536, socket.MSG_PEEK)
        path = line.split(b" ", 2)[1].decode()
        if path == "/refuse" and not self.mended:
            self._reset(peer)
            return
        head, body = b"", b""
        while b"\r\n\r\n" not in head:
            head += peer.recv(65_536)
        head, _, body = head.partition(b"\r\n\r\n")
        lengths = [x for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:")]
        wanted = int(lengths[0].split(b":")[1]) if lengths else 0
        while len(body) < wanted:
            body += peer.recv(65_536)
        self._behave(peer, path)

    def _behave(self, peer: socket.socket, path: str) -> None:
        kind, *rest = path.strip("/").split("/")
        status = int(rest[0]) if kind == "status" and not self.mended else 200
        if not 400 <= status < 500 or status in (406, 408, 409):
            self.landed.append(path)
        if self.mended or kind in ("ok", "status"):
            more = "Retry-After: 1\r\n" if status in (429, 503) else ""
            self._reply(peer, status, more)
        elif kind == "redirect":
            self._reply(peer, int(rest[0]), f"Location: http://127.0.0.1:{rest[1]}/ok\r\n")
        elif kind == "drop":
            self._reset(peer)
        elif kind == "half":
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")
            peer.close()
        else:
            self._hanging.append(peer)

    @staticmethod
    def _reply(peer: socket.socket, status: int, more: str) -> None:
        with peer:
            head = f"HTTP/1.1 {status} As Asked\r\nContent-Length: 2\r\nConnection: close\r\n{more}"
            peer.sendall(head.encode() + b"\r\nok")

    @staticmethod
    def _reset(peer: socket.socket) -> None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        peer.close()


def closed_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def deaf_port() -> Iterator[int]:
    """A port that neither takes nor refuses a connection: its queue is full."""
    waiting: list[Any] = []
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        while True:
            attempt = socket.socket()
            waiting.append(attempt)
            attempt.settimeout(0.3)
            try:
                attempt.connect(address)
            except TimeoutError:
                break
        try:
            yield int(address[1])
        finally:
            for attempt in waiting:
                attempt.close()
