//! How a group stands, as another hub shows it: the owner's numbers of members become those of this hub.

use promethean_bus::{FOREIGN, GroupStatus, MemberStatus, Origin};

/// As the hub `me` shows it: its own subscribers under their own numbers, others under numbers that are nobody's.
pub(super) fn seen_from(me: &str, mut status: GroupStatus) -> GroupStatus {
    let here = |member: &MemberStatus| match &member.origin {
        Some(Origin { hub, subscription }) if **hub == *me => *subscription,
        _ => FOREIGN | member.id,
    };
    for one in &mut status.unfinished {
        one.member =
            one.member.map(|id| status.members.iter().find(|member| member.id == id).map_or(FOREIGN | id, here));
    }
    for member in &mut status.members {
        (member.id, member.origin) = (here(member), None);
    }
    status
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use promethean_bus::group::Counts;
    use promethean_bus::{EventId, Group, Holding, HoldingState, Topic};
    use promethean_event::Millis;

    use super::*;

    #[test]
    fn a_status_reads_back_and_members_of_this_hub_have_its_numbers() {
        let (topic, group) = (Topic::parse("t").expect("a topic"), Group::parse("g").expect("a group"));
        let member = |id, hub: Option<&str>| MemberStatus {
            id,
            in_flight: 1,
            max_in_flight: 2,
            paused: false,
            origin: hub.map(|hub| Origin { hub: hub.into(), subscription: 70 + id }),
        };
        let holding = |member| Holding {
            seq: 3,
            id: EventId::from_bytes([3; 16]),
            attempts: 2,
            reason: Some("no".into()),
            state: HoldingState::Held,
            member: Some(member),
            lease: Some(9),
            since: Some(Millis(1)),
            until: None,
        };
        let status = GroupStatus {
            cursor: promethean_bus::Cursor { topic: topic.clone(), last_id: None, last_ts: Some(Millis(4)), seq: 2 },
            topic,
            group,
            lag: 5,
            tail: 7,
            lag_age: Duration::from_millis(77),
            members: vec![member(1, None), member(2, Some("me")), member(3, Some("other"))],
            in_flight: 3,
            waiting: 1,
            max_attempts: 5,
            filtered: true,
            unfinished: vec![holding(2), holding(3)],
            counts: Counts { delivered: 1, redelivered: 2, acked: 3, nacked: 4, dead_lettered: 5, skipped: 6 },
            owner_silent: None,
            letters_failing: None,
        };
        let text = serde_json::to_string(&status).expect("JSON");
        let read = seen_from("me", serde_json::from_str(&text).expect("reads back"));
        let numbers: Vec<u64> = read.members.iter().map(|member| member.id).collect();
        assert_eq!(numbers, [FOREIGN | 1, 72, FOREIGN | 3]);
        assert_eq!(read.unfinished.iter().map(|one| one.member).collect::<Vec<_>>(), [Some(72), Some(FOREIGN | 3)]);
        let plain = |mut status: GroupStatus| {
            status.members.clear();
            status.unfinished.iter_mut().for_each(|one| one.member = None);
            status
        };
        assert_eq!(plain(read), plain(status));
    }
}
