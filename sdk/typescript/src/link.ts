// One connection that comes back: dials, authenticates, matches answers to calls, resends publishes, renews the token.
// Invariants: a publish leaves here only answered, timed out, aborted or refused; it is sent again, with the same id
// and in the same order, after every reconnect. All other calls end with `disconnected` when the connection does. When
// the hub closes because a frame is over its limit (1009), the largest unanswered call is that frame or larger: it ends
// with `too_large` and is not sent again. Nothing that the other side sends ends the process.
import { limited, MOST_MS, now, within, type Timer } from "./clock.js";
import { away, closed, PromError, isAuthCode, textOf, type Code } from "./error.js";
import { told } from "./told.js";
import type { CallOptions, ClientOptions, ErrorContext, Socket, SocketClass, State } from "./types.js";

/** A frame of the hub; fields by `op`. */
export type Frame = Record<string, any> & { op: string };

/** Options whose values may be `undefined`. */
export type Loose<T> = { [K in keyof T]: T[K] | undefined };

interface Call {
  _corr: number;
  _text: string;
  _publish: boolean;
  _resent?: boolean;
  _unknown?: boolean; // what became of it on an earlier connection
  _done: (error?: Error, frame?: Frame) => void;
}

/** The other parts of the client that live on the connection. */
export interface Listener {
  /** Authenticated and open. */
  _up(): void;
  /** The connection is gone; another one may come. */
  _down(): void;
  /** No other one will come. */
  _failed(error: Error): void;
  /** True if it needs a connection without any call. */
  _wanted(): boolean;
  /** A frame that answers no call, and its text. */
  _frame(frame: Frame, text: string): void;
}

/** Limit of a token callback, and of a handshake. */
const PATIENCE = 15_000;
/** Limit of the closing handshake of a socket of the package `ws`. */
const GOODBYE = 1_000;

export class Link {
  _state: State = "idle";
  private _socket: Socket | undefined;
  private _corr = 0;
  private _calls = new Map<number, Call>(); // sent, not answered
  private _queue: Call[] = []; // publishes that wait for a place in the window
  private _flying = 0; // publishes among _calls
  private _size = 0; // characters of all publishes here
  private _at = 0; // among the addresses
  private _attempt = 0;
  private _dials = 0;
  private _refused = 0;
  private _known?: boolean; // a hub has let us in
  private _heard = 0;
  private _asked?: boolean; // a PING waits for any sign of life
  private _back?: boolean; // nothing was heard since the page came back
  private _cause: unknown; // what the socket, or the token callback, threw
  private _why = "";
  private _waiters = new Set<(error?: Error) => void>();
  private _timers: Record<string, Timer | undefined> = {};

  constructor(readonly _urls: string[], readonly _options: ClientOptions, private _listener: Listener) {}

  /** Reports an error that no caller awaits to `onError`, else to the console unless a retry helps. */
  _report(error: unknown, context?: ErrorContext, loud = !(error as PromError)?.retryable): void {
    const { onError } = this._options;
    try {
      if (onError) onError(error as Error, context);
      else if (loud) console.error(
        "promethean:", error, context ? `(event ${context.event.id} of ${context.topic}, attempt ${context.attempt})` : "");
    } catch {} // there is nobody left to tell, and the connection has to continue
  }

  /** Returns a call's promise; if the caller does not await it, its failure is reported. */
  _mind<T>(promise: Promise<T>): Promise<T> {
    return this._tell((done, failed) => void promise.then(done, failed));
  }

  /** Returns the promise of a call that `begin` starts, minded in the same way. */
  _tell<T>(begin: Parameters<typeof told<T>>[1]): Promise<T> {
    return told((error) => this._report(error, undefined, true), begin);
  }

  /** Resolves once open and authenticated. */
  async _connect(): Promise<void> {
    if (this._state === "open") return;
    if (this._state === "closed") throw closed();
    this._wake();
    const limit = limited(this._options.connectTimeoutMs ?? 10_000);
    return new Promise<void>((resolve, reject) => {
      const timer = limit && setTimeout(() => {
        this._waiters.delete(waiter);
        this._rest();
        reject(this._unreached());
      }, limit);
      const waiter = (error?: Error) => {
        clearTimeout(timer as Timer);
        error ? reject(error) : resolve();
      };
      this._waiters.add(waiter);
    });
  }

  /** Starts dialling if the client is idle. */
  _wake(): void {
    if (this._state !== "idle") return;
    this._attempt = this._refused = 0;
    this._set("connecting");
    void this._dial();
  }

  /** Stops dialling where nothing needs it; returns whether it did. */
  private _rest(): boolean {
    const idle = !this._waiters.size && !this._pending && !this._listener._wanted();
    if (idle) this._stop("idle");
    return idle;
  }

