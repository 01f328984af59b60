//! How the hub's cost grows: with topics, with idle groups, with the length of a topic.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::load::Limit;
use crate::measure::{self, Plan, Rate};
use crate::report::{Bar, thousands};
use crate::server::Server;
use crate::systems::{Programs, System};

/// Topics beside the one.
const TOPICS: usize = 1_000;
/// Groups that have subscribed and do nothing, beside the one that works.
const IDLE_GROUPS: usize = 99;
/// How many steps there are of the long topic.
const STEPS: u64 = 11;

/// What is grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    Topics,
    Groups,
    Length,
}

impl Growth {
    pub(crate) const ALL: [Growth; 3] = [Growth::Topics, Growth::Groups, Growth::Length];

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "topics" => Growth::Topics,
            "groups" => Growth::Groups,
            "length" => Growth::Length,
            _ => return None,
        })
    }

    /// Measures it and says each step on standard error.
    pub(crate) fn run(self, programs: &Programs, dir: &Path, rounds: usize, plan: Plan) -> io::Result<Vec<Bar>> {
        let server = System::Hub.start(programs, dir)?;
        let mut bars = match self {
            Growth::Topics => topics(&server, rounds, plan.time)?,
            Growth::Groups => groups(&server, rounds, plan.time)?,
            Growth::Length => length(&server, plan.step)?,
        };
        let what = match self {
            Growth::Topics => "peak RSS with 1,000 topics, MB",
            Growth::Groups => "peak RSS with 100 groups, MB",
            Growth::Length => "peak RSS over 11 million events, MB",
        };
        bars.push(Bar::at_most(what, 500.0, server.peak_rss() as f64 / 1e6));
        Ok(bars)
    }
}

fn topics(server: &Server, rounds: usize, time: Duration) -> io::Result<Vec<Bar>> {
    let limit = Limit { events: u64::MAX, time };
    let (mut publish, mut both) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for round in 0..rounds {
        for (many, count) in [(0, 1), (1, TOPICS)] {
            let names = |kind: &str| -> Vec<String> {
                (0..count).map(|number| format!("bench.{kind}-{count}-{round}.{number}")).collect()
            };
            let (_, rate) = measure::publish(System::Hub, server, &names("publish"), limit)?;
            say(server, &format!("{count} topics: published"), rate);
            publish[many].push(rate.per_second);
            let selector = format!("bench.both-{count}-{round}.*");
            let rate = measure::end_to_end(System::Hub, server, &names("both"), &selector, limit)?;
            say(server, &format!("{count} topics: end to end, one pattern"), rate);
            both[many].push(rate.per_second);
        }
    }
    let [one, many] = publish.map(median);
    let [one_both, many_both] = both.map(median);
    Ok(vec![
        Bar::at_least("published/s with 1,000 topics, times one topic", 0.8, many / one),
        Bar::at_least("end to end/s with 1,000 topics, times one topic", 0.8, many_both / one_both),
    ])
}

fn groups(server: &Server, rounds: usize, time: Duration) -> io::Result<Vec<Bar>> {
    let limit = Limit { events: u64::MAX, time };
    let (mut alone, mut among) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let topic = format!("bench.alone-{round}");
        let rate = measure::end_to_end(System::Hub, server, std::slice::from_ref(&topic), &topic, limit)?;
        say(server, "one group: end to end", rate);
        alone.push(rate.per_second);
        let topic = format!("bench.among-{round}");
        // Each holds one event and never acks it: there, connected, with nothing to do.
        let idle = (0..IDLE_GROUPS).map(|number| {
            let (mut wire, mut consumer) =
                System::Hub.consumer(server.address, &topic, &format!("idle-{number}"), 1)?;
            consumer.begin(&mut wire.out);
            wire.flush()?;
            Ok(wire)
        });
        let idle = idle.collect::<io::Result<Vec<_>>>()?;
        let rate = measure::end_to_end(System::Hub, server, std::slice::from_ref(&topic), &topic, limit)?;
        say(server, "one group among 99 idle ones: end to end", rate);
        among.push(rate.per_second);
        drop(idle);
    }
    let ratio = median(among) / median(alone);
    Ok(vec![Bar::at_least("end to end/s with 100 groups of which 99 are idle, times one group", 0.9, ratio)])
}

fn length(server: &Server, step: u64) -> io::Result<Vec<Bar>> {
    let topic = "bench.long".to_owned();
    let limit = Limit { events: step, time: Duration::from_secs(600) };
    let mut rates = Vec::new();
    for number in 1..=STEPS {
        let rate = measure::end_to_end(System::Hub, server, std::slice::from_ref(&topic), &topic, limit)?;
        say(server, &format!("part {number} of a topic of {STEPS}: end to end"), rate);
        rates.push(rate.per_second);
    }
    let (first, last) = (rates.first().copied().unwrap_or(0.0), rates.last().copied().unwrap_or(0.0));
    Ok(vec![Bar::at_least("end to end/s after 10 million events, times the first million", 0.9, last / first)])
}

fn say(server: &Server, what: &str, rate: Rate) {
    let (events, cpu, rss) = (thousands(rate.per_second), rate.cpu_micros, server.rss() as f64 / 1e6);
    eprintln!("{what}: {events}/s, {cpu:.1} µs of the hub's CPU an event, RSS {rss:.0} MB");
}

fn median(mut runs: Vec<f64>) -> f64 {
    runs.sort_by(f64::total_cmp);
    runs.get(runs.len() / 2).copied().unwrap_or(0.0)
}
