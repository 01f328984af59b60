//! `promethean sub` and `promethean tail`: events as they come. `sub` acks each one after it was printed, or holds it
//! until it ends (`--no-ack`), at most `--max-in-flight` of them.

use std::time::Duration;

use promethean_client::{Delivery, GiveBack, SubscribeOptions};

use super::{hub, out, print};
use crate::args::{ReadArgs, SubArgs, TailArgs};
use crate::exit::Failure;

/// How long `--no-ack` may look at an event before it goes to somebody else: the longest lease there is.
const LOOK: Duration = promethean_event::limits::MAX_LEASE;

pub(crate) fn sub(args: &SubArgs) -> Result<(), Failure> {
    let mut options = SubscribeOptions { max_in_flight: args.max_in_flight, ..SubscribeOptions::default() };
    if args.no_ack {
        options.ack_timeout = LOOK;
    }
    read(&args.topic, Some(&args.group), options, args.no_ack, &args.read)
}

pub(crate) fn tail(args: &TailArgs) -> Result<(), Failure> {
    let max_in_flight = SubscribeOptions::GATEWAY_IN_FLIGHT;
    let options = SubscribeOptions { max_in_flight, ..SubscribeOptions::default() };
    read(&args.topic, None, options, false, &args.read)
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
    hub::run(async {
        let client = hub::connect(&args.at).await?;
        let mut events =
            client.subscribe(topic, group, SubscribeOptions { from, ..options }).await.map_err(hub::failure)?;
        out::done(&format!("subscribed to {topic}{}", group.map_or_else(String::new, |group| format!(" as {group}"))));
        let (mut left, mut held) = (args.count, Vec::new());
        while left != Some(0) {
            let next = hub::within(limit, async { events.next().await.map_err(hub::failure) }).await?;
            let Some(delivery) = next else { break };
            print::event(&mut std::io::stdout().lock(), delivery.event(), delivery.json(), args.json)?;
            if hold {
                held.push(delivery);
            } else {
                delivery.ack().await.map_err(hub::failure)?;
            }
            left = left.map(|left| left - 1);
        }
        if hold {
            // Or what is given back comes here again.
            events.pause().await.map_err(hub::failure)?;
            give_back(&held).await?;
        }
        drop(events);
        client.close().await.map_err(hub::failure)
    })
}

/// Looking at events is no attempt to handle them.
async fn give_back(held: &[Delivery]) -> Result<(), Failure> {
    for delivery in held {
        let released = GiveBack { release: true, ..GiveBack::default() };
        delivery.nack(released).await.map_err(hub::failure)?;
    }
    Ok(())
}
