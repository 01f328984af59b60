// The TypeScript of every page of the repository, checked by the compiler against this package. Each block is a module of
// its own: what it uses it imports or declares. crates/promethean/src/docs has the same for all other languages.
import { readFileSync, readdirSync } from "node:fs";
import { join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import ts from "typescript";
import { expect, it } from "vitest";

const root = fileURLToPath(new URL("../../..", import.meta.url));
const here = fileURLToPath(new URL("..", import.meta.url));
const built = new Set(["node_modules", "dist", "target", ".git"]);

function pages(dir: string): string[] {
  return readdirSync(dir, { withFileTypes: true }).flatMap((entry) => {
    if (entry.isDirectory()) return built.has(entry.name) ? [] : pages(join(dir, entry.name));
    return entry.name.endsWith(".md") ? [join(dir, entry.name)] : [];
  });
}

/** The blocks of a page in this language, with the line where each begins. */
function blocks(page: string, language: string): { name: string; text: string }[] {
  const found: { name: string; text: string }[] = [];
  let open: { line: number; language: string; text: string[] } | undefined;
  readFileSync(page, "utf8").split("\n").forEach((line, index) => {
    const fence = /^\s*```(\S*)/.exec(line);
    if (!open && fence) open = { line: index + 2, language: fence[1] ?? "", text: [] };
    else if (open && fence) {
      if (open.language === language) found.push({ name: `${relative(root, page)}:${open.line}`, text: open.text.join("\n") });
      open = undefined;
    } else open?.text.push(line);
  });
  return found;
}

it("every ts block of every page is a program that the compiler takes", () => {
  const all = pages(root).flatMap((page) => blocks(page, "ts"));
  expect(all.length).toBeGreaterThan(2);
  // One that is wrong, so that it is known that wrong ones are found.
  all.push({ name: "wrong", text: `import { PromClient } from "@promethean/client";\nnew PromClient("ws://a").publish(1, 2);` });
  // Each block as a file beside the sources, so that packages are found from here.
  const files = new Map(all.map(({ name, text }, n) => [join(here, "src", `docs-${n}.ts`), { name, text: `${text}\nexport {};\n` }]));
  const options: ts.CompilerOptions = {
    target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext, moduleResolution: ts.ModuleResolutionKind.Bundler,
    lib: ["lib.es2023.d.ts", "lib.dom.d.ts", "lib.esnext.disposable.d.ts"], types: ["node"], typeRoots: [join(here, "node_modules/@types")],
    strict: true, noEmit: true, skipLibCheck: true, paths: {
      "@promethean/client": [join(here, "src/index.ts")], "@promethean/client/once": [join(here, "src/once.ts")],
    },
  };
  const host = ts.createCompilerHost(options);
  const { readFile, fileExists, getSourceFile } = host;
  host.fileExists = (file) => files.has(file) || fileExists.call(host, file);
  host.readFile = (file) => files.get(file)?.text ?? readFile.call(host, file);
  host.getSourceFile = (file, version, ...rest) => {
    const block = files.get(file);
    return block ? ts.createSourceFile(file, block.text, version) : getSourceFile.call(host, file, version, ...rest);
  };
  const program = ts.createProgram([...files.keys()], options, host);
  const wrong = ts.getPreEmitDiagnostics(program).map((diagnostic) => {
    const block = files.get(diagnostic.file?.fileName ?? "");
    const line = diagnostic.file?.getLineAndCharacterOfPosition(diagnostic.start ?? 0).line ?? 0;
    return `${block?.name ?? diagnostic.file?.fileName}+${line}: ${ts.flattenDiagnosticMessageText(diagnostic.messageText, "\n")}`;
  });
  expect(wrong.filter((one) => !one.startsWith("wrong+1"))).toEqual([]);
  expect(wrong).toHaveLength(1);
}, 60_000);
