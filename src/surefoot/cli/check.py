"""``surefoot verify``: does everything that is stored verify?"""

from __future__ import annotations

from dataclasses import asdict
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
    opened,
    progress_of,
    show,
    warn_of_no_threads,
)
from surefoot.cli.showing import counted
from surefoot.errors import Misuse

__all__ = ["verify"]


@app.command()
def verify(
    conn: Conn,
    thread: Annotated[
        str | None, typer.Argument(help="One thread. Default: all that either store knows.")
    ] = None,
    *,
    highwater: HighwaterOption,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also fetch, verify and decode every value.")
    ] = False,
    schema: Schema = None,
    tenant: Tenant = "default",
    encrypted: Encrypted = False,
    as_json: Json = False,
) -> None:
    """Walk a thread, or all of them, from the head down to the beginning, and report.

    Takes no lease and raises no alarm beside live workers. Exit code 10 when something does
    not verify; the report then names the last record that a restore could go back to. Exit
    code 13 for a thread that neither store knows, or that has a mark and no record at all:
    nothing was looked at.
    """
    checked, records, values = 0, 0, 0
    broken: list[Any] = []
    unloadable: set[str] = set()
    notes: dict[str, list[str]] = {}
    with opened(
        conn,
        highwater=highwater,
        schema=schema,
        tenant=tenant,
        encrypted=encrypted,
        as_json=as_json,
    ) as saver:
        total = 1 if thread is not None else sum(1 for _ in saver.threads())
        with progress_of("verifying threads", quiet=as_json) as tell:
            for report in saver.verify(thread, deep=deep):
                if thread is not None:
                    _require_something(report, tenant)
                checked += 1
                records += sum(report.records.values())
                values += report.values
                unloadable.update(report.unloadable)
                if report.notes:
                    notes[report.thread] = list(report.notes)
                if not report.ok:
                    broken.append(report)
                tell(checked, max(total, checked))
        degraded = saver.core.degraded()
    document = {
        "ok": not broken,
        "tenant": tenant,
        "threads": checked,
        "records": records,
        "values": values,
        "deep": deep,
        "unloadable_types": sorted(unloadable),
        "notes": notes,
        "degraded": degraded,
        "broken": [asdict(report) for report in broken],
    }
    if not checked:
        warn_of_no_threads(tenant)
    if as_json:
        show(document)
    else:
        _explain(document, broken)
    if broken:
        raise typer.Exit(EXIT_REFUSED)


def _require_something(report: Any, tenant: str) -> None:
    """Whoever mistypes a thread must not take the silence for good news.

    A mark alone is no better news: a worker that dies before its first record is stored leaves one.
    """
    if not report.ok or report.records or report.state not in ("unwitnessed", "admitted"):
        return
    named = f"thread {report.thread!r} of tenant {tenant!r}"
    reason = f"neither store knows a {named}; nothing was looked at"
    if report.state == "admitted":
        reason = f"no record of {named} is stored, only a mark of it; nothing was looked at"
    raise Misuse(field="THREAD", reason=reason)


def _explain(document: dict[str, Any], broken: list[Any]) -> None:
    if not document["threads"]:
        typer.echo(f"0 threads of tenant {document['tenant']!r}")
        return
    looked = [counted(document["threads"], "thread"), counted(document["records"], "record")]
    if document["deep"]:
        looked.append(counted(document["values"], "value"))
    do_not = f"{counted(len(broken), 'thread')} {'does' if len(broken) == 1 else 'do'} not verify"
    typer.echo(f"{', '.join(looked)} looked at; {do_not if broken else 'all of them verify'}")
    for report in broken:
        typer.echo(f"\nthread {report.thread!r} ({report.state}, head {report.seq})")
        for problem in report.problems:
            typer.echo(f"  {problem.text}")
        if report.last_good is not None:
            typer.echo(
                f"  last record that verifies down to the beginning: {report.last_good}; "
                "`surefoot restore` goes back to it"
            )
    for thread, said in document["notes"].items():
        typer.echo(f"\nthread {thread!r} verifies, but: {'; '.join(said)}")
    if document["unloadable_types"]:
        names = ", ".join(document["unloadable_types"])
        typer.echo(f"\nverified, but not loadable here: {names} (see allowed_types=)")
    if document["degraded"]:
        typer.echo("\ndegraded: both stores are on the same server; move the high-water store")
