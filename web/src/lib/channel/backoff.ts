/** The seed's reconnect delays: 1 s doubled up to 30 s, of which 50 to 100 % is waited. */

const BASE_MS = 1000;
const MAX_MS = 30_000;

/** The delay before try number `attempt`, which counts from 1. */
export function delay(attempt: number, random: () => number = Math.random): number {
  const full = Math.min(BASE_MS * 2 ** (attempt - 1), MAX_MS);
  return full * (0.5 + random() / 2);
}
