/** The last steps of the build: the service worker with its list of files, and compressed copies. */

import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import type { Plugin } from "vite";

/** Smaller ones gain nothing from compression. */
const SMALLEST = 512;
const COMPRESSIBLE = /\.(?:js|css|html|svg|webmanifest|json)$/;
/** Loaded when somebody opens a terminal or code of that language, and kept from then on. */
const ON_DEMAND = /screen-|TerminalPage-|languages?-|\.br$|\.gz$/;

export function shell(): Plugin {
  let outDir = "";
  return {
    name: "quintet-shell",
    apply: "build",
    configResolved(config) {
      outDir = resolve(config.root, config.build.outDir);
    },
    closeBundle() {
      const files = list(outDir);
      const kept = files.filter((file) => !ON_DEMAND.test(file) && file !== "/index.html");
      const hash = createHash("sha256");
      for (const file of files) hash.update(file).update(readFileSync(join(outDir, file)));
      const source = readFileSync(new URL("../src/sw/sw.js", import.meta.url), "utf8")
        .replace('"__SHELL__"', JSON.stringify(JSON.stringify(["/", ...kept])))
        .replace("__VERSION__", hash.digest("hex").slice(0, 16));
      writeFileSync(join(outDir, "sw.js"), source);
      for (const file of list(outDir)) compress(join(outDir, file));
    },
  };
}

function compress(path: string): void {
  const plain = readFileSync(path);
  if (!COMPRESSIBLE.test(path) || plain.length < SMALLEST) return;
  const params = {
    [constants.BROTLI_PARAM_QUALITY]: constants.BROTLI_MAX_QUALITY,
    [constants.BROTLI_PARAM_SIZE_HINT]: plain.length,
  };
  writeFileSync(`${path}.br`, brotliCompressSync(plain, { params }));
  writeFileSync(`${path}.gz`, gzipSync(plain, { level: 9 }));
}

/** Every file below a folder as `/path`, in order. */
export function list(folder: string): string[] {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(folder.length).replaceAll("\\", "/"))
    .toSorted();
}
