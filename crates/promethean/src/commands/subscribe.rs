//! `promethean sub` and `promethean tail`: events as they come. `sub` acks each one after it was printed.

use promethean_client::SubscribeOptions;

use super::{hub, out, print};
use crate::args::{ReadArgs, SubArgs, TailArgs};
use crate::exit::Failure;

pub(crate) fn sub(args: &SubArgs) -> Result<(), Failure> {
    read(&args.topic, Some(&args.group), args.max_in_flight, &args.read)
}

pub(crate) fn tail(args: &TailArgs) -> Result<(), Failure> {
    read(&args.topic, None, SubscribeOptions::GATEWAY_IN_FLIGHT, &args.read)
}

fn read(topic: &str, group: Option<&str>, max_in_flight: usize, args: &ReadArgs) -> Result<(), Failure> {
    let hub::Place::From(from) = hub::place(&args.from)? else {
        let remedy = "a subscription starts at a time or after an event's id; promethean replay reads by seq";
        return Err(Failure::usage(format!("--from: {remedy}")));
    };
    let limit = hub::patience("--timeout", args.timeout.as_deref())?;
    hub::run(async {
        let client = hub::connect(&args.at).await?;
        let options = SubscribeOptions { from, max_in_flight, ..SubscribeOptions::default() };
        let mut events = client.subscribe(topic, group, options).await.map_err(hub::failure)?;
        out::done(&format!("subscribed to {topic}{}", group.map_or_else(String::new, |group| format!(" as {group}"))));
        let mut left = args.count;
        while left != Some(0) {
            let next = hub::within(limit, async { events.next().await.map_err(hub::failure) }).await?;
            let Some(delivery) = next else { break };
            print::event(&mut std::io::stdout().lock(), delivery.event(), delivery.json(), args.json)?;
            delivery.ack().await.map_err(hub::failure)?;
            left = left.map(|left| left - 1);
        }
        drop(events);
        client.close().await.map_err(hub::failure)
    })
}
