"""Errors that must reach the caller of the graph, also from inside a tool.

``ToolNode`` turns ordinary exceptions of tools into messages for the model, except
``GraphBubbleUp``. So an error raised where an effect starts also derives from it; one raised
in the saver must not, because LangGraph's executor drops those silently.
"""

from __future__ import annotations

from typing import Any

from langgraph.errors import GraphBubbleUp

from surefoot.errors import SurefootError

__all__ = ["bubbling"]


_classes: dict[type[SurefootError], type[SurefootError]] = {}


def _class_of(base: type[SurefootError]) -> type[SurefootError]:
    known = _classes.get(base)
    if known is not None:
        return known

    def reduce(self: SurefootError) -> tuple[Any, ...]:
        return _rebuild, (base, self.fields)

    made: type[SurefootError] = type(
        base.__name__,
        (base, GraphBubbleUp),
        {"__module__": base.__module__, "__doc__": base.__doc__, "__reduce__": reduce},
    )
    return _classes.setdefault(base, made)


def _rebuild(base: type[SurefootError], fields: dict[str, Any]) -> SurefootError:
    return _class_of(base)(**fields)


def bubbling(error: SurefootError) -> SurefootError:
    """The same error as one that passes through tools to the caller of the graph."""
    if isinstance(error, GraphBubbleUp):
        return error
    raised = _class_of(type(error))(**error.fields)
    raised.__cause__ = error.__cause__
    raised.__suppress_context__ = True
    return raised
