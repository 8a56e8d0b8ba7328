"""What the coordinator sends, as types, and the parts of what an agent sends.

Unknown fields are ignored. A known field of a wrong type is a
:class:`ProtocolError` that names it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Type, TypeVar, Union

from ._errors import ProtocolError


FinishReason = Literal["end_turn", "max_tokens", "cancelled", "error", "budget"]
"""Why a turn ended."""

FINISH_REASONS = ("end_turn", "max_tokens", "cancelled", "error", "budget")


@dataclass(frozen=True)
class Init:
    """The first message: who this agent is and what it knew."""

    agent_id: str
    agent_type: str
    workspace: str
    config: Dict[str, Any]
    state: Optional[Dict[str, Any]]


@dataclass(frozen=True)
class Origin:
    """Where a message came from."""

    tenant_id: Optional[str] = None
    role: Optional[str] = None
    channel: Optional[str] = None


@dataclass(frozen=True)
class Message:
    """One message to be worked on."""

    id: str
    text: str
    role: str = "user"
    attachments: Sequence[Any] = ()
    origin: Origin = Origin()
    data: Mapping[str, Any] = field(default_factory=dict)
    """The whole ``data`` object, with fields that this package does not know."""


@dataclass(frozen=True)
class Option:
    """One choice of a :class:`Question`."""

    label: str
    description: str = ""


@dataclass(frozen=True)
class Question:
    """Something to ask the person; without options the answer is free text."""

    question: str
    header: str = ""
    options: Sequence[Option] = ()
    multi_select: bool = False


@dataclass(frozen=True)
class Answered:
    """The person answered: for each question the chosen labels, or the text."""

    answers: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Withdrawn:
    """Nobody will answer."""

    reason: str = ""


AskOutcome = Union[Answered, Withdrawn]


@dataclass(frozen=True)
class Approval:
    """The answer to an approval request; true when it was approved."""

    approved: bool
    reason: Optional[str] = None
    by: Optional[str] = None
    scope: Optional[str] = None

    def __bool__(self) -> bool:
        return self.approved


def parse_init(raw: Mapping[str, Any]) -> Init:
    """Reads an ``init`` message."""
    state = raw.get("state")
    if state is not None and not isinstance(state, dict):
        raise ProtocolError(f"init.state is {_kind(state)}; an agent of this package keeps an object")
    return Init(
        agent_id=_need(raw, "agent_id", str, "init"),
        agent_type=_need(raw, "agent_type", str, "init"),
        workspace=_need(raw, "workspace", str, "init"),
        config=_optional(raw, "config", dict, "init") or {},
        state=state,
    )


def parse_message(raw: Mapping[str, Any]) -> Message:
    """Reads a ``message`` message."""
    data: Dict[str, Any] = _need(raw, "data", dict, "message")
    origin: Dict[str, Any] = _optional(raw, "origin", dict, "message") or {}
    attachments: List[Any] = _optional(data, "attachments", list, "message.data") or []
    return Message(
        id=_need(raw, "id", str, "message"),
        text=_need(data, "text", str, "message.data"),
        role=_optional(data, "role", str, "message.data") or "user",
        attachments=attachments,
        origin=Origin(
            tenant_id=_optional(origin, "tenant_id", str, "message.origin"),
            role=_optional(origin, "role", str, "message.origin"),
            channel=_optional(origin, "channel", str, "message.origin"),
        ),
        data=data,
    )


def parse_steer(raw: Mapping[str, Any]) -> str:
    """Reads the content of a ``steer`` message."""
    return _need(raw, "content", str, "steer")


def parse_config_update(raw: Mapping[str, Any]) -> Tuple[Dict[str, Any], Optional[str]]:
    """Reads the changes of a ``config_update`` message and who made them."""
    changes: Dict[str, Any] = _need(raw, "changes", dict, "config_update")
    return changes, _optional(raw, "source", str, "config_update")


def parse_shutdown(raw: Mapping[str, Any]) -> str:
    """Reads the reason of a ``shutdown`` message."""
    return _need(raw, "reason", str, "shutdown")


def parse_cancel(raw: Mapping[str, Any]) -> str:
    """Reads which message a ``cancel`` message stops."""
    return _need(raw, "message_id", str, "cancel")


def parse_ask_result(raw: Mapping[str, Any]) -> Tuple[str, AskOutcome]:
    """Reads an ``ask_result`` message: the ask and its outcome."""
    ask_id = _need(raw, "ask_id", str, "ask_result")
    outcome: Dict[str, Any] = _need(raw, "outcome", dict, "ask_result")
    where = "ask_result.outcome"
    status = _need(outcome, "status", str, where)
    if status == "answered":
        answers: List[Any] = _need(outcome, "answers", list, where)
        if not all(isinstance(each, list) and all(isinstance(text, str) for text in each) for each in answers):
            raise ProtocolError("ask_result.outcome.answers is not a list of lists of strings")
        return ask_id, Answered(answers)
    if status == "withdrawn":
        return ask_id, Withdrawn(_need(outcome, "reason", str, where))
    raise ProtocolError(f"ask_result.outcome.status is {status!r}, neither 'answered' nor 'withdrawn'")


def parse_approval_result(raw: Mapping[str, Any]) -> Tuple[str, Approval]:
    """Reads an ``approval_result`` message: the request and its answer."""
    name = "approval_result"
    return _need(raw, "request_id", str, name), Approval(
        approved=_need(raw, "approved", bool, name),
        reason=_optional(raw, "reason", str, name),
        by=_optional(raw, "by", str, name),
        scope=_optional(raw, "scope", str, name),
    )


T = TypeVar("T")


def _need(raw: Mapping[str, Any], key: str, kind: Type[T], where: str) -> T:
    value = raw.get(key)
    if not isinstance(value, kind):
        found = "missing" if key not in raw else _kind(value)
        raise ProtocolError(f"{where}.{key} is {found}, not {kind.__name__}")
    return value


def _optional(raw: Mapping[str, Any], key: str, kind: Type[T], where: str) -> Optional[T]:
    return None if raw.get(key) is None else _need(raw, key, kind, where)


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__
