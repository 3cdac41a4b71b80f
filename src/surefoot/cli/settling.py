"""``surefoot effects`` and ``resolve``: what is in doubt, and a person's word about it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from surefoot.cli.app import app
from surefoot.cli.asking import (
    EXIT_REFUSED,
    Conn,
    Encrypted,
    HighwaterOption,
    Json,
    Schema,
    Tenant,
    complain,
    exit_code_of,
    opened,
    refusing,
    show,
)
from surefoot.cli.orders import (
    ReviewersOption,
    explain,
    require_reviewer,
    result_choice,
    slot_prefix,
)
from surefoot.cli.showing import doubt_document, doubts_table, one_line, records_table, shown_doubt
from surefoot.errors import Misuse, SurefootError
from surefoot.flows.doubts import InDoubt
from surefoot.flows.orders import Done
from surefoot.rules.decisions import SignedDecision
from surefoot.signing import ENV_REVIEWERS, Reviewers, SigningKey

__all__ = ["effects", "resolve"]

#: What nobody can settle as it stands, and what helps.
_NOT_SETTLEABLE = {
    "unreadable": 'look with `surefoot verify`, and see the guide, "When a thread is refused"',
    "unrecorded": "run the thread again: the call records it, and then it can be settled",
}
_ANSWERS = {
    "s": "succeeded",
    "n": "absent",
    "c": "compensated",
    "a": "abandoned",
}
#: What may be answered at the prompt: the letter, or the whole word and nothing in between, for a
#: word that is only guessed at might settle a payment.
_WORDS = {
    "succeeded": "s",
    "nothing": "n",
    "absent": "n",
    "compensated": "c",
    "abandon": "a",
    "abandoned": "a",
    "skip": "k",
    "quit": "q",
}
_LETTERS = (*_ANSWERS, "k", "q")
_NOBODY = "is no terminal; name the decision: --thread … --slot … --outcome … --reason … --yes"


# --- effects -------------------------------------------------------------------------------------


@app.command()
def effects(
    conn: Conn,
    thread: Annotated[
        str | None, typer.Argument(help="One thread: its whole history. Default: all in doubt.")
    ] = None,
    *,
    highwater: HighwaterOption,
    only_doubts: Annotated[
        bool,
        typer.Option("--in-doubt", help="Only what is in doubt; exit code 10 if something is."),
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Show at most this many.")] = None,
    schema: Schema = None,
    tenant: Tenant = "default",
    encrypted: Encrypted = False,
    as_json: Json = False,
) -> None:
    """List the effects of a thread, or everything in doubt, what is urgent first.

    Takes no lease and raises no alarm beside live workers. Exit code 10 with `--in-doubt` when
    something is, and whenever a thread that may hold a doubt does not verify.
    """
    with opened(
        conn,
        highwater=highwater,
        schema=schema,
        tenant=tenant,
        encrypted=encrypted,
        as_json=as_json,
    ) as saver:
        if limit is not None and limit < 1:
            raise Misuse(field="--limit", reason="is a whole number from 1")
        if thread is not None:
            _require_known(saver, thread, tenant)
        if thread is not None and not only_doubts:
            records = saver.effects(thread, limit=limit)
            if as_json:
                show(
                    {"tenant": tenant, "thread": thread, "effects": [*map(doubt_document, records)]}
                )
            else:
                typer.echo(records_table(thread, records))
            return
        found = saver.in_doubt(thread=thread)
    _show_queue(found, limit, tenant=tenant, thread=thread, as_json=as_json)
    if any(item.state == "unreadable" or only_doubts for item in found):
        raise typer.Exit(EXIT_REFUSED)


def _require_known(saver: Any, thread: str, tenant: str) -> None:
    """Whoever mistypes a thread must not take the silence for good news."""
    ports = saver.core.ports
    if ports.marks.read(tenant, thread) is None and ports.store.read_thread(tenant, thread) is None:
        raise Misuse(
            field="THREAD",
            reason=f"neither store knows a thread {thread!r} of tenant {tenant!r}",
        )


def _show_queue(
    found: Sequence[InDoubt], limit: int | None, *, tenant: str, thread: str | None, as_json: bool
) -> None:
    listed = found if limit is None else found[:limit]
    overdue = sum(item.overdue for item in found)
    if as_json:
        show(
            {
                "tenant": tenant,
                "thread": thread,
                "count": len(found),
                "overdue": overdue,
                "in_doubt": [*map(doubt_document, listed)],
            }
        )
        return
    if not found:
        typer.echo(f"nothing of tenant {tenant!r} is in doubt")
        return
    typer.echo(doubts_table(listed))
    more = f", {len(listed)} shown" if len(listed) < len(found) else ""
    typer.echo(f"{len(found)} in doubt, {overdue} overdue{more}; `surefoot resolve` settles them")


# --- resolve -------------------------------------------------------------------------------------

OneThread = Annotated[str | None, typer.Option("--thread", help="Settle an effect of this thread.")]
Slot = Annotated[
    str | None, typer.Option(help="Which one, if it has several: its slot, or how it begins.")
]
Outcome = Annotated[
    str | None,
    typer.Option(help="succeeded, absent (nothing happened), abandoned or compensated."),
]
Result = Annotated[
    str | None, typer.Option(help="succeeded: what the effect returns, as JSON; null is none.")
]
Evidence = Annotated[
    str | None, typer.Option(help="What it is decided on, e.g. what the receiver's records show.")
]
Why = Annotated[str | None, typer.Option("--reason", help="Why; it is kept in the journal.")]
OwnKey = Annotated[
    Path | None,
    typer.Option("--signing-key", help="Your key, made by `surefoot keys operator`."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before it is done.")]


@app.command()
def resolve(
    conn: Conn,
    document: Annotated[
        Path | None, typer.Argument(help="File of a signed decision; - is stdin.")
    ] = None,
    *,
    highwater: HighwaterOption,
    thread: OneThread = None,
    slot: Slot = None,
    outcome: Outcome = None,
    result: Result = None,
    evidence: Evidence = None,
    reason: Why = None,
    signing_key: OwnKey = None,
    yes: Yes = False,
    reviewers: ReviewersOption = None,
    schema: Schema = None,
    tenant: Tenant = "default",
    encrypted: Encrypted = False,
    as_json: Json = False,
) -> None:
    """Settle effects in doubt, or carry out a signed decision, once.

    With a document: shows it, asks (unless `--yes`), carries it out, and refuses when the thread
    has moved since. With `--outcome`: shows what is known of one effect, makes the decision, signs
    it with your key and carries it out. With neither: goes through everything in doubt, what is
    urgent first, and asks. Where nobody can be asked, say `--yes`: else exit code 13.
    """
    word = _Word(outcome, result, evidence, reason, signing_key, yes)
    with refusing(as_json=as_json):
        mode = _mode(document, thread, slot, word, as_json=as_json)
        more = {} if reviewers is None else {"reviewers": Reviewers.from_file(reviewers)}
    with opened(
        conn,
        highwater=highwater,
        schema=schema,
        tenant=tenant,
        encrypted=encrypted,
        as_json=as_json,
        **more,
    ) as saver:
        if document is not None:
            done = _carried_out_as_read(saver, document, yes=yes)
            if as_json:
                show(asdict(done))
            else:
                typer.echo(f"{done.action}: thread {done.thread!r} {done.text}")
            return
        require_reviewer(saver, word.key(), where=f"{ENV_REVIEWERS} or --reviewers FILE")
        if mode == "one":
            _settle_one(saver, _chosen(saver, thread, slot), word, as_json=as_json)
        else:
            _walk(saver, thread, word)


@dataclass(frozen=True, slots=True)
class _Word:
    """What the person has said on the command line."""

    outcome: str | None
    result: str | None
    evidence: str | None
    reason: str | None
    signing_key: Path | None
    yes: bool

    def key(self) -> SigningKey:
        if self.signing_key is None:
            raise Misuse(
                field="--signing-key",
                reason="is needed to settle something; `surefoot keys operator` makes one",
            )
        return SigningKey.from_file(self.signing_key)


def _mode(
    document: Path | None, thread: str | None, slot: str | None, word: _Word, *, as_json: bool
) -> str:
    """What is asked for: a document, one effect, or the whole queue."""
    said = {
        "--thread": thread,
        "--slot": slot,
        "--outcome": word.outcome,
        "--result": word.result,
        "--evidence": word.evidence,
        "--reason": word.reason,
        "--signing-key": word.signing_key,
    }
    given = [name for name, value in said.items() if value is not None]
    if document is not None:
        if given:
            raise Misuse(field=given[0], reason="does not go with a document, which says it all")
        return "document"
    word.key()
    if word.outcome is None:
        if as_json or word.yes or slot is not None or word.result is not None:
            raise Misuse(
                field="--outcome",
                reason="is needed where nobody is asked (--json, --yes, --slot, --result)",
            )
        return "walk"
    if word.outcome not in _ANSWERS.values():
        raise Misuse(field="--outcome", reason=f"is one of {', '.join(_ANSWERS.values())}")
    for name, value in (("--thread", thread), ("--reason", word.reason)):
        if value is None:
            raise Misuse(field=name, reason="is needed with --outcome")
    return "one"


def _read(document: Path) -> str:
    try:
        if str(document) == "-":
            return sys.stdin.read()
        return document.read_text(encoding="utf-8")
    except OSError as error:
        raise Misuse(field="document", reason=f"{document}: {error.strerror}") from None
    except ValueError:
        raise Misuse(field="document", reason=f"{document} is no text") from None


def _carried_out_as_read(saver: Any, document: Path, *, yes: bool) -> Done:
    """Shows what somebody has signed, asks, and carries it out."""
    signed = SignedDecision.parse(_read(document))
    saver.core.ports.reviewers.check(signed)  # nobody is shown what nobody vouches for
    explain(signed.decision)
    if not yes:
        if str(document) == "-":
            raise Misuse(field="--yes", reason="is needed when standard input is the document")
        with _answered("--yes", "is needed when nobody can be asked: stdin is no terminal"):
            _agree(f"Carry it out, as {signed.key_id!r} has signed it?")
    done: Done = saver.resolve(signed)
    return done


class _Declined(typer.Abort):
    """A person has said no, which is not the same as nobody being there."""


def _agree(question: str) -> None:
    if not typer.confirm(one_line(question), err=True):
        raise _Declined


@contextmanager
def _answered(name: str, reason: str) -> Iterator[None]:
    """Turns questions that nobody was there to answer into what has to be said instead."""
    try:
        yield
    except _Declined:
        raise
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        raise Misuse(field=name, reason=reason) from None


def _chosen(saver: Any, thread: str | None, slot: str | None) -> InDoubt:
    """The one doubt that is meant."""
    begins = "" if slot is None else slot_prefix(slot)
    found = [item for item in saver.in_doubt(thread=thread) if item.slot.startswith(begins)]
    if not found and thread is not None:
        _refuse_given_up(saver, thread, begins)
    if len(found) != 1:
        which = "" if slot is None else f" whose slot begins with {slot!r}"
        many = "nothing is" if not found else f"{len(found)} effects are"
        ask = "; say which (--slot)" if found else ""
        raise Misuse(field="--thread", reason=f"{many} in doubt in thread {thread!r}{which}{ask}")
    item: InDoubt = found[0]
    if item.state in _NOT_SETTLEABLE:
        raise Misuse(field="--slot", reason=f"is {item.state}: {_NOT_SETTLEABLE[item.state]}")
    return item


def _refuse_given_up(saver: Any, thread: str, begins: str) -> None:
    """An effect that was abandoned is open no more, but may be decided about anew."""
    given_up = [
        f"{one.effect!r} (slot {one.slot[:16]}) was abandoned"
        for one in saver.effects(thread)
        if one.newest and one.state == "abandoned" and one.slot.startswith(begins)
    ]
    if given_up:
        raise Misuse(
            field="--thread",
            reason=(
                f"nothing of the thread is open; {', '.join(given_up)}: `surefoot review CONN "
                "THREAD approve --slot … --outcome …` decides anew"
            ),
        )


def _settle_one(saver: Any, item: InDoubt, word: _Word, *, as_json: bool) -> None:
    typer.echo(shown_doubt(item), err=True)
    with _answered("--yes", "is needed when nobody can be asked: stdin is no terminal"):
        done, signed = _carried_out(saver, item, word, str(word.outcome), str(word.reason))
    if as_json:
        show(
            {
                **asdict(done),
                "effect": item.effect,
                "slot": item.slot,
                "outcome": word.outcome,
                "decision": json.loads(signed.render()),
            }
        )
    else:
        typer.echo(f"{done.action}: thread {done.thread!r} {done.text}")


def _carried_out(
    saver: Any, item: InDoubt, word: _Word, outcome: str, reason: str
) -> tuple[Any, Any]:
    """Proposes, shows, asks, signs and carries out one decision."""
    choices: dict[str, Any] = {"slot": item.slot, "outcome": outcome}
    choices |= {} if word.evidence is None else {"evidence": word.evidence}
    choices |= result_choice(word.result, outcome)
    key = word.key()
    decision = saver.propose(item.thread, "approve", reason=reason, **choices)
    explain(decision)
    if not word.yes:
        _agree(f"Sign as {key.key_id!r} and carry it out?")
    signed = key.sign(decision)
    return saver.resolve(signed), signed


# --- the walk ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Course:
    settled: int = 0
    skipped: int = 0
    failed: list[SurefootError] = field(default_factory=list)


def _walk(saver: Any, thread: str | None, word: _Word) -> None:
    """Goes through the queue and asks; an error about one stops none of the others."""
    queue = saver.in_doubt(thread=thread)
    if not queue:
        typer.echo("nothing is in doubt")
        return
    course = _Course()
    try:
        with _answered("standard input", _NOBODY):
            for number, item in enumerate(queue, 1):
                typer.echo(f"\n{number} of {len(queue)}\n{shown_doubt(item)}")
                if not _asked(saver, item, word, course):
                    break
    finally:
        left = len(queue) - course.settled - len(course.failed)
        typer.echo(f"\n{course.settled} settled, {len(course.failed)} failed, {left} left")
    if course.failed:
        raise typer.Exit(exit_code_of(course.failed))


def _asked(saver: Any, item: InDoubt, word: _Word, course: _Course) -> bool:
    """Asks about one; False ends the walk."""
    if item.state in _NOT_SETTLEABLE:
        typer.echo(f"  cannot be settled: {_NOT_SETTLEABLE[item.state]}")
        return True
    answer = _answer()
    if answer not in _ANSWERS:
        return answer != "q"
    outcome = _ANSWERS[answer]
    said = _Word(
        outcome,
        _result() if outcome == "succeeded" else None,
        word.evidence or typer.prompt("On which evidence?"),
        word.reason or typer.prompt("Why?"),
        word.signing_key,
        word.yes,
    )
    try:
        done, _ = _carried_out(saver, item, said, outcome, str(said.reason))
        typer.echo(f"{done.action}: thread {done.thread!r} {done.text}")
        course.settled += 1
    except SurefootError as error:
        complain(one_line(f"not done: {error}"))
        course.failed.append(error)
    return True


def _result() -> str:
    """What the call returns; asked for again at once when it is no JSON, before the rest is."""
    while True:
        text = str(typer.prompt("What the call returns, as JSON (null is nothing)"))
        try:
            result_choice(text, "succeeded")
        except Misuse:
            typer.echo('not JSON; a text needs quotes: "sent"')
        else:
            return text


def _answer() -> str:
    while True:
        answer = typer.prompt(
            "What happened? [s]ucceeded, [n]othing, [c]ompensated, [a]bandon it; s[k]ip, [q]uit"
        )
        word = str(answer).strip().lower()
        letter = _WORDS.get(word, word)
        if letter in _LETTERS:
            return letter
        typer.echo(one_line(f"{str(answer).strip()!r} is none of {', '.join(_LETTERS)}."))
