//! Removes the topics of a run with their groups, also after SIGINT.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel};

use super::super::address::{NAME_OPS, Port};
use super::super::fetch::Peer;
use super::super::interrupt;
use super::load::Plan;
use crate::args::{BenchArgs, HttpArgs};
use crate::exit::{Exit, Failure};

/// How long the hub may take for one topic.
const TIMEOUT: &str = "10s";

/// The topics of a run.
#[derive(Clone)]
pub(super) struct Cleanup {
    at: HttpArgs,
    topics: Arc<[String]>,
    /// A client was connected: there may be topics.
    touched: Arc<AtomicBool>,
}

impl Cleanup {
    /// From now on an interrupt removes the topics. `None` if they are to stay.
    pub(super) fn prepare(args: &BenchArgs, plan: &Plan) -> Option<Self> {
        let topics = (0..plan.topics).map(|number| plan.topic(number)).collect();
        let at = HttpArgs { at: args.at.clone(), timeout: TIMEOUT.to_owned() };
        let cleanup = Self { at, topics, touched: Arc::clone(&plan.touched) };
        if args.keep {
            return None;
        }
        let at_the_end = cleanup.clone();
        interrupt::leaving(move || at_the_end.run().map_or_else(|failure| format!("; {failure}"), |()| String::new()));
        Some(cleanup)
    }

    /// Removes the topics.
    pub(super) fn run(&self) -> Result<(), Failure> {
        if !self.touched.swap(false, AcqRel) {
            return Ok(());
        }
        let peer = Peer::new(&self.at, Port::Ops)?;
        for topic in &*self.topics {
            match peer.change("DELETE", "/topics", &[("topic", topic.clone())], "") {
                // The run ended before its first event.
                Err(failure) if failure.exit == Exit::NotFound => {}
                Err(failure) => {
                    let message = format!("the topics of the run stay ({failure}); {NAME_OPS}, or add --keep");
                    return Err(Failure::new(Exit::Failed, message));
                }
                Ok(_) => {}
            }
        }
        Ok(())
    }
}
