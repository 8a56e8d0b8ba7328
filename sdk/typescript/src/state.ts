/**
 * State whose changes become JSON patches (RFC 6902) by themselves.
 *
 * The state is a tree of plain objects and arrays behind proxies that record
 * each change where it is made. Nothing is ever compared: removing the first
 * of 40,000 items is one operation.
 *
 * Rules that follow from the state being one JSON tree:
 * - A value put in is copied. Changing the original later changes nothing
 *   here; note that `(state.list ??= []).push(1)` pushes to the original.
 *   Give such members an initial value with `initialState`.
 * - A value taken out (`pop`, `shift`, `splice`) is a plain copy that may be
 *   changed and put back. Changing a part that was removed or replaced,
 *   through an old reference, is a {@link StateError}.
 * - Setting a member to `undefined` removes it. Arrays have no holes.
 * - Lists and objects are nested at most {@link MAX_DEPTH} deep.
 */

import { StateError } from "./errors.js";
import type { JsonObject } from "./frames.js";

/** How deep the state may be nested. Strict JSON readers give up at 128. */
export const MAX_DEPTH = 100;

/** One operation of a patch. */
export interface Op {
  op: "add" | "replace" | "remove";
  path: string;
  value?: unknown;
}

type Container = JsonObject | unknown[];

interface Place {
  parent: Container | undefined;
  /** The key in the parent; in an array only where it was last seen. */
  hint: string | number;
  recorder: Recorder | undefined;
  proxy: Container;
}

const places = new WeakMap<Container, Place>();
const targets = new WeakMap<object, Container>();

/**
 * The operations since they were last taken, and the root they apply to.
 *
 * `notify` is called when the first operation after a `take` comes in.
 */
export class Recorder {
  readonly #notify: () => void;
  #ops: Op[] = [];
  // A coordinator without any state holds null, in which no member can be added.
  #unsent: boolean;
  #root: JsonObject;

  constructor(state: JsonObject | null, initial: JsonObject, notify: () => void) {
    this.#notify = notify;
    this.#unsent = state === null;
    this.#root = this.#plant(state ?? initial);
  }

