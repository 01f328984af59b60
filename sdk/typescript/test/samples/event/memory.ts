// Stands where the source documents have their bus in memory: the client of this package by that name, of the hub that the
// test names, with the one call that the hub answers elsewhere (GET /cursors).
import { PromClient, type CursorPosition } from "../../../src/index.js";

export const at = {
  url: "",
  cursor: async (_topic: string, _group: string): Promise<CursorPosition | undefined> => undefined,
  open: [] as PromClient[],
};

export class InMemoryEventBus extends PromClient {
  constructor() {
    super(at.url);
    at.open.push(this);
  }

  getCursor(topic: string, group: string): Promise<CursorPosition | undefined> {
    return at.cursor(topic, group);
  }
}
