"""``surefoot keys …``: making, turning and retiring the keys that seal records."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from surefoot.cli.app import app
from surefoot.cli.asking import (
    EXIT_BUSY,
    Conn,
    Encrypted,
    HighwaterOption,
    Json,
    KeysOption,
    Schema,
    Tenant,
    opened,
    progress_of,
    refusing,
    show,
)
from surefoot.errors import Busy, Misconfigured, SurefootError
from surefoot.keys import ENV_KEYS, Keyring, default_key_file
from surefoot.signing import ENV_REVIEWERS, SigningKey

__all__ = ["keys"]

keys = typer.Typer(
    help="Make, turn and retire the keys that seal records, and make keys of operators.",
    no_args_is_help=True,
)
app.add_typer(keys, name="keys")


def _key_file(given: Path | None) -> Path:
    """The key file to change.

    Raises:
        Misconfigured: The keys are in the environment itself, so there is no file to change.
    """
    if given is not None:
        return given
    value = os.environ.get(ENV_KEYS, "").strip()
    if value.startswith(("{", "[")):
        raise Misconfigured(
            field=ENV_KEYS,
            reason="holds the keys themselves; give the file to change with --keys",
        )
    return Path(value) if value else default_key_file()


def _told(ring: Keyring, file: Path, text: str, *, as_json: bool) -> None:
    if as_json:
        show({"file": str(file), "keys": ring.states()})
        return
    typer.echo(text)
    for key_id, state in ring.states().items():
        typer.echo(f"  {key_id}  {state}")


@keys.command("list")
def list_(file: KeysOption = None, *, as_json: Json = False) -> None:
    """Show the ids and states of the keys; secrets are never shown."""
    with refusing():
        path = _key_file(file)
        ring = Keyring.from_file(path)
    _told(ring, path, f"keys in {path}:", as_json=as_json)


@keys.command()
def generate(
    file: KeysOption = None,
    *,
    key_id: Annotated[str | None, typer.Option("--id", help="Name of the new key.")] = None,
    as_json: Json = False,
) -> None:
    """Add a fresh key to the file. It verifies, and seals nothing until `keys rotate`.

    First step of a rotation: give the file to every worker and restart them. Only then rotate,
    so that nobody meets a seal of a key that it does not have.
    """
    with refusing():
        path = _key_file(file)
        ring = Keyring.from_file(path).with_new_key(key_id)
        ring.replace_file(path)
    made = [*ring.states()][-1]
    _told(
        ring,
        path,
        f"added {made!r} to {path}. Give the file to every worker, then:\n"
        f"  surefoot keys rotate {made}",
        as_json=as_json,
    )


@keys.command()
def rotate(
    key_id: Annotated[str, typer.Argument(help="The key that seals from now on.")],
    file: KeysOption = None,
    *,
    as_json: Json = False,
) -> None:
    """Make a key the primary: new records are sealed with it, old ones still verify.

    Second step of a rotation. When every worker has been restarted with the file, retire the
    former primary (`keys retire`), or leave it enabled.
    """
    with refusing():
        path = _key_file(file)
        ring = Keyring.from_file(path)
        before = ring.primary()
        ring = ring.with_primary(key_id)
        ring.replace_file(path)
    _told(
        ring,
        path,
        f"{key_id!r} seals from now on; {before!r} still verifies. Restart every worker with "
        f"{path}, then, if {before!r} is to go:\n"
        f"  surefoot keys retire {before} CONN --highwater …",
        as_json=as_json,
    )


@keys.command()
def retire(
    key_id: Annotated[str, typer.Argument(help="The key to retire; not the primary.")],
    conn: Conn,
    *,
    highwater: HighwaterOption,
    file: KeysOption = None,
    compromised: Annotated[
        bool,
        typer.Option(
            "--compromised",
            help="Others may know it: drop unpublished records, which anybody could have written.",
        ),
    ] = False,
    schema: Schema = None,
    tenant: Tenant = "default",
    encrypted: Encrypted = False,
    as_json: Json = False,
) -> None:
    """Write into every thread up to where a key counts, then retire it in the file.

    Run it when every worker seals with another key. What the key sealed up to then stays
    readable; what anybody seals with it afterwards is refused. Threads that a worker holds are
    left out and named (exit code 11): run it again for them. The key is retired in the file
    only when no thread is left. With several databases or tenants, run it on each of them
    first with a copy of the file.
    """
    with refusing():
        path = _key_file(file)
        ring = Keyring.from_file(path)
        retired = ring.with_retired(key_id)  # refuses the primary and unknown ids first
    with opened(
        conn, highwater=highwater, schema=schema, tenant=tenant, encrypted=encrypted, keys=ring
    ) as saver:
        done, skipped, busy = _write_limits(saver, key_id, compromised=compromised, quiet=as_json)
    if not busy:
        with refusing():
            retired.replace_file(path)
    if as_json:
        show(
            {
                "key": key_id,
                "written": done,
                "not_needed": skipped,
                "busy": busy,
                "retired": not busy,
            }
        )
    elif busy:
        typer.echo(f"{done} threads written, {skipped} need nothing, {len(busy)} are held:")
        for thread in busy:
            typer.echo(f"  {thread!r}")
        typer.echo(f"{key_id!r} is not retired yet; run this again when they are at rest.")
    else:
        _told(
            retired,
            path,
            f"{done} threads written, {skipped} need nothing. {key_id!r} is retired in {path}; "
            "give the file to every worker.",
            as_json=False,
        )
    if busy:
        raise typer.Exit(EXIT_BUSY)


def _write_limits(
    saver: Any, key_id: str, *, compromised: bool, quiet: bool
) -> tuple[int, int, list[str]]:
    """Writes into every thread; gives how many were written, need nothing, and which are held."""
    threads = [*saver.threads()]
    done, skipped = 0, 0
    busy: list[str] = []
    failures: list[tuple[str, SurefootError]] = []
    with progress_of("writing into threads", quiet=quiet) as tell:
        for number, thread in enumerate(threads, 1):
            try:
                wrote = saver.retire_key(thread, key_id, compromised=compromised)
            except Busy:
                busy.append(thread)
            except SurefootError as error:
                failures.append((thread, error))
            else:
                done, skipped = done + wrote, skipped + (not wrote)
            tell(number, len(threads))
    if failures:
        first, problem = failures[0]
        typer.echo(f"{len(failures)} threads were not written, the first: {first!r}", err=True)
        raise problem
    return done, skipped, busy


@keys.command()
def operator(
    key_id: Annotated[str, typer.Argument(help="Name of the operator's key.")],
    file: Annotated[Path, typer.Argument(help="File to make for the private key (mode 0600).")],
    *,
    as_json: Json = False,
) -> None:
    """Make a key that signs decisions (Ed25519), and print its public half for the workers.

    The private key stays with the person; workers only get the public one.
    """
    with refusing():
        key = SigningKey.generate(key_id)
        key.to_file(file)
    public = {key_id: key.public()}
    if as_json:
        show({"file": str(file), "reviewers": public})
        return
    typer.echo(f"made signing key {key_id!r}: {file}. Keep it away from the workers.\n")
    typer.echo("Workers and commands that carry out its decisions need the public key:")
    typer.echo(f"  export {ENV_REVIEWERS}='{json.dumps(public)}'")
