"""What can go wrong, one class per kind."""

from __future__ import annotations


class AgentError(Exception):
    """The base of every error of this package."""


class FrameError(AgentError):
    """Bytes that are not a frame, or a message too large to be one."""


class ProtocolError(AgentError):
    """A known message with a wrong shape, or one that cannot come now."""


class ConnectionLost(AgentError):
    """The coordinator closed the connection without a ``shutdown``."""


class StateError(AgentError):
    """A use of the state that cannot become a patch."""
