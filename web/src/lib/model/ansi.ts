/** Terminal text for a page: colours and cursor moves are left out, what was overwritten is gone. */

// The characters that a terminal takes for itself are what this is about.
const SEQUENCES =
  // oxlint-disable-next-line no-control-regex
  /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[ -/]*[0-~])|[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/g;

export function plainTerminal(text: string): string {
  const plain = text.replaceAll(SEQUENCES, "").replaceAll("\r\n", "\n");
  if (!plain.includes("\r")) return plain;
  return plain
    .split("\n")
    .map((line) => line.slice(line.lastIndexOf("\r", line.length - 2) + 1).replaceAll("\r", ""))
    .join("\n");
}
