//! The log on standard error, of every command that has one.

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Starts it. A line that cannot be written (the disk is full, the pipe's reader is gone) is lost, and nothing else: said
/// with `eprintln!`, as the subscriber would, that would be a panic of whoever wanted to log.
pub(super) fn start(filter: EnvFilter, format: LogFormat, ansi: bool) {
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).log_internal_errors(false);
    match format {
        LogFormat::Text => builder.with_ansi(ansi).init(),
        LogFormat::Json => builder.json().init(),
    }
}
