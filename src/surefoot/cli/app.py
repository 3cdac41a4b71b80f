"""``surefoot``: commands for operators. Each does one thing and says what to do next."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from surefoot import __version__
from surefoot.cli.asking import Json, failed
from surefoot.errors import Misconfigured, SurefootError
from surefoot.keys import ENV_KEYS, Keyring, default_key_file

__all__ = ["app"]

app = typer.Typer(
    help="Checkpoints for LangGraph that you can resume from.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def init(
    keys: Annotated[
        Path | None, typer.Option(help="Key file to make. Default: where it is found by itself.")
    ] = None,
    highwater: Annotated[
        Path | None, typer.Option(help="High-water store to make. Default: beside the key file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a key file (mode 0600) and a local high-water store; never overwrites either.

    Good for a first run on one machine. For production, the output says what to move where.
    """
    from surefoot.highwater import SqliteHighWater

    for option, given in (("--keys", keys), ("--highwater", highwater)):
        if given is not None and ":/" in str(given):
            raise failed(
                Misconfigured(
                    field=option,
                    reason=(
                        "is a file to make here, not an address; for a store elsewhere run "
                        "`surefoot setup CONN --highwater ADDRESS`"
                    ),
                ),
                as_json=as_json,
            )
    key_file = (keys or default_key_file()).expanduser().absolute()
    marks_file = (highwater or key_file.parent / "highwater.db").expanduser().absolute()
    made: dict[str, Any] = {"keys": str(key_file), "highwater": f"sqlite:///{marks_file}"}
    try:
        _make_folder(key_file.parent, "--keys")
        _make_folder(marks_file.parent, "--highwater")
        made["keys_made"] = not key_file.exists()
        if made["keys_made"]:
            Keyring.generate().to_file(key_file)
        else:
            Keyring.from_file(key_file)
        made["highwater_made"] = not marks_file.exists()
        marks = SqliteHighWater(str(marks_file))
        marks.setup()
        marks.close()
    except SurefootError as error:
        raise failed(error, as_json=as_json) from None
    if as_json:
        typer.echo(json.dumps(made, indent=2))
        return
    _explain_init(made, found_by_itself=key_file == default_key_file())


def _make_folder(folder: Path, option: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise Misconfigured(
            field=option, reason=f"{folder}: {error.strerror or type(error).__name__}"
        ) from None


def _explain_init(made: dict[str, Any], *, found_by_itself: bool) -> None:
    for what, name in (("key file", "keys"), ("high-water store", "highwater")):
        verb = "made" if made[f"{name}_made"] else "kept"
        typer.echo(f"{verb} {what}: {made[name]}")
    where = "" if found_by_itself else f"\n  export {ENV_KEYS}={made['keys']}"
    typer.echo(
        f"""
Use them:{where}
  SurefootSaver.from_conn_string("sqlite:///agents.db", highwater="{made["highwater"]}")

Before production, move two things away from the database:
  - the key: into your secret store, given to workers as {ENV_KEYS}. Whoever has the key and
    can write to the database can forge records. Keep a copy: without it nothing verifies.
  - the high-water store: to another server or disk, under another administrator, and not into
    the same backup. Whoever can put back both together can roll back unnoticed."""
    )


@app.command()
def setup(
    conn: Annotated[str, typer.Argument(help="sqlite:///… or postgresql://…")],
    highwater: Annotated[str, typer.Option(help="Address of the high-water store.")],
    schema: Annotated[str | None, typer.Option(help="Postgres schema of the tables.")] = None,
    verify_only: Annotated[
        bool,
        typer.Option("--verify-only", help="Only check; for roles that may not create tables."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Create or migrate the tables of both stores; safe to run again and in parallel."""
    from surefoot import SurefootSaver

    try:
        with SurefootSaver.from_conn_string(conn, highwater=highwater, schema=schema) as saver:
            saver.setup(verify_only=verify_only)
            health = saver.health()
    except SurefootError as error:
        raise failed(error, as_json=as_json) from None
    if as_json:
        typer.echo(json.dumps(health, indent=2))
        return
    typer.echo("checked" if verify_only else "ready")
    for part in ("content_store", "highwater"):
        typer.echo(f"  {part.replace('_', ' ')}: {health[part]['where']}")
    if health["degraded"]:
        typer.echo("  degraded: both stores are on the same server; move the high-water store")


@app.command()
def demo(as_json: Json = False) -> None:
    """Kill a payment agent in the middle, resume it, and count the charges."""
    from surefoot.demo.__main__ import main

    sys.exit(main(["--json"] if as_json else []))
