// One connection that comes back: dials, authenticates, matches answers to calls, resends publishes, renews the token.
// Invariants: a publish leaves here only answered, timed out, aborted or refused; it is sent again, with the same id
// and in the same order, after every reconnect. All other calls end with `disconnected` when the connection does. When
// the hub closes because a frame is over its limit (1009), the largest unanswered call is that frame or larger: it ends
// with `too_large` and is not sent again.
import { PromError, isAuthCode, type Code } from "./error.js";
import type { CallOptions, ClientOptions, Socket, SocketClass, State } from "./types.js";

/** A frame of the hub; fields by `op`. */
export type Frame = Record<string, any> & { op: string };

interface Call {
  _corr: number;
  _text: string;
  _publish: boolean;
  _resent?: boolean;
  _unknown?: boolean; // what became of it on an earlier connection
  _done: (error: Error | undefined, frame?: Frame) => void;
}

/** Who else lives on the connection. */
export interface Listener {
  /** Authenticated and open. */
  _up(): void;
  /** The connection is gone; another one may come. */
  _down(): void;
  /** No other one will come. */
  _failed(error: Error): void;
  /** Whether it needs a connection, also where nobody calls. */
  _wanted(): boolean;
  /** A frame that answers no call. */
  _frame(frame: Frame): void;
}

const DAY = 86_400_000;
/** What a timer can count to; beyond, it would fire at once. */
export const MOST_MS = 2 ** 31 - 1;
/** A limit of time; one that no timer can count to is none. */
const limited = (ms: number): number => (ms > MOST_MS ? 0 : ms);

export class Link {
  state: State = "idle";
  private _socket: Socket | undefined;
  private _corr = 0;
  private _calls = new Map<number, Call>(); // sent, not answered
  private _queue: Call[] = []; // publishes that wait for a place in the window
  private _flying = 0; // publishes among _calls
  private _attempt = 0;
  private _refused = 0;
  private _known = false; // a hub has let us in
  private _heard = 0;
  private _lastError: unknown;
  private _waiters = new Set<(error?: Error) => void>();
  private _timers: Record<string, ReturnType<typeof setTimeout>> = {};

  constructor(readonly url: string, readonly options: ClientOptions, private _listener: Listener) {}

  report(error: unknown): void {
    try {
      this.options.onError?.(error as Error);
    } catch {} // nobody is left to be told, and the connection has to go on
  }

  /** Resolves once open and authenticated. */
  connect(): Promise<void> {
    if (this.state === "open") return Promise.resolve();
    if (this.state === "closed") return Promise.reject(new PromError("closed", "the client was closed"));
    this.wake();
    const limit = limited(this.options.connectTimeoutMs ?? 10_000);
    return new Promise((resolve, reject) => {
      const timer = limit && setTimeout(() => {
        this._waiters.delete(waiter);
        if (!this._waiters.size && !this.pending && !this._listener._wanted()) this._stop("idle");
        reject(new PromError("connect_failed", `no connection to ${this.url} within ${limit} ms`, { cause: this._lastError }));
      }, limit);
      const waiter = (error?: Error) => {
        clearTimeout(timer || undefined);
        error ? reject(error) : resolve();
      };
      this._waiters.add(waiter);
    });
  }

  /** Starts dialling where nobody has yet. */
  wake(): void {
    if (this.state !== "idle") return;
    this._attempt = this._refused = 0;
    this._set("connecting");
    void this._dial();
  }

  /** Publishes without an answer. */
  get pending(): number {
    return this._flying + this._queue.length;
  }

  /** Sends a frame and waits for its answer. */
  call(frame: Frame, publish = false, options: CallOptions = {}): Promise<Frame> {
    const { signal } = options;
    const timeoutMs = limited(options.timeoutMs ?? this.options.timeoutMs ?? 60_000);
    if (this.state === "closed") return Promise.reject(new PromError("closed", "the client was closed"));
    if (signal?.aborted) return Promise.reject(signal.reason);
    if (!publish && this.state !== "open") return Promise.reject(new PromError("disconnected", "there is no connection"));
    const full = this.state !== "open" || this._flying >= (this.options.window ?? 256);
    if (publish && full && this._queue.length >= (this.options.maxQueue ?? 10_000))
      return Promise.reject(new PromError("queue_full", "too many publishes are waiting; await some of them first"));
    const corr = ++this._corr;
    return new Promise((resolve, reject) => {
      const _text = JSON.stringify({ ...frame, corr }); // throws: nothing may have begun
      const abort = () => call._done(signal!.reason);
      const timer = timeoutMs && setTimeout(() => call._done(
        new PromError("timeout", `no answer within ${timeoutMs} ms; whether it was stored is unknown`)), timeoutMs);
      const call: Call = {
        _corr: corr, _publish: publish, _text,
        _done: (error, answer) => {
          clearTimeout(timer || undefined);
          signal?.removeEventListener("abort", abort);
          if (this._calls.delete(corr)) publish && this._flying--;
          else this._queue = this._queue.filter((other) => other !== call);
          error ? reject(error) : resolve(answer!);
          this._fill();
        },
      };
      signal?.addEventListener("abort", abort);
      if (publish && full) this._queue.push(call);
      else this._send(call);
      if (publish) this.wake();
    });
  }

