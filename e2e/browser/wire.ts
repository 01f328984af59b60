// A connection that sends frames as they stand and shows every frame that comes: no SDK in between.
import { WebSocket } from "ws";

export type Frame = Record<string, any>;

export class Wire {
  /** What came and was not taken yet, in order. */
  private waiting: Frame[] = [];
  /** How the hub closed it. */
  closed: number | undefined;
  private socket: WebSocket;
  private wake = () => {};
  private marks = 0;

  private constructor(url: string, private seen: (frame: Frame) => void) {
    this.socket = new WebSocket(url);
    this.socket.on("message", (data) => {
      const frame = JSON.parse(String(data)) as Frame;
      this.seen(frame);
      this.waiting.push(frame);
      this.wake();
    });
    this.socket.on("close", (code) => { this.closed = code; this.wake(); });
    this.socket.on("error", () => {});
  }

  /** Connects; `seen` is shown every frame before anybody else. */
  static async open(url: string, seen: (frame: Frame) => void = () => {}): Promise<Wire> {
    const wire = new Wire(url, seen);
    await new Promise<void>((resolve, reject) => { wire.socket.once("open", resolve); wire.socket.once("error", reject); });
    return wire;
  }

  text(text: string): void { this.socket.send(text); }

  /** Takes the first frame that `wanted` takes; the others wait on. */
  async next(what: string, wanted: (frame: Frame) => boolean, ms = 15_000): Promise<Frame> {
    const end = Date.now() + ms;
    for (;;) {
      const at = this.waiting.findIndex(wanted);
      if (at >= 0) return this.waiting.splice(at, 1)[0]!;
      const left = end - Date.now();
      if (left <= 0 || this.closed !== undefined) throw new Error(`in vain: ${what}; closed with ${this.closed}; there is ${JSON.stringify(this.waiting.slice(-3))}`);
      await new Promise<void>((resolve) => { const timer = setTimeout(resolve, left); this.wake = () => { clearTimeout(timer); resolve(); }; });
    }
  }

  /** Sends a frame and takes the answer to it. */
  async ask(frame: Frame): Promise<Frame> {
    const corr = `c${++this.marks}`;
    this.text(JSON.stringify({ ...frame, corr }));
    return this.next(`an answer to ${JSON.stringify(frame)}`, (came) => came.corr === corr);
  }

  /** Sends a text as it is and takes the next answer, whatever its mark. */
  async answer(text: string): Promise<Frame> {
    this.text(text);
    return this.next(`an answer to ${text}`, (came) => came.op === "OK" || came.op === "ERR");
  }

  /** The next delivery to a group, or to a tail. */
  delivery(group?: string): Promise<Frame> {
    return this.next(`a delivery to ${group ?? "a tail"}`, (came) => (came.op === "EVENT" || came.op === "EVENTS") && came.group === group);
  }

  close(): void { this.socket.terminate(); }
}
