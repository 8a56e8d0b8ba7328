// An agent against a coordinator on a real Unix socket.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import {
  Agent,
  AgentError,
  Cancelled,
  ConnectionLost,
  FrameError,
  MAX_FRAME,
  ProtocolError,
  type FinishReason,
  type Message,
} from "../src/index.js";
import { addAmounts } from "../src/decimal.js";
import { encodeFrame, FrameDecoder } from "../src/frames.js";
import { deltas, elements, frame, INIT, listening, message, serving, texts, type Frame } from "./coordinator.js";
import { apply } from "./rfc6902.js";

const forever = () => new Promise<never>(() => undefined);

function echo(): Agent {
  return new Agent().onMessage(async (ctx, message) => ctx.text(message.text));
}

test("a frame is a little-endian length and compact JSON", () => {
  const update = {
    type: "stream_update",
    message_id: "msg_out_456",
    element: { type: "text_delta", text: "Here is the fix é\n" },
  };
  const payload =
    '{"type":"stream_update","message_id":"msg_out_456","element":{"type":"text_delta","text":"Here is the fix é\\n"}}';
  assert.deepEqual(encodeFrame(update), Buffer.concat([Buffer.from([0x71, 0, 0, 0]), Buffer.from(payload)]));
  const decoder = new FrameDecoder();
  decoder.push(encodeFrame({ type: "x", "\ud800": ["a\udc00b", "😀"] }));
  assert.deepEqual(decoder.next(), { type: "x", "\ufffd": ["a\ufffdb", "😀"] });
});

test("every element has the fields of the protocol", async () => {
  const agent = new Agent().onMessage(async (ctx) => {
    await ctx.thinking("hm");
    await ctx.text("a");
    assert.equal(await ctx.tool("grep", { pattern: "x" }, () => "1 match"), "1 match");
    await assert.rejects(
      ctx.tool("fail", {}, () => {
        throw new Error("no such file");
      }),
    );
    await ctx.code("rust", "fn main() {}");
    await ctx.fileChange("src/a.rs", "modified", "-a\n+b\n");
    await ctx.fileChange("b", "deleted");
    await ctx.terminal("out\n");
    await ctx.terminal("err\n", "stderr");
    await ctx.element("plan", { entries: [] });
    await ctx.final("a");
    await ctx.usage(1000, 3000, "0.1");
    await ctx.usage(250, 400, "0.2");
  });
  await serving(agent, async (coordinator) => {
    coordinator.send(message());
    const frames = await coordinator.turn();
    const got = elements(frames);
    for (const each of got.filter((each) => each["type"] === "tool_result")) {
      assert.ok(Number.isInteger(each["duration_ms"]) && each["duration_ms"] >= 0);
      delete each["duration_ms"];
    }
    const [first, second] = got.filter((each) => each["type"] === "tool_call").map((each) => each["call_id"]);
    assert.notEqual(first, second);
    assert.deepEqual(got, [
      { type: "thinking", text: "hm" },
      { type: "text_delta", text: "a" },
      { type: "tool_call", call_id: first, name: "grep", arguments: { pattern: "x" } },
      { type: "tool_result", call_id: first, output: "1 match", is_error: false },
      { type: "tool_call", call_id: second, name: "fail", arguments: {} },
      { type: "tool_result", call_id: second, output: "no such file", is_error: true },
      { type: "code_block", language: "rust", code: "fn main() {}" },
      { type: "file_change", path: "src/a.rs", change: "modified", diff: "-a\n+b\n" },
      { type: "file_change", path: "b", change: "deleted" },
      { type: "terminal_output", stream: "stdout", data: "out\n" },
      { type: "terminal_output", stream: "stderr", data: "err\n" },
      { type: "plan", entries: [] },
      { type: "text_final", text: "a" },
    ]);
    const used = frames.filter((each) => each["type"] === "usage").map((each) => each["token_usage"]);
    assert.deepEqual(used, [
      { input_tokens: 1000, output_tokens: 3000, cost: "0.1" },
      { input_tokens: 1250, output_tokens: 3400, cost: "0.3" },
    ]);
    const turns = frames.filter((each) => each["type"] !== "usage");
    const minted = new Set(turns.map((each) => each["message_id"]));
    assert.equal(minted.size, 1);
    assert.ok(!minted.has("msg_123"));
    assert.deepEqual(frames.at(-1), {
      type: "complete",
      message_id: [...minted][0],
      finish_reason: "end_turn",
      token_usage: { input_tokens: 1250, output_tokens: 3400, cost: "0.3" },
    });
  });
});

