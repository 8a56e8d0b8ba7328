"""The agent's log, through Python's own ``logging``."""

from __future__ import annotations

import logging
import threading
from collections import deque
from datetime import datetime, timezone
from typing import Any, Callable, Deque, Dict, Optional

EARLY_LIMIT = 256
"""Records kept until the connection is there; the oldest goes first."""

_LEVELS = ((logging.ERROR, "error"), (logging.WARNING, "warn"), (logging.INFO, "info"))


class AgentLogger(logging.Logger):
    """A logger outside the global tree, so that two agents never share one."""

    def getChild(self, suffix: str) -> "AgentLogger":
        """Returns a logger whose records name ``suffix`` as their module."""
        child = AgentLogger(f"{self.name}.{suffix}")
        child.parent = self
        return child


class LogHandler(logging.Handler):
    """Sends each record as a ``log`` message; usable from any thread."""

    def __init__(self) -> None:
        super().__init__()
        self._send: Optional[Callable[[Dict[str, Any]], None]] = None
        self._early: Deque[Dict[str, Any]] = deque(maxlen=EARLY_LIMIT)
        # Records come from any thread; connect must not miss one in between.
        self._switch = threading.Lock()

    def connect(self, send: Optional[Callable[[Dict[str, Any]], None]]) -> None:
        """Sends what was kept and all that follows to ``send``; ``None`` disconnects."""
        with self._switch:
            self._send = send
            while send is not None and self._early:
                send(self._early.popleft())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            entry = {
                "type": "log",
                "level": next((name for floor, name in _LEVELS if record.levelno >= floor), "debug"),
                "message": self.format(record),
                "module": record.name,
                "timestamp": _timestamp(record.created),
            }
        except Exception:
            self.handleError(record)
            return
        with self._switch:
            if self._send is None:
                self._early.append(entry)
            else:
                self._send(entry)


def _timestamp(created: float) -> str:
    at = datetime.fromtimestamp(created, timezone.utc)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
