"""``surefoot review``, ``resolve`` and ``restore``: making decisions, and carrying them out."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from surefoot.cli.app import app
from surefoot.cli.asking import (
    Conn,
    Encrypted,
    HighwaterOption,
    Json,
    Schema,
    Tenant,
    opened,
    refusing,
    show,
)
from surefoot.errors import Misuse
from surefoot.rules.decisions import Decision
from surefoot.signing import Reviewers, SigningKey

__all__ = ["resolve", "restore", "review"]

Thread = Annotated[str, typer.Argument(help="Id of the thread.")]
Key = Annotated[
    Path, typer.Option("--signing-key", help="Your key, made by `surefoot keys operator`.")
]
Reason = Annotated[str, typer.Option(help="Why; it is kept in the journal.")]
ToSeq = Annotated[
    int | None,
    typer.Option("--to", help="restore: record to go back to. Default: the last good one."),
]
Horizon = Annotated[
    int | None,
    typer.Option(help="restore, adopt: taint steps up to this one, if more than what is known."),
]
TrustKey = Annotated[
    list[str] | None,
    typer.Option("--trust-key", help="restore, adopt: a retired key whose seals count."),
]
ReviewersOption = Annotated[
    Path | None,
    typer.Option("--reviewers", help="File of public keys. Default: SUREFOOT_REVIEWERS."),
]


@app.command()
def review(
    conn: Conn,
    thread: Thread,
    action: Annotated[str, typer.Argument(help="restore, adopt, abort or approve.")],
    *,
    highwater: HighwaterOption,
    signing_key: Key,
    reason: Reason,
    out: Annotated[
        Path | None, typer.Option("--out", help="File for the decision. Default: standard output.")
    ] = None,
    to: ToSeq = None,
    horizon: Horizon = None,
    trust_key: TrustKey = None,
    slot: Annotated[str | None, typer.Option(help="approve: slot of the effect.")] = None,
    outcome: Annotated[
        str | None, typer.Option(help="approve: succeeded, absent or abandoned.")
    ] = None,
    result: Annotated[
        str | None, typer.Option(help="approve, succeeded: what the effect returns, as JSON.")
    ] = None,
    valid_for: Annotated[
        int, typer.Option("--valid-for", help="Minutes for which it may be carried out.")
    ] = 60,
    schema: Schema = None,
    tenant: Tenant = "default",
    encrypted: Encrypted = False,
) -> None:
    """Look at a thread, make a decision about it, and sign it. Nothing is changed.

    The document is bound to the thread as it is now; `surefoot resolve` carries it out, once,
    and refuses when the thread has moved.
    """
    choices: dict[str, Any] = {
        "to_seq": to,
        "horizon": horizon,
        "trusted_keys": trust_key or None,
        "slot": slot,
        "outcome": outcome,
        "result": _parsed(result),
    }
    with opened(
        conn, highwater=highwater, schema=schema, tenant=tenant, encrypted=encrypted
    ) as saver:
        key = SigningKey.from_file(signing_key)
        decision = saver.propose(
            thread,
            action,
            reason=reason,
            valid_for=timedelta(minutes=valid_for),
            **{k: v for k, v in choices.items() if v is not None},
        )
        document = key.sign(decision).render().decode("ascii")
        if out is not None:
            _write_new(out, document)
    if out is None:
        typer.echo(document)
    _explain(decision)
    where = "FILE" if out is None else str(out)
    typer.echo(f"\nCarry it out: surefoot resolve CONN {where} --highwater …", err=True)


def _parsed(result: str | None) -> Any:
    if result is None:
        return None
    with refusing():
        problem = ""
        try:
            return json.loads(result)
        except ValueError as error:
            problem = str(error)
        raise Misuse(field="--result", reason=f"is no JSON: {problem}")


def _write_new(out: Path, document: str) -> None:
    try:
        with out.open("x", encoding="ascii") as file:
            file.write(document + "\n")
    except OSError as error:
        raise Misuse(field="--out", reason=f"{out}: {error.strerror}") from None


def _explain(decision: Decision) -> None:
    """Says on standard error what was decided, for whoever reads it before it is carried out."""
    said = [
        f"decision {decision.nonce}: {decision.action} thread {decision.thread!r}",
        f"  at head {decision.head_seq} ({decision.head_digest[:12]}…)",
    ]
    if decision.to_seq is not None:
        lost = decision.head_seq - decision.to_seq
        said.append(f"  go back to record {decision.to_seq}; {lost} records are given up")
    if decision.horizon is not None:
        said.append(
            f"  effects up to step {decision.horizon} are looked up or asked about before they "
            "run again"
        )
    if decision.slot is not None:
        said.append(f"  effect {decision.slot[:16]}… is {decision.outcome}")
    said.append(f"  until {decision.expires:%Y-%m-%d %H:%M:%S} UTC, because: {decision.reason}")
    typer.echo("\n".join(said), err=True)


@app.command()
def resolve(
    conn: Conn,
    document: Annotated[Path, typer.Argument(help="File of the signed decision; - is stdin.")],
    *,
    highwater: HighwaterOption,
    reviewers: ReviewersOption = None,
    schema: Schema = None,
    tenant: Tenant = "default",
    encrypted: Encrypted = False,
    as_json: Json = False,
) -> None:
    """Carry out a signed decision, once. Refuses when the thread has moved since."""
    with opened(
        conn,
        highwater=highwater,
        schema=schema,
        tenant=tenant,
        encrypted=encrypted,
        reviewers=None if reviewers is None else _reviewers(reviewers),
    ) as saver:
        done = saver.resolve(_read(document))
    if as_json:
        show(asdict(done))
    else:
        typer.echo(f"{done.action}: thread {done.thread!r} {done.text}")


def _reviewers(path: Path) -> Reviewers:
    with refusing():
        return Reviewers.from_file(path)


def _read(document: Path) -> str:
    try:
        if str(document) == "-":
            return sys.stdin.read()
        return document.read_text(encoding="utf-8")
    except OSError as error:
        raise Misuse(field="document", reason=f"{document}: {error.strerror}") from None
    except ValueError:
        raise Misuse(field="document", reason=f"{document} is no text") from None


@app.command()
def restore(
    conn: Conn,
    thread: Thread,
    *,
    highwater: HighwaterOption,
    signing_key: Key,
    reason: Reason,
    to: ToSeq = None,
    horizon: Horizon = None,
    trust_key: TrustKey = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before it is done.")] = False,
    schema: Schema = None,
    tenant: Tenant = "default",
    encrypted: Encrypted = False,
    as_json: Json = False,
) -> None:
    """Go back to the last record that verifies, under your signature: review and resolve in one.

    For a thread that is refused because the database was put back, lost records, or was
    changed. The high-water mark is never lowered; every effect of the steps that were given up
    is looked up or asked about before it runs again. Your public key must be among the
    reviewers (`SUREFOOT_REVIEWERS`).
    """
    choices = {"to_seq": to, "horizon": horizon, "trusted_keys": trust_key or None}
    with opened(
        conn, highwater=highwater, schema=schema, tenant=tenant, encrypted=encrypted
    ) as saver:
        key = SigningKey.from_file(signing_key)
        decision = saver.propose(
            thread,
            "restore",
            reason=reason,
            **{k: v for k, v in choices.items() if v is not None},
        )
        _explain(decision)
        if not yes:
            typer.confirm("Carry it out?", abort=True, err=True)
        done = saver.resolve(key.sign(decision))
    if as_json:
        show(asdict(done))
    else:
        typer.echo(f"thread {done.thread!r} {done.text}")
