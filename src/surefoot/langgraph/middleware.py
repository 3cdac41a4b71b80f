"""``EffectMiddleware``: the tools of langchain's ``create_agent`` as effects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from surefoot.errors import Misconfigured
from surefoot.langgraph.tools import Policy, ToolEffects

if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware

    Base = AgentMiddleware[Any, Any, Any]
    missing: ImportError | None = None
else:
    try:
        from langchain.agents.middleware import AgentMiddleware as Base

        missing = None
    except ImportError as error:
        # The name can be imported without the extra; only using it says what is missing.
        Base, missing = object, error

__all__ = ["EffectMiddleware"]


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
        tools: For each tool the parameters of `effect`, or ``"pure"``; see `wrap_tool_call`.
        default: The same for every other tool; ``"refuse"`` stops the run instead.

    Raises:
        Misconfigured: langchain is not installed (extra ``agents``), or settings contradict.
    """

    def __init__(self, tools: Mapping[str, Policy] | None = None, *, default: Policy) -> None:
        if missing is not None:
            raise Misconfigured(
                field="EffectMiddleware",
                reason="needs langchain; run pip install 'surefoot[agents]'",
            ) from missing
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
