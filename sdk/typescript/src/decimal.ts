/** Non-negative decimals in strings, added without ever being a float. */

/** Checks that a text is a decimal amount such as `0.055`. */
export function checkAmount(text: unknown): string {
  if (typeof text !== "string" || !/^\d+(\.\d+)?$/.test(text)) {
    throw new TypeError(`a cost is a decimal in a string such as "0.055", not ${JSON.stringify(text)}`);
  }
  return text;
}

/** Returns the sum of two amounts. */
export function addAmounts(a: string, b: string): string {
  const places = Math.max(decimals(a), decimals(b));
  const digits = (scaled(a, places) + scaled(b, places)).toString().padStart(places + 1, "0");
  return places === 0 ? digits : `${digits.slice(0, -places)}.${digits.slice(-places)}`;
}

function decimals(text: string): number {
  return text.split(".")[1]?.length ?? 0;
}

function scaled(text: string, places: number): bigint {
  const [whole = "", fraction = ""] = text.split(".");
  return BigInt(whole + fraction.padEnd(places, "0"));
}
