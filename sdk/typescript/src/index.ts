// The public surface.
export { PromClient, EventClient } from "./client.js";
export { Subscription, type Handler } from "./subscription.js";
export { Delivery } from "./delivery.js";
export { PromError, type Code, type HubCode, type ClientCode } from "./error.js";
export { uuidv7 } from "./id.js";
export type {
  AckOptions, AnyTopics, CallOptions, ClientOptions, CursorPosition, EventOptions, EventRecord, Filter, NackOptions,
  Pattern, PayloadOf, PublishOptions, Published, Socket, SocketClass, State, SubscribeOptions, TopicMap,
} from "./types.js";
