"""One connection to the coordinator, from ``init`` to the end.

The reader dispatches what arrives and never waits for a handler, so that a
``cancel`` is always read. Turns run one after the other, each in a task of
its own; callbacks run in the order of their messages.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, Mapping, Optional, Set

from ._context import STEER_LIMIT, Context
from ._errors import AgentError, ConnectionLost, FrameError, ProtocolError
from ._frames import encode_frame, read_frame
from ._messages import (
    FINISH_REASONS,
    Init,
    Message,
    parse_approval_result,
    parse_ask_result,
    parse_cancel,
    parse_config_update,
    parse_init,
    parse_message,
    parse_shutdown,
    parse_steer,
)
from ._outbox import Outbox
from ._state import Recorder

if TYPE_CHECKING:
    from ._agent import Agent

# The coordinator sends one message at a time; more than this waiting is a fault.
_MESSAGE_LIMIT = 64
# Callbacks waiting for a slow one; beyond it the socket is not read.
_CALLBACK_LIMIT = 256
# Unknown types named in the log, each once; beyond it they go unnamed.
_UNKNOWN_LIMIT = 64
# Bytes on their way out beyond which log entries are dropped and counted.
_LOG_BACKLOG = 1024 * 1024


class Session:
    """The state of one connection."""

    def __init__(self, agent: "Agent", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._agent = agent
        self._reader = reader
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._outbox = Outbox(writer)
        self._recorder: Optional[Recorder] = None
        self._stop: "asyncio.Future[str]" = self._loop.create_future()
        self._stopping = False
        self._fatal: Optional[AgentError] = None
        self._messages: Deque[Message] = deque()
        self._context: Optional[Context] = None
        self._handler: "Optional[asyncio.Task[Any]]" = None
        self._turn: "Optional[asyncio.Task[None]]" = None
        self._callbacks: "asyncio.Queue[Callable[[], Any]]" = asyncio.Queue(_CALLBACK_LIMIT)
        self._waiting: "Dict[str, asyncio.Future[Any]]" = {}
        self._late_steers: Deque[str] = deque(maxlen=STEER_LIMIT)
        self._unknown: Set[str] = set()
        self._dropped_logs = 0

    async def run(self) -> None:
        """Serves until a shutdown; raises when the connection fails first."""
        tasks: "List[asyncio.Task[None]]" = [
            asyncio.create_task(self._read()),
            asyncio.create_task(self._call_back()),
        ]
        try:
            reason = await self._stop
            await self._shut_down(reason)
            if self._fatal is not None:
                raise self._fatal
        finally:
            self._agent.log_handler.connect(None)
            if self._handler is not None:
                self._handler.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._outbox.close()

    def stop(self, reason: str) -> None:
        """Begins the shutdown, once."""
        if not self._stop.done():
            self._stop.set_result(reason)

    # What a context uses.

    async def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message after the state's changes so far."""
        self.flush_state()
        self._outbox.push(encode_frame(message))
        await self._outbox.ready()

    async def request(self, request_id: str, message: Mapping[str, Any]) -> Any:
        """Sends a message that the coordinator answers, and waits for that."""
        answer: "asyncio.Future[Any]" = self._loop.create_future()
        self._waiting[request_id] = answer
        try:
            await self.send(message)
            return await answer
        finally:
            del self._waiting[request_id]

    async def drain(self) -> None:
        """Waits until what was sent is written."""
        await self._outbox.drain()

    def flush_state(self) -> None:
        """Sends the state's changes since the last time as one patch."""
        ops = self._recorder.take() if self._recorder is not None else []
        if not ops:
            return
        try:
            self._outbox.push(encode_frame({"type": "state_delta", "deltas": ops}))
        except FrameError as error:
            # The coordinator's copy can no longer follow this one: only a
            # restart from its copy makes them equal again.
            self._fail(error)
            raise

    # Reading.

    async def _read(self) -> None:
        try:
            while True:
                raw = await read_frame(self._reader)
                if raw is None:
                    raise ConnectionLost("the coordinator closed the connection without a shutdown")
                await self._dispatch(raw)
        except AgentError as error:
            self._fail(error)
        except OSError as error:
            self._fail(ConnectionLost(f"the connection to the coordinator failed: {error}"))

    async def _dispatch(self, raw: Dict[str, Any]) -> None:
        kind = raw.get("type")
        if not isinstance(kind, str):
            raise ProtocolError("a message has no 'type'")
        if kind == "init":
            await self._start(parse_init(raw))
        elif kind == "shutdown":
            self.stop(parse_shutdown(raw))
        elif kind not in ("message", "steer", "config_update", "cancel", "ask_result", "approval_result"):
            self._ignore(kind)
        elif self._recorder is None:
            raise ProtocolError(f"a {kind!r} came before init")
        elif kind == "message":
            if len(self._messages) >= _MESSAGE_LIMIT:
                raise ProtocolError(f"more than {_MESSAGE_LIMIT} messages are waiting")
            self._messages.append(parse_message(raw))
            self._next_turn()
        elif kind == "steer":
            await self._steer(parse_steer(raw))
        elif kind == "config_update":
            changes, source = parse_config_update(raw)
            self._agent._config.update(changes)
            await self._notify(self._agent._on_config, changes, source)
        elif kind == "cancel":
            self._cancel(parse_cancel(raw))
        elif kind == "ask_result":
            self._answer(*parse_ask_result(raw))
        else:
            self._answer(*parse_approval_result(raw))

    async def _start(self, init: Init) -> None:
        if self._recorder is not None:
            raise ProtocolError("init came twice")
        self._recorder = Recorder(init.state, self._agent._initial_state, self._state_changed)
        self._agent._begin(init, self._recorder)
        self._agent.log_handler.connect(self._log)
        await self._notify(self._agent._on_start)

    async def _steer(self, content: str) -> None:
        # A steer may cross with the complete of its turn: who has callbacks has seen it, and the
        # next turn gets it too; nobody else would look at it before then.
        if self._context is not None:
            self._context.steered._put(content)
        elif self._agent._on_steer:
            self._late_steers.append(content)
        else:
            await self._give_back([content])
        await self._notify(self._agent._on_steer, content)

    async def _give_back(self, steers: List[str]) -> None:
        # Guidance that nobody looked at becomes the session's next message.
        for content in steers:
            await self.send({"type": "steer_unread", "content": content})

    def _cancel(self, message_id: str) -> None:
        # A cancel for a turn that is already over is no fault: it crossed with complete.
        context = self._context
        if context is not None and message_id in (context.message.id, context.message_id):
            context.cancelled = True
            if self._handler is not None:
                self._handler.cancel()
            return
        self._messages = deque(message for message in self._messages if message.id != message_id)

    def _answer(self, request_id: str, outcome: Any) -> None:
        waiting = self._waiting.get(request_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(outcome)

    def _ignore(self, kind: str) -> None:
        if kind not in self._unknown and len(self._unknown) < _UNKNOWN_LIMIT:
            self._unknown.add(kind)
            self._agent.log.warning("ignored a message of unknown type %r", kind)

    # Turns.

    def _next_turn(self) -> None:
        if self._turn is None and self._messages and not self._stopping:
            message = self._messages.popleft()
            context = Context(self, message)
            for content in self._late_steers:
                context.steered._put(content)
            self._late_steers.clear()
            self._context = context
            self._handler = asyncio.create_task(self._agent._handle(context, message))
            self._turn = asyncio.create_task(self._finish_turn(context, self._handler))
            self._turn.add_done_callback(self._turn_over)

    async def _finish_turn(self, context: Context, handler: "asyncio.Task[Any]") -> None:
        await asyncio.wait({handler})
        context.steered._end()
        self._context = None
        reason = await self._finish_reason(context, handler)
        complete: Dict[str, Any] = {
            "type": "complete",
            "message_id": context.message_id,
            "finish_reason": reason,
        }
        usage = context._token_usage()
        if usage is not None:
            complete["token_usage"] = usage
        if self._fatal is None:
            # Who cancels does not want what was asked for before either.
            if reason != "cancelled" and not self._agent._on_steer:
                await self._give_back(context.steered.take())
            await self.send(complete)

    async def _finish_reason(self, context: Context, handler: "asyncio.Task[Any]") -> str:
        if context.cancelled or handler.cancelled():
            return "cancelled"
        error = handler.exception()
        if error is None:
            result = handler.result()
            if result is None:
                return "end_turn"
            if result in FINISH_REASONS:
                return str(result)
            error = AgentError(f"the message handler returned {result!r}, which is no finish reason")
        self._agent.log.error("the message handler failed: %s", error, exc_info=error)
        if self._fatal is None:
            # A turn that ends with an error has said which.
            await context.text(str(error) or type(error).__name__)
        return "error"

    def _turn_over(self, turn: "asyncio.Task[None]") -> None:
        self._turn = self._handler = None
        if not turn.cancelled() and isinstance(turn.exception(), AgentError):
            self._fail(turn.exception())  # type: ignore[arg-type]
        self._next_turn()

    # Callbacks, state and logs.

    async def _notify(self, callbacks: List[Callable[..., Any]], *arguments: Any) -> None:
        for callback in callbacks:
            await self._callbacks.put(lambda callback=callback: callback(*arguments))  # type: ignore[misc]

    async def _call_back(self) -> None:
        while True:
            await self._run_callback(await self._callbacks.get())

    async def _run_callback(self, callback: Callable[[], Any]) -> None:
        try:
            result = callback()
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            self._agent.log.error("a callback failed: %s", error, exc_info=error)

    def _state_changed(self) -> None:
        if threading.get_ident() != self._thread:
            raise AgentError("the state belongs to the event loop's thread; change it there")
        self._loop.call_soon(self._flush_changed)

    def _flush_changed(self) -> None:
        try:
            self.flush_state()
        except FrameError:
            pass  # flush_state has begun the end of this session.

    def _log(self, entry: Dict[str, Any]) -> None:
        if threading.get_ident() == self._thread:
            self._send_log(entry)
        else:
            self._loop.call_soon_threadsafe(self._send_log, entry)

    def _send_log(self, entry: Dict[str, Any]) -> None:
        if self._outbox.backlog > _LOG_BACKLOG:
            self._dropped_logs += 1
            return
        if self._dropped_logs:
            entry = {**entry, "message": f"({self._dropped_logs} log entries were dropped) {entry['message']}"}
            self._dropped_logs = 0
        try:
            self._outbox.push(encode_frame(entry))
        except FrameError:
            self._dropped_logs += 1

    # The end.

    def _fail(self, error: AgentError) -> None:
        if self._fatal is None and not self._stop.done():
            self._fatal = error
            logging.getLogger("quintet_agent").error("%s", error)
        if self._handler is not None:
            self._handler.cancel()
        self.stop("failed")

    async def _shut_down(self, reason: str) -> None:
        self._stopping = True
        self._messages.clear()
        grace = 0.0 if self._fatal is not None else self._agent.shutdown_grace
        farewell = asyncio.create_task(self._say_farewell(reason))
        if self._turn is not None:
            await asyncio.wait({self._turn}, timeout=grace)
        if self._handler is not None:
            self._handler.cancel()
        rest: "Set[asyncio.Task[None]]" = {farewell} | ({self._turn} if self._turn is not None else set())
        await asyncio.wait(rest, timeout=self._agent.shutdown_grace)
        for task in rest:
            task.cancel()
        if self._fatal is None:
            self.flush_state()

    async def _say_farewell(self, reason: str) -> None:
        for callback in self._agent._on_shutdown:
            await self._run_callback(lambda callback=callback: callback(reason))  # type: ignore[misc]
