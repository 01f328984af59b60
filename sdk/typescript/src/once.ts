// Consumers whose effect happens once: a group redelivers after a crash, a lost lease or a lost ack, and a mark says what was
// done. Marks of SQLite and MongoDB are those of the Rust crate promethean-outbox: both may share a table or collection.
import type { Delivery } from "./delivery.js";
import type { Handler } from "./subscription.js";
import type { ReceivedEvent } from "./types.js";

/** Remembers which events a consumer has done. */
export interface Marks {
  /** True if the event was marked and the mark has not expired. */
  seen(id: string): boolean | Promise<boolean>;
  /** Marks the event. Returned or resolved: as durable as the store is. */
  mark(id: string): void | Promise<void>;
}

export interface MarkOptions {
  /** How long a mark is kept, 7 days if left out: longer than an event may be redelivered. */
  ttlMs?: number;
}

const WEEK = 7 * 24 * 3_600_000;

/**
 * Wraps a handler so that an event it has done is skipped, and so acked. Exactly once but for a crash between the end of the
 * handler and the mark; `SqliteMarks.transactional` has no such moment.
 */
export function exactlyOnce<T = any>(handler: Handler<T>, marks: Marks): Handler<T> {
  return async (event: ReceivedEvent<T>, ctx: Delivery<T>) => {
    if (await marks.seen(event.id)) return;
    await handler(event, ctx);
    await marks.mark(event.id);
  };
}

/** Marks in memory, gone with the process: at most `capacity`, then the oldest is forgotten. */
export class MemoryMarks implements Marks {
  private _until = new Map<string, number>(); // in the order in which marks were made
  private _capacity: number;
  private _ttl: number;

  constructor({ capacity = 10_000, ttlMs = WEEK }: MarkOptions & { capacity?: number } = {}) {
    this._capacity = Math.max(1, capacity);
    this._ttl = ttlMs;
  }

  seen(id: string): boolean {
    return (this._until.get(id) ?? 0) > Date.now();
  }

  mark(id: string): void {
    this._until.delete(id);
    this._until.set(id, Date.now() + this._ttl);
    for (const [oldest, until] of this._until) {
      if (this._until.size <= this._capacity && until > Date.now()) return;
      this._until.delete(oldest);
    }
  }
}

/** The part of a SQLite database that marks need: `DatabaseSync` of `node:sqlite` has it, and so does `better-sqlite3`. */
export interface SqliteDatabase {
  exec(sql: string): unknown;
  prepare(sql: string): { get(...values: any[]): unknown; run(...values: any[]): { changes: number | bigint } };
}

const TABLE = `CREATE TABLE IF NOT EXISTS dedupe (
  consumer TEXT NOT NULL, id TEXT NOT NULL, expires INTEGER NOT NULL, PRIMARY KEY (consumer, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS dedupe_expires ON dedupe (expires)`;
/** A mark that has expired counts as none. */
const INSERT = `INSERT INTO dedupe (consumer, id, expires) VALUES (?, ?, ?)
  ON CONFLICT (consumer, id) DO UPDATE SET expires = excluded.expires WHERE dedupe.expires <= ?`;
const SELECT = "SELECT 1 AS seen FROM dedupe WHERE consumer = ? AND id = ? AND expires > ?";
const PURGE = `DELETE FROM dedupe WHERE (consumer, id) IN
  (SELECT consumer, id FROM dedupe WHERE expires <= ? ORDER BY expires LIMIT 1024)`;
/** Expired marks are removed once in so many. */
const PURGE_EVERY = 256;

/** Marks in the table `dedupe` of a SQLite database, which is created if it is missing. */
export class SqliteMarks implements Marks {
  private _ttl: number;
  private _made = 0;

  constructor(private _database: SqliteDatabase, private _consumer: string, { ttlMs = WEEK }: MarkOptions = {}) {
    this._ttl = ttlMs;
    _database.exec(TABLE);
  }

  seen(id: string): boolean {
    return this._database.prepare(SELECT).get(this._consumer, id, Date.now()) !== undefined;
  }

  mark(id: string): void {
    this._record(id);
  }

  /**
   * Wraps a handler that writes to the same database: its statements and the mark are one transaction, so that neither is
   * there without the other. The handler is synchronous; an error rolls back.
   */
  transactional<T = any>(handler: (event: ReceivedEvent<T>, ctx: Delivery<T>) => void): Handler<T> {
    return (event, ctx) => {
      this._database.exec("BEGIN IMMEDIATE");
      try {
        if (this._record(event.id)) {
          const result: unknown = handler(event, ctx);
          if (result instanceof Promise) {
            result.catch(() => {});
            throw new TypeError("a transactional handler must not be async: its writes would be outside of the transaction");
          }
        }
        this._database.exec("COMMIT");
      } catch (error) {
        this._database.exec("ROLLBACK");
        throw error;
      }
    };
  }

  /** False if the event was marked before. */
  private _record(id: string): boolean {
    const now = Date.now();
    if (this._made++ % PURGE_EVERY === 0) this._database.prepare(PURGE).run(now);
    return Number(this._database.prepare(INSERT).run(this._consumer, id, now + this._ttl, now).changes) > 0;
  }
}

/** The part of a MongoDB collection that marks need: that of the driver `mongodb` has it. */
export interface MongoCollection {
  createIndex(keys: any, options: any): Promise<unknown>;
  findOne(filter: any): Promise<unknown>;
  updateOne(filter: any, update: any, options: any): Promise<unknown>;
}

/** Marks in a collection of MongoDB, `dedupe` say. MongoDB removes those that have expired. */
export class MongoMarks implements Marks {
  private _ttl: number;
  private _index: Promise<unknown> | undefined;

  constructor(private _collection: MongoCollection, private _consumer: string, { ttlMs = WEEK }: MarkOptions = {}) {
    this._ttl = ttlMs;
  }

  async seen(id: string): Promise<boolean> {
    return !!(await this._collection.findOne({ _id: `${this._consumer}:${id}`, expires: { $gt: new Date() } }));
  }

  async mark(id: string): Promise<void> {
    this._index ??= this._collection.createIndex({ expires: 1 }, { expireAfterSeconds: 0 });
    await this._index.catch((error) => { this._index = undefined; throw error; });
    const expires = new Date(Date.now() + this._ttl);
    const majority = { upsert: true, writeConcern: { w: "majority" } };
    await this._collection.updateOne({ _id: `${this._consumer}:${id}` }, { $set: { expires } }, majority);
  }
}
