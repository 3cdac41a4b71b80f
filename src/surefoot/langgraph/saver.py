"""`SurefootSaver`: LangGraph's checkpointer, one class for sync and async, SQLite and Postgres.

Method by method this is a thin shell: it reads the config, finds the run's session, and calls
a flow. The async twins run the same flows in the saver's own bounded threads (docs/adr/0001).
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import logging
import random
import threading
import weakref
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    Set,
)
from concurrent.futures import Future
from dataclasses import asdict
from datetime import timedelta
from itertools import dropwhile, islice
from typing import Any, TypeAlias, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    EXCLUDED_METADATA_KEYS,
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from psycopg_pool import ConnectionPool

from surefoot.assembly import Core, open_core
from surefoot.config import DEFAULT_CREDENTIAL_NAMES, Limits, ResumePolicy
from surefoot.errors import (
    Misconfigured,
    Misuse,
    RollbackDetected,
    SurefootError,
    TamperDetected,
)
from surefoot.flows import audit, doubts, load, maintain, orders, save
from surefoot.flows import events as trail
from surefoot.flows.acquire import held
from surefoot.flows.audit import ThreadReport
from surefoot.flows.chain import Chain
from surefoot.flows.doubts import EffectNumbers, EffectRecord, InDoubt
from surefoot.flows.effects import questions, task_ended
from surefoot.flows.find import Found, walk_checkpoints
from surefoot.flows.orders import Done
from surefoot.flows.views import FIRST_PAGE_FRAMES, all_threads, has_moved, viewing
from surefoot.keys import Keyring
from surefoot.langgraph import hooks, host
from surefoot.langgraph.bubble import bubbling
from surefoot.langgraph.host import Target, caller, checkpoint_id_of, run_of, target_of
from surefoot.langgraph.serde import StrictSerializer
from surefoot.langgraph.trail import ambient_session, step_aside
from surefoot.ports import HighWater
from surefoot.rules.credentials import decide_credential
from surefoot.rules.decisions import Decision, SignedDecision
from surefoot.rules.effects import OPERATION_PREFIX
from surefoot.rules.envelope import Kind, hash8
from surefoot.rules.events import Event
from surefoot.session import RunHandle, Session
from surefoot.signing import Reviewers

__all__ = ["SurefootSaver"]

_ERROR = "__error__"
log = logging.getLogger("surefoot")
T = TypeVar("T")
Version: TypeAlias = int | str
_PAGE = 50
_ALWAYS_KEPT = frozenset({"source", "step", "parents", "run_id", "counters_since_delta_snapshot"})


class _SaverToOpenUsingWith:
    """What `from_conn_string` returns: a context manager for both ``with`` and ``async with``."""

    def __init__(self, make: Callable[[], SurefootSaver]) -> None:
        self._make = make
        self._saver: SurefootSaver | None = None

    def __enter__(self) -> SurefootSaver:
        self._saver = self._make()
        return self._saver

    def __exit__(self, *exc: object) -> None:
        if self._saver is not None:
            self._saver.close()

    async def __aenter__(self) -> SurefootSaver:
        return self.__enter__()

    async def __aexit__(self, *exc: object) -> None:
        if self._saver is not None:
            await self._saver.aclose()


class SurefootSaver(BaseCheckpointSaver[Any]):
    """Checkpoints that you can resume from.

    Seals every snapshot, keeps a high-water mark outside the database, fences rival workers,
    and refuses to resume when it would be wrong. Use it like any LangGraph checkpointer::

        with SurefootSaver.from_conn_string(
            "postgresql://app@db/agents", highwater="postgresql://mark@other/mark"
        ) as saver:
            saver.setup()
            graph = builder.compile(checkpointer=saver)

    Args:
        conn: ``postgresql://…``, ``sqlite:///path``, or a `psycopg_pool.ConnectionPool` of
            your own (which is never closed by the saver).
        highwater: Address of the high-water store, or an object that implements
            `surefoot.ports.HighWater`. Keep it where whoever can restore the database cannot
            restore it.
        keys: HMAC keys; by default from ``SUREFOOT_KEYS`` or the file of `surefoot init`.
        policy: Leases, waiting, deadlines.
        limits: Bounds of time and memory.
        schema: Postgres schema of the tables; by default ``public``.
        tenant: Name that is part of every identity; threads of different tenants never meet.
        reviewers: Public keys of those whose signed decisions are carried out; by default from
            ``SUREFOOT_REVIEWERS``, and nobody's when that is not set.
        serde: Serialiser; by default a strict msgpack one. Called on verified bytes only.
        allowed_types: Further types that a load may build, beside models, data classes,
            enumerations and named tuples (docs/adr/0007).
        credential_names: Metadata keys that contain one of these names are left out.
        encryption: Encrypts everything that users make (AES-256-GCM, a key for each thread):
            True derives from ``keys``, a `Keyring` is a ring for encryption alone. Needs the
            extra ``surefoot[encryption]``. What was stored before is still read.

    Raises:
        Misconfigured: An address or a setting is not understood, or ``cryptography`` is missing.
        KeyMissing: There are no keys.
    """

    def __init__(
        self,
        conn: str | ConnectionPool[Any],
        *,
        highwater: str | HighWater | None = None,
        keys: Keyring | None = None,
        policy: ResumePolicy | None = None,
        limits: Limits | None = None,
        schema: str | None = None,
        tenant: str = "default",
        reviewers: Reviewers | None = None,
        serde: StrictSerializer | None = None,
        allowed_types: Collection[type | tuple[str, str]] = (),
        credential_names: Collection[str] = DEFAULT_CREDENTIAL_NAMES,
        encryption: bool | Keyring = False,
    ) -> None:
        _check_settings(tenant, serde, credential_names)
        _check_types(
            highwater=highwater, keys=keys, policy=policy, limits=limits, reviewers=reviewers
        )
        super().__init__(serde=serde or StrictSerializer(allowed_types=allowed_types))
        self.core: Core = open_core(
            conn,
            highwater=highwater,
            keys=keys,
            policy=policy,
            limits=limits,
            schema=schema,
            tenant=tenant,
            reviewers=reviewers,
            encryption=encryption,
        )
        self._credential_names = tuple(credential_names)
        self._warned_keys: set[str] = set()

    # --- opening and closing --------------------------------------------------------------------

    @classmethod
    def from_conn_string(
        cls,
        url: str | ConnectionPool[Any],
        *,
        highwater: str | HighWater | None = None,
        **settings: Any,
    ) -> _SaverToOpenUsingWith:
        """Opens a saver for the time of a ``with`` or ``async with`` block.

        Args:
            url: Address of the content store, or a connection pool.
            highwater: Address of the high-water store.
            **settings: As in the constructor.

        Raises:
            Misconfigured: On entering: an address or a setting is not understood.
            KeyMissing: On entering: there are no keys.
        """
        return _SaverToOpenUsingWith(lambda: cls(url, highwater=highwater, **settings))

    def __enter__(self) -> SurefootSaver:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> SurefootSaver:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def setup(self, *, verify_only: bool = False) -> None:
        """Creates or migrates the tables of both stores; idempotent, safe in parallel.

        Args:
            verify_only: Only check, for roles that may not create tables.

        Raises:
            NotSetUp: ``verify_only`` and something is missing.
            MigrationRefused: The tables were made by a newer or a changed release.
            Busy: Another process is migrating and did not finish in time.
            StoreUnavailable: A store could not be reached.
        """
        self.core.setup(verify_only=verify_only)

    async def asetup(self, *, verify_only: bool = False) -> None:
        """Async twin of `setup`."""
        await self.core.offload.run(self.setup, verify_only=verify_only)

    def health(self) -> dict[str, Any]:
        """State of both stores and of the live runs; raises nothing.

        Returns:
            ``ok`` (bool), ``content_store`` and ``highwater`` (each ``{"ok": …, "where": …}``,
            with ``error`` when not ok), ``degraded`` (bool or None when unknown),
            ``live_threads`` (int), ``waiting_writes`` (int) and ``effects`` (what this process
            counted: ``opened``, ``reconciled``, ``escalated``; `effect_numbers` also asks the
            stores).
        """
        ports = self.core.ports
        parts = {
            "content_store": _probe(
                ports.store.shown, lambda: ports.store.threads(ports.tenant, limit=1)
            ),
            "highwater": _probe(
                ports.marks.shown, lambda: list(ports.marks.marks(ports.tenant, limit=1))
            ),
        }
        ok = all(part["ok"] for part in parts.values())
        sessions = self.core.sessions.all()
        return {
            "ok": ok,
            **parts,
            "degraded": self.core.degraded() if ok else None,
            "live_threads": len(sessions),
            "waiting_writes": sum(len(s.queue) for s in sessions),
            "effects": asdict(ports.tally.numbers()),
        }

    def release(self, thread_id: str) -> None:
        """Gives a thread back before its run is collected, e.g. after a handled exception.

        Raises:
            Busy: Its run is still alive.
        """
        self.core.direct(host.thread_id(thread_id, field="thread_id"), caller(), lambda: None)

    def close(self) -> None:
        """Flushes, gives every thread back and closes the stores. Idempotent."""
        self.core.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        # A thread of its own: the pool of the saver is what is being closed.
        closing: Future[None] = Future()

        def close() -> None:
            try:
                self.core.close()
                closing.set_result(None)
            except BaseException as error:  # noqa: BLE001 - handed to the awaiting task
                closing.set_exception(error)

        threading.Thread(target=close, name="surefoot-close").start()
        await asyncio.shield(asyncio.wrap_future(closing))

    # --- reading --------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint a config points at, with its pending writes.

        Called by a run that loads its checkpoint, this acquires the thread (a lease, a new
        fencing epoch) and decides whether the run may resume (rules R1 to R6). Called to look,
        it verifies and reads, and never acquires, blocks or alarms in honest use.

        Args:
            config: ``thread_id``, and optionally ``checkpoint_ns`` and ``checkpoint_id``.

        Returns:
            The checkpoint; None when there is none. "Latest" is the last one on the chain,
            not the largest id.

        Raises:
            Busy: A run, and another worker holds the thread (R12).
            RollbackDetected: The database is behind the high-water mark (R3).
            TamperDetected: Something does not verify (R4, R6); nothing was decoded.
            ResumeRefused: Stored, never witnessed (R2).
            NotLoadable: A value names a type that cannot be rebuilt.
            StoreUnavailable: A store did not answer.
        """
        run = run_of(config)
        found = self._get_tuple(config, run)
        if isinstance(found, Session):
            hooks.ask_first(self.core, found)
            found = self._get_tuple(config, run)
        return None if isinstance(found, Session) else found

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Async twin of `get_tuple`."""
        run = run_of(config, loop=asyncio.get_running_loop())
        found = await self.core.offload.run(self._get_tuple, config, run)
        if isinstance(found, Session):
            await hooks.ask_first_async(self.core, found)
            found = await self.core.offload.run(self._get_tuple, config, run)
        return None if isinstance(found, Session) else found

    def _get_tuple(
        self, config: RunnableConfig, run: RunHandle | None
    ) -> CheckpointTuple | Session | None:
        """The checkpoint; or the run's session, when receivers have to be asked first (E7)."""
        target = target_of(config)
        if run is None:
            return viewing(
                self.core.ports,
                target.thread,
                lambda chain: None if chain is None else self._read(chain, target, None),
            )
        session, chain, fresh = self.core.load(target.thread, run, caller())
        session.serde = self.serde
        if fresh and questions(session):
            return session
        with session.lock:
            session.loaded.add(target.namespace)
            if target.namespace and run.task is not None:
                session.enter(target.namespace, *run.task)
            if not fresh:
                if _nothing_there(session, target):
                    return None
                save.flush(self.core.ports, session, everything=False)
                chain = self._chain_of(session)
            return None if chain is None else self._read(chain, target, session)

    def _chain_of(self, session: Session) -> Chain | None:
        """The chain of a live session, read anew: its own head is the truth."""
        if session.head.seq == 0:
            return None
        identity = session.identity
        row, rows = self.core.ports.store.read_newest(
            identity.tenant, identity.thread, limit=FIRST_PAGE_FRAMES
        )
        if row is None:
            return None
        return Chain(self.core.ports, identity, row, session.head, rows)

    def _read(
        self, chain: Chain, target: Target, session: Session | None
    ) -> CheckpointTuple | None:
        ports = self.core.ports
        floor = 0
        if session is not None and ":" in target.namespace:
            floor = session.root_floor
        found = load.locate(chain, ports, target.namespace, target.checkpoint_id, floor=floor)
        if found is None:
            return None
        loader = load.loader_for(ports, chain, self.serde)
        loaded = load.load_one(loader, found)
        if session is not None:
            save.learn_older(session, chain, found)
            save.prime(session, loader, found.body)
            if target.namespace == "":
                if session.started_at is None:
                    session.started_at = session.known.get(("", found.body.checkpoint_id))
                    session.started_behind = bool(found.later)
                floor = chain.early_floor(found.record) or found.order
                session.root_floor = min(session.root_floor, floor)
        return _tuple(target.thread, loaded)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first, verified, with their pending writes.

        Args:
            config: Thread, and optionally namespace (``""`` is the root graph; absent means
                all) and checkpoint id; None means all threads of the tenant.
            filter: Metadata keys and values, all of which must be equal; an unknown key
                matches nothing, whatever characters it holds.
            before: Only checkpoints before this one, which is left out itself.
            limit: At most this many; 0 gives none.

        Raises:
            Misuse: ``limit`` is negative or no number, ``filter`` is no map.
            TamperDetected: Something does not verify; nothing was decoded.
            RollbackDetected: The database is behind the high-water mark.
        """
        _check_list_arguments(filter, limit)
        before_id = checkpoint_id_of(before, field="before")
        if config is None:
            found = self._list_all(filter, before_id)
        else:
            found = self._list_thread(target_of(config), config, filter, before_id)
        return islice(found, limit)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Async twin of `list`; reads in pages in the saver's threads."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while True:
            page = await self.core.offload.run(lambda: [*islice(found, _PAGE)])
            for item in page:
                yield item
            if len(page) < _PAGE:
                return

    def _list_all(
        self, filter_: dict[str, Any] | None, before_id: str | None
    ) -> Iterator[CheckpointTuple]:
        ports = self.core.ports
        streams = [
            self._list_thread(Target(thread, "", None), None, filter_, before_id)
            for thread in all_threads(ports)
            if not thread.startswith(OPERATION_PREFIX)  # has no checkpoints
        ]
        return heapq.merge(*streams, key=lambda t: t.checkpoint["id"], reverse=True)

    def _list_thread(
        self,
        target: Target,
        config: RunnableConfig | None,
        filter_: dict[str, Any] | None,
        before_id: str | None,
    ) -> Iterator[CheckpointTuple]:
        """Pages through a thread.

        What is pruned or deleted meanwhile never alarms: the list goes on behind the last
        checkpoint that was looked at, and ends when that one is gone.
        """
        configurable = (config or {}).get("configurable") or {}
        namespace = target.namespace if "checkpoint_ns" in configurable else None
        ports = self.core.ports
        last: tuple[str, str] | None = None
        while True:
            chain = viewing(ports, target.thread, lambda found: found)
            if chain is None:
                return
            try:
                for found, loaded in self._pages(chain, before_id, last):
                    last = (found.body.namespace, found.body.checkpoint_id)
                    if namespace is not None and loaded.namespace != namespace:
                        continue
                    if target.checkpoint_id not in (None, loaded.checkpoint_id):
                        continue
                    if filter_ and not _matches(loaded.metadata, filter_):
                        continue
                    yield _tuple(target.thread, loaded)
            except (RollbackDetected, TamperDetected):
                if not has_moved(ports, chain):
                    raise
            else:
                return

    def _pages(
        self, chain: Chain, before_id: str | None, last: tuple[str, str] | None
    ) -> Iterator[tuple[Found, load.Loaded]]:
        """Checkpoints behind ``last``, decoded in pages with one read of their values each."""
        ports = self.core.ports
        found = _before(ports.store.find_checkpoint, chain, before_id)
        if last is not None:
            found = dropwhile(lambda f: (f.body.namespace, f.body.checkpoint_id) != last, found)
            next(found, None)
        loader = load.loader_for(ports, chain, self.serde)
        size = 1  # the first ones are often all that is asked for
        while page := [*islice(found, size)]:
            yield from zip(page, load.load_many(loader, page), strict=True)
            size = min(size * 4, _PAGE)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Writes and stored value from which channels of a checkpoint are rebuilt.

        Walks the parent chain once for all channels, in verified records (LangGraph's
        DeltaChannel, beta).

        Args:
            config: Thread, namespace and checkpoint id (absent: the latest).
            channels: Names of the channels.

        Returns:
            For each channel ``writes`` (oldest first) and, when a value was found, ``seed``.

        Raises:
            TamperDetected: Something does not verify; nothing was decoded.
        """
        return self._delta(config, channels, run_of(config))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Async twin of `get_delta_channel_history`."""
        return await self.core.offload.run(self._delta, config, channels, run_of(config))

    def _delta(
        self, config: RunnableConfig, channels: Sequence[str], run: RunHandle | None
    ) -> Mapping[str, DeltaChannelHistory]:
        _check_sequence(channels, "channels")
        if not channels:
            return {}
        target = target_of(config)
        ports = self.core.ports
        session = None if run is None else self.core.sessions.of_run(run, target.thread)
        read = functools.partial(self._delta_of, target=target, channels=channels)
        if session is None:
            return viewing(ports, target.thread, read)
        with session.lock:
            save.flush(ports, session, everything=False)
            return read(self._chain_of(session))

    def _delta_of(
        self, chain: Chain | None, *, target: Target, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        if chain is None:
            return {c: DeltaChannelHistory(writes=[]) for c in channels}
        ports = self.core.ports
        histories = load.delta_history(
            chain,
            load.loader_for(ports, chain, self.serde),
            target.namespace,
            target.checkpoint_id,
            list(channels),
        )
        out: dict[str, DeltaChannelHistory] = {}
        for channel, history in histories.items():
            out[channel] = DeltaChannelHistory(writes=history.writes)
            if history.has_seed:
                out[channel]["seed"] = history.seed
        return out

    # --- writing --------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Stores a checkpoint with all waiting writes, and publishes it: the commit point.

        Returns only after the high-water store has taken the new head. Putting an id again
        overwrites its content and keeps its place.

        Args:
            config: Thread, namespace, and the parent's ``checkpoint_id``.
            checkpoint: As LangGraph hands it over.
            metadata: Stored together with the primitive values of ``config["metadata"]`` and
                ``config["configurable"]``; keys that look like credentials are left out.
            new_versions: Channels that changed.

        Returns:
            The config that points at the stored checkpoint.

        Raises:
            NotStorable: A value cannot be stored faithfully; names channel and path.
            Misuse: The parent is not stored.
            Fenced: Another worker has the thread.
            Busy: A direct call, and a live run holds the thread.
            StoreUnavailable: A store did not answer; this run is latched.
        """
        return self._put(config, checkpoint, metadata, new_versions, run_of(config))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Async twin of `put`."""
        return await self.core.offload.run(
            self._put, config, checkpoint, metadata, new_versions, run_of(config)
        )

    def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        run: RunHandle | None,
    ) -> RunnableConfig:
        target = target_of(config)
        _check_checkpoint(checkpoint, metadata, new_versions)
        wanted = save.CheckpointSave(
            target.namespace,
            checkpoint,
            self._metadata(config, metadata),
            target.checkpoint_id,
            new_versions,
        )
        ports = self.core.ports
        if run is not None:
            session = self.core.of_run(target.thread, run)
            if session.caller is not None and session.caller.is_task:
                session.note_alive()
            elif target.namespace == "":
                # A subgraph's executor ends with the subgraph; the root's ends with the run.
                session.executor = weakref.ref(threading.current_thread())
            save.put(ports, session, self.serde, wanted)
        else:

            def work() -> None:
                with held(ports, target.thread) as (session, _):
                    save.put(ports, session, self.serde, wanted, last=True)

            self.core.direct(target.thread, caller(), work)
        return _config(target.thread, target.namespace, str(checkpoint["id"]))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Stores writes of a task that are pending on a checkpoint.

        In a run they are enqueued and ride with the next `put`; special writes (interrupt,
        error, resume) are stored and published at once. Outside a run they are published when
        this returns. The checkpoint need not be stored yet.

        Args:
            config: Thread, namespace and the ``checkpoint_id`` they are pending on.
            writes: (channel, value) pairs.
            task_id: Of the task.
            task_path: Of the task; part of the order in which writes are applied.

        Raises:
            NotStorable: A value cannot be stored faithfully; names channel and path.
            Fenced: Another worker has the thread.
            SaveFailed: An earlier save of this run failed.
            StoreUnavailable: A store did not answer; this run is latched.
        """
        self._put_writes(config, writes, task_id, task_path, run_of(config))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Async twin of `put_writes`."""
        await self.core.offload.run(
            self._put_writes, config, writes, task_id, task_path, run_of(config)
        )

    def _put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
        run: RunHandle | None,
    ) -> None:
        target = target_of(config)
        if target.checkpoint_id is None:
            raise Misuse(
                field="config['configurable']['checkpoint_id']",
                reason="is missing; writes are pending on a checkpoint",
            )
        _text(task_id, "task_id")
        _text(task_path, "task_path", empty=True)
        _check_writes(writes)
        wanted = save.WritesSave(
            target.namespace,
            target.checkpoint_id,
            [(WRITES_IDX_MAP.get(c, i), c, v) for i, (c, v) in enumerate(writes)],
            task_id,
            task_path,
            replaces=all(channel in WRITES_IDX_MAP for channel, _ in writes),
        )
        ports = self.core.ports
        if run is not None:
            session = self.core.of_run(target.thread, run)
            ended = next((value for channel, value in writes if channel == _ERROR), None)
            if ended is not None and session.failures:
                task_ended(ports, session, ended)
            then = save.enqueue(ports, session, self.serde, wanted)
            if then is save.Then.RIDE:
                self.core.nudge()
            else:
                save.flush(ports, session, free=then is save.Then.PAUSE)
            return

        def work() -> None:
            with held(ports, target.thread) as (session, _):
                save.enqueue(ports, session, self.serde, wanted)
                save.flush(ports, session, free=True)

        self.core.direct(target.thread, caller(), work)

    def get_next_version(self, current: Version | None, channel: None) -> Version:  # noqa: ARG002
        """The next version of a channel: larger, and unique per branch.

        The upper bits count, the lower 32 are random, so that two forks of a thread never
        share a version. Strings of imported threads are continued in their own style.

        Args:
            current: Present version, or None.
            channel: Deprecated by LangGraph, ignored.
        """
        if isinstance(current, str):
            head = current.split(".")[0]
            if not head.isdigit():
                raise Misuse(field="current", reason="is no version of a LangGraph channel")
            count = int(head) + 1
            return f"{count:032}.{random.random():016}"  # noqa: S311 - uniqueness, not secrecy
        count = 0 if current is None else int(current) >> 32
        return ((count + 1) << 32) | random.getrandbits(32)

    def with_allowlist(
        self, extra_allowlist: Collection[tuple[str, ...]]
    ) -> BaseCheckpointSaver[Any]:
        """A saver that may also rebuild these types; shares everything else with this one.

        Args:
            extra_allowlist: (module, name) pairs.
        """
        return super().with_allowlist(extra_allowlist)

    # --- maintenance ----------------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Deletes a thread: a tombstone is published first, then the rows go.

        The high-water mark stays, so that an old copy of the thread is never taken for it.

        Raises:
            Misuse: It is the journal of an operation.
            Busy: A live run holds the thread.
            ResumeRefused: Stored, never witnessed (R2).
        """
        thread = host.own_thread_id(thread_id, field="thread_id")
        self.core.direct(thread, caller(), lambda: maintain.delete_thread(self.core.ports, thread))

    async def adelete_thread(self, thread_id: str) -> None:
        """Async twin of `delete_thread`."""
        await self.core.offload.run(self.delete_thread, thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Deletes the checkpoints that these runs made, and their writes.

        Checkpoints that a DeltaChannel of others is rebuilt from stay, and so do effects. The
        threads of a run are found by an index of the database, which is not verified.

        Args:
            run_ids: ``metadata["run_id"]`` of the runs.

        Raises:
            Misuse: ``run_ids`` is a single string.
            Busy: A live run holds one of the threads.
        """
        _check_sequence(run_ids, "run_ids")
        ports = self.core.ports
        runs = [_text(r, "run_ids") for r in run_ids]
        for thread in ports.store.threads_of_runs(ports.tenant, runs):
            if thread.startswith(OPERATION_PREFIX):
                continue  # has no checkpoints; the index may be wrong
            work = functools.partial(maintain.delete_runs, ports, self.serde, thread, runs)
            self.core.direct(thread, caller(), work)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Async twin of `delete_for_runs`."""
        await self.core.offload.run(self.delete_for_runs, run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies a thread's checkpoints and writes under a new id; its effects stay behind.

        Args:
            source_thread_id: Verified under its own identity.
            target_thread_id: Must not have checkpoints yet.

        Raises:
            Misuse: The target has checkpoints, or is the source; one is that of an operation.
            Busy: A live run holds the target.
            TamperDetected: The source does not verify.
        """
        source = host.own_thread_id(source_thread_id, field="source_thread_id")
        target = host.own_thread_id(target_thread_id, field="target_thread_id")
        self.core.direct(
            target,
            caller(),
            lambda: maintain.copy_thread(self.core.ports, self.serde, source, target),
        )

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Async twin of `copy_thread`."""
        await self.core.offload.run(self.copy_thread, source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Prunes threads.

        Args:
            thread_ids: The threads; unknown ones are passed over.
            strategy: ``keep_latest`` keeps the latest checkpoint of each namespace and of each
                fork, their pending writes, what their DeltaChannels are rebuilt from, and all
                effects; ``delete`` deletes the threads.

        Raises:
            Misuse: ``thread_ids`` is a single string, or the strategy is unknown, or one is the
                journal of an operation: nothing is pruned then.
            Busy: A live run holds one of the threads; those before it are pruned.
        """
        _check_sequence(thread_ids, "thread_ids")
        if strategy not in ("keep_latest", "delete"):
            raise Misuse(
                field="strategy", reason=f"{strategy!r} is neither 'keep_latest' nor 'delete'"
            )
        wanted = [host.own_thread_id(t, field="thread_ids") for t in thread_ids]
        for thread_id in wanted:
            if strategy == "delete":
                self.delete_thread(thread_id)
                continue
            work = functools.partial(maintain.prune_thread, self.core.ports, self.serde, thread_id)
            self.core.direct(thread_id, caller(), work)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Async twin of `prune`."""
        await self.core.offload.run(self.prune, thread_ids, strategy=strategy)

    # --- operators ------------------------------------------------------------------------------

    def verify(
        self,
        thread_id: str | None = None,
        *,
        deep: bool = False,
        progress: Callable[[str, int], None] | None = None,
    ) -> Iterator[ThreadReport]:
        """Verifies one thread or all of the tenant's, from the head down to the beginning.

        Never acquires and never alarms in honest use, so it may run beside live workers.

        Args:
            thread_id: One thread; None means every thread that either store knows.
            deep: Also fetch, verify and decode every value.
            progress: Told the thread and how many of its records are done.

        Returns:
            One report per thread, made as they are asked for; ``report.ok`` is the verdict, and
            ``report.last_good`` names the record that a restore could go back to.

        Raises:
            StoreUnavailable: A store did not answer; nothing is known then.
        """
        ports, told = self.core.ports, progress or _untold
        self.core.check_durability()
        if thread_id is None:
            return audit.verify_all(ports, self.serde, deep=deep, progress=told)
        thread = host.thread_id(thread_id, field="thread_id")
        return iter([audit.verify_thread(ports, self.serde, thread, deep=deep, progress=told)])

    def in_doubt(self, *, thread: str | None = None, limit: int | None = None) -> Sequence[InDoubt]:
        """Every effect of which nobody has recorded whether it happened: the queue for people.

        What is overdue comes first, then the greater risk, then the older one. Takes no lease,
        and looks only at threads that one of the stores says may hold a doubt; a thread that does
        not verify is an item of the state ``unreadable``.

        Args:
            thread: Only this thread, whatever the stores say.
            limit: At most this many.

        Raises:
            Refused: With ``thread``: it does not verify.
            StoreUnavailable: A store did not answer.
        """
        self.core.check_durability()
        _check_limit(limit)
        only = None if thread is None else host.thread_id(thread, field="thread")
        return doubts.in_doubt(self.core.ports, self.serde, thread=only, limit=limit)

    async def ain_doubt(
        self, *, thread: str | None = None, limit: int | None = None
    ) -> Sequence[InDoubt]:
        """Async twin of `in_doubt`."""
        return await self.core.offload.run(self.in_doubt, thread=thread, limit=limit)

    def effects(self, thread_id: str, *, limit: int | None = None) -> Sequence[EffectRecord]:
        """Everything that a thread's effects went through, newest first. Takes no lease.

        Also what left an effect as it was: notes, conflicts, lookups that settled nothing.

        Args:
            thread_id: The thread.
            limit: At most this many.

        Raises:
            Refused: The thread does not verify.
            StoreUnavailable: A store did not answer.
        """
        self.core.check_durability()
        _check_limit(limit)
        thread = host.thread_id(thread_id, field="thread_id")
        return doubts.history(self.core.ports, self.serde, thread, limit=limit)

    async def aeffects(self, thread_id: str, *, limit: int | None = None) -> Sequence[EffectRecord]:
        """Async twin of `effects`."""
        return await self.core.offload.run(self.effects, thread_id, limit=limit)

    def effect_numbers(self) -> EffectNumbers:
        """Numbers for dashboards: what this process counted, and what is in doubt in the stores.

        Raises:
            StoreUnavailable: A store did not answer.
        """
        return doubts.numbers_of(self.core.ports, self.in_doubt())

    async def aeffect_numbers(self) -> EffectNumbers:
        """Async twin of `effect_numbers`."""
        return await self.core.offload.run(self.effect_numbers)

    def propose(
        self,
        thread_id: str,
        action: str,
        *,
        reason: str,
        valid_for: timedelta = timedelta(hours=1),
        **choices: Any,
    ) -> Decision:
        """Looks at a thread and makes the document of a decision about it, to be signed.

        Args:
            thread_id: The thread.
            action: ``restore``, ``adopt``, ``abort``, ``approve`` (`Decision` explains them).
            reason: Why; it is kept in the journal.
            valid_for: How long it may be carried out, from now; at most 31 days.
            **choices: ``to_seq`` (restore; by default the last record that verifies),
                ``horizon`` and ``trusted_keys`` (restore, adopt), ``slot``, ``outcome``,
                ``result`` and ``evidence`` (approve).

        Raises:
            Misuse: A choice is missing or wrong, or there is nothing to decide.
        """
        unknown = sorted(choices.keys() - orders.CHOICES)
        if unknown:
            raise Misuse(field=unknown[0], reason="is no choice of a decision")
        return orders.propose(
            self.core.ports,
            self.serde,
            host.thread_id(thread_id, field="thread_id"),
            action,
            reason=reason,
            valid_for=valid_for,
            choices=choices,
        )

    def resolve(self, decision: SignedDecision | str | bytes) -> Done:
        """Carries out a signed decision, once.

        Args:
            decision: As signed, or its document.

        Raises:
            Misuse: It is no such document, or the action is not carried out by this release.
            KeyMissing: It is signed by nobody among the reviewers.
            DecisionRefused: Its signature does not match, or the thread has moved since.
            Busy: A live run holds the thread.
        """
        signed = (
            decision if isinstance(decision, SignedDecision) else SignedDecision.parse(decision)
        )
        ports = self.core.ports
        return self.core.direct(
            signed.decision.thread, caller(), lambda: orders.carry_out(ports, self.serde, signed)
        )

    async def averify(
        self,
        thread_id: str | None = None,
        *,
        deep: bool = False,
        progress: Callable[[str, int], None] | None = None,
    ) -> AsyncIterator[ThreadReport]:
        """Async twin of `verify`; ``progress`` is told in the saver's threads."""
        reports = await self.core.offload.run(self.verify, thread_id, deep=deep, progress=progress)
        while (report := await self.core.offload.run(next, reports, None)) is not None:
            yield report

    async def apropose(
        self,
        thread_id: str,
        action: str,
        *,
        reason: str,
        valid_for: timedelta = timedelta(hours=1),
        **choices: Any,
    ) -> Decision:
        """Async twin of `propose`."""
        return await self.core.offload.run(
            functools.partial(
                self.propose, thread_id, action, reason=reason, valid_for=valid_for, **choices
            )
        )

    async def aresolve(self, decision: SignedDecision | str | bytes) -> Done:
        """Async twin of `resolve`."""
        return await self.core.offload.run(self.resolve, decision)

    def retire_key(self, thread_id: str, key_id: str, *, compromised: bool = False) -> bool:
        """Says in a thread up to where a sealing key counts; then the ring may retire it.

        Args:
            thread_id: The thread.
            key_id: A key that is not the primary any more.
            compromised: Others may know it, so unpublished records are not adopted.

        Returns:
            False when the thread needs no such record.

        Raises:
            Misuse: The key is the primary.
            Busy: A live run holds the thread.
        """
        thread = host.thread_id(thread_id, field="thread_id")
        work = functools.partial(
            maintain.retire_key, self.core.ports, thread, key_id, compromised=compromised
        )
        return self.core.direct(thread, caller(), work)

    # --- the audit trail ------------------------------------------------------------------------

    def record(self, thread_id: str, kind: str, payload: Any = None, *, schema: int = 1) -> None:
        """Puts a fact of your own into a thread's audit trail; it changes nothing.

        It is sealed, stored and published when this returns. From inside a run of the thread it
        goes through the run; from outside the thread is acquired and given back in one operation.

        Args:
            thread_id: The thread; one that is unknown begins with this fact.
            kind: Its name: 1 to 64 letters, digits, dots, underscores and hyphens; not beginning
                with ``surefoot.``.
            payload: Plain data: None, bool, int, float, str, bytes, and lists and dicts of these.
            schema: Version of the payload's layout, which is yours.

        Raises:
            Misuse: The kind may not be used, or the thread is the journal of an operation.
            NotStorable: The payload is no plain data.
            Busy: From outside, and a live run holds the thread.
            Fenced: From inside, and another worker has the thread.
            StoreUnavailable: A store did not answer.
        """
        thread = host.own_thread_id(thread_id, field="thread_id")
        fact = trail.fact_of(kind, payload, schema)
        ports = self.core.ports
        session = ambient_session(self.core, thread)
        if session is not None:
            try:
                trail.record_in_run(ports, session, self.serde, fact)
            except SurefootError as error:
                step_aside(self.core, session, error)
                raise bubbling(error) from error.__cause__
            return
        work = functools.partial(trail.record_directly, ports, thread, self.serde, fact)
        self.core.direct(thread, caller(), work)

    async def arecord(
        self, thread_id: str, kind: str, payload: Any = None, *, schema: int = 1
    ) -> None:
        """Async twin of `record`."""
        await self.core.offload.run(self.record, thread_id, kind, payload, schema=schema)

    def events(
        self,
        thread_id: str,
        *,
        limit: int | None = None,
        newest_first: bool = False,
        progress: Callable[[str, int], None] | None = None,
    ) -> Sequence[Event]:
        """What happened in a thread, verified, from its beginning.

        Takes no lease and never alarms in honest use. The whole chain is read, because what an
        event is depends on those before it. `surefoot.fold` makes of the events, oldest first,
        what the thread is.

        Args:
            thread_id: The thread; one that is unknown or deleted has none.
            limit: At most this many, from the end that comes first.
            newest_first: Begin with the newest one.
            progress: Told the thread and how many of its records are done.

        Raises:
            Misuse: ``limit`` is negative or no number.
            RollbackDetected: The database is behind the high-water mark (R3).
            TamperDetected: Something does not verify (R4, R6); nothing was decoded.
            UnknownEvent: A newer release wrote something that this one does not know.
            StoreUnavailable: A store did not answer.
        """
        trail.require_order(limit, newest_first)
        self.core.check_durability()
        thread = host.thread_id(thread_id, field="thread_id")
        story = trail.read(self.core.ports, self.serde, thread, progress=progress or _untold)
        told = () if story is None else story.events
        return (told[::-1] if newest_first else told)[:limit]

    async def aevents(
        self,
        thread_id: str,
        *,
        limit: int | None = None,
        newest_first: bool = False,
        progress: Callable[[str, int], None] | None = None,
    ) -> Sequence[Event]:
        """Async twin of `events`; ``progress`` is told in the saver's threads."""
        return await self.core.offload.run(
            self.events, thread_id, limit=limit, newest_first=newest_first, progress=progress
        )

    def threads(self) -> Iterator[str]:
        """Ids of all threads of the tenant that either store knows, deleted ones left out."""
        return iter(all_threads(self.core.ports))

    # --- metadata -------------------------------------------------------------------------------

    def _metadata(self, config: RunnableConfig, metadata: CheckpointMetadata) -> dict[str, Any]:
        """What is stored as metadata: LangGraph's convention, without credentials (case 51)."""
        merged: dict[str, Any] = dict(metadata)
        for source in (config.get("metadata"), config.get("configurable")):
            for key, value in (source or {}).items():
                if key in merged or key in EXCLUDED_METADATA_KEYS or key.startswith("__"):
                    continue
                if isinstance(value, (str, int, bool, float)):
                    merged[key] = value
        for key in [k for k in merged if k not in _ALWAYS_KEPT]:
            if decide_credential(str(key), self._credential_names):
                del merged[key]
                if key not in self._warned_keys:
                    self._warned_keys.add(key)
                    log.warning(
                        "metadata key %r looks like a credential and is not stored; "
                        "see credential_names=",
                        key,
                    )
        return merged


def _untold(thread: str, done: int) -> None:
    """Progress that nobody wants to be told."""


# --- helpers -----------------------------------------------------------------------------------


def _nothing_there(session: Session, target: Target) -> bool:
    """True when this session knows that a namespace of its own has no checkpoint yet.

    A namespace with a task id is born in a step of this run or of what it resumes, so its
    checkpoints lie above the root checkpoint the run started from; all of that was scanned.
    """
    return (
        target.checkpoint_id is None
        and ":" in target.namespace
        and target.namespace not in session.latest
        and session.root_floor >= session.scan_floor
    )


def _config(thread: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": thread,
            "checkpoint_ns": namespace,
            "checkpoint_id": checkpoint_id,
        }
    }


def _tuple(thread: str, loaded: load.Loaded) -> CheckpointTuple:
    parent = loaded.parent_id
    return CheckpointTuple(
        config=_config(thread, loaded.namespace, loaded.checkpoint_id),
        checkpoint=loaded.checkpoint,  # type: ignore[arg-type]
        metadata=loaded.metadata,  # type: ignore[arg-type]
        parent_config=None if parent is None else _config(thread, loaded.namespace, parent),
        pending_writes=loaded.writes,
    )


def _before(
    hints: Callable[[int, bytes], Sequence[tuple[int, int]]], chain: Chain, before_id: str | None
) -> Iterator[Found]:
    """Checkpoints before one: by place on the chain, or by id when it is not on the chain."""
    if before_id is None:
        yield from walk_checkpoints(chain)
        return
    if hints(chain.row.key, hash8(before_id)) or _is_on_chain(chain, before_id):
        passed = False
        for found in walk_checkpoints(chain):
            if passed:
                yield found
            passed = passed or found.body.checkpoint_id == before_id
        if passed:
            return
    for found in walk_checkpoints(chain):
        if found.body.checkpoint_id < before_id:
            yield found


def _is_on_chain(chain: Chain, checkpoint_id: str) -> bool:
    """Whether the chain holds a checkpoint of this id in any namespace; heads tell."""
    wanted = hash8(checkpoint_id)
    chain.jump(1)
    return any(
        record.kind is Kind.CHECKPOINT and record.subject[8:] == wanted
        for record in chain.walk(bodies=False)
    )


def _matches(metadata: Mapping[str, Any], filter_: Mapping[str, Any]) -> bool:
    return all(key in metadata and _equal(metadata[key], want) for key, want in filter_.items())


def _equal(stored: Any, want: Any) -> bool:
    if isinstance(stored, bool) is not isinstance(want, bool):
        return False
    return bool(stored == want)


def _check_list_arguments(filter_: object, limit: object) -> None:
    if filter_ is not None and not isinstance(filter_, Mapping):
        raise Misuse(field="filter", reason="must be a map of metadata keys to values")
    if limit is None:
        return
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise Misuse(field="limit", reason="must be None or a number from 0")


def _check_limit(limit: object) -> None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise Misuse(field="limit", reason="is None or a whole number from 1")


def _check_settings(tenant: object, serde: object, credential_names: object) -> None:
    if not isinstance(tenant, str) or not tenant:
        raise Misconfigured(field="tenant", reason="must be a text that is not empty")
    if serde is not None and not isinstance(serde, StrictSerializer):
        raise Misconfigured(field="serde", reason="must be a surefoot StrictSerializer")
    if (
        isinstance(credential_names, (str, bytes))
        or not isinstance(credential_names, Collection)
        or not all(isinstance(name, str) for name in credential_names)
    ):
        raise Misconfigured(field="credential_names", reason="must be a collection of texts")


def _check_types(
    *, highwater: object, keys: object, policy: object, limits: object, reviewers: object
) -> None:
    is_marks = isinstance(highwater, str) or hasattr(highwater, "publish")
    for name, value, known, what in (
        ("highwater", highwater, is_marks, "an address or a high-water store"),
        ("keys", keys, hasattr(keys, "seal_key"), "a Keyring"),
        ("policy", policy, isinstance(policy, ResumePolicy), "a ResumePolicy"),
        ("limits", limits, isinstance(limits, Limits), "Limits"),
        ("reviewers", reviewers, isinstance(reviewers, Reviewers), "Reviewers"),
    ):
        if value is not None and not known:
            raise Misconfigured(field=name, reason=f"must be {what}, not {type(value).__name__}")


def _check_sequence(value: object, field: str) -> None:
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, Set, KeysView)):
        raise Misuse(field=field, reason=f"must be a sequence, not {type(value).__name__}")


