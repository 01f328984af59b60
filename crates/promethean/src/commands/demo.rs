//! `promethean demo`: a hub with something to see. Sample heartbeats, the seed's projector of them, and its page.

use std::f64::consts::TAU;
use std::sync::Arc;
use std::time::Duration;

use promethean_bus::{Bus, Code, PublishOptions, Topic, TypedTopic};
use promethean_gateway::Hub;
use promethean_gateway::ops::Addresses;
use promethean_projection::process::{HEARTBEATS, Heartbeat, PROCESSES};
use promethean_store::{Compaction, Retention, SnapshotJob, TopicSettings};
use tokio::time::{MissedTickBehavior, interval};

use super::{load, projector, serve};
use crate::args::ConfigArgs;
use crate::config::{Config, Engine, Origin};
use crate::exit::Failure;

/// The processes of the demo: a name, how busy it is, and for how many seconds of each minute it is silent.
const PROCESSES_SHOWN: [(&str, f64, u64); 3] = [("stt", 20.0, 0), ("tts", 45.0, 0), ("vision", 70.0, 30)];
const MINUTE: u64 = 60;

pub(super) fn run(args: &ConfigArgs) -> Result<(), Failure> {
    let (mut config, layers) = load(args)?;
    // A demo must not write into the data of a hub that somebody uses.
    if let Engine::Log { dir, .. } = &mut config.engine
        && layers.get("data_dir").is_none_or(|said| said.origin == Origin::Default)
    {
        dir.set_file_name("promethean-demo");
    }
    serve::run(&config, &layers.notes, true)
}

/// Gives the demo's topics their settings, where they have none, and starts its projector and its processes.
pub(super) async fn start(hub: &Arc<Hub>) -> Result<(), Failure> {
    let store = hub.bus.store();
    let days = Retention { max_age: Some(Duration::from_secs(3 * 86_400)), ..Retention::default() };
    let heartbeats = TopicSettings { retention: days, ..TopicSettings::default() };
    let processes = TopicSettings {
        compaction: Some(Compaction::default()),
        snapshot: Some(SnapshotJob::default()),
        ..TopicSettings::default()
    };
    for (name, settings) in [(HEARTBEATS, heartbeats), (PROCESSES, processes)] {
        let topic = Topic::parse(name).map_err(Failure::failed)?;
        if store.settings(&topic) == TopicSettings::default() {
            store.set_settings(&topic, settings).await.map_err(Failure::failed)?;
        }
    }
    hub.about.set_demo(true);
    projector::start(hub.bus.clone());
    tokio::spawn(beat(hub.bus.clone()));
    Ok(())
}

/// Sends the heartbeats of every process, once a second.
async fn beat(bus: Bus) {
    let Ok(topic) = TypedTopic::<Heartbeat>::parse(HEARTBEATS) else { return };
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for second in 0_u64.. {
        seconds.tick().await;
        for (name, busy, silent) in PROCESSES_SHOWN {
            // Silence comes at the end of a minute, so that everybody is seen alive first.
            if second % MINUTE >= MINUTE - silent {
                continue;
            }
            match topic.publish(&bus, &heartbeat(name, busy, second), PublishOptions::default()).await {
                Ok(_) => {}
                Err(error) if error.code == Code::ShuttingDown => return,
                Err(error) => tracing::warn!(%error, "a heartbeat of the demo was not taken"),
            }
        }
    }
}

fn heartbeat(name: &str, busy: f64, second: u64) -> Heartbeat {
    let turn = (second % MINUTE) as f64 / MINUTE as f64 * TAU;
    let round = |number: f64| (number * 10.0).round() / 10.0;
    Heartbeat {
        pid: 1234,
        name: name.to_owned(),
        host: "local".to_owned(),
        cpu_pct: round(busy + 15.0 * (3.0 * turn + busy).sin()),
        mem_mb: round(200.0 + busy + 25.0 * turn.sin()),
        sid: None,
    }
}

/// The lines after the one that says that the hub is ready.
pub(super) fn where_to_look(config: &Config, at: Addresses) -> String {
    let secure = if config.tls.is_some() { "s" } else { "" };
    let Addresses { ws, http, ops } = at;
    format!(
        "demo       http{secure}://{ops}/demo                       the processes, live\n\
         dashboard  http{secure}://{ops}/\n\
         state      http{secure}://{ops}/latest-by-key?topic={PROCESSES}\n\
         stream     http{secure}://{http}/events/{PROCESSES}?from=snapshot   (curl -N)\n\
         websocket  ws{secure}://{ws}"
    )
}

#[cfg(test)]
mod tests {
    use promethean_projection::process::Processes;

    use super::*;

    #[test]
    fn one_process_falls_silent_for_long_enough_to_be_stale_and_the_others_never_do() {
        let stale = Processes::default().stale_after.as_secs();
        let silences: Vec<u64> = PROCESSES_SHOWN.iter().map(|(_, _, silent)| *silent).collect();
        assert!(silences.iter().any(|silent| *silent > stale + 5), "{silences:?}");
        assert!(silences.contains(&0), "{silences:?}");
        for second in 0..600 {
            let beat = heartbeat("stt", 20.0, second);
            assert!((0.0..=100.0).contains(&beat.cpu_pct) && beat.mem_mb > 100.0, "{beat:?}");
        }
    }
}
