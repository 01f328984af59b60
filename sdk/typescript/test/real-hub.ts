// The real binary on its own data directory: started, killed with SIGKILL, started again on the same port.
import { spawn, type ChildProcess } from "node:child_process";
import { createHmac } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export const STATIC_TOKEN = "static-token-of-the-tests";
const SECRET = "a-secret-of-the-tests-that-is-long-enough";

const part = (value: object) => Buffer.from(JSON.stringify(value)).toString("base64url");

/** An HS256 token that may do everything. */
export function jwt(seconds: number, claims: object = {}): string {
  const scopes = ["publish:**", "subscribe:**", "subscribe:dlq.**", "admin:**"];
  const head = `${part({ alg: "HS256", typ: "JWT" })}.${part({ sub: "tester", scopes, exp: Math.floor(Date.now() / 1000) + seconds, ...claims })}`;
  return `${head}.${createHmac("sha256", SECRET).update(head).digest("base64url")}`;
}

export interface HubOptions {
  /** Without auth: open mode. */
  open?: boolean;
  env?: Record<string, string>;
  /** Another command than `serve`. */
  command?: string;
}

export class RealHub {
  ws = "";
  http = "";
  ops = "";
  private child: ChildProcess | undefined;
  private dir = mkdtempSync(join(tmpdir(), "promethean-test-"));

  constructor(private bin: string, private options: HubOptions = {}) {}

  get url(): string { return `ws://${this.ws}`; }

  async start(): Promise<this> {
    const port = (address: string) => address.split(":").at(-1) || "0";
    const child = spawn(this.bin, [this.options.command ?? "serve"], {
      stdio: ["ignore", "pipe", "pipe"],
      cwd: this.dir,
      env: {
        PATH: process.env.PATH, HOME: this.dir, PROMETHEAN_DATA_DIR: join(this.dir, "data"), PROMETHEAN_STORE: "log",
        WS_PORT: port(this.ws), HTTP_PORT: port(this.http), OPS_PORT: port(this.ops),
        ...(this.options.open ? {} : { WS_TOKEN: STATIC_TOKEN, JWT_SECRET: SECRET }),
        ...this.options.env,
      },
    });
    this.child = child;
    let err = "";
    child.stderr!.on("data", (chunk) => { err = (err + chunk).slice(-4_000); });
    const line = await new Promise<string>((resolve, reject) => {
      let out = "";
      const timer = setTimeout(() => reject(new Error(`the hub is not ready after 20 s: ${out}${err}`)), 20_000);
      child.once("exit", (code) => reject(new Error(`the hub ended with ${code}: ${err}`)));
      child.once("error", reject);
      child.stdout!.on("data", (chunk) => {
        out += chunk;
        const ready = /^promethean ready .*$/m.exec(out)?.[0];
        if (ready) { clearTimeout(timer); child.removeAllListeners("exit"); resolve(ready); }
      });
    });
    const address = (name: string) => new RegExp(`${name}=(\\S+)`).exec(line)![1]!;
    [this.ws, this.http, this.ops] = [address("ws"), address("http"), address("ops")];
    return this;
  }

  async kill(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
    const child = this.child;
    this.child = undefined;
    if (!child || child.exitCode !== null) return;
    const gone = new Promise((resolve) => child.once("exit", resolve));
    child.kill(signal);
    await gone;
  }

  async end(): Promise<void> {
    await this.kill();
    rmSync(this.dir, { recursive: true, force: true });
  }
}