  /** Publishes without an answer. */
  get _pending(): number {
    return this._flying + this._queue.length;
  }

  /** Sends a frame and waits for its answer. */
  _call(frame: Frame): Promise<Frame> {
    return new Promise((resolve, reject) => this._begin(frame, false, {}, (error, answer) => answer ? resolve(answer) : reject(error)));
  }

  /** Sends a frame; `done` gets its answer or an error. `payload` is JSON text that goes into it as it is. */
  _begin(frame: Frame, publish: boolean, { signal, timeoutMs: limit }: Loose<CallOptions>, done: Call["_done"], payload?: string): void {
    const { window = 256, maxQueue = 10_000, maxQueueBytes = 2 ** 26 } = this._options;
    const timeoutMs = limited(limit ?? this._options.timeoutMs ?? 60_000);
    if (this._state === "closed") return done(closed());
    if (signal?.aborted) return done(signal.reason);
    if (!publish && this._state !== "open") return done(away());
    const full = this._state !== "open" || this._flying >= window;
    const corr = ++this._corr;
    frame.corr = corr;
    let _text = JSON.stringify(frame); // throws: nothing may have begun
    if (payload !== undefined) {
      JSON.parse(payload); // throws: the text would end the frame early, or spoil it
      _text = `${_text.slice(0, -1)},"payload":${payload}}`;
    }
    if (publish && ((full && this._queue.length >= maxQueue) || (this._pending && this._size + _text.length > maxQueueBytes)))
      return done(new PromError("queue_full", "too many publishes wait; await some first"));
    const abort = () => call._done(signal!.reason);
    const timer = timeoutMs && setTimeout(() => call._done(
      new PromError("timeout", `no answer within ${timeoutMs} ms; the outcome is unknown`)), timeoutMs);
    const call: Call = {
      _corr: corr, _publish: publish, _text,
      _done: (error, answer) => {
        clearTimeout(timer as Timer);
        signal?.removeEventListener("abort", abort);
        if (this._calls.delete(corr)) publish && this._flying--;
        else this._queue = this._queue.filter((other) => other !== call);
        if (publish) this._size -= _text.length;
        done(error, answer);
        this._fill();
      },
    };
    signal?.addEventListener("abort", abort);
    if (publish) this._size += _text.length;
    if (publish && full) this._queue.push(call);
    else this._send(call);
    if (publish) this._wake();
  }

  /** Puts something on the list that an answer, or the end of the connection, takes off it; returns its number and its end. */
  private _await(ended: Call["_done"]): [corr: number, done: Call["_done"]] {
    const corr = ++this._corr;
    const _done: Call["_done"] = (error, answer) => {
      this._calls.delete(corr);
      ended(error, answer);
    };
    this._calls.set(corr, { _corr: corr, _publish: false, _text: "", _done });
    return [corr, _done];
  }

  private _settle(error?: Error): void {
    for (const waiter of this._waiters) waiter(error);
    this._waiters.clear();
  }

  /** Sleeps; ends as a call does when the connection does, so that what follows stays on this one. */
  async _sleep(ms: number): Promise<void> {
    if (this._state !== "open") throw away();
    return new Promise<void>((resolve, reject) => {
      const timer = setTimeout(() => done(), Math.min(ms, MOST_MS));
      const [, done] = this._await((error) => {
        clearTimeout(timer);
        error ? reject(error) : resolve();
      });
    });
  }

  /** Ends the connection for good; waiting calls reject. */
  _close(): void {
    this._stop("closed");
    this._fail(closed());
  }

  /** After a sleep or a time offline: dials at once, or finds out whether the connection is still there. */
  _resume = (): void => {
    if ((globalThis as { document?: { hidden?: boolean } }).document?.hidden) return;
    if (this._state === "open") {
      this._back = true;
      if (!this._asked) this._ask();
      this._watch(Math.min(this._every, 5_000));
    } else if (this._state === "connecting" && (this._timers.redial || now() - this._heard > 2_000)) {
      this._drop();
      void this._dial();
    }
  };

  private _set(state: State): void {
    if (this._state === state) return;
    const listen = state === "idle" || state === "closed" ? "removeEventListener" : "addEventListener";
    for (const name of ["visibilitychange", "pageshow", "online"]) (globalThis as any)[listen]?.(name, this._resume);
    this._state = state;
    this._told(state);
  }

  private _told(state: State): void {
    try {
      this._options.onState?.(state);
    } catch (error) {
      this._report(error);
    }
  }

