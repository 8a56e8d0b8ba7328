/** Unified diffs as lines to show, one column or two. Pure. */

export interface DiffLine {
  kind: "context" | "add" | "remove" | "hunk";
  text: string;
  /** Line numbers in the old and the new file. */
  old: number | null;
  new: number | null;
}

export interface DiffStats {
  added: number;
  removed: number;
}

/** Lines beyond this are not shown; the reader is told how many there are. */
export const MAX_LINES = 4000;

const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@ ?(.*)$/;

export function parseUnified(unified: string): DiffLine[] {
  const lines: DiffLine[] = [];
  let oldLine = 0;
  let newLine = 0;
  let inHunk = false;
  for (const raw of unified.replace(/\n$/, "").split("\n")) {
    const hunk = HUNK.exec(raw);
    if (hunk !== null) {
      oldLine = Number(hunk[1]);
      newLine = Number(hunk[2]);
      inHunk = true;
      const text = hunk[3] ?? "";
      // A mark for what is left out; before the first line that is nothing.
      if (lines.length > 0 || text !== "" || Math.max(oldLine, newLine) > 1) {
        lines.push({ kind: "hunk", text, old: null, new: null });
      }
      continue;
    }
    if (!inHunk || raw.startsWith("\\")) continue;
    const text = raw.slice(1);
    if (raw.startsWith("+")) {
      lines.push({ kind: "add", text, old: null, new: newLine });
      newLine += 1;
    } else if (raw.startsWith("-")) {
      lines.push({ kind: "remove", text, old: oldLine, new: null });
      oldLine += 1;
    } else if (raw.startsWith(" ") || raw === "") {
      lines.push({ kind: "context", text, old: oldLine, new: newLine });
      oldLine += 1;
      newLine += 1;
    } else {
      // The header of a next file: its hunks follow.
      inHunk = false;
    }
  }
  return lines;
}

export function stats(lines: readonly DiffLine[]): DiffStats {
  let added = 0;
  let removed = 0;
  for (const { kind } of lines) {
    if (kind === "add") added += 1;
    if (kind === "remove") removed += 1;
  }
  return { added, removed };
}

export interface Pair {
  left: DiffLine | null;
  right: DiffLine | null;
}

/** The same lines in two columns: what was removed stands beside what came in its place. */
export function sideBySide(lines: readonly DiffLine[]): Pair[] {
  const pairs: Pair[] = [];
  let removed: DiffLine[] = [];
  let added: DiffLine[] = [];
  const flush = (): void => {
    for (let i = 0; i < Math.max(removed.length, added.length); i += 1) {
      pairs.push({ left: removed[i] ?? null, right: added[i] ?? null });
    }
    removed = [];
    added = [];
  };
  for (const line of lines) {
    if (line.kind === "remove") removed.push(line);
    else if (line.kind === "add") added.push(line);
    else {
      flush();
      pairs.push({ left: line, right: line });
    }
  }
  flush();
  return pairs;
}

/** Where two lines differ: what they share at both ends is left out. */
export function changedPart(
  left: string,
  right: string,
): { from: number; left: number; right: number } {
  const limit = Math.min(left.length, right.length);
  let from = 0;
  while (from < limit && left[from] === right[from]) from += 1;
  let end = 0;
  while (end < limit - from && left[left.length - 1 - end] === right[right.length - 1 - end])
    end += 1;
  return { from, left: left.length - end, right: right.length - end };
}