test("a message and the configuration arrive whole", async () => {
  let seen: Message | undefined;
  const agent = new Agent().onMessage(async (_ctx, message) => {
    seen = message;
  });
  await serving(agent, async (coordinator) => {
    coordinator.send(message("Fix the failing test"));
    await coordinator.turn();
  });
  assert.deepEqual(seen, {
    id: "msg_123",
    text: "Fix the failing test",
    role: "user",
    attachments: [],
    origin: { tenantId: "tenant_abc", role: "admin", channel: "web" },
    data: { text: "Fix the failing test", role: "user", attachments: [] },
  });
  assert.deepEqual([agent.id, agent.type, agent.workspace], ["agent_abc123", "claude-agent", INIT["workspace"]]);
  assert.deepEqual(agent.config, INIT["config"]);
});

test("state changes between two awaits are one patch before what follows", async () => {
  const agent = new Agent<{ count: number; history?: string[]; last?: boolean }>();
  agent.onMessage(async (ctx, message) => {
    agent.state.count += 1;
    agent.state.history = [];
    agent.state.history.push(message.text);
    await ctx.text("after");
    agent.state.count += 1;
    await Promise.resolve();
    agent.state.last = true;
  });
  await serving(
    agent,
    async (coordinator) => {
      coordinator.send(message());
      const frames = await coordinator.turn();
      assert.deepEqual(
        frames.map((each) => each["type"]),
        ["state_delta", "stream_update", "state_delta", "state_delta", "complete"],
      );
      assert.deepEqual(
        deltas(frames).map((each) => each.length),
        [3, 1, 1],
      );
      const mirror = deltas(frames).reduce<unknown>(apply, { count: 4 });
      assert.deepEqual(mirror, { count: 6, history: ["hello"], last: true });
    },
    { ...INIT, state: { count: 4 } },
  );
});

test("state can be replaced as a whole and saved at once", async () => {
  const agent = new Agent<any>();
  agent.onMessage(async (ctx) => {
    agent.state.gone = 1;
    agent.state = { only: [1] };
    await ctx.save();
    await forever();
  });
  await serving(agent, async (coordinator) => {
    coordinator.send(message());
    assert.deepEqual(await coordinator.next(), {
      type: "state_delta",
      deltas: [{ op: "replace", path: "", value: { only: [1] } }],
    });
  });
});

test("cancel aborts the signal and completes the turn as cancelled", async () => {
  const cleaned: unknown[] = [];
  const agent = new Agent().onMessage(async (ctx, message) => {
    try {
      if (message.text === "asks") {
        await ctx.approve({ action: "exec" });
      } else {
        await ctx.tool("sleep", {}, async () => {
          await once(ctx.signal, "abort");
          await assert.rejects(ctx.text("too late"), Cancelled);
          throw ctx.signal.reason;
        });
      }
    } catch (error) {
      cleaned.push(message.id, (error as Error).name);
      throw error;
    }
  });
  await serving(agent, async (coordinator) => {
    coordinator.send(message("hello", "m1"));
    await coordinator.next();
    coordinator.send({ type: "cancel", message_id: "another" }, { type: "cancel", message_id: "m1" });
    const [result, complete] = (await coordinator.turn()) as [Frame, Frame];
    assert.deepEqual([result["element"].is_error, result["element"].output], [true, "cancelled"]);
    assert.equal(complete["finish_reason"], "cancelled");

    coordinator.send(message("asks", "m2"));
    await coordinator.next();
    coordinator.send({ type: "cancel", message_id: "m2" });
    assert.equal((await coordinator.turn()).at(-1)?.["finish_reason"], "cancelled");
  });
  assert.deepEqual(cleaned, ["m1", "Cancelled", "m2", "Cancelled"]);
});

