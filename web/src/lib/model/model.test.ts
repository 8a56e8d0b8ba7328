import { describe, expect, it } from "vitest";
import { Journal } from "../../../tests/unit/journal";
import { plainTerminal } from "./ansi";
import { chunked } from "./chunks";
import { deviceName } from "./device";
import { changedPart, parseUnified, sideBySide, stats } from "./diff";
import {
  addDecimals,
  ago,
  basename,
  bytes,
  count,
  duration,
  folderName,
  place,
  isZero,
  money,
  plural,
  shellName,
} from "./format";
import { Prompts, promptKey, shownAt } from "./prompts";
import { formatRoute, pairingCode, parseRoute, type Route } from "./route";
import { asRow } from "./rows";
import {
  applyToSessions,
  asSession,
  mergeListing,
  searchSessions,
  titleOf,
  type Session,
} from "./sessions";
import { exact, readableAnswer, summary } from "./tools";
import { Transcript } from "./transcript";
import { amount, fillDays } from "./usage";

describe("rows", () => {
  it("are refused where the shape is another", () => {
    const good = {
      seq: 1,
      at: "2026-01-01T00:00:00Z",
      session: 2,
      turn: 3,
      kind: "note",
      data: { a: 1 },
    };
    expect(asRow(good)).toEqual(good);
    expect(asRow({ ...good, data: "x", session: null, turn: undefined })).toMatchObject({
      session: null,
      turn: null,
      data: {},
    });
    for (const bad of [
      null,
      7,
      [],
      {},
      { ...good, seq: "1" },
      { ...good, seq: 1.5 },
      { ...good, kind: 1 },
    ]) {
      expect(asRow(bad)).toBeNull();
    }
  });
});

describe("prompts", () => {
  const asked = new Journal().add("approval_requested", { approval: 1, action: "run" }).rows;
  const answered = new Journal(1, 50).add("approval_answered", {
    approval: 1,
    approved: true,
  }).rows;

  function prompts(rows: typeof asked): Prompts {
    const made = new Prompts();
    for (const row of rows) made.apply(row);
    return made;
  }

  it("are open until they are answered or withdrawn", () => {
    expect(prompts(asked).open).toMatchObject([
      { type: "approval", id: 1, session: 1, action: "run" },
    ]);
    expect(prompts([...asked, ...answered]).open).toEqual([]);
    const ask = new Journal().add("ask_user", { ask: 1, questions: [] }).rows;
    expect(prompts([...ask, ...asked]).open).toHaveLength(2);
    expect(prompts([...ask, ...new Journal().add("ask_withdrawn", { ask: 1 }).rows]).open).toEqual(
      [],
    );
  });

  it("do not come back from a listing that was on its way", () => {
    const made = prompts(asked);
    const mark = made.mark();
    for (const row of answered) made.apply(row);
    made.replace([{ id: 1, session: 1, action: "run", at: "" }], [], mark);
    expect(made.open).toEqual([]);
  });

  it("are not lost to a listing that was made before them", () => {
    const made = new Prompts();
    const mark = made.mark();
    for (const row of asked) made.apply(row);
    made.replace([], [], mark);
    expect(made.open).toHaveLength(1);
  });

  it("end when the daemon no longer lists them", () => {
    const made = prompts(asked);
    made.replace([], [{ id: 9, session: 4, questions: [{ question: "?" }], at: "x" }], made.mark());
    expect(made.open).toMatchObject([{ type: "ask", id: 9, session: 4 }]);
  });

  it("show the one of the session in view, then the oldest, and keep what was turned to", () => {
    const open = [1, 2, 3].map((session) => ({
      type: "ask" as const,
      id: session * 10,
      session,
      questions: [],
      at: "",
    }));
    expect(shownAt(open, null, null)).toBe(0);
    expect(shownAt(open, null, 2)).toBe(1);
    expect(shownAt(open, null, 9)).toBe(0);
    const chosen = { key: promptKey(open[2]!), session: 2 };
    expect(shownAt(open, chosen, 2)).toBe(2);
    // Elsewhere, and when it is over, it holds no longer.
    expect(shownAt(open, chosen, 1)).toBe(0);
    expect(shownAt(open.slice(0, 2), chosen, 2)).toBe(1);
    expect(shownAt([], chosen, 2)).toBe(0);
  });
});

