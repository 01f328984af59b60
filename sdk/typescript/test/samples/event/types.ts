// The names that the samples import, as this package has them.
export type { CursorPosition, EventRecord, PromClient as EventBus, PublishOptions } from "../../../src/index.js";
