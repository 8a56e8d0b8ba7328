import { describe, expect, it } from "vitest";
import { Journal } from "../../../tests/unit/journal";
import type { Block } from "./blocks";
import { MAX_BLOCK_TEXT, outputText, Transcript } from "./transcript";

function told(journal: Journal): Transcript {
  const transcript = new Transcript();
  for (const row of journal.rows) transcript.apply(row);
  return transcript;
}

/** The kinds and the words of what is shown. */
function shown(journal: Journal): string[] {
  return told(journal).blocks.map((block) => {
    switch (block.kind) {
      case "said":
        return `said(${block.state}): ${block.text}`;
      case "answer":
      case "thinking":
        return `${block.kind}${block.streaming ? "…" : ""}: ${block.text}`;
      case "tool":
        return `tool(${block.state}) ${block.name}: ${block.live}|${block.output}`;
      case "note":
        return `note: ${block.text}`;
      case "end":
        return `end(${block.finish})${block.error}`;
      default:
        return block.kind;
    }
  });
}

function only<K extends Block["kind"]>(journal: Journal, kind: K): Extract<Block, { kind: K }> {
  const found = told(journal).blocks.filter((block) => block.kind === kind);
  expect(found).toHaveLength(1);
  return found[0] as Extract<Block, { kind: K }>;
}

describe("messages and turns", () => {
  it("joins pieces of text and ends them with the turn", () => {
    const journal = new Journal().message(1, "hi").start().text("Hel").text("lo");
    expect(shown(journal)).toEqual(["said(heard): hi", "answer…: Hello"]);
    expect(told(journal).busy).toBe(true);
    journal.end();
    expect(shown(journal)).toEqual(["said(heard): hi", "answer: Hello", "end(end_turn)"]);
    expect(told(journal).busy).toBe(false);
  });

  it("shows a waiting message where its turn begins", () => {
    const journal = new Journal()
      .message(1, "first")
      .start()
      .message(2, "second")
      .message(3, "third")
      .add("message_removed", { id: 3, reason: "user" })
      .text("one");
    expect(told(journal).queue.map(({ text }) => text)).toEqual(["second"]);
    journal.end().start().text("two");
    expect(shown(journal)).toEqual([
      "said(heard): first",
      "said(removed): third",
      "answer: one",
      "end(end_turn)",
      "said(heard): second",
      "answer…: two",
    ]);
  });

  it("finds the message of a turn by its number when the daemon names it", () => {
    // The first message lies before what is known: without the number its turn would take message 6.
    const journal = new Journal().message(6, "later").start(5).text("for five");
    expect(shown(journal)).toEqual(["said(waiting): later", "answer…: for five"]);
    journal.end().start(6);
    expect(shown(journal).at(-1)).toBe("said(heard): later");
  });

  it("takes edits of a waiting message", () => {
    const journal = new Journal().message(1, "a").add("message_edited", { id: 1, text: "b" });
    expect(told(journal).queue.map(({ text }) => text)).toEqual(["b"]);
  });

  it("knows a waiting message of which only the beginning is here", () => {
    const cut = (journal: Journal): void => {
      journal.rows.push({ ...journal.rows.pop()!, cut: true });
    };
    const journal = new Journal().message(1, "whole").message(2, "beginn… (9 bytes more)");
    cut(journal);
    const which = () => told(journal).queue.map((said) => said.cut);
    expect(which()).toEqual([false, true]);
    journal.add("message_edited", { id: 1, text: "longer… (9 bytes more)" });
    cut(journal);
    journal.add("message_edited", { id: 2, text: "short" });
    expect(which()).toEqual([true, false]);
  });

  it("keeps what was said into a running turn in its place", () => {
    const journal = new Journal()
      .message(1, "go")
      .start()
      .text("a")
      .add("steer", { text: "left", sender: "phone" })
      .text("b");
    expect(shown(journal)).toEqual(["said(heard): go", "answer: a", "steer", "answer…: b"]);
  });

  it("says why a turn failed, and only the last one can be run again", () => {
    const failed = { finish_reason: "error", error: "the agent crashed", retryable: true };
    const journal = new Journal().message(1, "a").start().end(failed);
    expect(only(journal, "end")).toMatchObject({
      error: "the agent crashed",
      last: true,
      millis: 1000,
    });
    journal.message(2, "b").start();
    expect(only(journal, "end").last).toBe(false);
  });

  it("has the use of a turn, while it runs and at its end", () => {
    const journal = new Journal()
      .message(1, "a")
      .start()
      .add("usage", { input_tokens: 10, output_tokens: 2, cost: "0.1" });
    expect(told(journal)).toMatchObject({ inputTokens: 10, outputTokens: 2 });
    journal.end({ usage: { input_tokens: 20, output_tokens: 4, cost: "0.2500" } });
    expect(only(journal, "end")).toMatchObject({
      inputTokens: 20,
      outputTokens: 4,
      cost: "0.2500",
    });
  });

  it("closes with the session", () => {
    const transcript = told(
      new Journal().message(1, "a").start().add("session_closed", { reason: "x" }),
    );
    expect([transcript.closed, transcript.busy]).toEqual([true, false]);
  });
});