describe("what is to be approved", () => {
  it("hides nothing", () => {
    for (const [given, want] of [
      ["echo grün \u65e5\n\tls", "echo grün \u65e5\n\tls"],
      ["\u202e. r- mr", "\\u{202e}. r- mr"],
      ["r\u200bm \u2066x\u2069 \ufeff", "r\\u{200b}m \\u{2066}x\\u{2069} \\u{feff}"],
      ["echo \u001b[2K\r\u{e0041}", "echo \\u{1b}[2K\\u{d}\\u{e0041}"],
    ] as const) {
      expect(exact(given)).toBe(want);
    }
  });
});

describe("sessions", () => {
  const session = asSession({
    id: 1,
    agent: "coder",
    title: "Fix it",
    workspace: "/w",
    cost: "0.1",
  }) as Session;

  function after(start: readonly Session[], journal: Journal): readonly Session[] {
    return journal.rows.reduce(applyToSessions, start);
  }

  it("follow the journal", () => {
    const journal = new Journal().message(1, "a").message(2, "b").start();
    expect(after([session], journal)[0]).toMatchObject({ messages: 2, queued: 1, active: true });
    journal.end().add("session_titled", { title: "New" }).add("session_closed", {});
    expect(after([session], journal)[0]).toMatchObject({
      active: false,
      closed: true,
      title: "New",
      queued: 0,
    });
    const created = new Journal(7).add("session_created", { agent: "shell", workspace: "/x" });
    expect(after([session], created)).toHaveLength(2);
    expect(after(after([session], created), created)).toHaveLength(2);
  });

  it("are the same list when nothing in it changed", () => {
    const list = [session];
    expect(after(list, new Journal().text("a"))).toBe(list);
    expect(after(list, new Journal(99).message(1, "a"))).toBe(list);
  });

  it("keep when they were used over a listing that does not say it", () => {
    const now = Date.parse("2026-01-02T00:00:00Z");
    const listed = [
      { id: 1, alive_secs: 60 },
      { id: 2, alive_secs: 60 },
    ];
    const merged = mergeListing(listed, [{ ...session, lastAt: "2026-01-03T00:00:00.000Z" }], now);
    expect(merged.map(({ lastAt }) => lastAt)).toEqual([
      "2026-01-03T00:00:00.000Z",
      "2026-01-01T23:59:00.000Z",
    ]);
  });

  it("are found by every word, newest first", () => {
    const other = { ...session, id: 2, title: "Write docs", lastAt: "2026-01-01" };
    expect(searchSessions([session, other], "").map(({ id }) => id)).toEqual([2, 1]);
    expect(searchSessions([session, other], "FIX coder").map(({ id }) => id)).toEqual([1]);
    expect(searchSessions([session, other], "#2").map(({ id }) => id)).toEqual([2]);
    expect(searchSessions([session, other], "nope")).toEqual([]);
    expect(titleOf({ id: 3, title: "" })).toBe("Session 3");
  });
});

describe("routes", () => {
  it("go to the address bar and back", () => {
    const routes: Route[] = [
      { page: "home" },
      { page: "session", session: 12 },
      { page: "files", session: 1, path: "", at: null },
      { page: "files", session: 1, path: "src/a b/ü#?.rs", at: 7 },
      { page: "terminal", worker: "a/b", shell: null, session: null },
      { page: "terminal", worker: "w", shell: "s 1", session: 3 },
      { page: "settings" },
    ];
    for (const route of routes) expect(parseRoute(formatRoute(route))).toEqual(route);
    for (const odd of ["#/s/x", "#/nowhere", "", "#/s/1e3", "#main"]) {
      expect(parseRoute(odd)).toEqual({ page: "home" });
    }
    expect(parseRoute("#/s/1/files/%E0%A4%A")).toMatchObject({ path: "%E0%A4%A" });
  });

  it("hold a pairing code only where there is one", () => {
    for (const link of ["#code=012345", "#/pair/012345", "#012345"])
      expect(pairingCode(link)).toBe("012345");
    for (const other of ["", "#/s/123456", "#code=12345", "#code=1234567"])
      expect(pairingCode(other)).toBeNull();
  });
});

