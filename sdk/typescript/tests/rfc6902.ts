// JSON Patch as the RFC states it: the part that the state emits.
import assert from "node:assert/strict";
import type { Frame } from "./coordinator.js";

/** Returns the patched document; an operation that does not apply throws. */
export function apply(document: unknown, patch: Frame[]): unknown {
  let root = structuredClone(document) as any;
  for (const op of patch) {
    const value = structuredClone(op["value"]);
    if (op["path"] === "") {
      assert.ok(op["op"] === "add" || op["op"] === "replace");
      root = value;
      continue;
    }
    const steps = (op["path"] as string).split("/").map((step) => step.replaceAll("~1", "/").replaceAll("~0", "~"));
    assert.equal(steps.shift(), "");
    const last = steps.pop() as string;
    let target = root;
    for (const step of steps) {
      target = Array.isArray(target) ? target[index(step, target.length - 1)] : member(target, step);
    }
    if (Array.isArray(target)) {
      if (op["op"] === "add") target.splice(last === "-" ? target.length : index(last, target.length), 0, value);
      else if (op["op"] === "replace") target[index(last, target.length - 1)] = value;
      else target.splice(index(last, target.length - 1), 1);
    } else {
      if (op["op"] !== "add") member(target, last);
      if (op["op"] === "remove") delete target[last];
      else Object.defineProperty(target, last, { value, writable: true, enumerable: true, configurable: true });
    }
  }
  return root;
}

function member(target: any, key: string): any {
  assert.ok(typeof target === "object" && target !== null && Object.hasOwn(target, key), `${key} is not there`);
  return target[key];
}

function index(step: string, most: number): number {
  assert.match(step, /^(0|[1-9]\d*)$/);
  assert.ok(Number(step) <= most, `${step} is no index up to ${most}`);
  return Number(step);
}
