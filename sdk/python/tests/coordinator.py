"""A coordinator for tests: a real Unix socket, raw frames."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import tempfile
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, Callable, Dict, List, Optional

from quintet_agent import Agent

INIT: Dict[str, Any] = {
    "type": "init",
    "agent_id": "agent_abc123",
    "agent_type": "claude-agent",
    "workspace": "/instances/agent_abc123/chronicle/mount",
    "config": {"model": "claude-sonnet-4-20250514"},
    "state": None,
}

Frame = Dict[str, Any]

DEADLINE = 20.0


def frame(message: Any) -> bytes:
    """Returns the frame of a message, built from the specification alone."""
    payload = json.dumps(message).encode()
    return struct.pack("<I", len(payload)) + payload


def message(text: str = "hello", id: str = "msg_123") -> Frame:
    return {
        "type": "message",
        "id": id,
        "data": {"text": text, "role": "user", "attachments": []},
        "origin": {"tenant_id": "tenant_abc", "role": "admin", "channel": "web"},
    }


class Coordinator:
    """The other end of an agent's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.agent_task: "asyncio.Task[None]"

    def send(self, *messages: Frame) -> None:
        self.writer.write(b"".join(frame(each) for each in messages))

    async def next(self) -> Optional[Frame]:
        """Returns the next message of the agent, or None at the end."""
        return await asyncio.wait_for(self._next(), DEADLINE)

    async def _next(self) -> Optional[Frame]:
        try:
            header = await self.reader.readexactly(4)
        except asyncio.IncompleteReadError as error:
            assert error.partial == b""
            return None
        (length,) = struct.unpack("<I", header)
        decoded = json.loads(await self.reader.readexactly(length))
        assert isinstance(decoded, dict)
        return decoded

    async def until(self, done: Callable[[Frame], bool]) -> List[Frame]:
        """Returns the agent's messages up to the first that is ``done``."""
        seen: List[Frame] = []
        while True:
            received = await self.next()
            assert received is not None, f"the agent closed after {seen}"
            seen.append(received)
            if done(received):
                return seen

    async def turn(self) -> List[Frame]:
        """Returns the agent's messages up to complete."""
        return await self.until(lambda each: each["type"] == "complete")

    async def shutdown(self, reason: str = "user") -> List[Frame]:
        """Shuts the agent down and returns what it still said."""
        self.send({"type": "shutdown", "reason": reason})
        seen: List[Frame] = []
        while True:
            received = await self.next()
            if received is None:
                break
            seen.append(received)
        await asyncio.wait_for(self.agent_task, DEADLINE)
        return seen


@asynccontextmanager
async def serving(agent: Agent, init: Optional[Frame] = INIT) -> AsyncIterator[Coordinator]:
    """Runs the agent against a coordinator on a real Unix socket."""
    connected: "asyncio.Future[Coordinator]" = asyncio.get_running_loop().create_future()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set_result(Coordinator(reader, writer))

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "ipc.sock")
        server = await asyncio.start_unix_server(accept, path)
        task = asyncio.create_task(agent.serve(path))
        coordinator = await asyncio.wait_for(connected, DEADLINE)
        coordinator.agent_task = task
        if init is not None:
            coordinator.send(init)
        try:
            yield coordinator
        finally:
            coordinator.writer.close()
            await asyncio.wait({task}, timeout=DEADLINE)
            if task.done() and not task.cancelled():
                task.exception()
            server.close()


def elements(frames: List[Frame]) -> List[Frame]:
    return [each["element"] for each in frames if each["type"] == "stream_update"]


def texts(frames: List[Frame]) -> str:
    return "".join(each["text"] for each in elements(frames) if each["type"] == "text_delta")


def deltas(frames: List[Frame]) -> List[List[Frame]]:
    return [each["deltas"] for each in frames if each["type"] == "state_delta"]