describe("diffs", () => {
  const unified =
    "--- a/x\n+++ b/x\n@@ -2,3 +2,4 @@ fn main\n same\n-old line\n+new line\n+added\n end\n\\ No newline at end of file\n";

  it("have numbers on both sides", () => {
    const lines = parseUnified(unified);
    expect(lines).toEqual([
      { kind: "hunk", text: "fn main", old: null, new: null },
      { kind: "context", text: "same", old: 2, new: 2 },
      { kind: "remove", text: "old line", old: 3, new: null },
      { kind: "add", text: "new line", old: null, new: 3 },
      { kind: "add", text: "added", old: null, new: 4 },
      { kind: "context", text: "end", old: 4, new: 5 },
    ]);
    expect(stats(lines)).toEqual({ added: 2, removed: 1 });
  });

  it("stand side by side", () => {
    const pairs = sideBySide(parseUnified(unified));
    expect(pairs.map(({ left, right }) => [left?.text, right?.text])).toEqual([
      ["fn main", "fn main"],
      ["same", "same"],
      ["old line", "new line"],
      [undefined, "added"],
      ["end", "end"],
    ]);
    expect(changedPart("old line", "new line")).toEqual({ from: 0, left: 3, right: 3 });
    expect(changedPart("aa", "aaa")).toEqual({ from: 2, left: 2, right: 3 });
  });

  it("have a mark where lines are left out, and only there", () => {
    const kinds = (unified: string) => parseUnified(unified).map(({ kind }) => kind);
    expect(kinds("@@ -1,2 +1,2 @@\n-a\n+b\n c\n@@ -9 +9 @@\n-d\n+e\n")).toEqual([
      "remove",
      "add",
      "context",
      "hunk",
      "remove",
      "add",
    ]);
    expect(kinds("@@ -0,0 +1 @@\n+new\n")).toEqual(["add"]);
    expect(kinds("@@ -2 +2 @@\n-a\n+b\n")).toEqual(["hunk", "remove", "add"]);
  });

  it("of nothing are empty", () => {
    expect(parseUnified("")).toEqual([]);
    expect(parseUnified("Binary files differ\n")).toEqual([]);
  });
});

