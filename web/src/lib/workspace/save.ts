import { basename } from "../model/format";

/** Hands bytes to the browser as a download. */
export function save(path: string, content: Uint8Array): void {
  const url = URL.createObjectURL(new Blob([new Uint8Array(content)]));
  const link = document.createElement("a");
  link.href = url;
  link.download = basename(path);
  link.click();
  // The browser has taken it by the next task.
  setTimeout(() => URL.revokeObjectURL(url), 0);
}
