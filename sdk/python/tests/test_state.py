"""Patches applied to a copy equal the state."""

from __future__ import annotations

import copy
import json
import pickle
import random
from typing import Any, Callable, Dict, List

import pytest

from quintet_agent import StateDict, StateError, StateList
from quintet_agent._state import MAX_DEPTH, Recorder, plain

from rfc6902 import apply

KEYS = ["a", "b", "a/b", "m~n", "", "0", "é", "-"]


def recorder(state: Any = None, initial: Any = None) -> Recorder:
    return Recorder(state, initial or {}, lambda: None)


def random_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind < 6:
        scalars: List[Any] = [None, True, rng.randint(-5, 5), rng.random(), rng.choice(["", "x", "~/é\n"]), 2**64 - 1]
        return scalars[kind]
    if kind == 6:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(KEYS): random_value(rng, depth + 1) for _ in range(rng.randrange(4))}


def containers(node: Any) -> List[Any]:
    if not isinstance(node, (StateDict, StateList)):
        return []
    children = node.values() if isinstance(node, StateDict) else node
    return [node] + [found for child in children for found in containers(child)]


def random_change(rng: random.Random, node: Any) -> None:
    value = random_value(rng)
    if isinstance(node, StateDict):
        key = rng.choice(KEYS)
        changes: List[Callable[[], Any]] = [
            lambda: node.__setitem__(key, value),
            lambda: node.__setitem__(key, value),
            lambda: node.pop(key, None),
            lambda: node.setdefault(key, value),
            lambda: node.update({key: value, "b": 1}),
            lambda: node.popitem() if node else None,
            lambda: node.clear() if rng.random() < 0.1 else None,
        ]
    else:
        at = rng.randint(-len(node) - 1, len(node) + 1)
        inside = rng.randrange(len(node)) if node else 0
        step = slice(rng.randint(-4, 4), rng.randint(-4, 6))
        changes = [
            lambda: node.append(value),
            lambda: node.insert(at, value),
            lambda: node.__setitem__(inside, value) if node else None,
            lambda: node.__delitem__(inside) if node else None,
            lambda: node.pop(inside) if node else None,
            lambda: node.__setitem__(step, [value, 7]),
            lambda: node.__delitem__(step),
            lambda: node.extend([value, value]),
            lambda: node.reverse(),
            lambda: node.sort(key=lambda item: json.dumps(item, sort_keys=True)),
            lambda: node.__imul__(rng.randint(0, 2)) if len(node) < 20 else node.clear(),
            lambda: node.__delitem__(slice(None, None, 2)),
        ]
    rng.choice(changes)()


@pytest.mark.parametrize("seed", range(60))
def test_patches_applied_to_a_copy_equal_the_state(seed: int) -> None:
    rng = random.Random(seed)
    start = None if seed % 3 == 0 else {"a": random_value(rng), "list": [1, {"x": []}]}
    initial: Dict[str, Any] = {} if seed % 2 == 0 else {"list": []}
    record = recorder(start, initial)
    mirror = copy.deepcopy(start)
    for _ in range(60):
        for _ in range(rng.randrange(4)):
            random_change(rng, rng.choice(containers(record.root)))
        ops = json.loads(json.dumps(record.take()))
        mirror = apply(mirror, ops)
        assert (initial if mirror is None else mirror) == plain(record.root)
        if len(json.dumps(mirror)) > 4000:
            record.replace_root({"list": []})


def test_a_change_in_place_behaves_as_the_plain_container_does() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        record = recorder({"list": [random_value(rng) for _ in range(5)]})
        node, model = record.root["list"], plain(record.root["list"])
        random_change(random.Random(seed), node)
        random_change(random.Random(seed), model)
        assert plain(node) == plain(model)


def test_the_first_change_of_an_agent_without_state_makes_the_object() -> None:
    record = recorder(None)
    record.root["count"] = 5
    assert record.take() == [
        {"op": "replace", "path": "", "value": {}},
        {"op": "add", "path": "/count", "value": 5},
    ]
    record.root["count"] += 1
    assert record.take() == [{"op": "replace", "path": "/count", "value": 6}]