def _text(value: object, field: str, *, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty):
        what = "an empty text" if value == "" else type(value).__name__
        raise Misuse(field=field, reason=f"must be a text, not {what}")
    return value


def _check_checkpoint(checkpoint: object, metadata: object, new_versions: object) -> None:
    for name, value in (
        ("checkpoint", checkpoint),
        ("metadata", metadata),
        ("new_versions", new_versions),
    ):
        if not isinstance(value, Mapping):
            raise Misuse(field=name, reason=f"must be a map, not {type(value).__name__}")
    if isinstance(checkpoint, Mapping):
        _text(checkpoint.get("id"), "checkpoint['id']")
        for name in ("channel_values", "channel_versions"):
            inner = checkpoint.get(name, {})
            if not isinstance(inner, Mapping) or not all(isinstance(k, str) for k in inner):
                raise Misuse(
                    field=f"checkpoint[{name!r}]", reason="must be a map with channel names"
                )


def _check_writes(writes: object) -> None:
    _check_sequence(writes, "writes")
    if isinstance(writes, (Sequence, Set, KeysView)):
        for index, write in enumerate(writes):
            pair = isinstance(write, (tuple, list)) and len(write) == 2
            if not pair or not isinstance(write[0], str):
                raise Misuse(field=f"writes[{index}]", reason="must be (channel, value)")


def _probe(where: str, ask: Callable[[], object]) -> dict[str, Any]:
    try:
        ask()
    except Exception as error:  # noqa: BLE001 - a health report names every failure
        return {"ok": False, "where": where, "error": str(error)}
    return {"ok": True, "where": where}
