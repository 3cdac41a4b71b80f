"""Case 38: behind PgBouncer in transaction mode, where every statement may meet another server."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict
from urllib.parse import urlencode

import psycopg
import pytest
from langgraph.graph import END, START, StateGraph
from psycopg.conninfo import conninfo_to_dict
from tests.postgres import fresh_database, with_parts

from surefoot import Keyring, SurefootSaver, effect

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="pgbouncer is not installed"),
]
THREADS, SERVERS = 8, 3


class Pooler:
    """A PgBouncer of its own before a server, with fewer connections than there are clients."""

    def __init__(self, server: str) -> None:
        parts = conninfo_to_dict(server)
        self.folder = Path(tempfile.mkdtemp(prefix="surefoot-pooler-"))
        user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        if user is not None:
            os.chown(self.folder, user.pw_uid, -1)  # it refuses to run as root
        target = " ".join(
            f"{name}={parts[name]}"
            for name in ("host", "port", "user", "password")
            if name in parts
        )
        settings = self.folder / "pooler.ini"
        settings.write_text(
            f"[databases]\n* = {target}\n[pgbouncer]\npool_mode = transaction\n"
            f"unix_socket_dir = {self.folder}\nlisten_port = 6432\nlisten_addr =\n"
            f"auth_type = any\nmax_client_conn = 200\ndefault_pool_size = {SERVERS}\n"
            "ignore_startup_parameters = extra_float_digits\n"
        )
        settings.chmod(0o644)
        self._process = subprocess.Popen(
            ["pgbouncer", str(settings)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            user=None if user is None else user.pw_uid,
            cwd="/",
        )
        self._stderr = self._process.stderr
        assert self._stderr is not None
        for line in self._stderr:
            if "process up" in line:
                break
        else:
            pytest.fail("pgbouncer did not start")
        threading.Thread(target=self._stderr.read, daemon=True).start()

    def address(self, database: str) -> str:
        """The same database, through the pooler."""
        name = conninfo_to_dict(database)["dbname"]
        place = {"user": "postgres", "host": str(self.folder), "port": "6432"}
        return f"postgresql:///{name}?{urlencode(place)}"

    def close(self) -> None:
        """Ends it."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)
        shutil.rmtree(self.folder)


@pytest.fixture
def pooler() -> Iterator[tuple[Pooler, str, str]]:
    content, marks = fresh_database(), fresh_database()
    made = Pooler(with_parts(content, dbname=None))
    yield made, content, marks
    made.close()


def add(before: list[str], more: list[str]) -> list[str]:
    return before + more


class State(TypedDict, total=False):
    done: Annotated[list[str], add]


def graph(saver: SurefootSaver, sent: list[str]) -> Any:
    lock = threading.Lock()

    @effect
    def send(what: str) -> str:
        with lock:
            sent.append(what)
        return what

    builder = StateGraph(State)
    before = START
    for number in range(4):

        def node(state: State, number: int = number) -> State:
            return {"done": [send(what=f"{state['done'][0]}-{number}")]}

        builder.add_node(f"n{number}", node)
        builder.add_edge(before, f"n{number}")
        before = f"n{number}"
    builder.add_edge(before, END)
    return builder.compile(checkpointer=saver)


def at(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}}


def test_case_38_behind_pgbouncer_in_transaction_mode(pooler: tuple[Pooler, str, str]) -> None:
    made, content, marks = pooler
    sent: list[str] = []
    with SurefootSaver(
        made.address(content), highwater=made.address(marks), keys=Keyring.generate()
    ) as saver:
        saver.setup()
        saver.setup(verify_only=True)
        running = graph(saver, sent)
        results: dict[str, Any] = {}

        failures: list[BaseException] = []

        def work(name: str) -> None:
            try:
                for turn in range(3):
                    config = at(f"{name}-{turn}")
                    results[f"{name}-{turn}"] = running.invoke({"done": [f"{name}{turn}"]}, config)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        assert failures == []
        assert len(results) == THREADS * 3
        assert all(len(found["done"]) == 5 for found in results.values())
        assert len(sent) == len(set(sent)) == THREADS * 3 * 4
        assert len(list(saver.list(at("t0-0")))) == 6
        saver.copy_thread("t0-0", "copy")
        saver.prune(["t0-0"])
        saver.delete_thread("t1-0")
        reports = list(saver.verify(deep=True))
        assert all(r.ok for r in reports)
        assert len(reports) == THREADS * 3
    with psycopg.connect(content) as direct:
        # Fewer servers than clients: the statements did meet others than they were prepared on.
        (backends,) = direct.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        ).fetchone() or (0,)
        assert 0 < backends <= SERVERS


