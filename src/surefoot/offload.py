"""Bounded offload: async methods run the synchronous flows in threads of their own.

See docs/adr/0001. Cancellation waits for the flow to end, then surfaces: a commit is never
left half observed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from surefoot.errors import Closed

__all__ = ["Offload", "calling_task"]

T = TypeVar("T")

#: In a thread of the pool: the task on whose behalf it works.
calling_task: ContextVar[asyncio.Task[Any] | None] = ContextVar("calling_task", default=None)


class Offload:
    """A lazily started, bounded pool of threads."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Starts a flow in the pool.

        Raises:
            Closed: The saver was closed.
        """
        with self._lock:
            if self._closed:
                raise Closed(field="saver")
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="surefoot")
            return self._pool.submit(copy_context().run, lambda: fn(*args, **kwargs))

    async def run(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Runs a flow and awaits it on the caller's loop.

        Raises:
            asyncio.CancelledError: After the flow has ended, when the caller was cancelled.
            Closed: The saver was closed.
        """
        token = calling_task.set(asyncio.current_task())
        try:
            future = asyncio.wrap_future(self.submit(fn, *args, **kwargs))
        finally:
            calling_task.reset(token)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                try:
                    await asyncio.shield(asyncio.wait([future]))
                except asyncio.CancelledError:
                    continue  # the commit decides; the cancellation is raised below
            if not future.cancelled():
                future.exception()  # retrieved: the cancellation is what surfaces
            raise

    def close(self) -> None:
        """Waits for running flows and takes no more."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)