def test_an_initial_state_is_sent_with_the_first_change() -> None:
    record = recorder(None, {"count": 0})
    record.root["count"] += 1
    assert record.take() == [
        {"op": "replace", "path": "", "value": {"count": 0}},
        {"op": "replace", "path": "/count", "value": 1},
    ]


def test_removing_from_a_long_list_is_one_operation() -> None:
    record = recorder({"list": list(range(40_000))})
    del record.root["list"][0]
    record.root["list"].append("end")
    assert record.take() == [
        {"op": "remove", "path": "/list/0"},
        {"op": "add", "path": "/list/-", "value": "end"},
    ]


def test_repeated_writes_of_one_value_become_one_operation() -> None:
    record = recorder({"n": 0})
    for n in range(1000):
        record.root["n"] = n
    assert record.take() == [{"op": "replace", "path": "/n", "value": 999}]


def test_a_value_put_in_is_copied() -> None:
    record = recorder({})
    mine: Dict[str, Any] = {"deep": [1]}
    record.root["a"] = mine
    mine["deep"].append(2)
    record.root["b"] = record.root["a"]
    record.root["b"]["deep"].append(3)
    assert plain(record.root) == {"a": {"deep": [1]}, "b": {"deep": [1, 3]}}


def test_an_operation_holds_the_value_as_it_was_then() -> None:
    record = recorder({})
    record.root["a"] = {"list": []}
    record.root["a"]["list"].append(1)
    assert record.take() == [
        {"op": "add", "path": "/a", "value": {"list": []}},
        {"op": "add", "path": "/a/list/-", "value": 1},
    ]


def test_adding_in_place_records_once() -> None:
    record = recorder({"list": [1], "sub": {}})
    record.root["list"] += [2]
    assert record.take() == [{"op": "add", "path": "/list/-", "value": 2}]


def test_a_removed_part_cannot_be_changed_but_a_popped_one_can_be_put_back() -> None:
    record = recorder({"queue": [{"id": 1}], "done": []})
    stale = record.root["queue"][0]
    job = record.root["queue"].pop(0)
    with pytest.raises(StateError):
        stale["id"] = 2
    job["ok"] = True
    record.root["done"].append(job)
    assert plain(record.root) == {"queue": [], "done": [{"id": 1, "ok": True}]}


def test_a_child_that_moved_is_still_found() -> None:
    record = recorder({"list": [{"n": 0}]})
    child = record.root["list"][0]
    record.root["list"].insert(0, "before")
    record.take()
    child["n"] = 1
    assert record.take() == [{"op": "replace", "path": "/list/1/n", "value": 1}]


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    "bad",
    [float("nan"), float("inf"), 2**64, -(2**63) - 1, b"bytes", {1: 2}, {"x": object()}, "\ud800", {"\ud800": 1}, nested(MAX_DEPTH)],
)
def test_a_value_that_is_not_json_is_refused_and_changes_nothing(bad: Any) -> None:
    record = recorder({"list": [1]})
    for change in (lambda: record.root.update(a=bad), lambda: record.root["list"].append(bad)):
        with pytest.raises(StateError):
            change()
    assert plain(record.root) == {"list": [1]}
    assert record.take() == []


def test_nesting_is_counted_from_the_root() -> None:
    record = recorder({})
    record.root["a"] = nested(MAX_DEPTH - 1)
    node = record.root["a"]
    while node:
        node = node[0]
    with pytest.raises(StateError):
        node.append([])
    loop: List[Any] = []
    loop.append(loop)
    with pytest.raises(StateError):
        record.root["b"] = loop


def test_a_copy_is_plain_data() -> None:
    record = recorder({"a": [{"b": 1}]})
    for copied in (copy.copy(record.root), copy.deepcopy(record.root), record.root.copy(), pickle.loads(pickle.dumps(record.root))):
        assert type(copied) is dict and type(copied["a"]) is list and type(copied["a"][0]) is dict
        assert copied == record.root
        copied["a"].append(1)
    assert json.dumps(record.root) == '{"a": [{"b": 1}]}'
    assert record.take() == []
