/** Numbers, times and sizes as a person reads them. */

export function duration(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  const rest = Math.floor(seconds % 60);
  if (minutes < 60) return rest > 0 ? `${minutes} min ${rest} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return minutes % 60 > 0 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
}

export function bytes(count: number): string {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let value = count;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

export function count(value: number): string {
  if (value < 10_000) return value.toLocaleString("en");
  if (value < 1_000_000) return `${(value / 1000).toFixed(value < 100_000 ? 1 : 0)}k`;
  return `${(value / 1_000_000).toFixed(1)}M`;
}

/** How long ago, in a word or two. */
export function ago(at: string, now: number): string {
  const then = Date.parse(at);
  if (Number.isNaN(then)) return "";
  const seconds = Math.round((now - then) / 1000);
  if (seconds < 45) return "now";
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.round(minutes / 60);
  if (hours < 24) return `${hours} h`;
  const days = Math.round(hours / 24);
  if (days < 7) return `${days} d`;
  return new Date(then).toLocaleDateString(undefined, { day: "numeric", month: "short" });
}

export function clock(at: string): string {
  const then = Date.parse(at);
  if (Number.isNaN(then)) return "";
  return new Date(then).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
}

export function dateTime(at: string): string {
  const then = Date.parse(at);
  if (Number.isNaN(then)) return "";
  return new Date(then).toLocaleString(undefined, {
    day: "numeric",
    month: "short",
    year: "numeric",
    hour: "2-digit",
    minute: "2-digit",
  });
}

/** A sum of decimals in strings, exactly: money is never added up as floats. */
export function addDecimals(values: readonly string[]): string {
  const parts = values
    .map((value) => /^(-?)(\d+)(?:\.(\d+))?$/.exec(value.trim()))
    .filter((match) => match !== null);
  const places = Math.max(0, ...parts.map((match) => (match[3] ?? "").length));
  let sum = 0n;
  for (const [, sign, whole, fraction = ""] of parts) {
    const scaled = BigInt(`${whole}${fraction.padEnd(places, "0")}`);
    sum += sign === "-" ? -scaled : scaled;
  }
  if (places === 0) return sum.toString();
  const negative = sum < 0n;
  const digits = (negative ? -sum : sum).toString().padStart(places + 1, "0");
  return `${negative ? "-" : ""}${digits.slice(0, -places)}.${digits.slice(-places)}`;
}

/** Money with at least two places and no more than are needed, four at the most. */
export function money(value: string): string {
  const match = /^(-?\d+)(?:\.(\d*))?$/.exec(value.trim());
  if (match === null) return "$0.00";
  const fraction = (match[2] ?? "").replace(/0+$/, "");
  if (fraction.length <= 2) return `$${match[1]}.${fraction.padEnd(2, "0")}`;
  const places = Number(match[1]) === 0 && fraction.startsWith("00") ? 4 : 2;
  return `$${Number(value).toFixed(places)}`;
}

export function isZero(decimal: string): boolean {
  return !/[1-9]/.test(decimal);
}

/** The last part of a path. */
export function basename(path: string): string {
  const trimmed = path.replace(/\/+$/, "");
  return trimmed.slice(trimmed.lastIndexOf("/") + 1) || trimmed || "/";
}

/** An agent's own folder, with the name of its instance. */
const OWN_FOLDER = /\/instances\/([^/]+)\/workspace\/?$/;

/** What a person calls a session's folder: an agent's own one is named by its instance. */
export function folderName(path: string): string {
  return OWN_FOLDER.exec(path)?.[1] ?? basename(path);
}

/** Whether somebody chose the folder: an agent gets one of its own otherwise. */
export function isChosen(folder: string): boolean {
  return folder !== "" && !OWN_FOLDER.test(folder);
}

/** Where a session works, as far as somebody chose it: a folder, a worker. */
export function place({ workspace, worker }: { workspace: string; worker: string }): string[] {
  return [isChosen(workspace) ? basename(workspace) : "", worker].filter(Boolean);
}

/** What a person calls a shell. Ids begin with the time, so that only their ends tell them apart. */
export function shellName(id: string): string {
  return `Shell ${id.slice(-6)}`;
}

export function plural(amount: number, one: string, many = `${one}s`): string {
  return `${amount.toLocaleString("en")} ${amount === 1 ? one : many}`;
}
