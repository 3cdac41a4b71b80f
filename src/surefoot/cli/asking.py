"""What all commands share: how stores are named, how errors and answers are shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
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
    "complain",
    "exit_code_of",
    "facts_of",
    "failed",
    "opened",
    "progress_of",
    "refusing",
    "show",
    "warn_of_no_threads",
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


#: Fields of errors that a document repeats; none of them holds a value of the user's state.
_SAFE_FIELDS = frozenset(
    {
        *("action", "channel", "current_epoch", "effect", "epoch", "field", "holder", "key_id"),
        *("left_ms", "nonce", "path", "rules", "seq", "slot", "state", "store", "stored_seq"),
        *("thread", "type_name", "what", "where", "witnessed_seq"),
    }
)


def complain(text: str) -> None:
    """Prints what is wrong for people, in lines as long as they are: terminals and logs wrap."""
    console = Console(stderr=True, highlight=False)
    console.print(text, style="red", markup=False, soft_wrap=True)


def warn_of_no_threads(tenant: str) -> None:
    """Whoever mistypes a tenant must not take the silence for good news."""
    complain(
        f"warning: neither store knows any thread of tenant {tenant!r}; nothing was looked at. "
        "Is --tenant what the workers use?"
    )


def facts_of(error: SurefootError) -> dict[str, Any]:
    """An error as a part of a JSON document."""
    return {
        "code": error.code,
        "reaction": error.reaction,
        "message": str(error),
        "fields": {
            name: value
            for name, value in error.fields.items()
            if name in _SAFE_FIELDS and isinstance(value, (str, int, list, type(None)))
        },
    }


def exit_code_of(errors: Iterable[SurefootError]) -> int:
    """The exit code of the strictest reaction; 1 for an error that has none."""
    found = list(errors)
    for group, code in (
        (Refused, EXIT_REFUSED),
        (Misuse, EXIT_MISUSE),
        (Unavailable, EXIT_UNAVAILABLE),
        (Busy, EXIT_BUSY),
    ):
        if any(isinstance(error, group) for error in found):
            return code
    return 1


def failed(error: SurefootError, *, as_json: bool) -> typer.Exit:
    """Prints an error, as a document as well if one is wanted, and gives its exit code."""
    complain(str(error))
    if as_json:
        show({"error": facts_of(error)})
    return typer.Exit(exit_code_of([error]))


@contextmanager
def refusing(*, as_json: bool) -> Iterator[None]:
    """Turns an error of ours into its text and its exit code."""
    try:
        yield
    except SurefootError as error:
        raise failed(error, as_json=as_json) from None


@contextmanager
def opened(
    conn: str,
    *,
    highwater: str,
    schema: str | None,
    tenant: str,
    encrypted: bool,
    as_json: bool,
    **more: Any,
) -> Iterator[Any]:
    """A saver on the stores that a command names."""
    from surefoot import SurefootSaver

    with (
        refusing(as_json=as_json),
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
