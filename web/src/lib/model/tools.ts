/** What a tool call says in one line. */

const TELLING = [
  "command",
  "cmd",
  "pattern",
  "query",
  "path",
  "file_path",
  "file",
  "url",
  "question",
  "name",
];

/** The argument that tells most of a call, in one line. */
export function summary(args: Record<string, unknown>): string {
  for (const key of TELLING) {
    const value = args[key];
    if (typeof value === "string" && value !== "") return oneLine(value);
    if (Array.isArray(value) && value.every((word) => typeof word === "string")) {
      return oneLine(value.join(" "));
    }
  }
  const first = Object.entries(args).find(([, value]) => typeof value === "string" && value !== "");
  if (first !== undefined) return oneLine(String(first[1]));
  return Object.keys(args).length === 0 ? "" : oneLine(JSON.stringify(args));
}

export function oneLine(text: string): string {
  const line = text.trim().replaceAll(/\s+/g, " ");
  return line.length > 160 ? `${line.slice(0, 159)}…` : line;
}

/**
 * A text with nothing in it hidden, for what a person is to judge: characters that a browser would
 * not draw, or that move what is around them, are written as escapes. Line ends and tabs stay.
 */
export function exact(text: string): string {
  return text.replaceAll(/[\p{Cc}\p{Cf}\u2028\u2029\u115f\u1160\u3164\uffa0]/gu, (char) =>
    char === "\n" || char === "\t" ? char : `\\u{${char.codePointAt(0)?.toString(16)}}`,
  );
}

/** Answers come as JSON lists, one for each question; this is how they read. */
export function readableAnswer(answer: string): string {
  try {
    const lists: unknown = JSON.parse(answer);
    if (Array.isArray(lists) && lists.length > 0) {
      return lists.map((list) => (Array.isArray(list) ? list.join(", ") : String(list))).join("; ");
    }
  } catch {
    // A plain text.
  }
  return answer;
}
