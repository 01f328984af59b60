//! The hub over real ports: WebSocket, HTTP and ops, with the memory engine.

mod asyncapi;
mod audit;
mod bounds;
mod buffers;
mod caps;
mod harness;
mod http_cloud_events;
mod http_consume;
mod http_publish;
mod http_read;
mod hygiene;
mod key_path;
mod listener;
mod ops_auth;
mod ops_change;
mod ops_damage;
mod ops_keys;
mod ops_lag;
mod ops_metrics;
mod ops_page;
mod ops_read;
mod ops_routes;
mod ops_scan;
mod ops_topics;
mod reading_whole;
#[cfg(feature = "otel")]
mod trace;
mod ws_auth;
mod ws_bad_input;
mod ws_frames;
mod ws_many;
mod ws_strangers;
mod ws_support;
mod ws_unseen;
