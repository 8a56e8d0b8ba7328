/** How this browser shows things. Nothing secret: it is in local storage. */

export const THEMES = ["system", "light", "dark", "paper", "midnight"] as const;
export type Theme = (typeof THEMES)[number];
export const TEXT_SIZES = ["small", "normal", "large"] as const;
export type TextSize = (typeof TEXT_SIZES)[number];

interface Stored {
  theme: Theme;
  textSize: TextSize;
  enterSends: boolean;
  unfoldThinking: boolean;
  notify: boolean;
}

const STORAGE = "quintet.settings";

function defaults(): Stored {
  // On a touch keyboard Enter is for a new line.
  const touch = matchMedia("(pointer: coarse)").matches;
  return {
    theme: "system",
    textSize: "normal",
    enterSends: !touch,
    unfoldThinking: false,
    notify: false,
  };
}

function read(): Stored {
  const stored = defaults();
  try {
    const value: unknown = JSON.parse(localStorage.getItem(STORAGE) ?? "{}");
    if (typeof value !== "object" || value === null) return stored;
    const given = value as Partial<Stored>;
    if (given.theme && THEMES.includes(given.theme)) stored.theme = given.theme;
    if (given.textSize && TEXT_SIZES.includes(given.textSize)) stored.textSize = given.textSize;
    for (const key of ["enterSends", "unfoldThinking", "notify"] as const) {
      if (typeof given[key] === "boolean") stored[key] = given[key];
    }
  } catch {
    // Unreadable settings are no settings.
  }
  return stored;
}

export class Settings {
  #values = $state<Stored>(read());

  get values(): Readonly<Stored> {
    return this.#values;
  }

  set<K extends keyof Stored>(key: K, value: Stored[K]): void {
    this.#values[key] = value;
    this.apply();
    try {
      localStorage.setItem(STORAGE, JSON.stringify(this.#values));
    } catch {
      // Without storage the choice lasts as long as the page.
    }
  }

  /** Puts theme and text size on the page. */
  apply(): void {
    const root = document.documentElement;
    if (this.#values.theme === "system") delete root.dataset["theme"];
    else root.dataset["theme"] = this.#values.theme;
    root.dataset["text"] = this.#values.textSize;
    // The browser's own bars take the colour of the page.
    const colour = getComputedStyle(root).getPropertyValue("--surface").trim();
    document.querySelector('meta[name="theme-color"]')?.setAttribute("content", colour);
  }
}
