"""What the steps of a call ask for, and the two shells that carry it out.

The order of steps is one generator; a synchronous and an asynchronous shell drive it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from surefoot.errors import Misuse
from surefoot.langgraph.place import Here

__all__ = [
    "POLL_MS",
    "Flow",
    "NeverRan",
    "Pause",
    "Published",
    "Steps",
    "User",
    "act",
    "act_async",
    "not_awaitable",
    "pump",
    "pump_async",
]


POLL_MS = 200


@dataclass(slots=True)
class Flow:
    """Run a flow (I/O)."""

    run: Callable[[], Any]


@dataclass(slots=True)
class User:
    """Run user code: the body or a hook; ``call`` names it."""

    run: Callable[[], Any]
    call: str


@dataclass(slots=True)
class Published:
    """Wait for the checkpoint to be published; True when it was, in time."""

    timeout_ms: int
    until: Callable[[], bool]


@dataclass(slots=True)
class Pause:
    """Wait a little."""

    milliseconds: int


Steps = Generator["Flow | User | Published | Pause", Any, Any]


class NeverRan(Misuse):
    """The body is a coroutine function in disguise: it was called, but none of it ran."""


def pump(steps: Steps, act: Callable[[Any], Any]) -> Any:
    """Drives steps to their end; what an act raises is raised where it was asked for."""
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            wanted = steps.throw(error) if error is not None else steps.send(value)
        except StopIteration as done:
            return done.value
        value, error = None, None
        try:
            value = act(wanted)
        except BaseException as raised:  # noqa: BLE001 - handed to the steps, which re-raise
            error = raised


def act(at: Here, wanted: Flow | User | Published | Pause) -> Any:
    """Carries out what a step asks for, in the calling thread."""
    if isinstance(wanted, Flow):
        return wanted.run()
    if isinstance(wanted, User):
        with at.core.crossing(wanted.call):
            return not_awaitable(wanted.run())
    if isinstance(wanted, Published):
        return at.session.wait_change(wanted.timeout_ms / 1000, wanted.until)
    at.core.ports.host.pause(wanted.milliseconds)
    return None


def not_awaitable(result: Any) -> Any:
    """The result of a synchronous body.

    Raises:
        NeverRan: It is a coroutine: the function only looks synchronous, and nothing has run.
    """
    if not inspect.isawaitable(result):
        return result
    if inspect.iscoroutine(result):
        result.close()
    raise NeverRan(
        field="effect",
        reason="a synchronous effect returned an awaitable, so it has not run; make it async def",
    )


async def pump_async(steps: Steps, act: Callable[[Any], Any]) -> Any:
    """The same as `pump` with an act that is awaited."""
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            wanted = steps.throw(error) if error is not None else steps.send(value)
        except StopIteration as done:
            return done.value
        value, error = None, None
        try:
            value = await act(wanted)
        except BaseException as raised:  # noqa: BLE001 - handed to the steps, which re-raise
            error = raised


async def act_async(at: Here, wanted: Flow | User | Published | Pause) -> Any:
    """Carries out what a step asks for: I/O in the saver's threads, user code on the loop."""
    if isinstance(wanted, Flow):
        return await at.core.offload.run(wanted.run)
    if isinstance(wanted, User):
        with at.core.crossing(wanted.call):
            value = wanted.run()
            return await value if inspect.isawaitable(value) else value
    if isinstance(wanted, Published):
        return await _published(at, wanted)
    await asyncio.sleep(wanted.milliseconds / 1000)
    return None


async def _published(at: Here, wanted: Published) -> bool:
    """Waits without holding a thread of the saver's pool; the latch wakes it as well."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wanted.timeout_ms / 1000
    while True:
        changed = asyncio.Event()

        def wake(event: asyncio.Event = changed) -> None:
            with contextlib.suppress(RuntimeError):  # a loop that closed has nobody waiting
                loop.call_soon_threadsafe(event.set)

        forget = at.session.on_change(wake)
        try:
            if wanted.until():
                return True
            left = deadline - loop.time()
            if left <= 0:
                return False
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(changed.wait(), left)
        finally:
            forget()