  private _send(call: Call): void {
    this._calls.set(call._corr, call);
    if (call._publish) this._flying++;
    this._socket!.send(call._text);
  }

  private _fill(): void {
    while (this._state === "open" && this._queue.length && this._flying < (this._options.window ?? 256)) this._send(this._queue.shift()!);
  }

  private _timer(name: string, ms: number, run: () => void): void {
    clearTimeout(this._timers[name]);
    this._timers[name] = setTimeout(() => {
      this._timers[name] = undefined;
      run();
    }, Math.min(ms, MOST_MS));
  }

  private async _token(): Promise<string | undefined> {
    const { token } = this._options;
    return typeof token === "function" ? within(token(), PATIENCE, "no token within 15 s") : token;
  }

  private async _dial(): Promise<void> {
    const mine = ++this._dials;
    this._heard = now();
    try {
      await null; // the caller of wake() has to be on the list before anything can fail
      const secret = await this._token();
      const Class = await socketClass(this._options.WebSocket);
      if (mine !== this._dials) return;
      const socket = this._socket = new Class(this._urls[this._at % this._urls.length]!, "promethean.v1");
      const lost = (why: string, tooLarge?: boolean) => this._lost(socket, why, tooLarge);
      socket.onmessage = ({ data }) => {
        try {
          this._receive(String(data));
        } catch (error) {
          this._cause = error;
          lost(`no frame of a hub: ${String(data).slice(0, 80)}`);
        }
      };
      socket.onclose = ({ code, reason }) => lost(`closed with ${code}${reason ? ` ${reason}` : ""}`, code === 1009);
      // Node's own WebSocket tells of a refused connection by an error alone.
      socket.onerror = (event) => {
        this._cause = event.error ?? event.message ?? "socket error";
        if (this._state !== "open") lost(textOf(this._cause));
      };
      socket.onopen = () => this._greet(secret);
      this._timer("dial", PATIENCE, () => lost("no handshake within 15 s"));
    } catch (error) {
      if (mine !== this._dials) return;
      if (error instanceof PromError) return this._fatal(error); // no WebSocket, or the token callback gave up
      this._lost(undefined, textOf(this._cause = error), false, true);
    }
  }

  /** Without a token a PING finds out whether one is needed. */
  private _greet(secret: string | undefined): void {
    const [corr] = this._await((error, answer) => {
      if (error) return this._refuse(error);
      clearTimeout(this._timers.dial);
      this._attempt = this._refused = 0;
      this._known = true;
      this._state = "open"; // told last: what the caller does then comes after what waited
      this._renewAt(answer!.exp);
      this._heard = now();
      this._watch();
      this._listener._up();
      for (const call of this._calls.values()) if (call._publish) {
        call._resent = true;
        this._socket!.send(call._text);
      }
      this._fill();
      this._settle();
      this._told("open");
    });
    this._socket!.send(JSON.stringify({ op: secret === undefined ? "PING" : "AUTH", token: secret, corr }));
  }

  /**
   * A fixed token that is refused stays refused; a callback may do better next time. `jwt_invalid` after a first success
   * may come from a hub that has just started and has no signing keys yet: it tries for them every 30 s at most.
   */
  private _refuse(error: Error): void {
    const code = (error as PromError).code;
    if (code === "disconnected") return;
    const most = this._known && code === "jwt_invalid" ? 10 : typeof this._options.token === "function" ? 5 : 1;
    if (isAuthCode(code) && ++this._refused >= most) return this._fatal(error);
    this._report(error, undefined, false);
    this._lost(this._socket, error.message, false, true);
  }

  private _renewAt(exp: unknown): void {
    clearTimeout(this._timers.renew);
    const { token } = this._options;
    if (typeof token !== "function" || typeof exp !== "number") return;
    const left = exp * 1000 - Date.now();
    this._timer("renew", Math.max(500, Math.min(left * 0.8, left - 5_000)), async () => {
      try {
        this._renewAt((await this._call({ op: "AUTH", token: await this._token() })).exp);
      } catch (error) {
        this._report(error);
        if (this._state === "open") this._renewAt(exp);
      }
    });
  }

  private get _every(): number {
    return this._options.pingMs ?? 20_000;
  }

  private _ask(): void {
    this._asked = true;
    this._call({ op: "PING" }).catch(() => {});
  }

  /** Asks after silence; gives the link up when that had no answer, however late the timers of a hidden page run. */
  private _watch(ms = this._every): void {
    this._timer("watch", ms, () => {
      // What arrived while no timer could run is read before the next one fires.
      if (this._asked) return this._timer("watch", 0, () => this._asked
        ? this._lost(this._socket, `silent for ${Math.round(now() - this._heard)} ms`) : this._watch());
      if (now() - this._heard >= this._every * 0.9) this._ask();
      this._watch();
    });
  }

