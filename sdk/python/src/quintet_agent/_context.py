"""What a message handler talks through."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from decimal import Decimal, InvalidOperation
from types import TracebackType
from typing import TYPE_CHECKING, Any, AsyncIterator, Deque, Dict, List, Literal, Mapping, Optional, Sequence, Type, Union

from ._errors import AgentError
from ._messages import Approval, AskOutcome, Message, Question

if TYPE_CHECKING:
    from ._session import Session

STEER_LIMIT = 256
"""Steers kept for a handler that does not read them; the oldest goes first."""


class Context:
    """One turn: the message that is worked on and the ways to answer it.

    Each method that sends may wait: when the coordinator reads slowly, the
    handler is slowed down instead of filling memory.
    """

    def __init__(self, session: "Session", message: Message) -> None:
        self._session = session
        self.message = message
        self.message_id = _mint("msg_out")
        """The id under which this turn's output goes out."""
        self.steered = Steers()
        """Guidance that arrives during the turn: ``async for text in ctx.steered``."""
        self.cancelled = False
        """True once the coordinator has asked for this turn to stop."""
        self._usage: Optional[Dict[str, Any]] = None

    async def text(self, delta: str) -> None:
        """Streams the next piece of the answer."""
        await self.element("text_delta", text=delta)

    async def final(self, text: str) -> None:
        """States the whole text of the answer."""
        await self.element("text_final", text=text)

    async def thinking(self, text: str) -> None:
        """Streams a piece of reasoning."""
        await self.element("thinking", text=text)

    async def code(self, language: str, code: str) -> None:
        """Shows a block of code."""
        await self.element("code_block", language=language, code=code)

    async def file_change(
        self, path: str, change: Literal["created", "modified", "deleted"], diff: Optional[str] = None
    ) -> None:
        """Reports a file that the agent changed."""
        if diff is None:
            await self.element("file_change", path=path, change=change)
        else:
            await self.element("file_change", path=path, change=change, diff=diff)

    async def terminal(self, data: str, stream: Literal["stdout", "stderr"] = "stdout") -> None:
        """Streams the output of a command."""
        await self.element("terminal_output", stream=stream, data=data)

    def tool(self, name: str, arguments: Optional[Mapping[str, Any]] = None) -> "ToolCall":
        """Reports a tool call around a block, with its duration and its error.

        ::

            async with ctx.tool("search", {"query": "quintet"}) as call:
                call.output = await search("quintet")
        """
        return ToolCall(self, name, dict(arguments or {}))

    async def element(self, type: str, /, **fields: Any) -> None:
        """Streams an element of any type, also one that this package does not know."""
        await self._session.send(
            {"type": "stream_update", "message_id": self.message_id, "element": {"type": type, **fields}}
        )

    async def usage(self, input_tokens: int, output_tokens: int, cost: Union[Decimal, str, int] = 0) -> None:
        """Adds to what this turn has used and reports it, so that a budget can end the turn here.

        Call it after each model call; the sum is also sent when the turn completes.
        The cost is a decimal: a float is refused, because it is not the amount
        that was written.
        """
        if isinstance(cost, float):
            raise TypeError("a cost is a Decimal or a string, never a float")
        try:
            amount = Decimal(cost)
        except InvalidOperation:
            raise ValueError(f"the cost {cost!r} is not a decimal number") from None
        if not amount.is_finite() or amount < 0:
            raise ValueError(f"the cost {cost!r} is not an amount")
        before = self._usage or {"input_tokens": 0, "output_tokens": 0, "cost": Decimal(0)}
        self._usage = {
            "input_tokens": before["input_tokens"] + input_tokens,
            "output_tokens": before["output_tokens"] + output_tokens,
            "cost": before["cost"] + amount,
        }
        await self._session.send({"type": "usage", "token_usage": self._token_usage()})

    async def ask_user(self, questions: Sequence[Union[Question, Mapping[str, Any], str]]) -> AskOutcome:
        """Asks the person and waits for the answer, however long it takes."""
        if not questions:
            raise ValueError("ask_user needs a question")
        ask_id = _mint("ask")
        wire = [_question(question) for question in questions]
        request = {"type": "ask_user", "ask_id": ask_id, "questions": wire}
        outcome: AskOutcome = await self._session.request(ask_id, request)
        return outcome

    async def approve(
        self, action: str, command: Optional[str] = None, cwd: Optional[str] = None, reason: Optional[str] = None
    ) -> Approval:
        """Asks whether an action may be done and waits for the answer."""
        request_id = _mint("apr")
        request: Dict[str, Any] = {"type": "approval_request", "request_id": request_id, "action": action}
        optional = {"command": command, "cwd": cwd, "reason": reason}
        request.update({key: value for key, value in optional.items() if value is not None})
        approval: Approval = await self._session.request(request_id, request)
        return approval

    async def save(self) -> None:
        """Sends the state's changes now and waits until they are written."""
        self._session.flush_state()
        await self._session.drain()

    def _token_usage(self) -> Optional[Dict[str, Any]]:
        # Decimal's str may use an exponent, which not every decimal parser reads.
        return self._usage and {**self._usage, "cost": format(self._usage["cost"], "f")}


class ToolCall:
    """A tool call that is under way; see :meth:`Context.tool`."""

    def __init__(self, context: Context, name: str, arguments: Dict[str, Any]) -> None:
        self._context = context
        self.name = name
        self.arguments = arguments
        self.call_id = _mint("call")
        self.output: Any = ""
        """What the tool returned."""
        self.is_error = False
        """Set by an exception in the block; a handler may set it too."""
        self._started = 0.0

    async def __aenter__(self) -> "ToolCall":
        await self._context.element("tool_call", call_id=self.call_id, name=self.name, arguments=self.arguments)
        self._started = time.monotonic()
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if error is not None:
            self.is_error = True
            if isinstance(error, asyncio.CancelledError):
                self.output = "cancelled"
            else:
                self.output = str(error) or type(error).__name__
        await self._context.element(
            "tool_result",
            call_id=self.call_id,
            output=self.output,
            is_error=self.is_error,
            duration_ms=int((time.monotonic() - self._started) * 1000),
        )


class Steers(AsyncIterator[str]):
    """Steers in the order of their arrival; iteration ends with the turn."""

    def __init__(self) -> None:
        self._waiting: Deque[str] = deque(maxlen=STEER_LIMIT)
        self._changed = asyncio.Event()
        self._ended = False

    def take(self) -> List[str]:
        """Returns what has arrived so far, without waiting."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def __aiter__(self) -> "Steers":
        return self

    async def __anext__(self) -> str:
        while not self._waiting:
            if self._ended:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()

    def _put(self, content: str) -> None:
        self._waiting.append(content)
        self._changed.set()

    def _end(self) -> None:
        self._ended = True
        self._changed.set()


def _question(question: Union[Question, Mapping[str, Any], str]) -> Dict[str, Any]:
    if isinstance(question, str):
        question = Question(question)
    if isinstance(question, Question):
        return {
            "question": question.question,
            "header": question.header,
            "options": [{"label": o.label, "description": o.description} for o in question.options],
            "multi_select": question.multi_select,
        }
    if not isinstance(question.get("question"), str):
        raise AgentError("a question needs its text under 'question'")
    return {"header": "", "options": [], "multi_select": False, **question}


def _mint(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"
