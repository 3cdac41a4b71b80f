"""What a model's answer depends on beside the question: model, prompt and tools, as digests.

Each becomes an input of its own, so that a change names itself: ``changed: bound model id``,
``removed: bound tools.search``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.load import dumpd
from langchain_core.load.serializable import Serializable
from langchain_core.messages import BaseMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from surefoot.errors import Misconfigured

__all__ = ["Bindings", "model_id", "prompt_of", "tool_schemas"]

_MODEL_NAMES = ("model_name", "model", "model_id", "deployment_name", "repo_id")


class Bindings:
    """What a recorded call is bound to.

    Attributes:
        model: Model id, model object, or a function of the arguments that gives one.
        prompt: Prompt text, messages, template, or such a function.
        tools: Tools or their schemas, or such a function.
        binds: Whatever else: a mapping, or such a function.
    """

    __slots__ = ("binds", "model", "prompt", "tools")

    def __init__(self, *, model: Any, prompt: Any, tools: Any, binds: Any) -> None:
        self.model = model
        self.prompt = prompt
        self.tools = tools
        self.binds = binds

    def inputs(self, arguments: Mapping[str, Any], *, field: str) -> dict[str, Any]:
        """The bindings of one call, by name.

        Raises:
            Misconfigured: One of them cannot be identified.
        """
        out: dict[str, Any] = {}
        if self.model is not None:
            out["bound model id"] = model_id(_asked(self.model, arguments), field=field)
        if self.prompt is not None:
            out["bound prompt"] = prompt_of(_asked(self.prompt, arguments))
        if self.tools is not None:
            out["bound tools"] = tool_schemas(_asked(self.tools, arguments), field=field)
        if self.binds is not None:
            binds = _asked(self.binds, arguments)
            if not isinstance(binds, Mapping):
                raise Misconfigured(field=f"{field}, binds", reason="gives a mapping of names")
            out |= {f"bound {name}": value for name, value in binds.items()}
        return out


def _asked(value: Any, arguments: Mapping[str, Any]) -> Any:
    """A value, or what a function of the arguments gives; it gets those that it takes."""
    if not (inspect.isfunction(value) or inspect.ismethod(value) or _is_partial(value)):
        return value
    parameters = inspect.signature(value).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return value(**arguments)
    return value(**{name: arguments[name] for name in parameters if name in arguments})


def _is_partial(value: Any) -> bool:
    return isinstance(value, functools.partial)


def model_id(model: Any, *, field: str) -> str:
    """Names a model: a text as it is, a model object by its class and the id it was made with.

    Raises:
        Misconfigured: The object has no id that could be found.
    """
    if isinstance(model, str):
        return model
    inner = getattr(model, "bound", model)  # what bind_tools and the like wrap
    for name in _MODEL_NAMES:
        found = getattr(inner, name, None)
        if isinstance(found, str) and found:
            return f"{type(inner).__qualname__}:{found}"
    raise Misconfigured(
        field=f"{field}, model",
        reason=f"no model id found on {type(inner).__qualname__}; pass the id as a text",
    )


def prompt_of(prompt: Any) -> Any:
    """A prompt as plain data: templates by what they serialise to, the rest as it is."""
    if isinstance(prompt, BaseMessage) or not isinstance(prompt, Serializable):
        return prompt
    return dumpd(prompt)


def tool_schemas(tools: Any, *, field: str) -> dict[str, Any]:
    """Schemas by tool name, so that the order of tools does not matter.

    Args:
        tools: langchain tools, pydantic models, functions or schemas; one of them, or several.
        field: Whose they are, for errors.

    Raises:
        Misconfigured: One of them has no schema.
    """
    if isinstance(tools, (BaseTool, type, Mapping)):
        tools = [tools]
    out: dict[str, Any] = {}
    for tool in tools:
        schema = _schema(tool, field=field)
        name = str(schema.get("function", schema).get("name") or schema.get("type"))
        if name in out:
            raise Misconfigured(field=f"{field}, tools", reason=f"two tools are called {name!r}")
        out[name] = schema
    return out


def _schema(tool: Any, *, field: str) -> Mapping[str, Any]:
    if isinstance(tool, Mapping):
        if not ({"name", "type"} & tool.keys()):
            raise Misconfigured(
                field=f"{field}, tools", reason="a schema needs a name (or a provider's type)"
            )
        return tool
    convert: Callable[[Any], Mapping[str, Any]] = convert_to_openai_tool
    try:
        return convert(tool)
    except (TypeError, ValueError) as error:
        raise Misconfigured(
            field=f"{field}, tools",
            reason=f"{type(tool).__qualname__} has no schema ({type(error).__name__})",
        ) from None
