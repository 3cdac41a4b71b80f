"""What the present code runs inside of: a pure step, or the body of a recorded call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from surefoot.errors import Misuse

__all__ = ["Enclosing", "enclosing", "inside", "pure_step", "refuse_inside_pure"]

_pure: ContextVar[str | None] = ContextVar("surefoot_pure", default=None)
_enclosing: ContextVar[Enclosing | None] = ContextVar("surefoot_enclosing", default=None)


class Enclosing:
    """The recorded call whose body runs.

    Attributes:
        slot: Its place.
        sends: It is an effect, so what its body reads may leave at any moment.
        since_us: When the effect was first started so that it may have been sent, microseconds
            since the epoch; None outside of effects.
    """

    __slots__ = ("sends", "since_us", "slot")

    def __init__(self, slot: bytes, *, since_us: int | None) -> None:
        self.slot = slot
        self.since_us = since_us
        self.sends = since_us is not None


def enclosing() -> Enclosing | None:
    """The innermost recorded call whose body runs, or None."""
    return _enclosing.get()


@contextmanager
def _set(variable: ContextVar[Any], value: Any) -> Generator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def inside(
    slot: bytes, body: Callable[[], Any], *, since_us: int | None = None
) -> Callable[[], Any]:
    """A body that knows the call it belongs to, while it runs or is awaited."""
    outer = _enclosing.get()
    if since_us is None and outer is not None:
        since_us = outer.since_us
    own = Enclosing(slot, since_us=since_us)
    return _within(_enclosing, own, body)


def pure_step(name: str, body: Callable[[], Any]) -> Callable[[], Any]:
    """A body in which nothing may be sent or recorded."""
    return _within(_pure, name, body)


def _within(variable: ContextVar[Any], value: Any, body: Callable[[], Any]) -> Callable[[], Any]:
    if inspect.iscoroutinefunction(body):

        async def run_async() -> Any:
            with _set(variable, value):
                return await body()

        return run_async

    def run() -> Any:
        with _set(variable, value):
            return body()

    return run


def refuse_inside_pure(call: str) -> None:
    """Refuses a call inside a step that is declared pure.

    Raises:
        Misuse: Names both.
    """
    name = _pure.get()
    if name is not None:
        raise Misuse(
            field=call,
            reason=(
                f"is called inside {name!r}, which is declared @pure and runs again on every "
                "resume; take @pure away, or call it elsewhere"
            ),
        )
