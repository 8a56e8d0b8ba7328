// @vitest-environment jsdom
import { describe, expect, it } from "vitest";
import { MarkdownStream, render, type Piece } from "./markdown";

function words(pieces: readonly Piece[]): string {
  return pieces
    .map((piece) =>
      piece.kind === "code" ? `[${piece.language}]${piece.code}` : piece.html.trim(),
    )
    .join("\n");
}

const TEXT = `# Title

Some *words* and \`code\`.

1. one
2. two

   more of two

\`\`\`rust
fn main() {}

// end
\`\`\`

| a | b |
|---|---|
| 1 | 2 |

Last [link](https://example.com) and <b>bold</b>.
`;

describe("markdown", () => {
  it("is cut into pieces, code apart", () => {
    const pieces = render(TEXT);
    expect(pieces.find((piece) => piece.kind === "code")).toMatchObject({
      language: "rust",
      code: "fn main() {}\n\n// end",
    });
    expect(words(pieces)).toContain("<em>words</em>");
    expect(words(pieces)).toContain("<table>");
    expect(new Set(pieces.map(({ key }) => key)).size).toBe(pieces.length);
  });

  it("is the same when it streams in, at every cut", () => {
    for (const step of [1, 3, 7, 50]) {
      const stream = new MarkdownStream();
      let last: Piece[] = [];
      for (let to = 0; to <= TEXT.length + step; to += step)
        last = stream.update(TEXT.slice(0, to));
      expect(words(last)).toBe(words(render(TEXT)));
    }
  });

  it("does not make finished pieces anew", () => {
    const stream = new MarkdownStream();
    const paragraphs = Array.from({ length: 20 }, (_, i) => `Paragraph ${i}.`).join("\n\n");
    const before = stream.update(paragraphs);
    const after = stream.update(`${paragraphs}\n\nOne more.`);
    expect(after[0]).toBe(before[0]);
    expect(after[5]).toBe(before[5]);
  });

  it("starts again when the text is another one", () => {
    const stream = new MarkdownStream();
    stream.update("a\n\nb\n\nc\n\nd\n\ne");
    expect(words(stream.update("new"))).toBe("<p>new</p>");
  });

  it("lets nothing through that runs or reaches out", () => {
    const hostile = [
      "<script>alert(1)</script>",
      '<img src=x onerror="alert(1)">',
      '<a href="javascript:alert(1)">x</a>',
      "[x](javascript:alert(1))",
      '<iframe src="https://example.com"></iframe>',
      '<p style="position:fixed" onclick="alert(1)">x</p>',
      "<svg><a xlink:href='javascript:alert(1)'>x</a></svg>",
      "<form action='https://example.com'><input type=text></form>",
    ];
    for (const text of hostile) {
      const html = words(render(text));
      expect(html).not.toMatch(/<(?!\/?(?:p|a|div)\b)|\son\w+=|javascript:|style=|src=/i);
    }
  });

  it("opens links apart from the page", () => {
    expect(words(render("[x](https://example.com)"))).toContain(
      'rel="noopener noreferrer nofollow"',
    );
  });

  it("a handler never reaches a parser", () => {
    const parsed: string[] = [];
    const parse = DOMParser.prototype.parseFromString;
    DOMParser.prototype.parseFromString = function (text: string, type: DOMParserSupportedType) {
      parsed.push(text);
      return parse.call(this, text, type);
    };
    try {
      render(
        '<img src=x onerror="alert(1)">\n\na <b title=">" onclick="x()">b</b> <svg/onload=x()>',
      );
      render("<p onclick=x()");
    } finally {
      DOMParser.prototype.parseFromString = parse;
    }
    const tags = parsed.join("").match(/<[^>]*>/g) ?? [];
    expect(tags.length).toBeGreaterThan(3);
    expect(tags.filter((tag) => /on\w+\s*=/i.test(tag))).toEqual([]);
  });

  it("loads nothing from elsewhere: an image is a link", () => {
    const html = words(render("![a picture](https://example.com/x.png)"));
    expect(html).not.toContain("<img");
    expect(html).toContain("a picture");
  });
});