test("a handler that ignores its cancel is left behind", async () => {
  const agent = new Agent().onMessage(async (ctx, message) => {
    await ctx.text(message.id);
    if (message.id === "m1") await forever();
  });
  await serving(agent, async (coordinator) => {
    coordinator.send(message("x", "m1"), message("x", "m2"));
    await coordinator.next();
    coordinator.send({ type: "cancel", message_id: "m1" });
    assert.equal((await coordinator.turn()).at(-1)?.["finish_reason"], "cancelled");
    assert.equal((await coordinator.turn()).at(-1)?.["finish_reason"], "end_turn");
  });
});

test("a handler that only streams still sees its cancel", async () => {
  const agent = new Agent().onMessage(async (ctx) => {
    for (;;) await ctx.text("x");
  });
  await serving(agent, async (coordinator) => {
    coordinator.send(message("x", "m1"));
    await coordinator.next();
    coordinator.send({ type: "cancel", message_id: "m1" });
    assert.equal((await coordinator.turn()).at(-1)?.["finish_reason"], "cancelled");
  });
});

test("a coordinator that does not read holds the handler back", async () => {
  let sent = 0;
  const agent = new Agent().onMessage(async (ctx) => {
    for (; sent < 200_000; sent++) await ctx.text("x".repeat(1000));
  });
  await serving(agent, async (coordinator) => {
    coordinator.socket.pause();
    coordinator.send(message("x", "m1"));
    // The handler is held back once its progress stops between two looks.
    for (let seen = -1; seen !== sent || sent === 0; ) {
      seen = sent;
      for (let n = 0; n < 500; n++) await new Promise((resolve) => setImmediate(resolve));
    }
    assert.ok(sent < 5_000, `${sent} were sent`);
    coordinator.socket.resume();
    coordinator.send({ type: "cancel", message_id: "m1" });
    assert.equal((await coordinator.turn()).at(-1)?.["finish_reason"], "cancelled");
  });
});

test("steers reach the running turn and a late one the next", async () => {
  const told: string[] = [];
  const agent = new Agent()
    .onMessage(async (ctx) => {
      await ctx.text("ready");
      for await (const guidance of ctx.steered) {
        await ctx.text(guidance);
        if (guidance === "enough") break;
      }
    })
    .onSteer((content) => told.push(content));
  await serving(agent, async (coordinator) => {
    coordinator.send(message());
    await coordinator.next();
    coordinator.send({ type: "steer", content: "left" }, { type: "steer", content: "enough" });
    assert.equal(texts(await coordinator.turn()), "leftenough");
    coordinator.send({ type: "steer", content: "enough" }, message("x", "m2"));
    assert.equal(texts(await coordinator.turn()), "readyenough");
  });
  assert.deepEqual(told, ["left", "enough", "enough"]);
});

test("guidance that no turn looks at is given back", async () => {
  let release: () => void = () => undefined;
  const agent = new Agent()
    .onMessage(async (ctx) => {
      const released = new Promise<void>((resolve) => (release = resolve));
      await ctx.text("ready");
      await released;
    })
    .onConfig(() => release());
  const steer = { type: "steer", content: "left" };
  const unread = { type: "steer_unread", content: "left" };
  await serving(agent, async (coordinator) => {
    coordinator.send(message());
    await coordinator.next();
    coordinator.send(steer, { type: "config_update", changes: { k: 1 } });
    const frames = await coordinator.turn();
    assert.deepEqual(frames[0], unread);
    assert.equal(frames.at(-1)?.["finish_reason"], "end_turn");
    coordinator.send(steer);
    assert.deepEqual(await coordinator.next(), unread);
    // Who cancels does not want it.
    coordinator.send(message("x", "m2"));
    await coordinator.next();
    coordinator.send(steer, { type: "cancel", message_id: "m2" });
    assert.deepEqual((await coordinator.turn()).map((frame) => frame["type"]), ["complete"]);
  });
});

