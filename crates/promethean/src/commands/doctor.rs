//! `promethean doctor`: what is wrong with a data directory, and what can be saved.
//!
//! Exits 0 when the directory is sound, 1 when it is damaged or cannot be read.

use promethean_store::log::doctor::{check, rebuild_index, salvage};

use super::out;
use crate::args::DoctorArgs;
use crate::exit::Failure;

pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    // Every byte is read: with a large directory that takes its time.
    let bar = out::working("reading");
    if let Some(to) = &args.salvage {
        let saved = salvage(&args.dir, to).map_err(Failure::failed)?;
        bar.finish_and_clear();
        if args.json {
            return out::json(&saved);
        }
        out::line(&format!(
            "saved {} topics, {} events and {} groups to {}; {} events are gone",
            saved.topics,
            saved.events,
            saved.groups,
            to.display(),
            saved.missing
        ))?;
        for loss in &saved.losses {
            out::line(&format!("lost: {loss}"))?;
        }
        out::hint(&format!("promethean serve --data-dir {}", to.display()));
        return Ok(());
    }
    if args.rebuild_index {
        rebuild_index(&args.dir).map_err(Failure::failed)?;
        out::done("the index was made anew");
    }
    let report = check(&args.dir).map_err(Failure::failed)?;
    bar.finish_and_clear();
    if args.json {
        out::report(&serde_json::to_string_pretty(&report).map_err(Failure::failed)?)?;
    } else {
        out::report(&report.to_string())?;
    }
    if report.is_sound() {
        return Ok(());
    }
    Err(Failure::failed(format!("{} is damaged", args.dir.display())))
}
