import { existsSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { brotliDecompressSync, gunzipSync, gzipSync } from "node:zlib";
import { describe, expect, it } from "vitest";
import { list } from "../../build/shell";

/** What a browser may have to load before somebody opens a terminal: issue 8. */
const LIMIT = 200_000;

const dist = fileURLToPath(new URL("../../dist", import.meta.url));
const files = list(dist);
const read = (file: string): Buffer => readFileSync(`${dist}${file}`);
const scripts = files.filter((file) => file.endsWith(".js"));

describe("the build", () => {
  it("has at most 200 KB of compressed script without the terminal", () => {
    // By what only the terminal itself has in it: the page may well name it.
    const terminal = scripts.filter((file) => read(file).includes("xterm-rows"));
    expect(terminal).toHaveLength(1);
    expect(terminal[0]).toMatch(/\/screen-/);
    const size = scripts
      .filter((file) => !terminal.includes(file))
      .reduce((sum, file) => sum + gzipSync(read(file), { level: 9 }).length, 0);
    expect(size).toBeLessThan(LIMIT);
  });

  it("does not load the terminal with the page", () => {
    const html = read("/index.html").toString();
    const [, entry = ""] = /<script[^>]+src="([^"]+)"/.exec(html) ?? [];
    const loaded = new Set<string>();
    const follow = (file: string): void => {
      if (loaded.has(file)) return;
      loaded.add(file);
      const source = read(file).toString();
      // Static imports only: what is loaded with the page.
      for (const [, next = ""] of source.matchAll(/(?:from|import)\s*"\.\/([^"]+\.js)"/g)) {
        follow(`/assets/${next}`);
      }
    };
    follow(entry);
    expect(loaded.size).toBeGreaterThan(0);
    for (const file of loaded) expect(read(file).includes("xterm-")).toBe(false);
  });

  it("has nothing inline that the policy would refuse", () => {
    const html = read("/index.html").toString();
    expect(html).not.toMatch(/<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=/);
    for (const file of scripts)
      expect(read(file).toString()).not.toMatch(/\beval\(|new Function\(/);
  });

  it("asks no other host for anything", () => {
    for (const file of files.filter((name) => /\.(?:html|css|webmanifest)$/.test(name))) {
      expect(read(file).toString()).not.toMatch(/(?:src|href|url\()\s*=?\s*["']?(?:https?:)?\/\//);
    }
  });

  it("does not contain the channel of the tests", () => {
    for (const file of scripts) expect(read(file).includes("no answer to")).toBe(false);
  });

  it("has compressed copies that are the files", () => {
    for (const file of files.filter((name) => name.endsWith(".br"))) {
      const plain = file.slice(0, -3);
      expect(brotliDecompressSync(read(file)).equals(read(plain))).toBe(true);
      expect(gunzipSync(read(`${plain}.gz`)).equals(read(plain))).toBe(true);
    }
  });

  it("has a service worker that keeps files which are there", () => {
    const [, shell = ""] = /JSON\.parse\((".*")\)/.exec(read("/sw.js").toString()) ?? [];
    const kept = JSON.parse(JSON.parse(shell) as string) as string[];
    expect(kept).toContain("/");
    for (const file of kept.slice(1)) expect(existsSync(`${dist}${file}`)).toBe(true);
  });

  it("is installable", () => {
    const manifest = JSON.parse(read("/manifest.webmanifest").toString()) as {
      icons: { src: string; sizes: string; purpose?: string }[];
    };
    for (const { src } of manifest.icons) expect(existsSync(`${dist}${src}`)).toBe(true);
    expect(manifest.icons.map(({ sizes }) => sizes)).toEqual(
      expect.arrayContaining(["192x192", "512x512"]),
    );
  });
});
