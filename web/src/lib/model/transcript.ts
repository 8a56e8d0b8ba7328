/**
 * From journal rows to what a conversation shows. Pure: no clock, no network; the same rows give the
 * same blocks, live and later.
 *
 * Rows must come in ascending order of `seq`; {@link Timeline} sees to that and rebuilds when older
 * history arrives.
 */

import type { Approval, Ask, Block, Said, Tool, TurnEnd } from "./blocks";
import { asQuestions, bool, isObject, millis, number, text, type Row } from "./rows";

/** The longest text that one block keeps; the beginning of longer output is left out. */
export const MAX_BLOCK_TEXT = 400_000;

interface Waiting {
  message: number;
  compaction: boolean;
}

type Data = Record<string, unknown>;

export class Transcript {
  readonly blocks: Block[] = [];
  title: string | null = null;
  closed = false;
  /** When the running turn began, null when none runs. */
  turnSince: string | null = null;
  /** What the running turn has used so far. */
  inputTokens = 0;
  outputTokens = 0;

  #waiting: Waiting[] = [];
  #summarising = false;

  get busy(): boolean {
    return this.turnSince !== null;
  }

  /** Messages that wait for their turn, oldest first. */
  get queue(): Said[] {
    return this.blocks.filter(
      (block): block is Said => block.kind === "said" && block.state === "waiting",
    );
  }