test("questions and approvals wait for their own answer", async () => {
  let got: unknown;
  const agent = new Agent().onMessage(async (ctx) => {
    got = await Promise.all([
      ctx.approve({ action: "exec", command: "rm -rf x", cwd: "/w", reason: "cleanup" }),
      ctx.askUser([
        { question: "Which?", header: "Pick", options: [{ label: "a", description: "the first" }], multiSelect: true },
      ]),
      ctx.askUser(["Free text?"]),
    ]);
  });
  await serving(agent, async (coordinator) => {
    coordinator.send(message());
    const approve = (await coordinator.next()) as Frame;
    const ask = (await coordinator.next()) as Frame;
    const free = (await coordinator.next()) as Frame;
    assert.deepEqual(approve, {
      type: "approval_request",
      request_id: approve["request_id"],
      action: "exec",
      command: "rm -rf x",
      cwd: "/w",
      reason: "cleanup",
    });
    assert.deepEqual(ask, {
      type: "ask_user",
      ask_id: ask["ask_id"],
      questions: [
        {
          question: "Which?",
          header: "Pick",
          options: [{ label: "a", description: "the first" }],
          multi_select: true,
        },
      ],
    });
    assert.deepEqual(free["questions"], [{ question: "Free text?", header: "", options: [], multi_select: false }]);
    coordinator.send(
      { type: "ask_result", ask_id: "nobody's", outcome: { status: "withdrawn", reason: "" } },
      { type: "ask_result", ask_id: free["ask_id"], outcome: { status: "withdrawn", reason: "busy" } },
      { type: "ask_result", ask_id: ask["ask_id"], outcome: { status: "answered", answers: [["a", "b"]] } },
      {
        type: "approval_result",
        request_id: approve["request_id"],
        approved: false,
        reason: "no",
        by: "ann",
        scope: "once",
      },
    );
    await coordinator.turn();
  });
  assert.deepEqual(got, [
    { approved: false, reason: "no", by: "ann", scope: "once" },
    { status: "answered", answers: [["a", "b"]] },
    { status: "withdrawn", reason: "busy" },
  ]);
});

test("config updates merge and are told in order", async () => {
  const told: unknown[] = [];
  const agent = new Agent();
  agent.onMessage(async (ctx) => ctx.text(JSON.stringify(agent.config)));
  agent.onConfig(async (changes, source) => {
    await Promise.resolve();
    told.push([changes, source]);
  });
  await serving(agent, async (coordinator) => {
    coordinator.send(
      { type: "config_update", changes: { model: "m2" }, source: "user" },
      { type: "config_update", changes: { temperature: 0.3 }, source: "file" },
      message(),
    );
    assert.deepEqual(JSON.parse(texts(await coordinator.turn())), { model: "m2", temperature: 0.3 });
  });
  assert.deepEqual(told, [
    [{ model: "m2" }, "user"],
    [{ temperature: 0.3 }, "file"],
  ]);
});

for (const split of [1, 3, 7]) {
  test(`frames may arrive in pieces of ${split}`, async () => {
    await serving(
      echo(),
      async (coordinator) => {
        const stream = Buffer.concat([frame(INIT), frame(message("one", "m1")), frame(message("zwei ü", "m2"))]);
        for (let at = 0; at < stream.length; at += split) {
          coordinator.socket.write(stream.subarray(at, at + split));
          await new Promise((resolve) => setImmediate(resolve));
        }
        assert.equal(texts(await coordinator.turn()), "one");
        assert.equal(texts(await coordinator.turn()), "zwei ü");
      },
      null,
    );
  });
}

test("messages that come together run one after the other", async () => {
  let running = 0;
  const agent = new Agent().onMessage(async (ctx, message) => {
    assert.equal(++running, 1);
    await new Promise((resolve) => setImmediate(resolve));
    await ctx.text(message.id);
    running -= 1;
  });
  await serving(agent, async (coordinator) => {
    const ids = Array.from({ length: 20 }, (_, n) => `m${n}`);
    coordinator.send(...ids.map((id) => message("x", id)));
    for (const id of ids) assert.equal(texts(await coordinator.turn()), id);
  });
});

test("unknown types and fields are ignored and logged once", async () => {
  await serving(echo(), async (coordinator) => {
    coordinator.send({ type: "hologram" }, { type: "hologram" }, { type: "toString" }, { ...message(), extra: [1] });
    const frames = await coordinator.turn();
    assert.deepEqual(
      frames
        .filter((each) => each["type"] === "log")
        .map((each) => [each["level"], each["message"], each["module"]]),
      [
        ["warn", 'ignored a message of unknown type "hologram"', "agent"],
        ["warn", 'ignored a message of unknown type "toString"', "agent"],
      ],
    );
    assert.equal(texts(frames), "hello");
  });
});

