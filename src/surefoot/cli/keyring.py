"""``surefoot keys …``: making, turning and retiring the keys that seal records."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from surefoot.cli.app import app
from surefoot.cli.asking import (
    Conn,
    Encrypted,
    HighwaterOption,
    Json,
    KeysOption,
    Schema,
    Tenant,
    complain,
    exit_code_of,
    facts_of,
    opened,
    progress_of,
    refusing,
    show,
    warn_of_no_threads,
)
from surefoot.cli.showing import counted
from surefoot.errors import (
    Busy,
    KeyMissing,
    MarkCorrupt,
    Misconfigured,
    Refused,
    ResumeRefused,
    RollbackDetected,
    SurefootError,
    TamperDetected,
)
from surefoot.keys import ENV_KEYS, KeyFile, Keyring
from surefoot.signing import ENV_REVIEWERS, SigningKey

__all__ = ["keys"]

keys = typer.Typer(
    help="Make, turn and retire the keys that seal records, and make keys of operators.",
    no_args_is_help=True,
)
app.add_typer(keys, name="keys")


def _key_file(given: Path | None) -> KeyFile:
    """The key file to change.

    Raises:
        Misconfigured: The keys are in the environment itself, so there is no file to change.
    """
    file = KeyFile.from_env() if given is None else KeyFile.at(given)
    if file is None:
        raise Misconfigured(
            field=ENV_KEYS,
            reason="holds the keys themselves; give the file to change with --keys",
        )
    return file


def _told(ring: Keyring, file: KeyFile, text: str, *, as_json: bool) -> None:
    if as_json:
        show({"file": file.path, "keys": ring.states()})
        return
    typer.echo(text)
    for key_id, state in ring.states().items():
        typer.echo(f"  {key_id}  {state}")


@keys.command("list")
def list_(file: KeysOption = None, *, as_json: Json = False) -> None:
    """Show the ids and states of the keys; secrets are never shown."""
    with refusing(as_json=as_json):
        found = _key_file(file)
        ring = Keyring.from_file(found)
    _told(ring, found, f"keys in {found.path}:", as_json=as_json)


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
    with refusing(as_json=as_json):
        found = _key_file(file)
        ring = Keyring.change_file(found, lambda now: now.with_new_key(key_id))
    made = [*ring.states()][-1]
    _told(
        ring,
        found,
        f"added {made!r} to {found.path}. Give the file to every worker, then:\n"
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
    with refusing(as_json=as_json):
        found = _key_file(file)
        former: list[str] = []

        def turned(now: Keyring) -> Keyring:
            former.append(now.primary())
            return now.with_primary(key_id)

        ring = Keyring.change_file(found, turned)
    before = former[-1]
    _told(
        ring,
        found,
        f"{key_id!r} seals from now on; {before!r} still verifies. Restart every worker with "
        f"{found.path}, then, if {before!r} is to go:\n"
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
    give_up: Annotated[
        bool,
        typer.Option(
            "--give-up",
            help=(
                "Retire it also if threads refuse: they cannot be read any more, until it is "
                "enabled in the file again."
            ),
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
    left out and named (exit code 11): run it again for them. So are threads that refuse because
    they are frozen or do not verify (exit code 10); with `--give-up` the key is retired all the
    same, and these threads cannot be read until it is enabled again. Else the key is retired in
    the file, as it is then, only when no thread is left. With several databases or tenants, run
    it on each of them first with a copy of the file.
    """
    with refusing(as_json=as_json):
        found = _key_file(file)
        ring = Keyring.from_file(found)
        ring.with_retired(key_id)  # refuses the primary and unknown ids first
    with opened(
        conn,
        highwater=highwater,
        schema=schema,
        tenant=tenant,
        encrypted=encrypted,
        as_json=as_json,
        keys=ring,
    ) as saver:
        limits = _write_limits(saver, key_id, compromised=compromised, quiet=as_json)
    if not limits.threads:
        warn_of_no_threads(tenant)
    left = limits.busy or limits.failed or (limits.refused and not give_up)
    if not left:
        with refusing(as_json=as_json):
            ring = Keyring.change_file(found, lambda now: _without(now, key_id))
    if as_json:
        show(limits.document(key_id, retired=not left))
    else:
        _explain(limits, key_id, retired=not left)
        if not left:
            text = f"{key_id!r} is retired in {found.path}; give the file to every worker."
            _told(ring, found, text, as_json=False)
    if left:
        # Threads that were given up are no reason to stop, but the others are.
        errors = [*limits.errors(), *([] if give_up else limits.refused.values())]
        raise typer.Exit(exit_code_of(errors))


