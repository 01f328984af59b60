//! The bus from outside, on the memory engine.

mod bad_input;
mod cluster;
mod common;
mod compaction;
mod delivery;
mod fan_in;
mod saves;
mod seed;
