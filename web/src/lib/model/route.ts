/** Where the person is, as the address bar's fragment says. Only the fragment: it never leaves the browser. */

export type Route =
  | { page: "home" }
  | { page: "session"; session: number }
  | { page: "files"; session: number; path: string; at: number | null }
  | { page: "workers" }
  | { page: "terminal"; worker: string; shell: string | null; session: number | null }
  | { page: "cron" }
  | { page: "usage" }
  | { page: "devices" }
  | { page: "settings" };

export function parseRoute(fragment: string): Route {
  const [path = "", query = ""] = fragment.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decode);
  const params = new URLSearchParams(query);
  switch (parts[0]) {
    case "s": {
      const session = natural(parts[1]);
      if (session === null) return { page: "home" };
      if (parts[2] !== "files") return { page: "session", session };
      return {
        page: "files",
        session,
        path: parts.slice(3).join("/"),
        at: natural(params.get("at")),
      };
    }
    case "terminal":
      if (parts[1] === undefined) return { page: "workers" };
      return {
        page: "terminal",
        worker: parts[1],
        shell: parts[2] ?? null,
        session: natural(params.get("session")),
      };
    case "workers":
    case "cron":
    case "usage":
    case "devices":
    case "settings":
      return { page: parts[0] };
    default:
      return { page: "home" };
  }
}

export function formatRoute(route: Route): string {
  switch (route.page) {
    case "home":
      return "#/";
    case "session":
      return `#/s/${route.session}`;
    case "files": {
      const path = route.path.split("/").filter(Boolean).map(encodeURIComponent).join("/");
      const at = route.at === null ? "" : `?at=${route.at}`;
      return `#/s/${route.session}/files${path ? `/${path}` : ""}${at}`;
    }
    case "terminal": {
      const shell = route.shell === null ? "" : `/${encodeURIComponent(route.shell)}`;
      const session = route.session === null ? "" : `?session=${route.session}`;
      return `#/terminal/${encodeURIComponent(route.worker)}${shell}${session}`;
    }
    default:
      return `#/${route.page}`;
  }
}

/** The pairing code of a link such as `/#code=123456`, null when it holds none. */
export function pairingCode(fragment: string): string | null {
  const match = /^#\/?(?:code=|pair=|pair\/)?(\d{6})$/.exec(fragment);
  return match?.[1] ?? null;
}

function natural(text: string | null | undefined): number | null {
  if (text === null || text === undefined || !/^\d{1,15}$/.test(text)) return null;
  return Number(text);
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
