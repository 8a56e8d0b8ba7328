import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";

/** WCAG 2.2, 1.4.3: text against its ground, and 1.4.11 for the edges of controls. */
const TEXT = 4.5;
const EDGE = 3;
/** Our own: two tints beside each other. */
const SEEN = 1.3;

type Theme = Record<string, string>;

const css = readFileSync(new URL("themes.css", import.meta.url), "utf8");

function themes(): Map<string, Theme> {
  const found = new Map<string, Theme>();
  for (const [, selector = "", body = ""] of css.matchAll(/(:root[^{]*)\{([^}]*)\}/g)) {
    const name = /data-theme="(\w+)"/.exec(selector)?.[1] ?? "system dark";
    const colours = [...body.matchAll(/--([\w-]+):\s*(#[0-9a-f]{6})/g)];
    found.set(name, Object.fromEntries(colours.map(([, key = "", value = ""]) => [key, value])));
  }
  return found;
}

function luminance(colour: string): number {
  const [r = 0, g = 0, b = 0] = [1, 3, 5]
    .map((at) => Number.parseInt(colour.slice(at, at + 2), 16) / 255)
    .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(a: string, b: string): number {
  const [high = 0, low = 0] = [luminance(a), luminance(b)].toSorted((x, y) => y - x);
  return (high + 0.05) / (low + 0.05);
}

const pairs: [string, string, number][] = [
  ...["ground", "surface", "sunken"].flatMap((ground): [string, string, number][] => [
    ["text", ground, TEXT],
    ["muted", ground, TEXT],
    ["accent", ground, TEXT],
    ["good", ground, TEXT],
    ["bad", ground, TEXT],
    ["warn", ground, TEXT],
    ["line-strong", ground, EDGE],
  ]),
  ["accent-ink", "accent", TEXT],
  ["accent-ink", "accent-strong", TEXT],
  ...["accent", "good", "bad", "warn"].flatMap((tone): [string, string, number][] => [
    [tone, `${tone}-soft`, TEXT],
    ["text", `${tone}-soft`, TEXT],
  ]),
  ["muted", "accent-soft", TEXT],
  ...["good", "bad"].flatMap((tone): [string, string, number][] => [
    ["text", `${tone}-mark`, TEXT],
    // The words that changed are seen in the line that changed.
    [`${tone}-mark`, `${tone}-soft`, SEEN],
  ]),
];

describe("themes", () => {
  it("are the five that can be chosen, and the system's dark one", () => {
    expect([...themes().keys()].toSorted()).toEqual([
      "dark",
      "light",
      "midnight",
      "paper",
      "system dark",
    ]);
    expect(themes().get("system dark")).toEqual(themes().get("dark"));
  });

  for (const [name, theme] of themes()) {
    it.each(pairs)(`${name}: %s on %s has enough contrast`, (front, back, least) => {
      const [a, b] = [theme[front], theme[back]];
      if (a === undefined || b === undefined) throw new Error(`${front} or ${back} is missing`);
      expect(contrast(a, b)).toBeGreaterThanOrEqual(least);
    });
  }
});
