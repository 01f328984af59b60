//! Promethean.
