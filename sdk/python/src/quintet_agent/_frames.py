"""Frames: a little-endian u32 length, then that many bytes of UTF-8 JSON.

The JSON is an object with a ``type``. A frame holds at most 16 MiB; both
sides check the length before they take memory for it.
"""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any, Dict, Mapping, Optional

from ._errors import FrameError

MAX_FRAME = 16 * 1024 * 1024
"""The largest payload of a frame, in bytes."""

_HEADER = struct.Struct("<I")
_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def encode_frame(message: Mapping[str, Any]) -> bytes:
    """Returns the message as one frame.

    A lone surrogate, which is no Unicode text and which a strict peer refuses,
    becomes ``?``.
    """
    try:
        payload = _dump(message).encode("utf-8", "replace")
    except (TypeError, ValueError, RecursionError) as error:
        raise FrameError(f"a {message.get('type')!r} message is not JSON: {error}") from error
    if len(payload) > MAX_FRAME:
        raise FrameError(
            f"a {message.get('type')!r} message of {len(payload)} bytes is over the limit of "
            f"{MAX_FRAME}: send it in parts"
        )
    return _HEADER.pack(len(payload)) + payload


async def read_frame(reader: asyncio.StreamReader) -> Optional[Dict[str, Any]]:
    """Returns the next message, or ``None`` at a clean end."""
    try:
        header = await reader.readexactly(_HEADER.size)
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise FrameError(f"the connection ended inside a frame header ({len(error.partial)} of 4 bytes)") from error
    (length,) = _HEADER.unpack(header)
    if length > MAX_FRAME:
        raise FrameError(f"a frame of {length} bytes is over the limit of {MAX_FRAME}")
    try:
        payload = await reader.readexactly(length)
    except asyncio.IncompleteReadError as error:
        raise FrameError(f"the connection ended inside a frame ({len(error.partial)} of {length} bytes)") from error
    return decode_payload(payload)


def decode_payload(payload: bytes) -> Dict[str, Any]:
    """Returns the JSON object that a frame holds."""
    try:
        message = json.loads(payload.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a frame is not UTF-8 JSON: {error}") from error
    if not isinstance(message, dict):
        raise FrameError(f"a frame holds {type(message).__name__}, not an object")
    return message
