import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

export default defineConfig({
  plugins: [svelte()],
  resolve: { conditions: ["browser"] },
  test: {
    // An end for what hangs; a busy machine is no failure.
    testTimeout: 120_000,
    include: ["src/**/*.test.ts", "tests/unit/**/*.test.ts"],
    restoreMocks: true,
  },
});