  apply(row: Row): void {
    const { data } = row;
    switch (row.kind) {
      case "session_titled":
        this.title = text(data, "title");
        return;
      case "session_closed":
        this.closed = true;
        this.turnSince = null;
        this.#note(row, "This session was closed.");
        return;
      case "session_imported":
        this.#note(row, `Imported from session ${number(data, "from_session") ?? "?"}.`);
        return;
      case "message":
        return this.#message(row);
      case "message_edited":
        return this.#said(number(data, "id"), (said) => ({
          ...said,
          text: text(data, "text"),
          cut: row.cut === true,
        }));
      case "message_removed":
        this.#waiting = this.#waiting.filter(({ message }) => message !== number(data, "id"));
        return this.#said(number(data, "id"), (said) => ({ ...said, state: "removed" }));
      case "steer":
        this.#close();
        this.blocks.push({
          ...base(row),
          kind: "steer",
          text: text(data, "text"),
          by: text(data, "sender"),
        });
        return;
      case "cancel":
        return this.#note(row, "Stopping…");
      case "turn_started":
        return this.#turnStarted(row);
      case "turn_ended":
        return this.#turnEnded(row);
      case "text_delta":
        return this.#text(row, text(data, "text"));
      case "text_final":
        return this.#textFinal(row);
      case "thinking":
        return this.#thinking(row);
      case "tool_call":
        return this.#toolCall(row);
      case "tool_result":
        return this.#toolResult(data);
      case "terminal_output":
        return this.#terminal(row);
      case "code_block":
        this.#close();
        this.blocks.push({
          ...base(row),
          kind: "code",
          language: text(data, "language"),
          code: text(data, "code"),
        });
        return;
      case "file_change":
        this.#close();
        this.blocks.push({
          ...base(row),
          kind: "file",
          path: text(data, "path"),
          change: text(data, "change"),
          diff: text(data, "diff"),
        });
        return;
      case "usage":
        this.inputTokens = number(data, "input_tokens") ?? 0;
        this.outputTokens = number(data, "output_tokens") ?? 0;
        return;
      case "command":
        return this.#command(row);
      case "commands_undone":
        return this.#commandsUndone(row);
      case "ask_user":
        return this.#ask(row);
      case "ask_answered":
        return this.#askOver(data, {
          state: "answered",
          answer: text(data, "answer"),
          by: text(data, "by"),
        });
      case "ask_withdrawn":
        return this.#askOver(data, { state: "withdrawn" });
      case "approval_requested":
        return this.#approval(row, "open");
      case "approval_answered":
        return this.#approvalAnswered(row);
      case "approval_withdrawn":
        return this.#approvalOver(data, { state: "withdrawn" });
      case "compacted":
        this.#close();
        this.blocks.push({
          ...base(row),
          kind: "compacted",
          compaction: number(data, "compaction"),
          summary: text(data, "summary"),
          undone: false,
        });
        return;
      case "compaction_undone":
        return this.#compactionUndone(row);
      case "agent_stalled": {
        const what = text(data, "waiting_for");
        return this.#note(
          row,
          `The agent makes no progress${what ? `; it waits for ${what}` : ""}.`,
        );
      }
      case "agent_state_rejected":
        return this.#note(row, `The agent's state was refused: ${text(data, "reason")}`, "bad");
      case "note": {
        const told = text(data, "text") || text(data, "message");
        return told ? this.#note(row, told) : undefined;
      }
      case "cron_run":
        return this.#cronRun(row);
      default:
        // Kinds that say nothing to a reader of the conversation, and those of later versions.
        return;
    }
  }

  // --- messages and turns ----------------------------------------------------------------------

  #message(row: Row): void {
    const message = number(row.data, "id");
    if (message === null) return;
    const compaction = text(row.data, "purpose") === "compaction";
    this.#waiting.push({ message, compaction });
    if (compaction) {
      this.#note(row, "The agent is asked for a summary of the conversation.");
      return;
    }
    this.blocks.push({
      id: `m${message}`,
      at: row.at,
      kind: "said",
      message,
      sender: text(row.data, "sender"),
      text: text(row.data, "text"),
      cut: row.cut === true,
      state: "waiting",
    });
  }

  #said(message: number | null, change: (said: Said) => Said): void {
    this.#replaceLast(
      (block): block is Said => block.kind === "said" && block.message === message,
      change,
    );
  }

  #turnStarted(row: Row): void {
    this.turnSince = row.at;
    this.inputTokens = 0;
    this.outputTokens = 0;
    this.#replaceLast(
      (block): block is TurnEnd => block.kind === "end" && block.last,
      (end) => ({ ...end, last: false }),
    );
    // Without a turn number it is the oldest that waits: the daemon takes them in order.
    const index =
      row.turn === null ? 0 : this.#waiting.findIndex(({ message }) => message === row.turn);
    const [begun] = index < 0 ? [] : this.#waiting.splice(index, 1);
    this.#summarising = begun?.compaction ?? false;
    if (begun === undefined || begun.compaction) return;
    // A message that waited is shown where its turn begins, not where it was typed.
    const place = this.blocks.findLastIndex(
      (block) => block.kind === "said" && block.message === begun.message,
    );
    const [said] = place < 0 ? [] : this.blocks.splice(place, 1);
    if (said?.kind === "said") this.blocks.push({ ...said, state: "heard" });
  }

  #turnEnded(row: Row): void {
    const { data } = row;
    const since = this.turnSince;
    this.turnSince = null;
    this.#summarising = false;
    this.#close();
    this.#abandon();
    const usage = isObject(data["usage"]) ? data["usage"] : {};
    this.blocks.push({
      ...base(row),
      kind: "end",
      finish: text(data, "finish_reason"),
      error: text(data, "error"),
      retryable: bool(data, "retryable"),
      inputTokens: number(usage, "input_tokens") ?? 0,
      outputTokens: number(usage, "output_tokens") ?? 0,
      cost: text(usage, "cost"),
      millis: since === null ? null : Math.max(0, millis(row.at) - millis(since)),
      last: true,
    });
  }

  /** Calls without a result when their turn is over will never have one. */
  #abandon(): void {
    for (let i = this.blocks.length - 1; i >= 0; i -= 1) {
      const block = this.blocks[i];
      if (block?.kind === "end") return;
      if (block?.kind === "tool" && block.state === "running") {
        this.blocks[i] = { ...block, state: "abandoned" };
      }
    }
  }

  // --- the agent's output ------------------------------------------------------------------------

  #text(row: Row, more: string): void {
    if (this.#summarising || more === "") return;
    const last = this.blocks.at(-1);
    if (last?.kind === "answer" && last.streaming) {
      this.blocks[this.blocks.length - 1] = { ...last, text: keepEnd(last.text + more) };
      return;
    }
    this.#close();
    this.blocks.push({
      ...base(row),
      kind: "answer",
      message: text(row.data, "message_id"),
      text: more,
      streaming: true,
    });
  }

  #textFinal(row: Row): void {
    const message = text(row.data, "message_id");
    // The deltas of it may lie before the first row that is known here.
    const shown = this.blocks.some((block) => block.kind === "answer" && block.message === message);
    if (!bool(row.data, "streamed") || !shown) this.#text(row, text(row.data, "text"));
    this.#close();
  }

  #thinking(row: Row): void {
    if (this.#summarising) return;
    const more = text(row.data, "text");
    const last = this.blocks.at(-1);
    if (last?.kind === "thinking" && last.streaming) {
      this.blocks[this.blocks.length - 1] = {
        ...last,
        text: keepEnd(last.text + more),
        until: row.at,
      };
      return;
    }
    this.#close();
    this.blocks.push({
      ...base(row),
      kind: "thinking",
      text: more,
      until: row.at,
      streaming: true,
    });
  }

  /** Nothing more comes to the block that was last. */
  #close(): void {
    const last = this.blocks.at(-1);
    if ((last?.kind === "answer" || last?.kind === "thinking") && last.streaming) {
      this.blocks[this.blocks.length - 1] = { ...last, streaming: false };
    }
  }

  #toolCall(row: Row): void {
    this.#close();
    const args = row.data["arguments"];
    this.blocks.push({
      ...base(row),
      kind: "tool",
      callId: text(row.data, "call_id"),
      name: text(row.data, "name"),
      args: isObject(args) ? args : {},
      state: "running",
      live: "",
      output: "",
      millis: null,
    });
  }

  #toolResult(data: Data): void {
    const callId = text(data, "call_id");
    this.#replaceLast(
      (block): block is Tool => block.kind === "tool" && block.callId === callId,
      (tool) => ({
        ...tool,
        state: bool(data, "is_error") ? "failed" : "done",
        output: keepEnd(outputText(data["output"])),
        millis: number(data, "duration_ms"),
      }),
    );
  }

  /** Output belongs to the call that runs; without one it stands alone. */
  #terminal(row: Row): void {
    const more = text(row.data, "data");
    const running = this.blocks.findLastIndex(
      (block) => block.kind === "tool" && block.state === "running",
    );
    const tool = this.blocks[running];
    if (tool?.kind === "tool") {
      this.blocks[running] = { ...tool, live: keepEnd(tool.live + more) };
      return;
    }
    const last = this.blocks.at(-1);
    if (last?.kind === "terminal") {
      this.blocks[this.blocks.length - 1] = { ...last, text: keepEnd(last.text + more) };
      return;
    }
    this.#close();
    this.blocks.push({ ...base(row), kind: "terminal", text: keepEnd(more) });
  }

  // --- commands in the workspace -----------------------------------------------------------------

  #command(row: Row): void {
    this.#close();
    const { data } = row;
    const code = number(data, "exit_code");
    const before = number(data, "before");
    const after = number(data, "after");
    this.blocks.push({
      ...base(row),
      kind: "command",
      worker: text(data, "worker"),
      command: text(data, "command"),
      cwd: text(data, "cwd"),
      state: code === 0 ? "done" : "failed",
      exitCode: code,
      ended: text(data, "ended"),
      millis: number(data, "duration_ms"),
      range: before !== null && after !== null && after > before ? [before, after] : null,
      paths: pathsOf(data["changed"]),
    });
  }

  #commandsUndone(row: Row): void {
    const paths = pathsOf(row.data["changed"]);
    const what = paths.length === 1 ? paths[0] : `${paths.length} files`;
    this.#note(row, `What commands had changed was taken back: ${what}.`);
  }

  // --- questions and approvals ---------------------------------------------------------------------

  #ask(row: Row): void {
    const ask = number(row.data, "ask");
    if (ask === null) return;
    this.#close();
    this.blocks.push({
      ...base(row),
      kind: "ask",
      ask,
      questions: asQuestions(row.data["questions"]),
      state: "open",
      answer: "",
      by: "",
    });
  }

  #askOver(data: Data, change: Partial<Ask>): void {
    const ask = number(data, "ask");
    this.#replaceLast(
      (block): block is Ask => block.kind === "ask" && block.ask === ask,
      (block) => ({ ...block, ...change }),
    );
  }

  #approval(row: Row, state: Approval["state"]): void {
    this.#close();
    const { data } = row;
    this.blocks.push({
      ...base(row),
      kind: "approval",
      approval: number(data, "approval"),
      action: text(data, "action"),
      command: text(data, "command"),
      cwd: text(data, "cwd"),
      worker: text(data, "worker"),
      reason: state === "open" ? text(data, "reason") : "",
      state,
      scope: text(data, "scope"),
      note: "",
      by: text(data, "by"),
    });
  }

  #approvalAnswered(row: Row): void {
    const { data } = row;
    const state = bool(data, "approved") ? "approved" : "denied";
    if (number(data, "approval") === null) {
      // Leave that was given before for the whole session: there was no request to answer.
      this.#approval(row, state);
      return;
    }
    this.#approvalOver(data, {
      state,
      scope: text(data, "scope"),
      note: text(data, "reason"),
      by: text(data, "by"),
    });
  }

  #approvalOver(data: Data, change: Partial<Approval>): void {
    const approval = number(data, "approval");
    this.#replaceLast(
      (block): block is Approval => block.kind === "approval" && block.approval === approval,
      (block) => ({ ...block, ...change }),
    );
  }

  // --- the rest --------------------------------------------------------------------------------------

  #compactionUndone(row: Row): void {
    const compaction = number(row.data, "compaction");
    for (const [i, block] of this.blocks.entries()) {
      if (block.kind === "compacted" && block.compaction === compaction) {
        this.blocks[i] = { ...block, undone: true };
      }
    }
    this.#note(row, "The compaction was undone; the agent has its earlier state back.");
  }

  #cronRun(row: Row): void {
    const state = text(row.data, "state");
    const told: Record<string, string> = {
      failed: `A scheduled run failed: ${text(row.data, "note")}`,
      skipped_quiet: "A scheduled run was skipped: quiet hours.",
      skipped_overlap: "A scheduled run was skipped: the one before had not ended.",
      missed: "A scheduled run was missed.",
    };
    const note = told[state];
    if (note !== undefined) this.#note(row, note, state === "failed" ? "bad" : "plain");
  }

  #note(row: Row, told: string, tone: "plain" | "bad" = "plain"): void {
    this.#close();
    this.blocks.push({ ...base(row), kind: "note", text: told, tone });
  }

  #replaceLast<T extends Block>(
    which: (block: Block) => block is T,
    change: (block: T) => T,
  ): void {
    const index = this.blocks.findLastIndex(which);
    const found = this.blocks[index];
    if (found !== undefined && which(found)) this.blocks[index] = change(found);
  }
}

function base(row: Row): { id: string; at: string } {
  return { id: `b${row.seq}`, at: row.at };
}

/** The paths of a list of changes. */
function pathsOf(changes: unknown): string[] {
  if (!Array.isArray(changes)) return [];
  return changes.filter(isObject).map((change) => text(change, "path"));
}

/** A tool's output as text: a string as it is, anything else as JSON. */
export function outputText(output: unknown): string {
  if (typeof output === "string") return output;
  if (output === null || output === undefined) return "";
  return JSON.stringify(output, null, 2);
}

function keepEnd(whole: string): string {
  if (whole.length <= MAX_BLOCK_TEXT) return whole;
  return `… (the beginning is left out here)\n${whole.slice(-MAX_BLOCK_TEXT / 2)}`;
}
