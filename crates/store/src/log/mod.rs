//! The embedded engine: see `docs/log-format.md`.
