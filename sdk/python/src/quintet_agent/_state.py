"""State whose changes become JSON patches (RFC 6902) by themselves.

:class:`StateDict` and :class:`StateList` are a dict and a list that record
each change where it is made. Nothing is ever compared: removing the first of
40,000 items is one operation.

Rules that follow from the state being one JSON tree:

- A value put in is copied. Changing the original later changes nothing here.
- A value taken out (``pop``, ``popitem``) is a plain copy that may be changed
  and put back. A part that was removed or replaced can still be read through
  an old reference; changing it is a :class:`StateError`, because nobody would
  see that change.
- Keys are strings. Numbers are finite; integers fit in 64 bits.
- Lists and objects are nested at most :data:`MAX_DEPTH` deep.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, SupportsIndex, Tuple, Union

from ._errors import StateError

MAX_DEPTH = 100
"""How deep the state may be nested. Strict JSON readers give up at 128."""

Op = Dict[str, Any]

_INT_MIN = -(2**63)
_INT_MAX = 2**64 - 1
_ABSENT: Any = object()


class Recorder:
    """The operations since they were last taken, and the root they apply to.

    ``notify`` is called when the first operation after a :meth:`take` comes in.
    """

    def __init__(
        self, state: Optional[Mapping[str, Any]], initial: Mapping[str, Any], notify: Callable[[], None]
    ) -> None:
        self._notify = notify
        self._ops: List[Op] = []
        # A coordinator without any state holds null, in which no member can be added.
        self._unsent = state is None
        self.root = StateDict(initial if state is None else state, self)

    def replace_root(self, value: Mapping[str, Any]) -> None:
        """Puts a new object in place of the whole state."""
        if value is self.root:
            return
        root = StateDict(value, self)
        _drop(self.root)
        self.root = root
        self.record("replace", "", plain(root))

    def take(self) -> List[Op]:
        """Returns the operations so far and starts anew."""
        ops, self._ops = self._ops, []
        return ops

    def record(self, op: str, path: str, value: Any = _ABSENT) -> None:
        """Notes one operation; ``value`` must not be shared with the tree."""
        if not self._ops:
            self._notify()
        if path == "":
            # The whole is new: what was done to the old one does not matter.
            self._ops.clear()
            self._unsent = False
        elif self._unsent:
            self._unsent = False
            self._ops.append({"op": "replace", "path": "", "value": plain(self.root)})
        if op == "replace" and self._ops:
            last = self._ops[-1]
            if last["path"] == path and last["op"] in ("add", "replace"):
                last["value"] = value
                return
        entry: Op = {"op": op, "path": path}
        if value is not _ABSENT:
            entry["value"] = value
        self._ops.append(entry)


class StateDict(Dict[str, Any]):
    """A dict whose changes become patches."""

    __slots__ = ("_recorder", "_parent", "_hint")

    _recorder: Optional[Recorder]
    _parent: Optional["_Container"]
    _hint: Union[str, int]

    def __init__(self, value: Mapping[str, Any], recorder: Optional[Recorder] = None) -> None:
        super().__init__()
        self._recorder = recorder
        self._parent = None
        self._hint = ""
        _fill_dict(self, value, MAX_DEPTH - 1)

    def __setitem__(self, key: str, value: Any) -> None:
        old = self.get(key, _ABSENT)
        if value is old and isinstance(old, (StateDict, StateList)):
            return  # `state["list"] += [1]` assigns the list that was changed in place.
        recorder, steps = _place(self)
        _check_key(key)
        adopted = _adopt(value, self, key, MAX_DEPTH - len(steps) - 1)
        recorder.record("add" if old is _ABSENT else "replace", _pointer(steps, key), plain(adopted))
        _drop(old)
        super().__setitem__(key, adopted)

    def __delitem__(self, key: str) -> None:
        recorder, steps = _place(self)
        old = self[key]
        recorder.record("remove", _pointer(steps, key))
        _drop(old)
        super().__delitem__(key)

    def clear(self) -> None:
        if self:
            recorder, steps = _place(self)
            recorder.record("replace", _pointer(steps), {})
            for old in self.values():
                _drop(old)
            super().clear()

    def pop(self, key: str, default: Any = _ABSENT) -> Any:
        if key not in self and default is not _ABSENT:
            return default
        value = plain(self[key])
        del self[key]
        return value

    def popitem(self) -> Tuple[str, Any]:
        if not self:
            raise KeyError("popitem(): the state is empty here")
        key = next(reversed(self))
        return key, self.pop(key)

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def __ior__(self, other: Any) -> "StateDict":  # type: ignore[override,misc,unused-ignore]
        self.update(other)
        return self

    def copy(self) -> Dict[str, Any]:
        return dict(plain(self))

    def __reduce_ex__(self, protocol: SupportsIndex) -> Tuple[Any, ...]:
        # A copy or a pickle is plain data: it is not part of the state.
        return dict, (plain(self),)

    def _step(self, child: "_Container") -> str:
        return str(child._hint)


class StateList(List[Any]):
    """A list whose changes become patches."""

    __slots__ = ("_recorder", "_parent", "_hint")

    _recorder: Optional[Recorder]
    _parent: Optional["_Container"]
    _hint: Union[str, int]

    def __init__(self) -> None:
        super().__init__()
        self._recorder = None
        self._parent = None
        self._hint = ""

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice):
            self._set_slice(index, list(value))
            return
        at = self._index(index, "list assignment index out of range")
        old = self[at]
        if value is old and isinstance(old, (StateDict, StateList)):
            return
        recorder, steps = _place(self)
        adopted = _adopt(value, self, at, MAX_DEPTH - len(steps) - 1)
        recorder.record("replace", _pointer(steps, at), plain(adopted))
        _drop(old)
        super().__setitem__(at, adopted)

    def __delitem__(self, index: Any) -> None:
        if isinstance(index, slice):
            for at in sorted(range(*index.indices(len(self))), reverse=True):
                self._remove(at)
        else:
            self._remove(self._index(index, "list assignment index out of range"))

    def append(self, value: Any) -> None:
        self._insert(len(self), value)

    def insert(self, index: SupportsIndex, value: Any) -> None:
        at = index.__index__()
        at = max(0, at + len(self)) if at < 0 else min(at, len(self))
        self._insert(at, value)

    def extend(self, values: Iterable[Any]) -> None:
        for value in list(values):
            self.append(value)

    def pop(self, index: SupportsIndex = -1) -> Any:
        if not self:
            raise IndexError("pop from an empty list")
        at = self._index(index, "pop index out of range")
        value = plain(self[at])
        self._remove(at)
        return value

    def remove(self, value: Any) -> None:
        self._remove(self.index(value))

    def clear(self) -> None:
        if self:
            self._rewrite([])

    def reverse(self) -> None:
        self._rewrite(list(reversed(self)))

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        self._rewrite(sorted(self, key=key, reverse=reverse))

    def __iadd__(self, values: Iterable[Any]) -> "StateList":  # type: ignore[misc,unused-ignore]
        self.extend(values)
        return self

    def __imul__(self, times: SupportsIndex) -> "StateList":
        count = times.__index__()
        if count <= 0:
            self.clear()
        else:
            self.extend(plain(self) * (count - 1))
        return self

    def copy(self) -> List[Any]:
        return list(plain(self))

    def __reduce_ex__(self, protocol: SupportsIndex) -> Tuple[Any, ...]:
        return list, (plain(self),)

    def _insert(self, at: int, value: Any) -> None:
        recorder, steps = _place(self)
        adopted = _adopt(value, self, at, MAX_DEPTH - len(steps) - 1)
        step = "-" if at == len(self) else at
        recorder.record("add", _pointer(steps, step), plain(adopted))
        super().insert(at, adopted)

    def _remove(self, at: int) -> None:
        recorder, steps = _place(self)
        recorder.record("remove", _pointer(steps, at))
        _drop(self[at])
        super().__delitem__(at)

    def _rewrite(self, items: List[Any]) -> None:
        """Puts the same items in another order, or none at all."""
        recorder, steps = _place(self)
        recorder.record("replace", _pointer(steps), plain(items))
        if not items:
            for old in self:
                _drop(old)
        super().__setitem__(slice(None), items)

    def _set_slice(self, index: slice, values: List[Any]) -> None:
        start, stop, step = index.indices(len(self))
        targets = range(start, stop, step)
        if step != 1:
            if len(targets) != len(values):
                raise ValueError(
                    f"attempt to assign sequence of size {len(values)} to extended slice of size {len(targets)}"
                )
            for at, value in zip(targets, values):
                self[at] = value
            return
        values = [plain(value) for value in values]
        shared = min(len(targets), len(values))
        for offset in range(shared):
            self[start + offset] = values[offset]
        for at in reversed(targets[shared:]):
            self._remove(at)
        for offset in range(shared, len(values)):
            self._insert(start + offset, values[offset])

    def _index(self, index: SupportsIndex, message: str) -> int:
        at = index.__index__()
        if at < 0:
            at += len(self)
        if not 0 <= at < len(self):
            raise IndexError(message)
        return at

    def _step(self, child: "_Container") -> str:
        # Inserting before a child moves it: the place it was last seen at is
        # only a hint.
        hint = child._hint
        if not (isinstance(hint, int) and hint < len(self) and self[hint] is child):
            hint = next(at for at, item in enumerate(self) if item is child)
            child._hint = hint
        return str(hint)


_Container = Union[StateDict, StateList]


def plain(value: Any) -> Any:
    """Returns the value as plain dicts and lists, sharing nothing with it."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _adopt(value: Any, parent: _Container, hint: Union[str, int], room: int) -> Any:
    """Returns the value as a part of the tree: containers copied, scalars checked."""
    if isinstance(value, Mapping):
        node: _Container = StateDict({})
        _check_room(room)
        _fill_dict(node, value, room - 1)
    elif isinstance(value, (list, tuple)):
        node = StateList()
        _check_room(room)
        for at, item in enumerate(value):
            list.append(node, _adopt(item, node, at, room - 1))
    else:
        return _scalar(value)
    node._parent = parent
    node._hint = hint
    return node


