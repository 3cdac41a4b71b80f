"""``surefoot.record``: a fact of the user's own in the audit trail, from inside a node."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config

from surefoot.assembly import Core, core_of_run
from surefoot.errors import Misuse, Refused, SurefootError
from surefoot.flows import effects
from surefoot.flows import events as flow
from surefoot.langgraph.bubble import bubbling
from surefoot.langgraph.host import run_of, target_of
from surefoot.session import Session

__all__ = ["ambient_session", "arecord", "record", "step_aside"]


def record(
    kind: str, payload: Any = None, *, schema: int = 1, config: Mapping[str, Any] | None = None
) -> None:
    """Puts a fact into the trail of the thread that the calling node runs on.

    It is stored and published when this returns, in the order of the thread's journal, and changes
    nothing: a node that runs again records again.

    Args:
        kind: Its name: 1 to 64 letters, digits, dots, underscores and hyphens; not beginning with
            ``surefoot.``.
        payload: Plain data.
        schema: Version of the payload's layout, which is yours.
        config: The node's config, where LangGraph gives no ambient one (Python 3.10, async nodes).

    Raises:
        Misuse: Outside a run with a `SurefootSaver`, or the kind may not be used.
        NotStorable: The payload is no plain data.
        Fenced: Another worker has the thread.
        StoreUnavailable: A store did not answer; this run is latched.
    """
    here: tuple[Core, Session] | None = None
    try:
        fact = flow.fact_of(kind, payload, schema)
        core, session = here = _here(config)
        flow.record_in_run(core.ports, session, _serde_of(session), fact)
    except SurefootError as error:
        if here is not None:
            step_aside(*here, error)
        raise bubbling(error) from error.__cause__


async def arecord(
    kind: str, payload: Any = None, *, schema: int = 1, config: Mapping[str, Any] | None = None
) -> None:
    """Async twin of `record`."""
    here: tuple[Core, Session] | None = None
    try:
        fact = flow.fact_of(kind, payload, schema)
        core, session = here = _here(config)
        await core.offload.run(flow.record_in_run, core.ports, session, _serde_of(session), fact)
    except SurefootError as error:
        if here is not None:
            await here[0].offload.run(step_aside, *here, error)
        raise bubbling(error) from error.__cause__


def step_aside(core: Core, session: Session, error: SurefootError) -> None:
    """Gives the lease back where a refusal is about to end the run; nothing else would."""
    if not isinstance(error, Refused):
        return
    with contextlib.suppress(SurefootError):  # the refusal is what the caller has to see
        effects.step_aside(core.ports, session)


def ambient_session(core: Core, thread: str) -> Session | None:
    """The session of the run that makes the present call, if it holds this very thread."""
    run = run_of(var_child_runnable_config.get())
    return None if run is None else core.sessions.of_run(run, thread)


def _here(config: Mapping[str, Any] | None) -> tuple[Core, Session]:
    found = config or var_child_runnable_config.get()
    run = run_of(found)
    thread = ((found or {}).get("configurable") or {}).get("thread_id")
    core = None
    if run is not None and thread is not None:
        core = core_of_run(run, target_of(found).thread)
    if core is None or run is None:
        raise Misuse(
            field="record",
            reason=(
                "outside a run of a graph that was compiled with a SurefootSaver; there, use "
                "saver.record(thread, …) (on Python 3.10 an async node has to hand on its config "
                "with config=)"
            ),
        )
    return core, core.of_run(target_of(found).thread, run)


def _serde_of(session: Session) -> Any:
    if session.serde is None:
        raise Misuse(field="record", reason="the run has not loaded its checkpoint yet")
    return session.serde