  /** Sleeps; ends as a call does when the connection does, so that what follows stays on this one. */
  sleep(ms: number): Promise<void> {
    if (this.state !== "open") return Promise.reject(new PromError("disconnected", "there is no connection"));
    const corr = ++this._corr;
    return new Promise((resolve, reject) => {
      const done = (error?: Error) => {
        clearTimeout(timer);
        this._calls.delete(corr);
        error ? reject(error) : resolve();
      };
      const timer = setTimeout(done, Math.min(ms, MOST_MS));
      this._calls.set(corr, { _corr: corr, _publish: false, _text: "", _done: done });
    });
  }

  /** No more connections; whoever still waits is told. */
  close(): void {
    this._stop("closed");
    this._fail(new PromError("closed", "the client was closed"));
  }

  private _set(state: State): void {
    if (this.state === state) return;
    this.state = state;
    this._told(state);
  }

  private _told(state: State): void {
    try {
      this.options.onState?.(state);
    } catch (error) {
      this.report(error);
    }
  }

  private _send(call: Call): void {
    this._calls.set(call._corr, call);
    if (call._publish) this._flying++;
    this._socket!.send(call._text);
  }

  private _fill(): void {
    while (this.state === "open" && this._queue.length && this._flying < (this.options.window ?? 256)) this._send(this._queue.shift()!);
  }

  private _timer(name: string, ms: number, run: () => void): void {
    clearTimeout(this._timers[name]);
    this._timers[name] = setTimeout(run, Math.min(ms, MOST_MS));
  }

  private async _dial(): Promise<void> {
    let socket: Socket | undefined;
    try {
      await null; // whoever called wake() has to be on the list before anything can fail
      const { token } = this.options;
      const secret = typeof token === "function" ? await token() : token;
      const Class = await socketClass(this.options.WebSocket);
      if (this.state !== "connecting" || this._socket) return;
      socket = this._socket = new Class(this.url, "promethean.v1");
      socket.onmessage = ({ data }) => this._receive(String(data));
      socket.onclose = ({ code, reason }) => this._lost(socket, `closed with ${code}${reason ? ` ${reason}` : ""}`, code === 1009);
      socket.onerror = (event) => { this._lastError = event?.error ?? event?.message ?? "socket error"; };
      socket.onopen = () => this._greet(secret);
      this._timer("dial", 15_000, () => this._lost(socket, "no handshake within 15 s"));
    } catch (error) {
      if (error instanceof PromError) return this._fatal(error); // no WebSocket, or the token callback gave up
      this._lastError = error;
      this._lost(socket, String(error));
    }
  }

  /** Without a token a PING finds out whether one is needed. */
  private _greet(secret: string | undefined): void {
    const corr = ++this._corr;
    this._calls.set(corr, {
      _corr: corr, _publish: false, _text: "",
      _done: (error, answer) => {
        this._calls.delete(corr);
        if (error) return this._refuse(error);
        clearTimeout(this._timers.dial);
        this._attempt = this._refused = 0;
        this._known = true;
        this.state = "open"; // told last: what the caller does then comes after what waited
        this._renewAt(answer!.exp);
        this._heard = Date.now();
        this._watch();
        this._listener._up();
        for (const call of this._calls.values()) if (call._publish) {
          call._resent = true;
          this._socket!.send(call._text);
        }
        this._fill();
        for (const waiter of this._waiters) waiter();
        this._waiters.clear();
        this._told("open");
      },
    });
    this._socket!.send(JSON.stringify(secret === undefined ? { op: "PING", corr } : { op: "AUTH", token: secret, corr }));
  }

  /**
   * A fixed token that is refused stays refused; a callback may do better next time. `jwt_invalid` after a first success
   * may come from a hub that has just started and has no signing keys yet: it tries for them every 30 s at most.
   */
  private _refuse(error: Error): void {
    const code = (error as PromError).code;
    if (code === "disconnected") return;
    const most = this._known && code === "jwt_invalid" ? 10 : typeof this.options.token === "function" ? 5 : 1;
    if (isAuthCode(code) && ++this._refused >= most) return this._fatal(error);
    this.report(error);
    this._lost(this._socket, error.message);
  }