  private _receive(text: string): void {
    this._heard = now();
    this._asked = this._back = false;
    const frame: Frame = JSON.parse(text);
    const call = this._calls.get(frame.corr);
    // Sent twice: that it was there already says no more than that the first try had arrived.
    if (call?._resent) frame.duplicate = frame.duplicates = undefined;
    if (frame.op === "OK") {
      frame.warnings?.forEach((warning: string) => this._report(new PromError("bad_request", warning), undefined, true));
      return call?._done(undefined, frame);
    }
    if (frame.op !== "ERR") return this._listener._frame(frame, text);
    const code = frame.code as Code;
    if (call?._publish) {
      // It stays: the next connection sends it again.
      if (isAuthCode(code)) return this._lost(this._socket, code);
      if (code === "shutting_down") return;
    }
    const error = new PromError(code, frame.msg, { retryAfterMs: frame.retry_after_ms });
    if (call) return call._done(error);
    this._listener._frame(frame, text);
    this._report(error);
  }

  private _drop(): void {
    this._dials++; // one that is under way leads nowhere
    this._asked = false;
    for (const name in this._timers) clearTimeout(this._timers[name]);
    this._timers = {};
    const socket = this._socket;
    this._socket = undefined;
    if (!socket) return;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.onerror = () => {};
    if (socket.readyState < 2) socket.close(1000);
    NODE: { // else the process would live as long as the hub does not answer the close
      const bye = setTimeout(() => socket.terminate?.(), GOODBYE) as { unref?(): void };
      bye.unref?.();
    }
  }

  private _tooLarge(): void {
    const size = ({ _text }: Call) => new TextEncoder().encode(_text).length;
    const [call] = [...this._calls.values()].sort((a, b) => size(b) - size(a));
    if (call?._text) call._done(new PromError("too_large", `${size(call)} bytes are more than the hub's max_frame_bytes; send less at once${
      call._unknown ? "; the outcome before is unknown" : ""}`));
  }

  /** `patient`: the hub, or the token callback, may do better next time. */
  private _lost(socket: Socket | undefined, why: string, tooLarge = false, patient = this._known): void {
    if (socket !== this._socket || this._state === "closed" || this._state === "idle") return;
    const error = new PromError("disconnected", why, { cause: this._cause });
    this._cause = undefined;
    this._why = why;
    tooLarge &&= this._state === "open"; // else nothing but the greeting was sent
    this._drop();
    this._set("connecting");
    if (tooLarge) this._tooLarge();
    else for (const call of this._calls.values()) call._unknown = true;
    for (const call of [...this._calls.values()]) if (!call._publish) call._done(error);
    this._listener._down();
    this._report(error);
    this._at++;
    const round = Math.floor(this._attempt++ / this._urls.length);
    if (!patient && this._attempt >= this._urls.length) {
      // There never was a connection: its callers are better told than kept waiting.
      for (const call of this._queue.splice(0)) call._done(this._unreached());
      if (this._rest()) return;
    }
    const [least, most] = this._options.backoffMs ?? [100, 10_000]; // with jitter, so that clients do not come all at once
    this._timer("redial", this._back ? 0 : least + Math.random() * Math.min(most, least * 2 ** round), () => void this._dial());
    this._back = false;
  }

  private _unreached(): PromError {
    let why = this._why;
    NODE: if (/:808[12]\b/.test(`${this._urls}`)) why += "; a hub's WebSocket port is 8090 unless WS_PORT says otherwise";
    return new PromError("connect_failed", `no connection to ${this._urls}: ${why}`);
  }

  private _stop(state: State): void {
    this._drop();
    this._set(state);
  }

  private _fatal(error: Error): void {
    this._stop("idle");
    if (this._known) this._report(error); // else nothing but calls waits, and they are told
    this._fail(error);
  }

  private _fail(error: Error): void {
    for (const call of [...this._calls.values(), ...this._queue.splice(0)]) call._done(error);
    this._settle(error);
    this._listener._failed(error);
  }
}

async function socketClass(given: SocketClass | undefined): Promise<SocketClass> {
  const found = given ?? (globalThis as { WebSocket?: SocketClass }).WebSocket;
  NODE: if (!found) { // left out of the file for browsers
    const name = "ws"; // a variable, so that bundlers leave it alone
    try {
      return (await import(/* @vite-ignore */ /* webpackIgnore: true */ name)).WebSocket;
    } catch (cause) {
      throw new PromError("no_websocket", "install the package ws, use Node 22, or pass options.WebSocket", { cause });
    }
  }
  return found!;
}
