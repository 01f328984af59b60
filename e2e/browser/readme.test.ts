// The TypeScript of the README, run under Node against the real hub. Its commands and its Rust are in
// e2e/tests/it/readme.rs; the types of all pages are checked by sdk/typescript/test/docs.test.ts.
import { afterAll, expect, it } from "vitest";
import { startHub } from "./harness.js";
import { Project, blocks } from "./program.js";

const project = new Project();
afterAll(() => project.remove());

it("publishes and consumes", async () => {
  const hub = await startHub({ open: true });
  try {
    const [code, ...others] = blocks("README.md");
    expect(others, "one block").toEqual([]);
    for (const order of [1, 2, 3]) await fetch(`http://${hub.http}/publish/orders.created`, { method: "POST", body: JSON.stringify({ order }) });
    expect(await project.run(code!, hub, 4)).toBe("order 1\norder 2\norder 3\norder 4\n");
  } finally {
    await hub.end();
  }
});
