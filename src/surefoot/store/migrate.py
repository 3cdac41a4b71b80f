"""Brings a database to the schema of this release, or says why it may not.

Steps are numbered files. What was applied is recorded in ``surefoot_migration`` with the
digest of its file, so that a step that was changed afterwards is noticed. Drivers bring the
lock and the transaction; they never go on without the lock they asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from surefoot.errors import MigrationRefused, NotSetUp
from surefoot.store import records
from surefoot.store.statements import Migration, load_migrations

__all__ = ["LEDGER", "TABLES", "apply", "pending", "refuse_pending"]

LEDGER = "surefoot_migration"
TABLES = frozenset(
    {
        "surefoot_chunk",
        "surefoot_frame",
        "surefoot_run",
        "surefoot_thread",
        "surefoot_value",
    }
)


def pending(
    run: records.Run, dialect: str, where: str, *, schema: str | None = None
) -> Sequence[Migration]:
    """Migrations that are not applied yet. Reads only.

    Args:
        run: Executes statements of the dialect.
        dialect: Whose migrations.
        where: Names the database in messages.
        schema: To look in, where the dialect has schemas.

    Raises:
        MigrationRefused: The database is newer than this release, was brought to its schema
            by other files, or lost a table.
    """
    known = load_migrations(dialect)
    present = records.tables_present(run, schema)
    if LEDGER not in present:
        if stray := sorted(TABLES & present):
            raise MigrationRefused(
                where=where, reason=f"{', '.join(stray)} without a record of migrations ({LEDGER})"
            )
        return known
    applied = records.read_ledger(run)
    newest = max(applied, default=0)
    if newest > len(known):
        raise MigrationRefused(
            where=where,
            reason=f"it is at step {newest}, this release knows {len(known)}; use a newer release",
        )
    for step in known[:newest]:
        if applied.get(step.number) != step.digest:
            raise MigrationRefused(
                where=where, reason=f"step {step.name} was applied from a file with other content"
            )
    if newest and (lost := sorted(TABLES - present)):
        raise MigrationRefused(
            where=where, reason=f"{', '.join(lost)} is gone although its step is recorded"
        )
    return known[newest:]


def refuse_pending(steps: Sequence[Migration], where: str) -> None:
    """Says what is missing when nothing may be created.

    Raises:
        NotSetUp: Some step is pending.
    """
    if steps:
        names = ", ".join(step.name for step in steps)
        raise NotSetUp(where=where, reason=f"not applied: {names}")


def apply(run: records.Run, script: Callable[[str], None], steps: Sequence[Migration]) -> None:
    """Applies and records steps; the caller holds the lock and an open transaction.

    Args:
        run: Executes named statements.
        script: Executes the text of a step.
        steps: As `pending` gave them under the same lock.
    """
    if steps:
        records.create_ledger(run)
    for step in steps:
        script(step.text)
        records.record_migration(run, number=step.number, name=step.name, digest=step.digest)