def test_rows_of_the_user_and_their_records_behind_pgbouncer(
    pooler: tuple[Pooler, str, str],
) -> None:
    """A transaction stays on one server from begin to commit, so both are there or neither."""
    made, content, marks = pooler
    with psycopg.connect(content) as direct:
        direct.execute("CREATE TABLE book (account TEXT, amount BIGINT)")
    failing = {f"t{n}" for n in range(0, THREADS, 2)}

    @effect(same_database=True)
    def post(account: str, amount: int, *, conn: psycopg.Connection[Any]) -> int:
        conn.execute("INSERT INTO book VALUES (%s, %s)", (account, amount))
        if amount == 2 and account in failing:
            failing.remove(account)
            raise OSError("once")
        (total,) = conn.execute(
            "SELECT sum(amount)::bigint FROM book WHERE account = %s", (account,)
        ).fetchone() or (0,)
        return int(total)

    def node(state: State) -> State:
        account = state["done"][0]
        return {"done": [str(post(account, amount)) for amount in range(4)]}

    with SurefootSaver(
        made.address(content), highwater=made.address(marks), keys=Keyring.generate()
    ) as saver:
        saver.setup()
        builder = StateGraph(State)
        builder.add_node("n", node)
        builder.add_edge(START, "n")
        builder.add_edge("n", END)
        running = builder.compile(checkpointer=saver)
        failures: list[BaseException] = []

        def work(account: str) -> None:
            try:
                running.invoke({"done": [account]}, at(account))
            except OSError:
                running.invoke(None, at(account))
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        assert failures == []
        assert failing == set()
        for n in range(THREADS):
            state = running.get_state(at(f"t{n}"))
            assert state.values["done"] == [f"t{n}", "0", "1", "3", "6"]
        assert all(report.ok for report in saver.verify(deep=True))
    with psycopg.connect(content) as direct:
        found = direct.execute("SELECT account, amount FROM book ORDER BY account, amount")
        assert found.fetchall() == [(f"t{n}", a) for n in range(THREADS) for a in range(4)]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="async nodes have no ambient config")
async def test_case_38_the_async_half_behind_pgbouncer(pooler: tuple[Pooler, str, str]) -> None:
    made, content, marks = pooler
    sent: list[str] = []
    async with SurefootSaver(
        made.address(content), highwater=made.address(marks), keys=Keyring.generate()
    ) as saver:
        await saver.asetup()
        builder = StateGraph(State)

        @effect
        async def send(what: str) -> str:
            sent.append(what)
            return what

        async def node(state: State) -> State:
            return {"done": [await send(what=state["done"][0])]}

        builder.add_node("n", node)
        builder.add_edge(START, "n")
        builder.add_edge("n", END)
        running = builder.compile(checkpointer=saver)
        await asyncio.gather(
            *(running.ainvoke({"done": [f"a{n}"]}, at(f"a{n}")) for n in range(12))
        )
        assert sorted(sent) == sorted(f"a{n}" for n in range(12))
        assert [r.ok async for r in saver.averify(deep=True)] == [True] * 12


def test_what_a_body_sets_reaches_no_other_client(pooler: tuple[Pooler, str, str]) -> None:
    """An effect in the same database: the server's session goes to somebody else right after it."""
    made, content, marks = pooler

    @effect(same_database=True)
    def sets(*, conn: Any) -> str:
        conn.execute("SET default_transaction_read_only TO on")
        conn.execute("SET synchronous_commit TO off")
        conn.execute("SELECT set_config('app.tenant', 'somebody', false)")
        conn.execute("SET ROLE pg_read_all_data")
        return "done"

    builder = StateGraph(State)
    builder.add_node("sets", lambda state: {"done": [sets()]})
    builder.add_edge(START, "sets")
    builder.add_edge("sets", END)
    with SurefootSaver(
        made.address(content), highwater=made.address(marks), keys=Keyring.generate()
    ) as saver:
        saver.setup()
        running = builder.compile(checkpointer=saver)
        for number in range(2 * SERVERS):
            assert running.invoke({"done": []}, at(f"t{number}"))["done"] == ["done"]
    look = """
        SELECT current_setting('default_transaction_read_only'),
            current_setting('synchronous_commit'), current_user = session_user,
            coalesce(current_setting('app.tenant', true), '')
    """
    clients = [psycopg.connect(made.address(content)) for _ in range(SERVERS)]
    try:  # each in a transaction, so each has another session of the server
        found = [client.execute(look).fetchone() for client in clients]
    finally:
        for client in clients:
            client.close()
    assert set(found) == {("off", "on", True, "")}