describe("the agent's output", () => {
  it("does not show a final text twice", () => {
    const journal = new Journal()
      .text("whole")
      .add("text_final", { message_id: "m", text: "whole", streamed: true })
      .add("text_final", { message_id: "n", text: "other", streamed: false });
    expect(shown(journal)).toEqual(["answer: whole", "answer: other"]);
  });

  it("shows a final text whose pieces lie before what is known", () => {
    const journal = new Journal().add("text_final", {
      message_id: "m",
      text: "whole",
      streamed: true,
    });
    expect(shown(journal)).toEqual(["answer: whole"]);
  });

  it("joins thinking and measures it", () => {
    const journal = new Journal()
      .add("thinking", { message_id: "m", text: "hm" })
      .add("thinking", { message_id: "m", text: " so" })
      .text("yes");
    expect(shown(journal)).toEqual(["thinking: hm so", "answer…: yes"]);
    const { at, until } = only(journal, "thinking");
    expect(Date.parse(until) - Date.parse(at)).toBe(1000);
  });

  it("finds a result's call in any order and abandons the rest", () => {
    const call = (id: string): [string, Record<string, unknown>] => [
      "tool_call",
      { call_id: id, name: id, arguments: {} },
    ];
    const result = (
      id: string,
      output: unknown,
      isError = false,
    ): [string, Record<string, unknown>] => [
      "tool_result",
      { call_id: id, output, is_error: isError, duration_ms: 7 },
    ];
    const journal = new Journal()
      .start()
      .add(...call("a"))
      .add(...call("b"))
      .add(...call("c"))
      .add(...result("b", "late", true))
      .add(...result("a", { n: 1 }))
      .add(...result("stray", "x"))
      .end();
    expect(shown(journal)).toEqual([
      'tool(done) a: |{\n  "n": 1\n}',
      "tool(failed) b: |late",
      "tool(abandoned) c: |",
      "end(end_turn)",
    ]);
  });

  it("gives live output to the call that runs", () => {
    const journal = new Journal()
      .add("tool_call", { call_id: "a", name: "exec", arguments: { command: "ls" } })
      .add("terminal_output", { stream: "stdout", data: "one\n" })
      .add("terminal_output", { stream: "stderr", data: "two\n" })
      .add("tool_result", { call_id: "a", output: "done", is_error: false })
      .add("terminal_output", { stream: "stdout", data: "alone" });
    expect(shown(journal)).toEqual(["tool(done) exec: one\ntwo\n|done", "terminal"]);
  });

  it("shows files, code and commands with what they changed", () => {
    const journal = new Journal()
      .add("file_change", { path: "a.rs", change: "modified", diff: "@@ -1 +1 @@\n-a\n+b\n" })
      .add("code_block", { language: "rust", code: "fn" })
      .add("command", {
        command: "make",
        cwd: "/w",
        worker: "local",
        exit_code: 124,
        ended: "timed out after 5 s",
        duration_ms: 5000,
        before: 3,
        after: 9,
        author: null,
        changed: [
          { path: "a", change: "write" },
          { path: "b", change: "delete" },
        ],
      });
    expect(shown(journal)).toEqual(["file", "code", "command"]);
    expect(only(journal, "command")).toMatchObject({
      state: "failed",
      exitCode: 124,
      ended: "timed out after 5 s",
      range: [3, 9],
      paths: ["a", "b"],
    });
    journal.add("commands_undone", {
      commands: [5],
      changed: [{ path: "a", change: "write" }],
      skipped: [],
    });
    expect(shown(journal).at(-1)).toBe("note: What commands had changed was taken back: a.");
  });

  it("keeps memory bounded: the end of an endless output", () => {
    const journal = new Journal().text("x".repeat(MAX_BLOCK_TEXT)).text("é end");
    const { text } = only(journal, "answer");
    expect(text.length).toBeLessThan(MAX_BLOCK_TEXT);
    expect(text.endsWith("é end")).toBe(true);
  });

  it("reads any output of a tool as text", () => {
    expect([outputText("a"), outputText(null), outputText([1])]).toEqual(["a", "", "[\n  1\n]"]);
  });
});

