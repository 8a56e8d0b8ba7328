"""Write a Quintet agent in Python.

An agent is a process that the coordinator starts. It connects to the Unix
socket named in ``QUINTET_IPC_SOCKET``, gets ``init`` with its state, then one
``message`` at a time, and streams elements back until it says ``complete``.
This package is that conversation::

    from quintet_agent import Agent, Context, Message

    agent = Agent()

    @agent.on_message
    async def handle(ctx: Context, message: Message) -> None:
        agent.state["count"] = agent.state.get("count", 0) + 1
        await ctx.text(f"You said: {message.text}")

    agent.run()

Start with :class:`Agent`; :class:`Context` is what a handler talks through.
"""

from ._agent import Agent
from ._context import Context, ToolCall
from ._errors import AgentError, ConnectionLost, FrameError, ProtocolError, StateError
from ._frames import MAX_FRAME
from ._messages import (
    Answered,
    Approval,
    AskOutcome,
    FinishReason,
    Message,
    Option,
    Origin,
    Question,
    Withdrawn,
)
from ._state import StateDict, StateList

__all__ = [
    "MAX_FRAME",
    "Agent",
    "AgentError",
    "Answered",
    "Approval",
    "AskOutcome",
    "ConnectionLost",
    "Context",
    "FinishReason",
    "FrameError",
    "Message",
    "Option",
    "Origin",
    "ProtocolError",
    "Question",
    "StateDict",
    "StateError",
    "StateList",
    "ToolCall",
    "Withdrawn",
]
