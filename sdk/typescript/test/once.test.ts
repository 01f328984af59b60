// exactlyOnce: marks in memory, SQLite and MongoDB, and handlers that commit with their mark.
import { beforeEach, describe, expect, it, vi } from "vitest";
import { exactlyOnce, MemoryMarks, MongoMarks, SqliteMarks, type Marks, type SqliteDatabase } from "../src/once.js";
import { hub, make } from "./one-hub.js";
import { until } from "./scenarios.js";

/** `node:sqlite` where this Node has it; else a table that understands the statements of the marks. */
async function sqlite(): Promise<SqliteDatabase> {
  const own = "node:sqlite";
  const module = await import(own).catch(() => undefined);
  if (module) return new module.DatabaseSync(":memory:");
  let rows = new Map<string, number>();
  let saved: Map<string, number> | undefined;
  return {
    exec(sql) {
      if (sql.startsWith("BEGIN")) saved = new Map(rows);
      if (sql === "ROLLBACK") rows = saved!;
    },
    prepare: (sql) => ({
      get: (consumer, id, now) => ((rows.get(`${consumer} ${id}`) ?? 0) > now ? { seen: 1 } : undefined),
      run(...values) {
        if (sql.startsWith("DELETE")) {
          for (const [key, expires] of rows) if (expires <= values[0]) rows.delete(key);
          return { changes: 0 };
        }
        const [consumer, id, expires, now] = values;
        if ((rows.get(`${consumer} ${id}`) ?? 0) > now) return { changes: 0 };
        rows.set(`${consumer} ${id}`, expires);
        return { changes: 1 };
      },
    }),
  };
}

/** The collection as far as the marks ask it. */
function mongo() {
  const documents = new Map<string, { expires: Date }>();
  const asked = { indexes: [] as unknown[], concerns: [] as unknown[] };
  return {
    asked,
    async createIndex(keys: any, options: any) { asked.indexes.push([keys, options]); },
    async findOne({ _id, expires }: any) {
      const found = documents.get(_id);
      return found && found.expires > expires.$gt ? found : null;
    },
    async updateOne({ _id }: any, { $set }: any, options: any) {
      asked.concerns.push(options);
      documents.set(_id, $set);
    },
  };
}

describe.each([
  ["memory", async () => new MemoryMarks(), async () => new MemoryMarks({ ttlMs: 1 })],
  ["SQLite", async () => new SqliteMarks(await sqlite(), "g"), async () => new SqliteMarks(await sqlite(), "g", { ttlMs: 1 })],
  ["MongoDB", async () => new MongoMarks(mongo(), "g"), async () => new MongoMarks(mongo(), "g", { ttlMs: 1 })],
] as [string, () => Promise<Marks>, () => Promise<Marks>][])("marks in %s", (_name, open, short) => {
  it("skip an event that was done, and not one whose handler failed", async () => {
    const marks = await open();
    const handler = vi.fn<(event: { id: string }) => Promise<void>>(async () => {});
    handler.mockRejectedValueOnce(new Error("no"));
    const once = exactlyOnce(handler as any, marks) as (event: object) => Promise<void>;
    await expect(once({ id: "1" })).rejects.toThrow("no");
    for (const id of ["1", "1", "2"]) await once({ id });
    expect(handler.mock.calls.map(([event]) => event.id)).toEqual(["1", "1", "2"]);
  });

  it("expire", async () => {
    const marks = await short();
    await marks.mark("1");
    await new Promise((resolve) => setTimeout(resolve, 5));
    expect(await marks.seen("1")).toBe(false);
    await marks.mark("1");
  });
});

describe("marks", () => {
  it("in memory are bounded: the oldest is forgotten, one that is renewed is not", () => {
    const marks = new MemoryMarks({ capacity: 2 });
    for (const id of ["1", "2", "1", "3"]) marks.mark(id);
    expect(["1", "2", "3"].map((id) => marks.seen(id))).toEqual([true, false, true]);
  });

  it("of one consumer are not another's", async () => {
    const [database, collection] = [await sqlite(), mongo()];
    for (const [one, other] of [
      [new SqliteMarks(database, "g"), new SqliteMarks(database, "h")],
      [new MongoMarks(collection, "g"), new MongoMarks(collection, "h")],
    ] as [Marks, Marks][]) {
      await one.mark("1");
      expect([await one.seen("1"), await other.seen("1")]).toEqual([true, false]);
    }
  });

  it("in MongoDB expire by an index and are written with majority", async () => {
    const collection = mongo();
    const marks = new MongoMarks(collection, "g");
    for (const id of ["1", "2"]) await marks.mark(id);
    expect(collection.asked.indexes).toEqual([[{ expires: 1 }, { expireAfterSeconds: 0 }]]);
    expect(collection.asked.concerns[0]).toEqual({ upsert: true, writeConcern: { w: "majority" } });
  });

  it("in SQLite commit with the handler's writes or not at all", async () => {
    const marks = new SqliteMarks(await sqlite(), "g");
    const calls: string[] = [];
    const charge = marks.transactional((event: { id: string }) => {
      calls.push(event.id);
      if (calls.length === 1) throw new Error("declined");
    }) as (event: object) => void;
    expect(() => charge({ id: "1" })).toThrow("declined");
    expect(marks.seen("1")).toBe(false);
    charge({ id: "1" });
    charge({ id: "1" });
    expect([calls, marks.seen("1")]).toEqual([["1", "1"], true]);
    const late = marks.transactional((async () => {}) as never) as (event: object) => void;
    expect(() => late({ id: "2" })).toThrow(/async/);
    expect(marks.seen("2")).toBe(false);
  });
});

describe("a subscription with exactlyOnce", () => {
  beforeEach(() => vi.spyOn(console, "error").mockImplementation(() => {}));

  it("acks an event that was done before without its handler", async () => {
    const client = make();
    const marks = new MemoryMarks();
    const { id } = await client.publish("t", 1);
    marks.mark(id);
    await client.publish("t", 2);
    const seen: unknown[] = [];
    await client.subscribe("t", "g", exactlyOnce((event) => seen.push(event.payload), marks), { from: "earliest" });
    await until("both are done", () => hub.group("t", "g", 0).done.size === 2);
    expect(seen).toEqual([2]);
  });
});
