// The public surface.
export { PromClient, EventClient, type Address } from "./client.js";
export { Subscription, type Handler } from "./subscription.js";
export { Delivery } from "./delivery.js";
export { PromError, type Code, type HubCode, type ClientCode } from "./error.js";
export { uuidv7 } from "./id.js";
export type {
  AckOptions, AnyTopics, CallOptions, ClientOptions, CursorPosition, DeadLetter, Derived, ErrorContext, EventOptions,
  EventRecord, Filter, Mapped, NackOptions, Pattern, PayloadOf, PublishOptions, PublishOpts, Published, Received, ReceivedEvent,
  Sendable, SnapshotEntry, Socket, SocketClass, State, SubscribeOptions, TopicMap,
} from "./types.js";
