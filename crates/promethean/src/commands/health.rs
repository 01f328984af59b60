//! `promethean health`: asks `/readyz`, for container health checks and scripts.
//!
//! Exits 0 when the hub is ready, 1 when it answers that it is not, 3 when nobody answers, 124 when it takes too long.

use super::address::Port;
use super::fetch::Peer;
use super::out;
use crate::args::HealthArgs;
use crate::exit::Failure;

pub(crate) fn run(args: &HealthArgs) -> Result<(), Failure> {
    let peer = Peer::new(&args.hub, Port::Http)?;
    let answer = peer.send("GET", "/readyz", &[], None)?;
    let (status, ready) = (answer.status, answer.status == 200);
    let said = answer.said();
    if args.json {
        let told = serde_json::json!({ "server": peer.server(), "ready": ready, "status": status, "said": said });
        out::report(&told.to_string())?;
    } else if ready {
        out::line("ready")?;
        out::hint("promethean topic list");
    }
    if ready { Ok(()) } else { Err(Failure::failed(format!("not ready ({status}): {said}"))) }
}
