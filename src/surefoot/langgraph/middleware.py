"""The tools of langchain's ``create_agent`` as effects, and the answers of its model as reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from surefoot.errors import Misconfigured
from surefoot.langgraph.read_tools import ModelRead
from surefoot.langgraph.tools import Policy, ToolEffects

if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware, ModelResponse

    Base = AgentMiddleware[Any, Any, Any]
    missing: ImportError | None = None
else:
    try:
        from langchain.agents.middleware import AgentMiddleware as Base
        from langchain.agents.middleware import ModelResponse

        missing = None
    except ImportError as error:
        # The name can be imported without the extra; only using it says what is missing.
        Base, ModelResponse, missing = object, None, error

__all__ = ["EffectMiddleware", "RecordModelMiddleware"]


def _require_langchain(name: str) -> None:
    if missing is not None:
        raise Misconfigured(
            field=name, reason="needs langchain; run pip install 'surefoot[agents]'"
        ) from missing


class EffectMiddleware(Base):
    """Makes the tool calls of an agent effects, and answers those that a stopped turn left open.

    ::

        create_agent(
            model,
            tools,
            middleware=[EffectMiddleware({"charge_card": {"idempotent": True}}, default="pure")],
            checkpointer=saver,
        )

    Put it first: what stands behind it runs inside of the effect. A retry there is refused unless
    the tool is idempotent, because it would send twice. Errors of tools stop the run in any case
    (see `ToolEffects`); middleware that answers the model instead never sees them.

    Args:
        tools: For each tool the parameters of `effect`, ``"pure"`` or ``"recorded"``; see
            `wrap_tool_call`.
        default: The same for every other tool; ``"refuse"`` stops the run instead.

    Raises:
        Misconfigured: langchain is not installed (extra ``agents``), or settings contradict.
    """

    def __init__(self, tools: Mapping[str, Policy] | None = None, *, default: Policy) -> None:
        _require_langchain("EffectMiddleware")
        super().__init__()
        self.effects = ToolEffects(tools or {}, default=default)
        #: Tools that this middleware adds to the agent: none.
        self.tools = []

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Runs a tool call once."""
        return self.effects(request, handler)

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Runs a tool call once."""
        return await self.effects.on_loop(request, handler)

    def before_model(self, state: Any, runtime: Any) -> Any:
        """Gives every tool call that an interrupted turn left open its result (rule E7).

        Raises:
            EffectInDoubt: Nobody can prove whether one of them happened.
        """
        del runtime
        return self.effects.answer_orphans(state["messages"])

    async def abefore_model(self, state: Any, runtime: Any) -> Any:
        """Async twin of `before_model`."""
        del runtime
        return await self.effects.aanswer_orphans(state["messages"])


class RecordModelMiddleware(Base):
    """Records what the model of an agent answers, so that a resumed step does not ask it again.

    ::

        middleware = [EffectMiddleware(...), ..., RecordModelMiddleware()]

    Put it last: then it sees the question as it is really asked, and what other middleware does
    around the model is done again on a resume, commands included. An answer stands for its
    question only: model id, messages, system message, tool schemas, tool choice, response format
    and model settings. With another one it is `StaleInput`.

    A replayed answer is not streamed token by token again; it arrives as one message, under the
    id that it had.

    Args:
        model: Id of the model; by default that of the model object. What the object is set to
            otherwise (a temperature) is not seen: name it in ``binds``.
        binds: Whatever else the answer depends on, by name.
        freshness: Age (seconds, or a timedelta) from which on an answer is not replayed.
        on_stale: ``"refuse"``, or ``"read"``: to another question, ask again and record that; for
            prompts that change by themselves, with the time of day, say.
        name: Name of the read; part of its identity: keep it.

    Raises:
        Misconfigured: langchain is not installed (extra ``agents``), or settings contradict.
    """

    def __init__(
        self,
        *,
        model: str | None = None,
        binds: Mapping[str, Any] | None = None,
        freshness: float | timedelta | None = None,
        on_stale: str = "refuse",
        name: str = "model",
    ) -> None:
        _require_langchain("RecordModelMiddleware")
        super().__init__()
        settings = {"name": name, "binds": binds, "freshness": freshness, "on_stale": on_stale}
        self._read = ModelRead(model, settings)
        #: Tools that this middleware adds to the agent: none.
        self.tools = []

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Asks the model once.

        Raises:
            StaleInput: An answer to another question is recorded at this place.
        """
        return self._read.ask(request, handler, ModelResponse)

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Async twin of `wrap_model_call`."""
        return await self._read.ask_async(request, handler, ModelResponse)
