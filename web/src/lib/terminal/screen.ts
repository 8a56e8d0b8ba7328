/** xterm.js, in a chunk of its own that is loaded when a terminal is opened. */

import "@xterm/xterm/css/xterm.css";
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import { allowTerminalStyles } from "./csp";

export interface Screen {
  size(): { rows: number; cols: number };
  /** Resolves when the bytes are on the screen. */
  write(bytes: Uint8Array): Promise<void>;
  clear(): void;
  focus(): void;
  dispose(): void;
}

export function createScreen(
  holder: HTMLElement,
  on: { onInput: (bytes: Uint8Array) => void; onResize: (rows: number, cols: number) => void },
): Screen {
  allowTerminalStyles(document);
  const terminal = new Terminal({
    fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"),
    fontSize: 14,
    scrollback: 10_000,
    cursorBlink: true,
    screenReaderMode: true,
    theme: { background: "#0d0f0e", foreground: "#e8ebe9", cursor: "#62cfbf" },
  });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  terminal.open(holder);
  fit.fit();

  const encoder = new TextEncoder();
  terminal.onData((data) => on.onInput(encoder.encode(data)));
  terminal.onBinary((data) => on.onInput(Uint8Array.from(data, (c) => c.charCodeAt(0))));
  terminal.onResize(({ rows, cols }) => on.onResize(rows, cols));
  const observer = new ResizeObserver(() => fit.fit());
  observer.observe(holder);

  return {
    size: () => ({ rows: terminal.rows, cols: terminal.cols }),
    write: (bytes) => new Promise((resolve) => terminal.write(bytes, resolve)),
    clear: () => terminal.reset(),
    focus: () => terminal.focus(),
    dispose: () => {
      observer.disconnect();
      terminal.dispose();
    },
  };
}
