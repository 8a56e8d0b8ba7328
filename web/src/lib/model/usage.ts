/** Rows of a usage report as a chart needs them. Pure. */

import type { UsageRow } from "../channel";

/** One row for each of the last days, in order: days without use are zero, not missing. */
export function fillDays(rows: readonly UsageRow[], days: number, today: Date): UsageRow[] {
  const byDay = new Map(rows.map((row) => [row.key, row]));
  return Array.from({ length: days }, (_, i) => {
    const day = new Date(today);
    // The daemon books under days of UTC.
    day.setUTCDate(day.getUTCDate() - (days - 1 - i));
    const key = day.toISOString().slice(0, 10);
    return byDay.get(key) ?? { key, input_tokens: 0, output_tokens: 0, cost: "0" };
  });
}

/** What a bar stands for. Only heights are floats; sums of money never are. */
export function amount(row: UsageRow, show: "cost" | "tokens"): number {
  return show === "cost" ? Number(row.cost) || 0 : row.input_tokens + row.output_tokens;
}
