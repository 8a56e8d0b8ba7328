/**
 * Rows of the daemon's journal, as they come over the channel.
 *
 * A row whose shape is not this one is refused here, so that everything behind can rely on it. A row
 * of an unknown kind is kept: it moves the cursor and shows nothing.
 */

export interface Row {
  /** Counts up by one over the whole journal. */
  seq: number;
  /** RFC 3339, UTC. */
  at: string;
  session: number | null;
  /** The message that the row belongs to, where the daemon says so. */
  turn: number | null;
  kind: string;
  data: Record<string, unknown>;
  /** There where the daemon cut long texts of `data`: they must not be written back. */
  cut?: true;
}

export function asRow(value: unknown): Row | null {
  if (!isObject(value)) return null;
  const { seq, at, session, turn, kind, data, cut } = value;
  if (typeof seq !== "number" || !Number.isSafeInteger(seq) || seq < 0) return null;
  if (typeof at !== "string" || typeof kind !== "string") return null;
  return {
    seq,
    at,
    session: typeof session === "number" ? session : null,
    turn: typeof turn === "number" ? turn : null,
    kind,
    data: isObject(data) ? data : {},
    ...(cut === true && { cut }),
  };
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The text under a key, empty where there is none. */
export function text(data: Record<string, unknown>, key: string): string {
  const value = data[key];
  return typeof value === "string" ? value : "";
}

export function number(data: Record<string, unknown>, key: string): number | null {
  const value = data[key];
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

export function bool(data: Record<string, unknown>, key: string): boolean {
  return data[key] === true;
}

/** Milliseconds since 1970; 0 for what is no time. */
export function millis(at: string): number {
  const parsed = Date.parse(at);
  return Number.isNaN(parsed) ? 0 : parsed;
}

export interface QuestionOption {
  label: string;
  description: string;
}

export interface Question {
  question: string;
  header: string;
  options: QuestionOption[];
  multiSelect: boolean;
}

export function asQuestions(value: unknown): Question[] {
  if (!Array.isArray(value)) return [];
  return value.filter(isObject).map((question) => ({
    question: text(question, "question"),
    header: text(question, "header"),
    multiSelect: bool(question, "multi_select"),
    options: (Array.isArray(question["options"]) ? question["options"] : [])
      .filter(isObject)
      .map((option) => ({
        label: text(option, "label"),
        description: text(option, "description"),
      })),
  }));
}