  /** The state, as the object that an agent works with. */
  get root(): JsonObject {
    return proxyOf(this.#root) as JsonObject;
  }

  /** Puts a new object in place of the whole state. */
  replaceRoot(value: unknown): void {
    if (value === this.root) return;
    const source = sourceOf(value);
    if (!isObject(source)) throw new StateError("the state is an object");
    const old = this.#root;
    this.#root = this.#plant(source);
    detach(old);
    this.record("replace", "", plain(this.#root));
  }

  /** Returns the operations so far and starts anew. */
  take(): Op[] {
    const ops = this.#ops;
    this.#ops = [];
    return ops;
  }

  /** Notes one operation; `value` must not be shared with the tree. */
  record(op: Op["op"], path: string, value?: unknown): void {
    if (this.#ops.length === 0) this.#notify();
    if (path === "") {
      // The whole is new: what was done to the old one does not matter.
      this.#ops = [];
      this.#unsent = false;
    } else if (this.#unsent) {
      this.#unsent = false;
      this.#ops.push({ op: "replace", path: "", value: plain(this.#root) });
    }
    const last = this.#ops.at(-1);
    if (op === "replace" && last !== undefined && last.path === path && last.op !== "remove") {
      last.value = value;
    } else {
      this.#ops.push(op === "remove" ? { op, path } : { op, path, value });
    }
  }

  #plant(value: JsonObject): JsonObject {
    const root = adopt(value, undefined, "", MAX_DEPTH) as JsonObject;
    placeOf(root).recorder = this;
    return root;
  }
}

/** Returns the value as plain data, sharing nothing with the state. */
export function plain<T>(value: T): T {
  const source = sourceOf(value);
  if (Array.isArray(source)) return source.map((item) => plain(item)) as T;
  if (!isObject(source)) return source as T;
  const copy: JsonObject = {};
  for (const key of Object.keys(source)) define(copy, key, plain(source[key]));
  return copy as T;
}

const objectHandler: ProxyHandler<JsonObject> = {
  get: (target, key) => (Object.hasOwn(target, key) ? proxyOf(Reflect.get(target, key)) : Reflect.get(target, key)),
  getOwnPropertyDescriptor: describe,
  set(target, key, value) {
    const name = memberName(key);
    const old = Object.hasOwn(target, name) ? target[name] : undefined;
    if (value === undefined) return this.deleteProperty?.(target, name) ?? true;
    if (isContainer(old) && sourceOf(value) === old) return true;
    const { recorder, steps } = locate(target);
    const adopted = adopt(value, target, name, MAX_DEPTH - steps.length - 1);
    recorder.record(old === undefined ? "add" : "replace", pointer(steps, name), plain(adopted));
    detach(old);
    return define(target, name, adopted);
  },
  deleteProperty(target, key) {
    const name = memberName(key);
    if (!Object.hasOwn(target, name)) return true;
    const { recorder, steps } = locate(target);
    recorder.record("remove", pointer(steps, name));
    detach(target[name]);
    return Reflect.deleteProperty(target, name);
  },
  defineProperty: refuse,
  setPrototypeOf: refuse,
  preventExtensions: refuse,
};

const arrayHandler: ProxyHandler<unknown[]> = {
  get(target, key) {
    if (typeof key === "string" && Object.hasOwn(methods, key)) return methods[key as keyof typeof methods];
    return Object.hasOwn(target, key) ? proxyOf(Reflect.get(target, key)) : Reflect.get(target, key);
  },
  getOwnPropertyDescriptor: describe,
  set(target, key, value) {
    if (key === "length") {
      if (!Number.isInteger(value) || value < 0 || value > target.length) {
        throw new StateError("an array of the state cannot be made longer by its length: it would have holes");
      }
      removeRange(target, value, target.length - value);
      return true;
    }
    const at = typeof key === "string" ? Number(key) : Number.NaN;
    if (!Number.isInteger(at) || at < 0 || String(at) !== key) {
      throw new StateError(`an array of the state has no member ${String(key)}`);
    }
    if (at > target.length) throw new StateError(`setting item ${at} of ${target.length} would leave a hole`);
    if (at === target.length) insert(target, at, [value]);
    else replaceAt(target, at, value);
    return true;
  },
  deleteProperty(_target, key) {
    throw new StateError(`deleting item ${String(key)} would leave a hole; use splice`);
  },
  defineProperty: refuse,
  setPrototypeOf: refuse,
  preventExtensions: refuse,
};

/** The mutating methods of an array; the others work through the proxy as they are. */
const methods = {
  push(this: unknown[], ...values: unknown[]): number {
    const target = targetOf(this);
    insert(target, target.length, values);
    return target.length;
  },
  pop(this: unknown[]): unknown {
    const target = targetOf(this);
    return target.length === 0 ? undefined : removeRange(target, target.length - 1, 1)[0];
  },
  shift(this: unknown[]): unknown {
    return removeRange(targetOf(this), 0, 1)[0];
  },
  unshift(this: unknown[], ...values: unknown[]): number {
    const target = targetOf(this);
    insert(target, 0, values);
    return target.length;
  },
  splice(this: unknown[], ...args: [start?: number, count?: number, ...values: unknown[]]): unknown[] {
    const target = targetOf(this);
    const [start = 0, count = 0, ...values] = args;
    const from = clamp(start, target.length);
    const room = target.length - from;
    const most = args.length === 0 ? 0 : args.length === 1 ? room : Math.min(Math.max(Math.trunc(count) || 0, 0), room);
    // A value may be a part that is being removed: copy before that.
    const copies = values.map((value) => plain(value));
    const removed = removeRange(target, from, most);
    insert(target, from, copies);
    return removed;
  },
  sort(this: unknown[], compare?: (a: unknown, b: unknown) => number): unknown[] {
    const target = targetOf(this);
    const order = compare && ((a: unknown, b: unknown) => compare(proxyOf(a), proxyOf(b)));
    return reorder(target, [...target].sort(order));
  },
  reverse(this: unknown[]): unknown[] {
    const target = targetOf(this);
    return reorder(target, [...target].reverse());
  },
  fill(this: unknown[], value: unknown, start = 0, end?: number): unknown[] {
    const target = targetOf(this);
    const copy = plain(value);
    const stop = end === undefined ? target.length : clamp(end, target.length);
    for (let at = clamp(start, target.length); at < stop; at++) replaceAt(target, at, copy);
    return proxyOf(target) as unknown[];
  },
  copyWithin(this: unknown[], to: number, start: number, end?: number): unknown[] {
    const target = targetOf(this);
    const copies = plain(target).slice(start, end);
    const at = clamp(to, target.length);
    copies.slice(0, target.length - at).forEach((value, offset) => replaceAt(target, at + offset, value));
    return proxyOf(target) as unknown[];
  },
};

function insert(target: unknown[], at: number, values: unknown[]): void {
  const { recorder, steps } = locate(target);
  const adopted = values.map((value, offset) => adopt(value, target, at + offset, MAX_DEPTH - steps.length - 1));
  adopted.forEach((value, offset) => {
    const step = at + offset === target.length ? "-" : at + offset;
    recorder.record("add", pointer(steps, step), plain(value));
    target.splice(at + offset, 0, value);
  });
}

function removeRange(target: unknown[], from: number, count: number): unknown[] {
  const { recorder, steps } = locate(target);
  const end = Math.min(from + count, target.length);
  const removed = plain(target.slice(from, end));
  for (let at = end - 1; at >= from; at--) {
    recorder.record("remove", pointer(steps, at));
    detach(target[at]);
  }
  target.splice(from, end - from);
  return removed;
}

function replaceAt(target: unknown[], at: number, value: unknown): void {
  const old = target[at];
  if (isContainer(old) && sourceOf(value) === old) return;
  const { recorder, steps } = locate(target);
  const adopted = adopt(value, target, at, MAX_DEPTH - steps.length - 1);
  recorder.record("replace", pointer(steps, at), plain(adopted));
  detach(old);
  target[at] = adopted;
}

function reorder(target: unknown[], items: unknown[]): unknown[] {
  const { recorder, steps } = locate(target);
  recorder.record("replace", pointer(steps), plain(items));
  target.splice(0, target.length, ...items);
  return proxyOf(target) as unknown[];
}

/** Returns the value as a part of the tree: containers copied, scalars checked. */
function adopt(value: unknown, parent: Container | undefined, hint: string | number, room: number): unknown {
  const source = sourceOf(value);
  if (!isContainer(source)) return scalar(source);
  if (room <= 0) throw new StateError(`the state is nested more than ${MAX_DEPTH} deep (or contains itself)`);
  if (Array.isArray(source)) {
    const copy: unknown[] = [];
    place(copy, parent, hint, arrayHandler as ProxyHandler<Container>);
    for (let at = 0; at < source.length; at++) copy.push(adopt(source[at], copy, at, room - 1));
    return copy;
  }
  const prototype: unknown = Object.getPrototypeOf(source);
  if (prototype !== Object.prototype && prototype !== null) {
    throw new StateError(`a ${source.constructor?.name ?? "class"} cannot be kept in the state; keep plain data`);
  }
  const copy: JsonObject = {};
  place(copy, parent, hint, objectHandler as ProxyHandler<Container>);
  for (const key of Object.keys(source)) {
    // As JSON.stringify does: a member without a value is no member.
    if (source[key] !== undefined) define(copy, memberName(key), adopt(source[key], copy, key, room - 1));
  }
  return copy;
}

function scalar(value: unknown): unknown {
  if (value === null || typeof value === "boolean") return value;
  if (typeof value === "string") return checkText(value);
  if (typeof value !== "number") throw new StateError(`a ${typeof value} cannot be kept in the state; keep a JSON value`);
  if (!Number.isFinite(value)) throw new StateError(`${value} is not a JSON number`);
  return value === 0 ? 0 : value; // JSON has no -0.
}

function checkText(value: string): string {
  if (!value.isWellFormed()) throw new StateError("a string with a lone surrogate is not Unicode text");
  return value;
}

function memberName(key: string | symbol): string {
  if (typeof key === "symbol") throw new StateError("a key of the state is a string, not a symbol");
  return checkText(key);
}

function place(
  target: Container,
  parent: Container | undefined,
  hint: string | number,
  handler: ProxyHandler<Container>,
): void {
  const proxy = new Proxy(target, handler);
  places.set(target, { parent, hint, recorder: undefined, proxy });
  targets.set(proxy, target);
}

/** Returns the recorder and the path of a container. */
function locate(target: Container): { recorder: Recorder; steps: string[] } {
  const steps: string[] = [];
  let node = target;
  let at = placeOf(node);
  while (at.parent !== undefined) {
    if (Array.isArray(at.parent) && at.parent[at.hint as number] !== node) {
      at.hint = at.parent.indexOf(node);
    }
    steps.push(String(at.hint));
    node = at.parent;
    at = placeOf(node);
  }
  if (at.recorder === undefined) {
    throw new StateError("this part was removed from the state; take it from agent.state again");
  }
  return { recorder: at.recorder, steps: steps.reverse() };
}

function detach(value: unknown): void {
  if (isContainer(value)) {
    const at = placeOf(value);
    at.parent = undefined;
    at.recorder = undefined;
  }
}

function describe(target: Container, key: string | symbol): PropertyDescriptor | undefined {
  const descriptor = Reflect.getOwnPropertyDescriptor(target, key);
  if (descriptor !== undefined) descriptor.value = proxyOf(descriptor.value);
  return descriptor;
}

function refuse(): never {
  throw new StateError("the state holds plain data: its shape cannot be changed this way");
}

function proxyOf(value: unknown): unknown {
  return isContainer(value) ? (places.get(value)?.proxy ?? value) : value;
}

function sourceOf(value: unknown): unknown {
  return isContainer(value) ? (targets.get(value) ?? value) : value;
}

function targetOf(proxy: unknown[]): unknown[] {
  const target = targets.get(proxy);
  if (!Array.isArray(target)) throw new StateError("this method belongs to an array of the state");
  return target;
}

function placeOf(target: Container): Place {
  const at = places.get(target);
  if (at === undefined) throw new StateError("this is no part of a state");
  return at;
}

function define(target: Container, key: string, value: unknown): boolean {
  // Assigning would reach the prototype for a member named __proto__.
  return Reflect.defineProperty(target, key, { value, writable: true, enumerable: true, configurable: true });
}

function isContainer(value: unknown): value is Container {
  return typeof value === "object" && value !== null;
}

function isObject(value: unknown): value is JsonObject {
  return isContainer(value) && !Array.isArray(value);
}

function clamp(index: number, length: number): number {
  const at = Math.trunc(index) || 0;
  return at < 0 ? Math.max(0, length + at) : Math.min(at, length);
}

function pointer(steps: readonly string[], ...last: (string | number)[]): string {
  return [...steps, ...last].map((step) => `/${String(step).replaceAll("~", "~0").replaceAll("/", "~1")}`).join("");
}
