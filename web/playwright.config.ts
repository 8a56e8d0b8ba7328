import { defineConfig } from "@playwright/test";

/** As root in a container, and silent: no request but to the daemon. */
const ARGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

export default defineConfig({
  testDir: "tests/browser",
  outputDir: "test-results",
  workers: 1,
  retries: 0,
  forbidOnly: true,
  timeout: 45_000,
  expect: { timeout: 10_000 },
  reporter: "list",
  use: {
    actionTimeout: 10_000,
    colorScheme: "light",
    viewport: { width: 1280, height: 820 },
    locale: "en-GB",
    timezoneId: "UTC",
    launchOptions: { executablePath: process.env["CHROMIUM"] ?? "/usr/bin/chromium", args: ARGS },
  },
});
