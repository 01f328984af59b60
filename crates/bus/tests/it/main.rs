//! The bus from outside, on the memory engine.

mod bad_input;
mod bytes;
mod cluster;
mod common;
mod compaction;
mod dead_letters;
mod delivery;
mod fan_in;
mod letters;
mod pull;
mod redrive;
mod remembered;
mod resume;
mod saves;
mod seed;
mod slow_reads;
mod topics;
mod unseen;
