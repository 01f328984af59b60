//! `promethean sub` and `promethean tail`: events as they come. `sub` acks each one after it was printed, or holds it
//! until it ends (`--no-ack`).
//!
//! However it ends, what was not acked goes back to the group, and does not count as an attempt.

use std::borrow::Cow;
use std::io;
use std::time::Duration;

use promethean_client::{Client, Delivery, SubscribeOptions, Subscription};
use promethean_event::limits::{self, MAX_IN_FLIGHT};

use super::output::Output;
use super::{hub, out, print};
use crate::args::{ReadArgs, SubArgs, TailArgs};
use crate::exit::Failure;

/// How long `--no-ack` may look at an event before it goes to somebody else: the longest lease there is.
const LOOK: Duration = limits::MAX_LEASE;
/// How long the hub has to take back what was not acked.
const GOODBYE: Duration = Duration::from_secs(5);

pub(crate) fn sub(args: &SubArgs) -> Result<(), Failure> {
    let mut options =
        SubscribeOptions { max_in_flight: in_flight(args, args.read.count)?, ..SubscribeOptions::default() };
    if args.no_ack {
        // Looking never makes a dead letter, however it ends.
        (options.ack_timeout, options.max_attempts) = (LOOK, 0);
    }
    read(&args.topic, Some(&args.group), options, args.no_ack, &args.read)
}

/// As many as are wanted: what is held until the end has to fit, and what is acked needs no more.
fn in_flight(args: &SubArgs, count: Option<u64>) -> Result<usize, Failure> {
    let Some(count) = count else { return Ok(args.max_in_flight) };
    let count = usize::try_from(count).unwrap_or(usize::MAX).max(1);
    if !args.no_ack {
        return Ok(args.max_in_flight.min(count));
    }
    if count > MAX_IN_FLIGHT {
        let remedy = "promethean replay shows more";
        return Err(Failure::usage(format!("--count: --no-ack holds at most {MAX_IN_FLIGHT} events; {remedy}")));
    }
    Ok(count)
}

pub(crate) fn tail(args: &TailArgs) -> Result<(), Failure> {
    read(&args.topic, None, SubscribeOptions::default(), false, &args.read)
}

fn read(
    topic: &str,
    group: Option<&str>,
    options: SubscribeOptions,
    hold: bool,
    args: &ReadArgs,
) -> Result<(), Failure> {
    let hub::Place::From(from) = hub::place(&args.from)? else {
        let remedy = "a subscription starts at a time or after an event's id; promethean replay reads by seq";
        return Err(Failure::usage(format!("--from: {remedy}")));
    };
    let limit = hub::patience("--timeout", args.timeout.as_deref())?;
    hub::run_with(async |signals| {
        let options = SubscribeOptions { from, ..options };
        let (client, mut events) = signals.unless(subscribe(topic, group, options, args)).await?;
        out::done(&format!("subscribed to {topic}{}", group.map_or_else(String::new, |group| format!(" as {group}"))));
        let mut held = Vec::new();
        let ended = signals.unless(consume(&mut events, &mut held, hold, limit, args)).await;
        let gone = signals.unless(goodbye(client, events, held)).await;
        ended.and(gone)
    })
}

async fn subscribe(
    topic: &str,
    group: Option<&str>,
    options: SubscribeOptions,
    args: &ReadArgs,
) -> Result<(Client, Subscription), Failure> {
    let client = hub::connect(&args.at).await?;
    let subscribed = match client.subscribe(topic, group, options.clone()).await {
        // Its members have another number of attempts, which counts for the group.
        Err(error) if options.max_attempts == 0 && error.to_string().contains("maxAttempts") => {
            let max_attempts = SubscribeOptions::default().max_attempts;
            client.subscribe(topic, group, SubscribeOptions { max_attempts, ..options }).await
        }
        subscribed => subscribed,
    };
    Ok((client, subscribed.map_err(hub::failure)?))
}

/// Prints what comes; what is not acked is in `held`.
async fn consume(
    events: &mut Subscription,
    held: &mut Vec<Delivery>,
    hold: bool,
    limit: Option<Duration>,
    args: &ReadArgs,
) -> Result<(), Failure> {
    let (output, mut left) = (Output::start(), args.count);
    while left != Some(0) {
        let next = hub::within(limit, async { events.next().await.map_err(hub::failure) }).await?;
        let Some(delivery) = next else { break };
        left = left.map(|left| left - 1);
        held.push(delivery);
        if left == Some(0) {
            // Or the ack makes room for an event that nobody will read.
            events.pause().await.map_err(hub::failure)?;
        }
        let Some(delivery) = held.last() else { break };
        let mut json = Cow::Borrowed(delivery.json());
        if delivery.restarted() {
            out::done("the snapshot begins again: forget what was printed before");
            json = Cow::Owned(json.replacen('{', "{\"restarted\":true,", 1));
        }
        output.write(print::line(delivery.event(), &json, args.json));
        match output.written().await {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            printed => print::written(printed)?,
        }
        if !hold {
            delivery.ack().await.map_err(hub::failure)?;
            held.pop();
        }
    }
    Ok(())
}

/// Looking at events is no attempt to handle them.
async fn goodbye(client: Client, events: Subscription, held: Vec<Delivery>) -> Result<(), Failure> {
    let goodbye = async {
        events.end(held).await.map_err(hub::failure)?;
        client.close().await.map_err(hub::failure)
    };
    hub::within(Some(GOODBYE), goodbye).await
}
