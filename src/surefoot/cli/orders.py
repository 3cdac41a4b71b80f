"""``surefoot review``, ``restore`` and ``adopt``: making decisions, and carrying them out."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
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
    complain,
    exit_code_of,
    facts_of,
    opened,
    progress_of,
    show,
    warn_of_no_threads,
)
from surefoot.cli.showing import counted
from surefoot.errors import Misconfigured, Misuse, SurefootError
from surefoot.rules.decisions import Decision
from surefoot.signing import ENV_REVIEWERS, SigningKey

__all__ = [
    "Key",
    "ReviewersOption",
    "adopt",
    "explain",
    "require_reviewer",
    "restore",
    "result_choice",
    "review",
    "slot_prefix",
]

#: 31 days, less the 5 minutes that a decision holds before it was made.
_MAX_MINUTES = 31 * 24 * 60 - 5
_SHORTEST_SLOT = 8

Thread = Annotated[str, typer.Argument(help="Id of the thread.")]
Key = Annotated[
    Path, typer.Option("--signing-key", help="Your key, made by `surefoot keys operator`.")
]
Reason = Annotated[str, typer.Option(help="Why; it is kept in the journal.")]
ToSeq = Annotated[
    int | None,
    typer.Option("--to", help="restore, adopt: the record to take. Default: the last good one."),
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
        Path | None,
        typer.Option("--out", help="File for the decision. Default, and -: standard output."),
    ] = None,
    to: ToSeq = None,
    horizon: Horizon = None,
    trust_key: TrustKey = None,
    slot: Annotated[
        str | None, typer.Option(help="approve: slot of the effect, or how it begins.")
    ] = None,
    outcome: Annotated[
        str | None,
        typer.Option(help="approve: succeeded, absent, abandoned or compensated."),
    ] = None,
    result: Annotated[
        str | None,
        typer.Option(help="approve, succeeded: what the effect returns, as JSON; null is none."),
    ] = None,
    evidence: Annotated[
        str | None, typer.Option(help="approve: what it is decided on, e.g. a bank statement.")
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
    out = None if out == Path("-") else out
    choices: dict[str, Any] = {"to_seq": to, "horizon": horizon, "trusted_keys": trust_key or None}
    choices |= {"slot": slot, "outcome": outcome, "evidence": evidence}
    with opened(
        conn,
        highwater=highwater,
        schema=schema,
        tenant=tenant,
        encrypted=encrypted,
        as_json=False,
    ) as saver:
        life = _life(valid_for)
        choices = {k: v for k, v in choices.items() if v is not None} | result_choice(
            result, outcome
        )
        if action == "approve" and slot is not None:
            choices["slot"] = _whole_slot(saver, thread, slot)
        key = SigningKey.from_file(signing_key)
        decision = saver.propose(
            thread,
            action,
            reason=reason,
            valid_for=life,
            **choices,
        )
        document = key.sign(decision).render().decode("ascii")
        if out is not None:
            _write_new(out, document)
    if out is None:
        typer.echo(document)
    explain(decision)
    where = "FILE" if out is None else str(out)
    typer.echo(f"\nCarry it out: surefoot resolve CONN {where} --highwater …", err=True)


def require_reviewer(saver: Any, key: SigningKey, *, where: str = ENV_REVIEWERS) -> None:
    """Refuses a key whose decisions would not be carried out, before anybody is asked anything.

    Raises:
        Misconfigured: Its public half is not among the reviewers.
    """
    known = saver.core.ports.reviewers.public_of(key.key_id)
    if known == key.public():
        return
    put = (
        f'put the public key into {where} ({{"{key.key_id}": "<64 hex>"}}; '
        "`surefoot keys operator` printed it)"
    )
    who = f"nobody known as {key.key_id!r} may decide here: "
    if known is not None:
        who = f"{key.key_id!r} is known by another key than the one that was given: "
    raise Misconfigured(field="reviewers", reason=who + put)


def slot_prefix(slot: str) -> str:
    """How a slot begins, as listings print it; enough of it that nobody hits one by chance.

    Raises:
        Misuse: It is too short.
    """
    if len(slot) < _SHORTEST_SLOT:
        raise Misuse(field="--slot", reason=f"has at least {_SHORTEST_SLOT} characters")
    return slot.lower()


def _whole_slot(saver: Any, thread: str, slot: str) -> str:
    """The slot of the one effect of the thread that is meant.

    Raises:
        Misuse: No effect or several begin like this, or the effect has succeeded.
    """
    begins = slot_prefix(slot)
    found = [r for r in saver.effects(thread) if r.newest and r.slot.startswith(begins)]
    if len(found) != 1:
        many = f"{len(found)} effects" if found else "no effect"
        have = "have a slot that begins" if found else "has a slot that begins"
        more = "; say more of it" if found else ""
        raise Misuse(field="--slot", reason=f"{many} of {thread!r} {have} with {slot!r}{more}")
    (one,) = found
    if one.state == "succeeded":  # the order would be refused by whoever carries it out
        raise Misuse(
            field="--slot", reason=f"{one.effect!r} has succeeded: there is nothing to settle"
        )
    return str(one.slot)


def _life(minutes: int) -> timedelta:
    if not 0 < minutes <= _MAX_MINUTES:
        raise Misuse(field="--valid-for", reason=f"must be 1 to {_MAX_MINUTES} minutes")
    return timedelta(minutes=minutes)


def result_choice(result: str | None, outcome: str | None) -> dict[str, Any]:
    """The choice of a result, also when it is null; a success has to have one."""
    problem = ""
    if result is None:
        if outcome != "succeeded":
            return {}
        raise Misuse(
            field="--result",
            reason=(
                "is what the effect returns to the run from now on, as JSON; say null if it "
                "returns nothing"
            ),
        )
    try:
        return {"result": json.loads(result)}
    except ValueError as error:
        problem = str(error)
    except RecursionError:
        problem = "it is nested too deeply"
    raise Misuse(field="--result", reason=f"is no JSON: {problem}")


def _write_new(out: Path, document: str) -> None:
    """For the owner only: a result or a reason may be nobody else's business."""
    try:
        handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(document + "\n")
    except OSError as error:
        raise Misuse(field="--out", reason=f"{out}: {error.strerror}") from None


