"""The write side of the connection.

Frames pushed in one iteration of the event loop leave in one write. A sender
that awaits ``ready`` is held back while the coordinator does not read, and
lets other tasks run every so often even when it does: a handler that only
streams would otherwise never see its own ``cancel``.
"""

from __future__ import annotations

import asyncio
from typing import List

from ._errors import ConnectionLost

_BATCH_BYTES = 64 * 1024
_BATCH_FRAMES = 64
_HIGH_WATER = 256 * 1024
_CLOSE_SECONDS = 2.0


class Outbox:
    """Frames on their way out; used from the loop's thread only."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._frames: List[bytes] = []
        self._bytes = 0
        self._scheduled = False
        # StreamWriter.drain before Python 3.10 allows one waiter only.
        self._drain_lock = asyncio.Lock()
        writer.transport.set_write_buffer_limits(high=_HIGH_WATER)

    @property
    def backlog(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self._bytes + int(self._writer.transport.get_write_buffer_size())

    def push(self, frame: bytes) -> None:
        """Queues a frame; it is written when this loop iteration ends."""
        self._frames.append(frame)
        self._bytes += len(frame)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._write)

    async def ready(self) -> None:
        """Waits until more may be pushed."""
        if self._bytes >= _BATCH_BYTES or len(self._frames) >= _BATCH_FRAMES:
            await self.drain()
            await asyncio.sleep(0)

    async def drain(self) -> None:
        """Writes what is queued and waits until the coordinator keeps up."""
        self._write()
        try:
            async with self._drain_lock:
                await self._writer.drain()
        except OSError as error:
            raise ConnectionLost(f"the connection to the coordinator failed: {error}") from error

    async def close(self) -> None:
        """Writes what is queued, then closes the connection.

        A coordinator that does not read is given up on after two seconds.
        """
        self._write()
        self._writer.close()
        try:
            await asyncio.wait_for(self._writer.wait_closed(), _CLOSE_SECONDS)
        except asyncio.TimeoutError:
            self._writer.transport.abort()
        except OSError:
            pass  # The peer went first; there is nobody left to tell.

    def _write(self) -> None:
        self._scheduled = False
        if self._frames and not self._writer.is_closing():
            self._writer.write(b"".join(self._frames))
        self._frames.clear()
        self._bytes = 0
