import { describe, expect, it } from "vitest";
import { Journal } from "../../../tests/unit/journal";
import type { Row } from "./rows";
import { Timeline } from "./timeline";

function conversation(turns: number): Row[] {
  const journal = new Journal();
  journal.add("session_created", { agent: "a" });
  for (let i = 1; i <= turns; i += 1) {
    journal
      .message(i, `question ${i}`)
      .start(i)
      .add("thinking", { message_id: `m${i}`, text: "hm" })
      .add("tool_call", { call_id: `c${i}`, name: "exec", arguments: { command: "ls" } })
      .add("terminal_output", { stream: "stdout", data: "out" })
      .add("tool_result", { call_id: `c${i}`, output: "ok", is_error: false, duration_ms: 1 })
      .text(`answer `, `m${i}`)
      .text(`${i}`, `m${i}`)
      .add("text_final", { message_id: `m${i}`, text: `answer ${i}`, streamed: true })
      .end();
  }
  return journal.rows;
}

function blocksOf(batches: readonly Row[][]): unknown {
  const timeline = new Timeline(1);
  for (const batch of batches) timeline.insert(batch);
  return timeline.transcript.blocks;
}

/** The same numbers in every run. */
function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state * 1_103_515_245 + 12_345) % 2_147_483_648;
    return state / 2_147_483_648;
  };
}

describe("Timeline", () => {
  const rows = conversation(6);
  const expected = blocksOf([rows]);

  it("shows the same, however the rows arrive", () => {
    for (let seed = 1; seed <= 200; seed += 1) {
      const next = random(seed);
      const shuffled = [...rows, ...rows.filter(() => next() < 0.3)]
        .map((row) => ({ row, at: next() }))
        .toSorted((a, b) => a.at - b.at)
        .map(({ row }) => row);
      const batches: Row[][] = [];
      while (shuffled.length > 0) batches.push(shuffled.splice(0, 1 + Math.floor(next() * 9)));
      expect(blocksOf(batches)).toEqual(expected);
    }
  });

  it("takes a row once", () => {
    const timeline = new Timeline(1);
    expect(timeline.insert(rows)).toBe(true);
    expect(timeline.insert(rows)).toBe(false);
    expect(timeline.rows).toHaveLength(rows.length);
  });

  it("joins a follow that runs with a page that is on its way, after a reconnect", () => {
    const timeline = new Timeline(1);
    // Seen before the connection was lost; then live rows, then the page that covers the gap.
    timeline.insert(rows.slice(0, 20));
    timeline.insert(rows.slice(45, 50));
    timeline.insert(rows.slice(15, 48));
    timeline.insert(rows.slice(50));
    expect(timeline.transcript.blocks).toEqual(expected);
  });

  it("grows upwards by pages", () => {
    const timeline = new Timeline(1);
    timeline.insert(rows.slice(40));
    expect(timeline.complete).toBe(false);
    timeline.insert(rows.slice(20, 40));
    timeline.insert(rows.slice(0, 20));
    expect(timeline.complete).toBe(true);
    expect(timeline.transcript.blocks).toEqual(expected);
  });

  it("does not take rows of other sessions", () => {
    const timeline = new Timeline(2);
    expect(timeline.insert(rows)).toBe(false);
    expect(timeline.lastSeq).toBeNull();
  });

  it("forgets what has a hole behind it", () => {
    const timeline = new Timeline(1);
    timeline.insert(rows.slice(0, 5));
    timeline.insert(rows.slice(40));
    timeline.forgetBefore(rows[40]?.seq ?? 0);
    expect(timeline.firstSeq).toBe(rows[40]?.seq);
    expect(timeline.transcript.blocks).toEqual(blocksOf([rows.slice(40)]));
    expect(timeline.insert(rows.slice(0, 40))).toBe(true);
    expect(timeline.transcript.blocks).toEqual(expected);
  });

  it("takes 10,000 rows one by one in well under a second", () => {
    const many = conversation(1000);
    const timeline = new Timeline(1);
    const begun = performance.now();
    timeline.insert(many.slice(0, 5000));
    for (const row of many.slice(5000)) timeline.insert([row]);
    expect(timeline.rows).toHaveLength(many.length);
    expect(performance.now() - begun).toBeLessThan(3000);
  });
});
