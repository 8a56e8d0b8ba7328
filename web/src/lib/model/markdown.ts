/**
 * Markdown as pieces of safe HTML.
 *
 * An answer that streams in is cut into its top-level pieces (a paragraph, a list, a block of code).
 * Only the last ones are read again when text is added, so a long answer costs no more per word than
 * a short one.
 */

import DOMPurify from "dompurify";
import { Marked, type Token, type Tokens } from "marked";

export type Piece = { key: string } & (
  { kind: "html"; html: string } | { kind: "code"; language: string; code: string }
);

const marked = new Marked({ gfm: true, breaks: true });

/** Tags and attributes that Markdown makes; nothing that loads from elsewhere or runs. */
const ALLOWED_TAGS = [
  ..."a b blockquote br code del em h1 h2 h3 h4 h5 h6 hr i input kbd li ol p pre s span strong".split(
    " ",
  ),
  ..."sub sup table tbody td th thead tr ul".split(" "),
];
const ALLOWED_ATTR = [
  "href",
  "title",
  "type",
  "checked",
  "disabled",
  "start",
  "align",
  "colspan",
  "rowspan",
];

function purify(html: string): string {
  const clean = DOMPurify.sanitize(html, {
    ALLOWED_TAGS,
    ALLOWED_ATTR,
    ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|#)/i,
    RETURN_DOM_FRAGMENT: true,
  });
  for (const link of clean.querySelectorAll("a")) {
    link.setAttribute("rel", "noopener noreferrer nofollow");
    link.setAttribute("target", "_blank");
  }
  for (const input of clean.querySelectorAll("input")) {
    if (input.getAttribute("type") === "checkbox") input.setAttribute("disabled", "");
    else input.remove();
  }
  const holder = document.createElement("div");
  holder.append(clean);
  return holder.innerHTML;
}

/**
 * An image is shown as a link: the page asks no other host for anything. Tags that somebody wrote
 * lose their attributes before a parser sees them: a browser reports a handler as soon as it is
 * parsed, even where it could never run.
 */
marked.use({
  renderer: {
    html({ text }: Tokens.HTML | Tokens.Tag): string {
      return text.replace(/<(\/?[a-z][a-z0-9]*)[^>]*>?/gi, "<$1>");
    },
    image({ href, text, title }: Tokens.Image): string {
      const label = text || title || href;
      return `<a href="${escapeHtml(href)}">${escapeHtml(label)}</a>`;
    },
  },
});

function piecesOf(tokens: Token[], prefix: string): Piece[] {
  const pieces: Piece[] = [];
  let html: Token[] = [];
  const flush = (): void => {
    if (html.length === 0) return;
    pieces.push({
      key: `${prefix}${pieces.length}`,
      kind: "html",
      html: purify(marked.parser(html)),
    });
    html = [];
  };
  for (const token of tokens) {
    if (token.type === "code") {
      flush();
      const code = token as Tokens.Code;
      const language = (code.lang ?? "").split(/\s/)[0] ?? "";
      pieces.push({ key: `${prefix}${pieces.length}`, kind: "code", language, code: code.text });
    } else if (token.type !== "space" && token.type !== "def") {
      html.push(token);
      // One piece a token, so that a piece that is done is never made again.
      flush();
    }
  }
  flush();
  return pieces;
}

/** The pieces of a text that is whole. */
export function render(text: string): Piece[] {
  return piecesOf(marked.lexer(text), "p");
}

/** Renders a text that grows. */
export class MarkdownStream {
  /** How much of the text is in `#done` for good. */
  #offset = 0;
  #seen = "";
  #done: Piece[] = [];

  update(text: string): Piece[] {
    if (!text.startsWith(this.#seen)) {
      this.#offset = 0;
      this.#done = [];
    }
    this.#seen = text;
    const tokens = marked.lexer(text.slice(this.#offset));
    // The last token may grow, and the one before it may turn out to be its first part.
    const settled = tokens.slice(0, Math.max(0, tokens.length - 3));
    if (settled.length > 0) {
      this.#done = [...this.#done, ...piecesOf(settled, `d${this.#offset}-`)];
      this.#offset += settled.reduce((sum, token) => sum + token.raw.length, 0);
    }
    return [...this.#done, ...piecesOf(tokens.slice(settled.length), `d${this.#offset}-`)];
  }
}

export function escapeHtml(text: string): string {
  return text
    .replaceAll("&", "&amp;")
    .replaceAll("<", "&lt;")
    .replaceAll(">", "&gt;")
    .replaceAll('"', "&quot;");
}
