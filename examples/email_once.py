"""A mail that nobody can be asked about (class N): killed after sending, it is never sent twice.

    python examples/email_once.py --die     # killed when the mail is out and nothing says so yet
    python examples/email_once.py           # stops: a person looks into the mailbox and decides

SMTP neither deduplicates nor tells what it has taken. So the second run raises `EffectInDoubt`,
names the call and sends nothing; without `--die` the first run just sends the mail. The mail server
is a small one of this script; it keeps what it takes in `email-example/outbox`.
"""

from __future__ import annotations

import operator
import os
import signal
import smtplib
import socketserver
import sys
import threading
from email.message import EmailMessage
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

from surefoot import Keyring, SurefootSaver, effect
from surefoot.errors import EffectInDoubt

FOLDER = Path("email-example")
OUTBOX = FOLDER / "outbox"


class State(TypedDict):
    """Whom to write to, and what was done."""

    to: str
    log: Annotated[list[str], operator.add]


class Mailbox(socketserver.StreamRequestHandler):
    """As much of SMTP as `smtplib` speaks; a mail is on disk before it is acknowledged."""

    def handle(self) -> None:
        """Serves one session."""
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            word = line.strip().upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                mail = b""
                while (part := self.rfile.readline()) not in (b".\r\n", b""):
                    mail += part
                (OUTBOX / f"{len(list(OUTBOX.iterdir())) + 1}.eml").write_bytes(mail)
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
            if word == b"QUIT":
                return


def agent(port: int) -> StateGraph[Any, Any, Any, Any]:
    """The graph: one node that sends one mail."""

    @effect
    def send(to: str, subject: str) -> str:
        mail = EmailMessage()
        mail["From"], mail["To"], mail["Subject"] = "agent@example.org", to, subject
        with smtplib.SMTP("127.0.0.1", port, timeout=10) as smtp:
            smtp.send_message(mail)
        if "--die" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        return subject

    graph = StateGraph(State)
    graph.add_node("tell", lambda state: {"log": [f"sent {send(state['to'], 'Your order')!r}"]})
    graph.add_edge(START, "tell")
    graph.add_edge("tell", END)
    return graph


def main() -> None:
    """Runs the agent, or goes on where an earlier process stopped."""
    OUTBOX.mkdir(parents=True, exist_ok=True)
    keys = FOLDER / "keys.json"
    if not keys.exists():
        Keyring.generate().to_file(keys)
    config: Any = {"configurable": {"thread_id": "order-17"}}
    with (
        socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mailbox) as server,
        SurefootSaver.from_conn_string(
            f"sqlite:///{FOLDER / 'agent.db'}",
            highwater=f"sqlite:///{FOLDER / 'highwater.db'}",
            keys=Keyring.from_file(keys),
        ) as saver,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        saver.setup()
        graph = agent(server.server_address[1]).compile(checkpointer=saver)
        state = graph.get_state(config)
        try:
            if not state.values and not state.tasks:
                graph.invoke({"to": "ada@example.org", "log": []}, config)
            elif state.tasks:
                graph.invoke(None, config)
            print(*graph.get_state(config).values["log"], sep="\n")
        except EffectInDoubt as doubt:
            print(f"in doubt: {doubt.effect} at {doubt.position}; a person decides")
        print(f"mails in the outbox: {len(list(OUTBOX.iterdir()))}")
        server.shutdown()


if __name__ == "__main__":
    main()
