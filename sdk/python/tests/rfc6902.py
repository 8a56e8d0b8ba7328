"""JSON Patch as the RFC states it: the part that the state emits."""

from __future__ import annotations

import copy
from typing import Any, Dict, List


def apply(document: Any, patch: List[Dict[str, Any]]) -> Any:
    """Returns the patched document; an operation that does not apply raises."""
    document = copy.deepcopy(document)
    for op in patch:
        value = copy.deepcopy(op.get("value"))
        if op["path"] == "":
            assert op["op"] in ("add", "replace")
            document = value
            continue
        assert op["path"].startswith("/")
        *steps, last = [step.replace("~1", "/").replace("~0", "~") for step in op["path"][1:].split("/")]
        target = document
        for step in steps:
            target = target[_index(step, len(target) - 1)] if isinstance(target, list) else target[step]
        if isinstance(target, list):
            if op["op"] == "add":
                target.insert(len(target) if last == "-" else _index(last, len(target)), value)
            elif op["op"] == "replace":
                target[_index(last, len(target) - 1)] = value
            else:
                del target[_index(last, len(target) - 1)]
        elif isinstance(target, dict):
            if op["op"] != "add" and last not in target:
                raise KeyError(f"{op['path']} is not there")
            if op["op"] == "remove":
                del target[last]
            else:
                target[last] = value
        else:
            raise TypeError(f"{op['path']} is inside a scalar")
    return document


def _index(step: str, most: int) -> int:
    assert step == str(int(step)) and 0 <= int(step) <= most, f"{step} is no index up to {most}"
    return int(step)
