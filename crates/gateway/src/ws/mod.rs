//! The WebSocket gateway.

#[allow(dead_code)]
mod codec;