  private _renewAt(exp: unknown): void {
    clearTimeout(this._timers.renew);
    const { token } = this.options;
    if (typeof token !== "function" || typeof exp !== "number") return;
    const left = (exp > 1e12 ? exp : exp * 1000) - Date.now();
    this._timer("renew", Math.min(DAY, Math.max(500, Math.min(left * 0.8, left - 5_000))), () => {
      Promise.resolve().then(token).then((secret) => this.call({ op: "AUTH", token: secret })).then(
        (answer) => this._renewAt(answer.exp),
        (error) => { this.report(error); if (this.state === "open") this._renewAt(exp); },
      );
    });
  }

  /** Asks after silence; gives the link up when it stays silent. */
  private _watch(): void {
    const every = this.options.pingMs ?? 20_000;
    this._timer("watch", every, () => {
      const silent = Date.now() - this._heard;
      if (silent >= every * 2) return this._lost(this._socket, `silent for ${silent} ms`);
      if (silent >= every * 0.9) this.call({ op: "PING" }).catch(() => {});
      this._watch();
    });
  }

  private _receive(text: string): void {
    this._heard = Date.now();
    const frame: Frame = JSON.parse(text);
    const call = this._calls.get(frame.corr);
    // Sent twice: that it was there already says no more than that the first try had arrived.
    if (call?._resent) frame.duplicate = frame.duplicates = undefined;
    if (frame.op === "OK") return call?._done(undefined, frame);
    if (frame.op !== "ERR") return this._listener._frame(frame);
    const code = frame.code as Code;
    if (call?._publish && (code === "shutting_down" || isAuthCode(code))) {
      // It stays: the next connection sends it again.
      if (isAuthCode(code)) this._lost(this._socket, code);
      return;
    }
    const error = new PromError(code, frame.msg, { retryAfterMs: frame.retry_after_ms });
    if (call) return call._done(error);
    this._listener._frame(frame);
    this.report(error);
  }

  private _drop(): void {
    for (const timer of Object.values(this._timers)) clearTimeout(timer);
    const socket = this._socket;
    this._socket = undefined;
    if (!socket) return;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.onerror = () => {};
    if (socket.readyState < 2) socket.close(1000);
  }

  private _tooLarge(): void {
    const size = ({ _text }: Call) => new TextEncoder().encode(_text).length;
    const [call] = [...this._calls.values()].sort((a, b) => size(b) - size(a));
    if (call?._text) call._done(new PromError("too_large", `the frame has ${size(call)} bytes, more than the hub's max_frame_bytes: send less at once, or raise that limit${
      call._unknown ? "; whether it was stored before, when a connection was lost, is unknown" : ""}`));
  }

  private _lost(socket: Socket | undefined, why: string, tooLarge = false): void {
    if (socket !== this._socket || this.state === "closed" || this.state === "idle") return;
    const error = new PromError("disconnected", why, { cause: this._lastError });
    this._lastError = error;
    tooLarge &&= this.state === "open"; // else nothing but the greeting was sent
    this._drop();
    this._set("connecting");
    if (tooLarge) this._tooLarge();
    else for (const call of this._calls.values()) call._unknown = true;
    for (const call of [...this._calls.values()]) if (!call._publish) call._done(error);
    this._listener._down();
    this.report(error);
    const [least, most] = this.options.backoffMs ?? [100, 10_000];
    this._timer("dial", least + Math.random() * Math.min(most, least * 2 ** this._attempt++), () => void this._dial());
  }

  private _stop(state: State): void {
    this._drop();
    this._set(state);
  }

  private _fatal(error: Error): void {
    this._stop("idle");
    this._fail(error);
  }

  private _fail(error: Error): void {
    for (const call of [...this._calls.values(), ...this._queue]) call._done(error);
    for (const waiter of this._waiters) waiter(error);
    this._waiters.clear();
    this._listener._failed(error);
  }
}

async function socketClass(given: SocketClass | undefined): Promise<SocketClass> {
  const found = given ?? (globalThis as { WebSocket?: SocketClass }).WebSocket;
  if (found) return found;
  const name = "ws"; // a variable, so that bundlers leave it alone
  try {
    return (await import(/* @vite-ignore */ /* webpackIgnore: true */ name)).WebSocket;
  } catch (cause) {
    throw new PromError("no_websocket", "install the package ws, use Node 22, or pass options.WebSocket", { cause });
  }
}