def explain(decision: Decision) -> None:
    """Says on standard error what was decided, for whoever reads it before it is carried out."""
    said = [
        f"decision {decision.nonce}: {decision.action} thread {decision.thread!r}",
        f"  at head {decision.head_seq} ({decision.head_digest[:12]}…)",
    ]
    if decision.to_seq is not None:
        lost = decision.head_seq - decision.to_seq
        given_up = f"{counted(lost, 'record')} {'is' if lost == 1 else 'are'}"
        said.append(f"  go back to record {decision.to_seq}; {given_up} given up")
    if decision.horizon is not None:
        said.append(
            f"  effects up to step {decision.horizon} are looked up or asked about before they "
            "run again"
        )
    if decision.slot is not None:
        said.append(f"  effect {decision.slot[:16]}… is {decision.outcome}")
    if decision.outcome == "succeeded":
        said.append(f"  and returns to the run: {json.dumps(decision.result)}")
    if decision.evidence is not None:
        said.append(f"  on the evidence: {decision.evidence}")
    said.append(f"  until {decision.expires:%Y-%m-%d %H:%M:%S} UTC, because: {decision.reason}")
    typer.echo("\n".join(said), err=True)


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
    reviewers (`SUREFOOT_REVIEWERS`). With `--all`, for every thread that does not verify: those
    for which it cannot be done are listed and stop none of the others.
    """
    choices = {"to_seq": to, "horizon": horizon, "trusted_keys": trust_key or None}
    with opened(
        conn,
        highwater=highwater,
        schema=schema,
        tenant=tenant,
        encrypted=encrypted,
        as_json=as_json,
    ) as saver:
        key = SigningKey.from_file(signing_key)
        require_reviewer(saver, key)
        chosen = _chosen(thread, every=every)
        if chosen is None:
            reports = _looked_at(saver, tenant)
            chosen = [r.thread for r in reports if not r.ok and r.state != "unwitnessed"]
        order = _Order("restore", reason, choices, key, every)
        _carry_out(saver, chosen, order, yes=yes, as_json=as_json)


@app.command()
def adopt(
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
    """Take over threads whose marks are lost, as they are stored, under your signature.

    For a high-water store that is gone without a replica. From here on rollbacks are seen
    again; whether there was one before, nobody can tell any more. With `--all`, for every
    thread that the database holds and the high-water store has never seen; those for which it
    cannot be done are listed and stop none of the others.
    """
    choices = {"to_seq": to, "horizon": horizon, "trusted_keys": trust_key or None}
    with opened(
        conn,
        highwater=highwater,
        schema=schema,
        tenant=tenant,
        encrypted=encrypted,
        as_json=as_json,
    ) as saver:
        key = SigningKey.from_file(signing_key)
        require_reviewer(saver, key)
        saver.setup()  # a new high-water store has no table yet
        chosen = _chosen(thread, every=every)
        if chosen is None:
            reports = _looked_at(saver, tenant)
            chosen = [r.thread for r in reports if not r.ok and r.state == "unwitnessed"]
        order = _Order("adopt", reason, choices, key, every)
        _carry_out(saver, chosen, order, yes=yes, as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Order:
    action: str
    reason: str
    choices: dict[str, Any]
    key: SigningKey
    every: bool


def _chosen(thread: str | None, *, every: bool) -> list[str] | None:
    """The named thread; None means every one that needs it."""
    if every == (thread is not None):
        raise Misuse(field="THREAD", reason="name one thread, or say --all")
    return None if thread is None else [thread]


def _looked_at(saver: Any, tenant: str) -> list[Any]:
    reports = [*saver.verify()]
    if not reports:
        warn_of_no_threads(tenant)
    return reports


@dataclass(slots=True)
class _Course:
    """How far an order for several threads has come."""

    left: list[str]
    done: list[Any] = field(default_factory=list)
    failed: dict[str, SurefootError] = field(default_factory=dict)
    #: The thread that was being worked on when it was cut short.
    interrupted: str | None = None

    def document(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "done": [asdict(one) for one in self.done],
            "failed": [{"thread": t, **facts_of(e)} for t, e in self.failed.items()],
            "interrupted": self.interrupted,
            "not_tried": self.left,
        }


def _carry_out(saver: Any, threads: list[str], order: _Order, *, yes: bool, as_json: bool) -> None:
    """Proposes, asks once, signs and carries out; says what was done also when it is cut short."""
    course = _Course([*threads])
    try:
        decisions = _proposed(saver, order, course)
        _ask(decisions, course, yes=yes)
        with progress_of(order.action, quiet=as_json or len(decisions) < 2) as tell:
            for number, decision in enumerate(decisions, 1):
                _try(saver, order, decision, course)
                tell(number, len(decisions))
    except SurefootError:
        raise  # of the only thread; told as a document of its own
    except BaseException:
        _tell(course, as_json=as_json)
        raise
    _tell(course, as_json=as_json)
    if course.failed:
        raise typer.Exit(exit_code_of(course.failed.values()))


def _try(saver: Any, order: _Order, decision: Decision, course: _Course) -> None:
    """Carries out one decision; with ``--all``, an error of it stops none of the others."""
    course.left.remove(decision.thread)
    try:
        course.done.append(saver.resolve(order.key.sign(decision)))
    except SurefootError as error:
        if not order.every:
            raise
        course.failed[decision.thread] = error
    except BaseException:
        course.interrupted = decision.thread
        raise


def _proposed(saver: Any, order: _Order, course: _Course) -> list[Decision]:
    choices = {k: v for k, v in order.choices.items() if v is not None}
    decisions: list[Decision] = []
    for thread in [*course.left]:
        try:
            decisions.append(saver.propose(thread, order.action, reason=order.reason, **choices))
        except SurefootError as error:
            if not order.every:
                raise
            course.failed[thread] = error
            course.left.remove(thread)
    return decisions


def _ask(decisions: list[Decision], course: _Course, *, yes: bool) -> None:
    for decision in decisions:
        explain(decision)
    for thread, error in course.failed.items():
        complain(f"cannot be done for thread {thread!r}: {error}")
    if not decisions:
        if not course.failed:
            typer.echo("no thread needs it", err=True)
    elif not yes:
        many = "it" if len(decisions) == 1 else f"these {len(decisions)} decisions"
        typer.confirm(f"Carry out {many}?", abort=True, err=True)


def _tell(course: _Course, *, as_json: bool) -> None:
    if as_json:
        show(course.document())
    else:
        for one in course.done:
            typer.echo(f"thread {one.thread!r} {one.text}")
    for thread, error in course.failed.items():
        complain(f"not done for thread {thread!r}: {error}")
    if course.interrupted is not None:
        complain(
            f"interrupted at thread {course.interrupted!r}: it may or may not be done; look with "
            "`surefoot verify`"
        )
    if course.left:
        complain(f"not tried: {', '.join(map(repr, course.left))}")
