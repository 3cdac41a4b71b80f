"""``surefoot review``, ``resolve`` and ``restore``: making decisions, and carrying them out."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
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
    progress_of,
    refusing,
    show,
)
from surefoot.errors import Misuse
from surefoot.rules.decisions import Decision
from surefoot.signing import Reviewers, SigningKey

__all__ = ["adopt", "resolve", "restore", "review"]

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


Every = Annotated[bool, typer.Option("--all", help="Every thread that needs it.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before it is done.")]
OneThread = Annotated[str | None, typer.Argument(help="Id of the thread, or use --all.")]


@app.command()
def restore(
    conn: Conn,
    thread: OneThread = None,
    *,
    highwater: HighwaterOption,
    signing_key: Key,
    reason: Reason,
    every: Every = False,
    to: ToSeq = None,
    horizon: Horizon = None,
    trust_key: TrustKey = None,
    yes: Yes = False,
    schema: Schema = None,
    tenant: Tenant = "default",
    encrypted: Encrypted = False,
    as_json: Json = False,
) -> None:
    """Go back to the last record that verifies, under your signature: review and resolve in one.

    For threads that are refused because the database was put back, lost records, or was
    changed. The high-water mark is never lowered; every effect of the steps that were given up
    is looked up or asked about before it runs again. Your public key must be among the
    reviewers (`SUREFOOT_REVIEWERS`). With `--all`, for every thread that does not verify.
    """
    choices = {"to_seq": to, "horizon": horizon, "trusted_keys": trust_key or None}
    with opened(
        conn, highwater=highwater, schema=schema, tenant=tenant, encrypted=encrypted
    ) as saver:
        chosen = _chosen(thread, every=every)
        if chosen is None:
            found = [r for r in saver.verify() if not r.ok and r.state != "unwitnessed"]
            chosen = [r.thread for r in found]
        order = _Order("restore", reason, choices)
        _carry_out(
            saver, chosen, order, SigningKey.from_file(signing_key), yes=yes, as_json=as_json
        )


@app.command()
def adopt(
    conn: Conn,
    thread: OneThread = None,
    *,
    highwater: HighwaterOption,
    signing_key: Key,
    reason: Reason,
    every: Every = False,
    horizon: Horizon = None,
    trust_key: TrustKey = None,
    yes: Yes = False,
    schema: Schema = None,
    tenant: Tenant = "default",
    encrypted: Encrypted = False,
    as_json: Json = False,
) -> None:
    """Take over threads whose marks are lost, as they are stored, under your signature.

    For a high-water store that is gone without a replica. From here on rollbacks are seen
    again; whether there was one before, nobody can tell any more. With `--all`, for every
    thread that the database holds and the high-water store has never seen.
    """
    choices = {"horizon": horizon, "trusted_keys": trust_key or None}
    with opened(
        conn, highwater=highwater, schema=schema, tenant=tenant, encrypted=encrypted
    ) as saver:
        saver.setup()  # a new high-water store has no table yet
        chosen = _chosen(thread, every=every)
        if chosen is None:
            chosen = [r.thread for r in saver.verify() if r.state == "unwitnessed" and not r.ok]
        order = _Order("adopt", reason, choices)
        _carry_out(
            saver, chosen, order, SigningKey.from_file(signing_key), yes=yes, as_json=as_json
        )


@dataclass(frozen=True, slots=True)
class _Order:
    action: str
    reason: str
    choices: dict[str, Any]


def _chosen(thread: str | None, *, every: bool) -> list[str] | None:
    """The named thread; None means every one that needs it."""
    if every == (thread is not None):
        raise Misuse(field="THREAD", reason="name one thread, or say --all")
    return None if thread is None else [thread]


def _carry_out(
    saver: Any, threads: list[str], order: _Order, key: SigningKey, *, yes: bool, as_json: bool
) -> None:
    """Proposes, asks once, signs and carries out."""
    choices = {k: v for k, v in order.choices.items() if v is not None}
    decisions = [
        saver.propose(thread, order.action, reason=order.reason, **choices) for thread in threads
    ]
    for decision in decisions:
        _explain(decision)
    if not decisions:
        typer.echo("no thread needs it", err=True)
    elif not yes:
        many = "it" if len(decisions) == 1 else f"these {len(decisions)} decisions"
        typer.confirm(f"Carry out {many}?", abort=True, err=True)
    done = []
    with progress_of(order.action, quiet=as_json or len(decisions) < 2) as tell:
        for number, decision in enumerate(decisions, 1):
            done.append(saver.resolve(key.sign(decision)))
            tell(number, len(decisions))
    if as_json:
        show([asdict(d) for d in done])
    else:
        for one in done:
            typer.echo(f"thread {one.thread!r} {one.text}")
