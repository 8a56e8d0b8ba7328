/** Colours for code, loaded when there is code to colour: the core once, each language once. */

import type { HLJSApi, LanguageFn } from "highlight.js";

const LANGUAGES: Record<string, () => Promise<{ default: LanguageFn }>> = {
  bash: () => import("highlight.js/lib/languages/bash"),
  c: () => import("highlight.js/lib/languages/c"),
  cpp: () => import("highlight.js/lib/languages/cpp"),
  css: () => import("highlight.js/lib/languages/css"),
  diff: () => import("highlight.js/lib/languages/diff"),
  go: () => import("highlight.js/lib/languages/go"),
  ini: () => import("highlight.js/lib/languages/ini"),
  java: () => import("highlight.js/lib/languages/java"),
  javascript: () => import("highlight.js/lib/languages/javascript"),
  json: () => import("highlight.js/lib/languages/json"),
  markdown: () => import("highlight.js/lib/languages/markdown"),
  python: () => import("highlight.js/lib/languages/python"),
  ruby: () => import("highlight.js/lib/languages/ruby"),
  rust: () => import("highlight.js/lib/languages/rust"),
  sql: () => import("highlight.js/lib/languages/sql"),
  typescript: () => import("highlight.js/lib/languages/typescript"),
  xml: () => import("highlight.js/lib/languages/xml"),
  yaml: () => import("highlight.js/lib/languages/yaml"),
};

const ALIASES: Record<string, string> = {
  "c++": "cpp",
  cjs: "javascript",
  h: "c",
  hpp: "cpp",
  html: "xml",
  js: "javascript",
  jsx: "javascript",
  md: "markdown",
  mjs: "javascript",
  patch: "diff",
  py: "python",
  rb: "ruby",
  rs: "rust",
  sh: "bash",
  shell: "bash",
  svelte: "xml",
  svg: "xml",
  toml: "ini",
  ts: "typescript",
  tsx: "typescript",
  yml: "yaml",
  zsh: "bash",
};

/** Longer code stays plain: colouring it would hold the page up. */
const MAX_CODE = 60_000;

let core: Promise<HLJSApi> | null = null;

function nameOf(language: string): string {
  const lower = language.toLowerCase();
  return ALIASES[lower] ?? lower;
}

export function known(language: string): boolean {
  return nameOf(language) in LANGUAGES;
}

/** The code as safe HTML with classes, null where it stays plain. */
export async function highlight(code: string, language: string): Promise<string | null> {
  const name = nameOf(language);
  const load = LANGUAGES[name];
  if (load === undefined || code.length > MAX_CODE) return null;
  try {
    core ??= import("highlight.js/lib/core").then(({ default: hljs }) => hljs);
    const [hljs, { default: definition }] = await Promise.all([core, load()]);
    if (hljs.getLanguage(name) === undefined) hljs.registerLanguage(name, definition);
    return hljs.highlight(code, { language: name, ignoreIllegals: true }).value;
  } catch {
    // Offline and not seen before.
    core = null;
    return null;
  }
}

/** The language of a file, by its name. */
export function languageOf(path: string): string {
  const name = path.slice(path.lastIndexOf("/") + 1).toLowerCase();
  if (name === "cargo.lock") return "toml";
  if (name === "makefile" || name === "dockerfile") return "bash";
  const extension = name.slice(name.lastIndexOf(".") + 1);
  return known(extension) ? extension : "";
}
