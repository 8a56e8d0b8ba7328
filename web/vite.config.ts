import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";
import { shell } from "./build/shell.ts";

export default defineConfig({
  plugins: [svelte(), shell()],
  build: {
    target: "es2023",
    // An inlined asset would be a data: address, which the policy refuses for scripts and styles.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    chunkSizeWarningLimit: 600,
  },
});
