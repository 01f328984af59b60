import { defineConfig } from "vitest/config";

// One browser and one hub at a time: the machine may be small.
export default defineConfig({ test: { include: ["*.test.ts"], testTimeout: 60_000, hookTimeout: 60_000, fileParallelism: false } });
