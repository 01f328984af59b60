import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));
// `npm run dev` against a running hub: PROMETHEAN_OPS=http://127.0.0.1:8082
const hub = process.env.PROMETHEAN_OPS ?? "http://127.0.0.1:8082";
const routes = ["hub", "topics", "groups", "connections", "cursors", "lag", "latest-by-key", "dlq", "samples", "inflight", "explain", "event", "causality", "publish", "replay", "export"];

export default defineConfig({
  base: "./",
  esbuild: { jsx: "automatic", jsxImportSource: "preact" },
  resolve: { alias: { "@promethean/client": here("../sdk/typescript/src/index.ts") } },
  build: {
    target: "es2022", modulePreload: { polyfill: false }, assetsInlineLimit: 0, cssCodeSplit: false, reportCompressedSize: true,
    rollupOptions: { input: { index: here("index.html"), demo: here("demo.html") } },
  },
  server: { proxy: { "/ws": { target: hub, ws: true }, ...Object.fromEntries(routes.map((route) => [`/${route}`, hub])) } },
});
