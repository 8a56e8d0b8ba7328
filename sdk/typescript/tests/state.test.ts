// Patches applied to a copy equal the state.
import assert from "node:assert/strict";
import { test } from "node:test";
import { StateError } from "../src/index.js";
import { MAX_DEPTH, plain, Recorder } from "../src/state.js";
import { apply } from "./rfc6902.js";

const KEYS = ["a", "b", "a/b", "m~n", "", "0", "é", "-", "__proto__", "constructor"];

function recorder(state: any, initial: any = {}): Recorder {
  return new Recorder(state, initial, () => undefined);
}

/** mulberry32: small, seeded, good enough to choose operations. */
function random(seed: number): () => number {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

class Chooser {
  readonly #next: () => number;

  constructor(seed: number) {
    this.#next = random(seed);
  }

  below(count: number): number {
    return Math.floor(this.#next() * count);
  }

  of<T>(items: readonly T[]): T {
    return items[this.below(items.length)] as T;
  }

  value(depth = 0): unknown {
    switch (this.below(depth < 3 ? 8 : 5)) {
      case 0:
        return null;
      case 1:
        return true;
      case 2:
        return this.below(10) - 5;
      case 3:
        return this.#next();
      case 4:
        return this.of(["", "x", "~/é\n😀"]);
      case 5:
        return Array.from({ length: this.below(4) }, () => this.value(depth + 1));
      default: {
        const made: any = {};
        for (let n = this.below(4); n > 0; n--) {
          Object.defineProperty(made, this.of(KEYS), {
            value: this.value(depth + 1),
            enumerable: true,
            configurable: true,
            writable: true,
          });
        }
        return made;
      }
    }
  }
}

function containers(node: unknown): any[] {
  if (typeof node !== "object" || node === null) return [];
  return [node, ...Object.values(node).flatMap(containers)];
}

const byJson = (a: unknown, b: unknown) => (JSON.stringify(a) < JSON.stringify(b) ? -1 : 1);

function changeArray(choose: Chooser, node: any[]): void {
  const value = choose.value();
  const inside = choose.below(Math.max(node.length, 1));
  const start = choose.below(9) - 4;
  const count = choose.below(4);
  const changes: (() => unknown)[] = [
    () => node.push(value),
    () => node.push(value, 1, [2]),
    () => node.pop(),
    () => node.shift(),
    () => node.unshift(value, 7),
    () => node.splice(start, count, value, 8),
    () => node.splice(start, count),
    () => node.splice(start),
    () => (node[inside] = value),
    () => (node[node.length] = value),
    () => (node.length = Math.min(node.length, count + 1)),
    () => node.reverse(),
    () => node.sort(byJson),
    () => node.fill(value, start),
    () => node.copyWithin(count, start),
  ];
  choose.of(changes)();
}

function change(choose: Chooser, node: any): void {
  if (Array.isArray(node)) {
    changeArray(choose, node);
    return;
  }
  const key = choose.of(KEYS);
  const value = choose.value();
  const changes: (() => unknown)[] = [
    () => Reflect.set(node, key, value),
    () => Reflect.set(node, key, value),
    () => Reflect.deleteProperty(node, key),
    () => Reflect.set(node, "b", undefined),
    () => Object.assign(node, { a: value, b: 1 }),
  ];
  choose.of(changes)();
}

test("patches applied to a copy equal the state", () => {
  for (let seed = 0; seed < 60; seed++) {
    const choose = new Chooser(seed);
    const start: any = seed % 3 === 0 ? null : { a: choose.value(), list: [1, { x: [] }] };
    const initial = seed % 2 === 0 ? {} : { list: [] };
    const record = recorder(start, initial);
    let mirror: unknown = structuredClone(start);
    for (let round = 0; round < 60; round++) {
      for (let n = choose.below(4); n > 0; n--) change(choose, choose.of(containers(record.root)));
      mirror = apply(mirror, JSON.parse(JSON.stringify(record.take())));
      assert.deepEqual(mirror ?? initial, plain(record.root));
      assert.equal(JSON.stringify(record.root), JSON.stringify(plain(record.root)));
      if (JSON.stringify(mirror).length > 4000) record.replaceRoot({ list: [] });
    }
  }
});

test("an array of the state behaves as a plain one does", () => {
  for (let seed = 0; seed < 400; seed++) {
    const choose = new Chooser(seed);
    const items = Array.from({ length: 5 }, () => choose.value());
    const record = recorder({ list: items });
    const model = structuredClone(plain(record.root)) as any;
    changeArray(new Chooser(seed), record.root["list"] as any[]);
    changeArray(new Chooser(seed), model.list);
    assert.deepEqual(plain(record.root), model);
  }
});

test("what a removing method returns is a plain copy", () => {
  const record = recorder({ queue: [{ id: 1 }, { id: 2 }, { id: 3 }], done: [] as unknown[] });
  const { queue, done } = record.root as any;
  const stale = queue[0];
  const job = queue.shift();
  assert.throws(() => (stale.id = 9), StateError);
  job.ok = true;
  done.push(job);
  assert.deepEqual(queue.splice(0, 1), [{ id: 2 }]);
  assert.deepEqual(queue.pop(), { id: 3 });
  assert.equal(queue.pop(), undefined);
  assert.deepEqual(plain(record.root), { queue: [], done: [{ id: 1, ok: true }] });
});

test("the first change of an agent without state makes the object", () => {
  const record = recorder(null);
  record.root["count"] = 5;
  assert.deepEqual(record.take(), [
    { op: "replace", path: "", value: {} },
    { op: "add", path: "/count", value: 5 },
  ]);
  (record.root as any).count += 1;
  assert.deepEqual(record.take(), [{ op: "replace", path: "/count", value: 6 }]);

  const given = recorder(null, { count: 0 });
  (given.root as any).count += 1;
  assert.deepEqual(given.take(), [
    { op: "replace", path: "", value: { count: 0 } },
    { op: "replace", path: "/count", value: 1 },
  ]);
});

test("removing from a long array is one operation", () => {
  const record = recorder({ list: Array.from({ length: 40_000 }, (_, at) => at) });
  const list = record.root["list"] as unknown[];
  list.shift();
  list.push("end");
  assert.deepEqual(record.take(), [
    { op: "remove", path: "/list/0" },
    { op: "add", path: "/list/-", value: "end" },
  ]);
});

test("repeated writes of one value become one operation", () => {
  const record = recorder({ n: 0 });
  for (let n = 0; n < 1000; n++) record.root["n"] = n;
  assert.deepEqual(record.take(), [{ op: "replace", path: "/n", value: 999 }]);
});

test("a value put in is copied, and an operation holds it as it was then", () => {
  const record = recorder({});
  const mine = { deep: [1] };
  const state = record.root as any;
  state.a = mine;
  mine.deep.push(2);
  state.b = state.a;
  state.b.deep.push(3);
  state.a = state.a;
  assert.deepEqual(plain(state), { a: { deep: [1] }, b: { deep: [1, 3] } });
  assert.deepEqual(record.take(), [
    { op: "add", path: "/a", value: { deep: [1] } },
    { op: "add", path: "/b", value: { deep: [1] } },
    { op: "add", path: "/b/deep/-", value: 3 },
  ]);
});

test("a child that moved is still found, and is the same object", () => {
  const record = recorder({ list: [{ n: 0 }] });
  const list = record.root["list"] as any[];
  const child = list[0];
  list.unshift("before");
  record.take();
  child.n = 1;
  assert.deepEqual(record.take(), [{ op: "replace", path: "/list/1/n", value: 1 }]);
  assert.equal(list.indexOf(child), 1);
  assert.ok(list.includes(child));
});

test("a value that is not JSON is refused and changes nothing", () => {
  const loop: unknown[] = [];
  loop.push(loop);
  let deep: unknown = [];
  for (let n = 1; n < MAX_DEPTH; n++) deep = [deep];
  const bad = [NaN, Infinity, 1n, () => 1, Symbol("x"), new Date(), new Map(), "\ud800", { "\ud800": 1 }, [undefined], loop, deep];
  const record = recorder({ list: [1] });
  const state = record.root as any;
  for (const value of bad) {
    assert.throws(() => (state.a = value), StateError);
    assert.throws(() => state.list.push(2, value), StateError);
    assert.throws(() => (state.list[0] = value), StateError);
  }
  for (const misuse of [
    () => (state.list[3] = 1),
    () => (state.list.length = 5),
    () => delete state.list[0],
    () => (state.list.name = 1),
    () => (state[Symbol("x")] = 1),
    () => Object.defineProperty(state, "x", { value: 1 }),
    () => Object.setPrototypeOf(state, null),
    () => Object.freeze(state),
    () => record.replaceRoot([1]),
  ]) {
    assert.throws(misuse, StateError);
  }
  assert.deepEqual(plain(state), { list: [1] });
  assert.deepEqual(record.take(), []);
});

test("nesting is counted from the root", () => {
  const record = recorder({});
  let deep: unknown = [];
  for (let n = 2; n < MAX_DEPTH; n++) deep = [deep];
  record.root["a"] = deep;
  let node = record.root["a"] as any[];
  while (node.length > 0) node = node[0];
  assert.throws(() => node.push([]), StateError);
});
