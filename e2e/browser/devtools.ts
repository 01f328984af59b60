// Chromium without Playwright, which keeps every page visible and awake: a few calls of the DevTools protocol.
import { spawn, type ChildProcess } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { WebSocket } from "ws";
import { until } from "./harness.js";

export class Tab {
  private waiting = new Map<number, { resolve: (result: any) => void; reject: (error: Error) => void }>();
  private calls = 0;

  private constructor(private socket: WebSocket) {
    socket.on("message", (data) => {
      const { id, result, error } = JSON.parse(String(data));
      const call = this.waiting.get(id);
      this.waiting.delete(id);
      if (error) call?.reject(new Error(error.message));
      else call?.resolve(result);
    });
  }

  static async at(url: string): Promise<Tab> {
    const socket = new WebSocket(url);
    await new Promise((resolve, reject) => socket.once("open", resolve).once("error", reject));
    return new Tab(socket);
  }

  send(method: string, params: object = {}): Promise<any> {
    const id = ++this.calls;
    this.socket.send(JSON.stringify({ id, method, params }));
    return new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
  }

  /** Returns the value of an expression, of a promise when it has one. */
  async value(expression: string): Promise<any> {
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  close(): void {
    this.socket.close();
  }
}

export class Chromium {
  private constructor(private child: ChildProcess, private folder: string, private port: string) {}

  static async start(): Promise<Chromium> {
    const folder = mkdtempSync(join(tmpdir(), "promethean-chromium-"));
    const flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0", `--user-data-dir=${folder}`];
    const child = spawn(process.env.CHROMIUM ?? "/usr/bin/chromium", [...flags, "about:blank"], { stdio: "ignore" });
    let port = "";
    await until("Chromium listens", () => {
      try {
        port = readFileSync(join(folder, "DevToolsActivePort"), "utf8").split("\n")[0]!;
      } catch {}
      return port !== "";
    });
    return new Chromium(child, folder, port);
  }

  /** Opens a tab, which is in front. */
  async open(url: string): Promise<Tab> {
    const opened = await fetch(`http://127.0.0.1:${this.port}/json/new?${url}`, { method: "PUT" });
    return Tab.at(((await opened.json()) as { webSocketDebuggerUrl: string }).webSocketDebuggerUrl);
  }

  async end(): Promise<void> {
    const ended = new Promise((resolve) => this.child.once("exit", resolve));
    this.child.kill("SIGKILL");
    await ended;
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 5 });
  }
}
