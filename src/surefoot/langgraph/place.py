"""Where a call stands in the graph, read from LangGraph's config (rule E4)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config

from surefoot.assembly import Core, core_of_run
from surefoot.errors import Misuse
from surefoot.flows.effects import CallPlace
from surefoot.langgraph.host import path_text, run_of, target_of
from surefoot.langgraph.saver import SurefootSaver
from surefoot.rules.effects import strip_task_ids
from surefoot.session import Session

__all__ = ["Here", "here"]

_MAP = "checkpoint_map"
_SAVER = "__pregel_checkpointer"
_RUNTIME = "__pregel_runtime"


class Here:
    """The run, its session and the place of a call."""

    __slots__ = ("core", "place", "run", "runnable", "session")

    def __init__(
        self,
        core: Core,
        session: Session,
        place: CallPlace,
        *,
        runnable: object = None,
        run: Session | None = None,
    ) -> None:
        self.core = core
        self.session = session
        self.place = place
        #: Identity of the runnable (node, tool, chain) that makes the call, or None.
        self.runnable = runnable
        #: The session of the run, where the call's own is that of an operation.
        self.run = run or session


def here(name: str, arguments: Iterable[Any], *, kind: str = "effect") -> Here:
    """Finds the run that calls an effect or makes a read.

    Args:
        name: Name of the effect, for messages.
        arguments: Arguments of the call; a config among them is used where LangGraph gives no
            ambient one (Python 3.10, async nodes).
        kind: What it is, for messages.

    Raises:
        Misuse: Not inside a run with a `SurefootSaver`.
        Fenced: The run has lost its thread.
    """
    config = var_child_runnable_config.get() or _config_among(arguments)
    run = run_of(config)
    if config is None or run is None:
        raise Misuse(
            field=f"{kind} {name!r}",
            reason=f"outside a run of a graph that was compiled with a SurefootSaver{_hint()}",
        )
    configurable: Mapping[str, Any] = config["configurable"]
    if not configurable.get(_SAVER) or configurable.get("thread_id") is None:
        raise _no_saver(kind, name)
    thread = target_of(config).thread
    saver = configurable.get(_SAVER)
    core = saver.core if isinstance(saver, SurefootSaver) else core_of_run(run, thread)
    if core is None:
        raise _no_saver(kind, name)
    session = core.of_run(thread, run)
    runnable = getattr(config.get("callbacks"), "parent_run_id", None)
    return Here(core, session, _place(config, configurable, session), runnable=runnable)


def _hint() -> str:
    if sys.version_info >= (3, 11):
        return "; to test its body alone, call its __wrapped__"
    return " (on Python 3.10 an async node has to take `config: RunnableConfig` and pass it on)"


def _no_saver(kind: str, name: str) -> Misuse:
    return Misuse(
        field=f"{kind} {name!r}",
        reason="the graph was not compiled with a SurefootSaver, so nothing can be recorded",
    )


def _place(
    config: Mapping[str, Any], configurable: Mapping[str, Any], session: Session
) -> CallPlace:
    info = getattr(configurable.get(_RUNTIME), "execution_info", None)
    metadata: Mapping[str, Any] = config.get("metadata") or {}
    levels = _levels(configurable.get(_MAP) or {}, session)
    innermost = getattr(info, "checkpoint_id", None)
    namespace = str(configurable.get("checkpoint_ns") or "")
    shown, bare, serial, origin = _canonical(namespace, session)
    path = metadata.get("langgraph_path")
    return CallPlace(
        levels=levels,
        saved=bool(levels) and levels[-1][1] == innermost,
        step=int(metadata.get("langgraph_step", 0)),
        namespace=shown,
        path=path_text(path),
        task=(
            str(getattr(info, "task_id", "")),
            int(getattr(info, "node_attempt", 1) or 1),
            serial,
        ),
        family=(bare, path_text(path, counters=False)),
        origin=origin,
        root_task=namespace.split("|", maxsplit=1)[0],
    )


def _canonical(namespace: str, session: Session) -> tuple[str, str, int, str]:
    """A namespace without what changes between attempts.

    LangGraph numbers the subgraphs that a task calls (``node:task id|1``) and goes on counting
    when the task is retried, so the rank within the execution takes the number's place. For
    subgraphs that save no checkpoints the rank is not known.

    Returns:
        The namespace, the same without numbers of unsaved subgraphs, the serial of the innermost
        execution, and the tasks between it and the call's own.
    """
    parts = namespace.split("|")
    out: list[str] = []
    bare: list[str] = []
    serial, prefix = 0, ""
    between: list[str] = []
    for index, part in enumerate(parts):
        prefix = f"{prefix}|{part}" if prefix else part
        numbered = index + 1 < len(parts) and parts[index + 1].isdigit()
        entry = None if numbered else session.entries.get(prefix)
        if not part.isdigit():
            between.append(part)
            out.append(strip_task_ids(part))
            bare.append(out[-1])
        elif entry is None:
            out.append(part)
        if entry is not None:
            serial = entry.serial
            between = []
            if index < len(parts) - 1 and "__pregel_push" in entry.path:
                # The same node may run several times in one step, by Send or by calls.
                out.append(entry.path)
                bare.append(entry.path)
            if index < len(parts) - 1 and entry.rank:
                out.append(str(entry.rank))
                bare.append(out[-1])
    return "|".join(out), "|".join(bare), serial, "|".join(between[:-1])


def _levels(checkpoint_map: Mapping[str, str], session: Session) -> tuple[tuple[str, str], ...]:
    """The saved levels: namespaces that load through this session, one per checkpoint."""
    levels: dict[str, str] = {}
    for namespace in sorted(checkpoint_map, key=len):
        checkpoint_id = checkpoint_map[namespace]
        if namespace in session.loaded and checkpoint_id not in levels.values():
            levels[namespace] = checkpoint_id
    return tuple(levels.items())


def _config_among(arguments: Iterable[Any]) -> Any:
    for value in arguments:
        if isinstance(value, dict) and "configurable" in value:
            return value
        config = getattr(value, "config", None)
        if isinstance(config, dict) and "configurable" in config:
            return config
    return None