describe("numbers and times", () => {
  it("read well", () => {
    expect([12, 1500, 59_400, 61_000, 120_000, 3_720_000].map(duration)).toEqual([
      "12 ms",
      "1.5 s",
      "59 s",
      "1 min 1 s",
      "2 min",
      "1 h 2 min",
    ]);
    expect([0, 999, 1500, 2_000_000_000].map(bytes)).toEqual(["0 B", "999 B", "1.5 KB", "2.0 GB"]);
    expect([999, 12_345, 123_456, 2_400_000].map(count)).toEqual(["999", "12.3k", "123k", "2.4M"]);
    expect([plural(1, "file"), plural(2, "file")]).toEqual(["1 file", "2 files"]);
    expect([basename("/a/b/"), basename("b"), basename("/")]).toEqual(["b", "b", "/"]);
    expect([folderName("/h/instances/coder-3/workspace"), folderName("/src/app/")]).toEqual([
      "coder-3",
      "app",
    ]);
    expect(
      [
        { workspace: "/h/instances/coder-3/workspace", worker: "" },
        { workspace: "/src/app/", worker: "box" },
        { workspace: "", worker: "" },
      ].map(place),
    ).toEqual([[], ["app", "box"], []]);
    expect(
      ["3f2a9c01-0b1d-4d52-8c6e-6b8a2a4e9f10", "build"].map((shell) => shellName(shell)),
    ).toEqual(["Shell 4e9f10", "Shell build"]);
    const now = Date.parse("2026-01-10T00:00:00Z");
    expect(
      ["2026-01-10T00:00:00Z", "2026-01-09T23:50:00Z", "2026-01-08T00:00:00Z", "x"].map((at) =>
        ago(at, now),
      ),
    ).toEqual(["now", "10 min", "2 d", ""]);
  });

  it("add money up exactly", () => {
    expect(addDecimals(["0.1", "0.2"])).toBe("0.3");
    expect(addDecimals(["1", "0.005", "-0.01", "x"])).toBe("0.995");
    expect(addDecimals([])).toBe("0");
    expect(addDecimals(["9007199254740993", "0.1"])).toBe("9007199254740993.1");
    expect(["1", "0.41", "0.4132", "0.0012", "x"].map(money)).toEqual([
      "$1.00",
      "$0.41",
      "$0.41",
      "$0.0012",
      "$0.00",
    ]);
    expect([isZero("0.00"), isZero("0.01"), isZero("")]).toEqual([true, false, true]);
  });

  it("fill days without use", () => {
    const today = new Date("2026-03-01T23:00:00Z");
    const rows = fillDays(
      [{ key: "2026-02-28", input_tokens: 2, output_tokens: 3, cost: "0.5" }],
      3,
      today,
    );
    expect(rows.map(({ key }) => key)).toEqual(["2026-02-27", "2026-02-28", "2026-03-01"]);
    expect(rows.map((row) => amount(row, "tokens"))).toEqual([0, 5, 0]);
    expect(rows.map((row) => amount(row, "cost"))).toEqual([0, 0.5, 0]);
  });
});

describe("words", () => {
  it("tell a tool call in a line", () => {
    expect(summary({ path: "a.rs", command: "ls\n -l" })).toBe("ls -l");
    expect(summary({ command: ["ls", "-l"] })).toBe("ls -l");
    expect(summary({ other: "x" })).toBe("x");
    expect(summary({ n: 1 })).toBe('{"n":1}');
    expect(summary({})).toBe("");
    expect(summary({ command: "x".repeat(500) })).toHaveLength(160);
  });

  it("make answers readable", () => {
    expect(readableAnswer('[["a","b"],["c"]]')).toBe("a, b; c");
    expect(readableAnswer("plain [text")).toBe("plain [text");
  });

  it("leave the terminal's own characters out", () => {
    expect(
      plainTerminal("\u001b[1;32mok\u001b[0m\r\n10%\r20%\rdone\n\u001b]0;title\u0007x\u0000"),
    ).toBe("ok\ndone\nx");
  });

  it("name a device", () => {
    const iphone =
      "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 Version/18.0 Safari/604.1";
    expect(deviceName(iphone)).toBe("Safari on iPhone");
    expect(deviceName("Mozilla/5.0 (X11; Linux x86_64) Chrome/148.0 Safari/537.36")).toBe(
      "Chrome on Linux",
    );
    expect(deviceName("curl")).toBe("Browser");
  });
});

describe("chunks", () => {
  it("hold all blocks in order, and most stay when older ones come in front", () => {
    const journal = new Journal();
    for (let i = 1; i <= 200; i += 1) journal.message(i, `${i}`).start(i).text("a", `m${i}`).end();
    const transcript = new Transcript();
    for (const row of journal.rows) transcript.apply(row);
    const { blocks } = transcript;
    const all = chunked(blocks);
    expect(all.flatMap((chunk) => chunk.blocks)).toEqual(blocks);
    const keys = new Set(all.map(({ key }) => key));
    const later = chunked(blocks.slice(100)).map(({ key }) => key);
    expect(later.filter((key) => !keys.has(key)).length).toBeLessThanOrEqual(2);
    expect(chunked([])).toEqual([]);
  });
});
