"""What all commands share: how stores are named, how errors and answers are shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from surefoot.errors import Busy, Misuse, Refused, SurefootError, Unavailable

__all__ = [
    "EXIT_BUSY",
    "EXIT_MISUSE",
    "EXIT_REFUSED",
    "EXIT_UNAVAILABLE",
    "Conn",
    "Encrypted",
    "HighwaterOption",
    "Json",
    "KeysOption",
    "Schema",
    "Tenant",
    "failed",
    "opened",
    "progress_of",
    "refusing",
    "show",
]

#: Exit codes by reaction, the same for every command.
EXIT_REFUSED, EXIT_BUSY, EXIT_UNAVAILABLE, EXIT_MISUSE = 10, 11, 12, 13

Conn = Annotated[str, typer.Argument(help="The database: sqlite:///… or postgresql://…")]
HighwaterOption = Annotated[str, typer.Option("--highwater", help="The high-water store.")]
Schema = Annotated[str | None, typer.Option(help="Postgres schema of the tables.")]
Tenant = Annotated[str, typer.Option(help="Tenant, as the workers name it.")]
Encrypted = Annotated[
    bool, typer.Option("--encrypted", help="The workers open it with encryption=True.")
]
KeysOption = Annotated[
    Path | None,
    typer.Option("--keys", help="Key file. Default: SUREFOOT_KEYS, or where `init` made it."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def failed(error: SurefootError) -> typer.Exit:
    """Prints an error for people and gives the exit code of its reaction."""
    Console(stderr=True, highlight=False).print(str(error), style="red", markup=False)
    for group, code in (
        (Refused, EXIT_REFUSED),
        (Busy, EXIT_BUSY),
        (Unavailable, EXIT_UNAVAILABLE),
        (Misuse, EXIT_MISUSE),
    ):
        if isinstance(error, group):
            return typer.Exit(code)
    return typer.Exit(1)


@contextmanager
def refusing() -> Iterator[None]:
    """Turns an error of ours into its text and its exit code."""
    try:
        yield
    except SurefootError as error:
        raise failed(error) from None


@contextmanager
def opened(
    conn: str, *, highwater: str, schema: str | None, tenant: str, encrypted: bool, **more: Any
) -> Iterator[Any]:
    """A saver on the stores that a command names."""
    from surefoot import SurefootSaver

    with (
        refusing(),
        SurefootSaver.from_conn_string(
            conn, highwater=highwater, schema=schema, tenant=tenant, encryption=encrypted, **more
        ) as saver,
    ):
        yield saver


@contextmanager
def progress_of(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error; gives what is told how many of how many are done."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=quiet, transient=True) as progress:
        task = progress.add_task(what, total=None)

        def tell(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield tell


def show(document: Any) -> None:
    """Prints a JSON document."""
    typer.echo(json.dumps(document, indent=2))