const wrong: [string, Buffer, new (...args: never[]) => Error][] = [
  ["an oversize frame", Buffer.from([1, 0, 0, 1]), FrameError],
  ["garbage", Buffer.from("\xff\xff\xff\xff garbage", "latin1"), FrameError],
  ["an array", Buffer.from("\x02\0\0\0[]"), FrameError],
  ["half of a JSON", Buffer.from('\x03\0\0\0{"a'), FrameError],
  ["bad UTF-8", Buffer.from([1, 0, 0, 0, 0xff]), FrameError],
  ["half of a header", Buffer.from([1, 0]), FrameError],
  ["half of a frame", frame(message()).subarray(0, 10), FrameError],
  ["no type", frame({ no: "type" }), ProtocolError],
  ["a numeric id", frame({ type: "message", id: 7, data: { text: "x" } }), ProtocolError],
  ["no text", frame({ type: "message", id: "m", data: {} }), ProtocolError],
  ["an empty steer", frame({ type: "steer" }), ProtocolError],
  ["an unknown outcome", frame({ type: "ask_result", ask_id: "a", outcome: { status: "eaten" } }), ProtocolError],
  ["a second init", frame(INIT), ProtocolError],
  ["nothing more", Buffer.alloc(0), ConnectionLost],
];
for (const [name, bytes, kind] of wrong) {
  test(`what is not the protocol ends the agent: ${name}`, async () => {
    await serving(echo(), async (coordinator, served) => {
      coordinator.socket.end(bytes);
      await assert.rejects(served, kind);
      assert.deepEqual(await coordinator.rest(), []);
    });
  });
}

for (const first of [message(), { ...INIT, state: [1] }, { ...INIT, agent_id: null }]) {
  test(`the first message is a good init, not ${JSON.stringify(first)}`, async () => {
    await serving(echo(), async (_coordinator, served) => assert.rejects(served, ProtocolError), first);
  });
}

test("a lost coordinator cancels the turn and is an error", async () => {
  let aborted = false;
  const agent = new Agent().onMessage(async (ctx) => {
    await ctx.text("on it");
    await once(ctx.signal, "abort");
    aborted = true;
  });
  await serving(agent, async (coordinator, served) => {
    coordinator.send(message());
    await coordinator.next();
    coordinator.socket.destroy();
    await assert.rejects(served, ConnectionLost);
  });
  assert.ok(aborted);
});

test("an element over the limit is an error of the handler alone", async () => {
  const agent = new Agent().onMessage(async (ctx) => {
    await assert.rejects(ctx.text("x".repeat(MAX_FRAME + 1)), FrameError);
    await ctx.text("y".repeat(MAX_FRAME - 200));
  });
  await serving(agent, async (coordinator) => {
    coordinator.send(message());
    assert.equal(texts(await coordinator.turn()).length, MAX_FRAME - 200);
  });
});

test("a patch over the limit ends the agent", async () => {
  const agent = new Agent<any>();
  agent.onMessage(async (ctx) => {
    agent.state.big = "x".repeat(MAX_FRAME + 1);
    await ctx.text("never");
  });
  await serving(agent, async (coordinator, served) => {
    coordinator.send(message());
    await assert.rejects(served, FrameError);
    assert.deepEqual(elements(await coordinator.rest()), []);
  });
});

test("shutdown lets the turn finish and sends the last changes", async () => {
  let release = (): void => undefined;
  const released = new Promise<void>((resolve) => (release = resolve));
  const agent = new Agent<any>();
  agent
    .onMessage(async (ctx) => {
      await ctx.text("started");
      await released;
      await ctx.text("finished");
    })
    .onShutdown(async (reason) => {
      agent.state.stopped = reason;
      agent.log.info("bye");
      release();
    });
  await serving(agent, async (coordinator, served) => {
    coordinator.send(message());
    await coordinator.next();
    coordinator.send({ type: "shutdown", reason: "reload" });
    const frames = await coordinator.rest();
    await served;
    assert.equal(texts(frames), "finished");
    assert.deepEqual(
      frames.filter((each) => each["type"] === "complete").map((each) => each["finish_reason"]),
      ["end_turn"],
    );
    assert.deepEqual(deltas(frames), [
      [
        { op: "replace", path: "", value: {} },
        { op: "add", path: "/stopped", value: "reload" },
      ],
    ]);
    assert.deepEqual(
      frames.filter((each) => each["type"] === "log").map((each) => each["message"]),
      ["bye"],
    );
  });
});