def _fill_dict(node: Any, value: Mapping[str, Any], room: int) -> None:
    for key, item in value.items():
        _check_key(key)
        dict.__setitem__(node, key, _adopt(item, node, key, room))


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        if not _INT_MIN <= value <= _INT_MAX:
            raise StateError(f"the integer {value} does not fit in 64 bits; keep it as a string")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise StateError(f"{value} is not a JSON number")
        return value
    raise StateError(f"a {type(value).__name__} cannot be kept in the state; keep a JSON value")


def _text(value: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise StateError(f"a string with a lone surrogate is not Unicode text: {error}") from error
    return value


def _check_key(key: Any) -> None:
    if not isinstance(key, str):
        raise StateError(f"a key of the state is a string, not {type(key).__name__}")
    _text(key)


def _check_room(room: int) -> None:
    if room <= 0:
        raise StateError(f"the state is nested more than {MAX_DEPTH} deep (or contains itself)")


def _drop(value: Any) -> None:
    if isinstance(value, (StateDict, StateList)):
        value._recorder = None
        value._parent = None


def _place(node: _Container) -> Tuple[Recorder, List[str]]:
    """Returns the recorder and the path of a container."""
    steps: List[str] = []
    while node._parent is not None:
        steps.append(node._parent._step(node))
        node = node._parent
    if node._recorder is None:
        raise StateError("this part was removed from the state; take it from agent.state again")
    steps.reverse()
    return node._recorder, steps


def _pointer(steps: List[str], *last: Union[str, int]) -> str:
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in (*steps, *map(str, last)))
