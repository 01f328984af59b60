//! The network edge of Promethean: WebSocket, HTTP, ops, auth.

pub mod auth;