def _without(now: Keyring, key_id: str) -> Keyring:
    """The ring of the file as it is after the walk, with the key retired."""
    if now.primary() == key_id:
        raise Misconfigured(
            field="keys",
            reason=(
                f"{key_id!r} became the primary again while threads were written to, so it is not "
                "retired; rotate to another key and run this again"
            ),
        )
    return now.with_retired(key_id)


@dataclass(slots=True)
class _Limits:
    """What came of writing into every thread up to where a key counts."""

    threads: int
    done: int = 0
    skipped: int = 0
    busy: dict[str, Busy] = field(default_factory=dict)
    refused: dict[str, Refused] = field(default_factory=dict)
    failed: dict[str, SurefootError] = field(default_factory=dict)

    def errors(self) -> list[SurefootError]:
        """Whatever keeps the key from being retired."""
        return [*self.busy.values(), *self.failed.values()]

    def document(self, key_id: str, *, retired: bool) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "key": key_id,
            "written": self.done,
            "not_needed": self.skipped,
            "busy": [*self.busy],
            "refused": [{"thread": t, **facts_of(e)} for t, e in self.refused.items()],
            "failed": [{"thread": t, **facts_of(e)} for t, e in self.failed.items()],
            "retired": retired,
        }


def _explain(limits: _Limits, key_id: str, *, retired: bool) -> None:
    needs = "needs" if limits.skipped == 1 else "need"
    parts = [f"{counted(limits.done, 'thread')} written, {limits.skipped} {needs} nothing"]
    busy, refused = len(limits.busy), len(limits.refused)
    parts += [f"{busy} {'is' if busy == 1 else 'are'} held"] * bool(busy)
    parts += [f"{refused} {'refuses' if refused == 1 else 'refuse'}"] * bool(refused)
    parts += [f"{len(limits.failed)} failed"] * bool(limits.failed)
    typer.echo(", ".join(parts) + (":" if len(parts) > 1 else "."))
    for thread in limits.busy:
        typer.echo(f"  {thread!r}")
    for thread, error in (limits.refused | limits.failed).items():
        complain(f"  {thread!r}: {error}")
    if retired and limits.refused:
        typer.echo(
            f"These {len(limits.refused)} are given up: nobody can read them until {key_id!r} is "
            "enabled in the file again."
        )
    elif not retired:
        remedy = "run this again when they are at rest"
        if limits.refused:
            remedy = (
                "restore or delete the threads that refuse and run this again, or give them up "
                f"with --give-up: nobody can read them then until {key_id!r} is enabled again"
            )
        elif limits.failed:
            remedy = "run this again when the stores answer"
        typer.echo(f"{key_id!r} is not retired yet; {remedy}.")


#: About a thread itself: it is frozen, or does not verify.
_REFUSALS = (KeyMissing, MarkCorrupt, ResumeRefused, RollbackDetected, TamperDetected)


def _write_limits(saver: Any, key_id: str, *, compromised: bool, quiet: bool) -> _Limits:
    """Writes into every thread that lets it; one that does not stops none of the others."""
    threads = [*saver.threads()]
    limits = _Limits(len(threads))
    with progress_of("writing into threads", quiet=quiet) as tell:
        for number, thread in enumerate(threads, 1):
            try:
                wrote = saver.retire_key(thread, key_id, compromised=compromised)
            except Busy as error:
                limits.busy[thread] = error
            except _REFUSALS as error:
                limits.refused[thread] = error
            except SurefootError as error:
                limits.failed[thread] = error
            else:
                limits.done, limits.skipped = limits.done + wrote, limits.skipped + (not wrote)
            tell(number, len(threads))
    return limits


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
    with refusing(as_json=as_json):
        key = SigningKey.generate(key_id)
        key.to_file(file)
    public = {key_id: key.public()}
    if as_json:
        show({"file": str(file), "reviewers": public})
        return
    typer.echo(f"made signing key {key_id!r}: {file}. Keep it away from the workers.\n")
    typer.echo("Workers and commands that carry out its decisions need the public key:")
    typer.echo(f"  export {ENV_REVIEWERS}='{json.dumps(public)}'")
