"""The agent: handlers, state, configuration and the loop that serves them."""

from __future__ import annotations

import asyncio
import os
import signal
from types import MappingProxyType
from typing import Any, Awaitable, Callable, Dict, List, Mapping, Optional, TypeVar, Union

from ._context import Context
from ._errors import AgentError, ConnectionLost, StateError
from ._logs import AgentLogger, LogHandler
from ._messages import FinishReason, Init, Message
from ._session import Session
from ._state import Recorder, StateDict

MessageHandler = Callable[[Context, Message], Awaitable[Optional[FinishReason]]]
StartCallback = Callable[[], Union[None, Awaitable[None]]]
SteerCallback = Callable[[str], Union[None, Awaitable[None]]]
ConfigCallback = Callable[[Mapping[str, Any], Optional[str]], Union[None, Awaitable[None]]]
ShutdownCallback = Callable[[str], Union[None, Awaitable[None]]]

H = TypeVar("H", bound=MessageHandler)
B = TypeVar("B", bound=StartCallback)
S = TypeVar("S", bound=SteerCallback)
C = TypeVar("C", bound=ConfigCallback)
D = TypeVar("D", bound=ShutdownCallback)


class Agent:
    """An agent process: decorate the handlers, then :meth:`run`.

    ``initial_state`` is the state of an agent that has none yet.
    ``shutdown_grace`` is how many seconds a turn may go on after a shutdown
    before it is cancelled; the coordinator ends the process 10 seconds after
    it asked.
    """

    def __init__(
        self, *, initial_state: Optional[Mapping[str, Any]] = None, shutdown_grace: float = 4.0
    ) -> None:
        self._initial_state: Mapping[str, Any] = initial_state or {}
        self.shutdown_grace = shutdown_grace
        self.id = ""
        """This instance's id; empty until the coordinator has said it."""
        self.type = ""
        """The name of the agent in the configuration."""
        self.workspace = ""
        """The folder to work in."""
        self.log = AgentLogger("agent")
        """A logger whose records go to the coordinator."""
        self.log_handler = LogHandler()
        """The handler behind it, for loggers of other packages."""
        self.log.addHandler(self.log_handler)
        self._config: Dict[str, Any] = {}
        self._recorder: Optional[Recorder] = None
        self._on_message: Optional[MessageHandler] = None
        self._on_start: List[StartCallback] = []
        self._on_steer: List[SteerCallback] = []
        self._on_config: List[ConfigCallback] = []
        self._on_shutdown: List[ShutdownCallback] = []

    def on_message(self, handler: H) -> H:
        """Sets the coroutine that works on each message.

        It may return a finish reason; none means ``end_turn``. An exception
        is logged, told as text, and ends the turn with ``error``.
        """
        self._on_message = handler
        return handler

    def on_start(self, callback: B) -> B:
        """Adds a callback for when the state and the configuration are there."""
        self._on_start.append(callback)
        return callback

    def on_steer(self, callback: S) -> S:
        """Adds a callback for guidance that arrives during a turn."""
        self._on_steer.append(callback)
        return callback

    def on_config(self, callback: C) -> C:
        """Adds a callback for changes of the configuration: (changes, source)."""
        self._on_config.append(callback)
        return callback

    def on_shutdown(self, callback: D) -> D:
        """Adds a callback for the shutdown, called with its reason."""
        self._on_shutdown.append(callback)
        return callback

    @property
    def state(self) -> StateDict:
        """What this agent remembers over restarts; changes send themselves.

        All changes between two awaits go out as one patch, which applies as a
        whole or not at all.
        """
        if self._recorder is None:
            raise StateError("the state is there from on_start on; the coordinator sends it")
        return self._recorder.root

    @state.setter
    def state(self, value: Mapping[str, Any]) -> None:
        if self._recorder is None:
            raise StateError("the state is there from on_start on; the coordinator sends it")
        self._recorder.replace_root(value)

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration, kept up to date."""
        return MappingProxyType(self._config)

    def run(self) -> None:
        """Serves until the coordinator says shutdown, or SIGTERM comes."""
        asyncio.run(self._run())

    async def serve(self, socket_path: Optional[str] = None) -> None:
        """Serves in a running event loop, without touching signals."""
        await (await self._connect(socket_path)).run()

    async def _run(self) -> None:
        session = await self._connect(None)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, session.stop, "sigterm")
        try:
            await session.run()
        finally:
            loop.remove_signal_handler(signal.SIGTERM)

    async def _connect(self, socket_path: Optional[str]) -> Session:
        if self._on_message is None:
            raise AgentError("the agent has no message handler: decorate one with @agent.on_message")
        path = socket_path or os.environ.get("QUINTET_IPC_SOCKET")
        if not path:
            raise AgentError("QUINTET_IPC_SOCKET is not set: agents are started by the coordinator (quintet up)")
        self.id = os.environ.get("AGENT_ID", "")
        self.workspace = os.environ.get("AGENT_WORKSPACE", "")
        try:
            reader, writer = await asyncio.open_unix_connection(path)
        except OSError as error:
            raise ConnectionLost(f"cannot connect to the coordinator at {path}: {error}") from error
        return Session(self, reader, writer)

    def _begin(self, init: Init, recorder: Recorder) -> None:
        self.id = init.agent_id
        self.type = init.agent_type
        self.workspace = init.workspace
        self._config = dict(init.config)
        self._recorder = recorder

    async def _handle(self, context: Context, message: Message) -> Optional[FinishReason]:
        if self._on_message is None:
            raise AgentError("the agent has no message handler")
        return await self._on_message(context, message)