test("shutdown cancels a turn that does not finish", async () => {
  const agent = new Agent({ shutdownGraceMs: 50 }).onMessage(async (ctx) => {
    await ctx.text("started");
    await once(ctx.signal, "abort");
  });
  await serving(agent, async (coordinator, served) => {
    coordinator.send(message(), message("x", "never run"));
    await coordinator.next();
    coordinator.send({ type: "shutdown", reason: "user" });
    assert.deepEqual(
      (await coordinator.rest()).map((each) => each["finish_reason"]),
      ["cancelled"],
    );
    await served;
  });
});

test("a handler may fail or choose its finish reason", async () => {
  const agent = new Agent().onMessage(async (_ctx, message) => {
    if (message.text === "fail") throw new Error("bad luck");
    return message.text as FinishReason;
  });
  await serving(agent, async (coordinator) => {
    for (const [text, reason] of [
      ["max_tokens", "max_tokens"],
      ["fail", "error"],
      ["nonsense", "error"],
      ["budget", "budget"],
    ] as const) {
      coordinator.send(message(text));
      const frames = await coordinator.turn();
      assert.equal(frames.at(-1)?.["finish_reason"], reason);
      assert.equal(
        frames.some((each) => each["message"]?.includes("bad luck") ?? false),
        text === "fail",
      );
      if (text === "fail") assert.equal(texts(frames), "bad luck");
    }
  });
});

test("logs carry level, module and time, and early ones are kept", async () => {
  const agent = echo().onStart(() => agent.log.child("analyzer").warn("careful"));
  agent.log.debug("before init");
  await serving(agent, async (coordinator) => {
    const early = (await coordinator.next()) as Frame;
    const late = (await coordinator.next()) as Frame;
    assert.deepEqual([early["level"], early["message"], early["module"]], ["debug", "before init", "agent"]);
    assert.deepEqual([late["level"], late["message"], late["module"]], ["warn", "careful", "agent.analyzer"]);
    assert.match(late["timestamp"], /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
  });
});

test("a cost is a decimal in a string", async () => {
  assert.equal(addAmounts("0.1", "0.2"), "0.3");
  assert.equal(addAmounts("9.99", "0.011"), "10.001");
  assert.equal(addAmounts("5", "7"), "12");
  const agent = new Agent().onMessage(async (ctx) => {
    for (const bad of [0.5, "a lot", "-1", "1e-7", ""]) {
      await assert.rejects(ctx.usage(1, 1, bad as string), TypeError);
    }
  });
  await serving(agent, async (coordinator) => {
    coordinator.send(message());
    const [complete] = await coordinator.turn();
    assert.equal(complete?.["finish_reason"], "end_turn");
    assert.equal(complete?.["token_usage"], undefined);
  });
});

test("an agent without a coordinator says what to do", async () => {
  delete process.env["QUINTET_IPC_SOCKET"];
  await assert.rejects(echo().run(), { name: "AgentError", message: /QUINTET_IPC_SOCKET is not set/ });
  await assert.rejects(new Agent().run(), AgentError);
  await assert.rejects(echo().serve("/nowhere/ipc.sock"), { name: "ConnectionLost", message: /\/nowhere\/ipc\.sock/ });
});

test("the example runs as a process and ends on SIGTERM", async () => {
  const example = fileURLToPath(new URL("../examples/echo.js", import.meta.url));
  const start = async (path: string) => {
    const child = spawn(process.execPath, [example], {
      env: { ...process.env, QUINTET_IPC_SOCKET: path },
      stdio: "inherit",
    });
    return child;
  };
  await listening(start, async (coordinator, started) => {
    const child = (await started) as Awaited<ReturnType<typeof start>>;
    const exited = once(child, "exit");
    try {
      coordinator.send({ ...INIT, state: { count: 6, history: [] } }, message("hello world"));
      assert.equal(texts(await coordinator.turn()), "7: hello world");
      child.kill("SIGTERM");
      assert.deepEqual(
        (await coordinator.rest()).map((each) => each["message"]),
        ["stopping: sigterm"],
      );
      coordinator.socket.end();
      assert.deepEqual(await exited, [0, null]);
    } finally {
      child.kill("SIGKILL");
    }
  });
});