describe("questions, approvals, compaction", () => {
  it("follows a question to its answer", () => {
    const journal = new Journal().add("ask_user", {
      ask: 4,
      questions: [
        { question: "Which?", header: "H", options: [{ label: "a" }], multi_select: true },
      ],
    });
    expect(only(journal, "ask")).toMatchObject({
      state: "open",
      questions: [
        {
          question: "Which?",
          header: "H",
          multiSelect: true,
          options: [{ label: "a", description: "" }],
        },
      ],
    });
    journal.add("ask_answered", { ask: 4, answer: "a", by: "phone" });
    expect(only(journal, "ask")).toMatchObject({ state: "answered", answer: "a", by: "phone" });
  });

  it("follows an approval to its answer or its end", () => {
    const request = {
      approval: 3,
      action: "run",
      command: "rm x",
      cwd: "/",
      worker: "w",
      reason: "why",
    };
    const journal = new Journal().add("approval_requested", request);
    expect(only(journal, "approval")).toMatchObject({
      state: "open",
      command: "rm x",
      reason: "why",
    });
    journal.add("approval_answered", {
      approval: 3,
      approved: false,
      scope: "once",
      reason: "no",
      by: "p",
    });
    expect(only(journal, "approval")).toMatchObject({
      state: "denied",
      note: "no",
      by: "p",
      reason: "why",
    });
    const withdrawn = new Journal()
      .add("approval_requested", request)
      .add("approval_withdrawn", { approval: 3 });
    expect(only(withdrawn, "approval").state).toBe("withdrawn");
  });

  it("shows leave that was given for the whole session without a request", () => {
    const journal = new Journal().add("approval_answered", {
      action: "run",
      command: "ls",
      approved: true,
      scope: "session",
      by: "p",
    });
    expect(only(journal, "approval")).toMatchObject({
      approval: null,
      state: "approved",
      scope: "session",
    });
  });

  it("shows a summary when it is whole, and whether it was undone", () => {
    const journal = new Journal()
      .add("message", { id: 1, text: "Summarise", sender: "daemon", purpose: "compaction" }, 1)
      .start()
      .text("half a summ")
      .end()
      .add("compacted", { compaction: 2, summary: "A summary." })
      .message(3, "go on")
      .start()
      .text("yes");
    expect(shown(journal)).toEqual([
      "note: The agent is asked for a summary of the conversation.",
      "end(end_turn)",
      "compacted",
      "said(heard): go on",
      "answer…: yes",
    ]);
    expect(only(journal, "compacted")).toMatchObject({ summary: "A summary.", undone: false });
    journal.add("compaction_undone", { compaction: 2 });
    expect(only(journal, "compacted").undone).toBe(true);
  });
});

describe("what is not understood", () => {
  it("shows nothing and breaks nothing", () => {
    const journal = new Journal()
      .add("from_the_future", { anything: [1] })
      .add("tool_call", { name: 7, arguments: "x" })
      .add("tool_result", { call_id: "unknown" })
      .add("message", {})
      .add("message_edited", { id: 99 })
      .add("ask_user", {})
      .add("turn_ended", {});
    expect(shown(journal)).toEqual(["tool(abandoned) : |", "end()"]);
  });

  it("replaces blocks and never changes one that was handed out", () => {
    const journal = new Journal().message(1, "a").start().text("x");
    const transcript = told(journal);
    const before = [...transcript.blocks];
    const copy = structuredClone(before);
    for (const row of journal.text("y").end().rows.slice(3)) transcript.apply(row);
    expect(before).toEqual(copy);
    expect(transcript.blocks[0]).toBe(before[0]);
  });
});
