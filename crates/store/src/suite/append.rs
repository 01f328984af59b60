//! The law of appending.

use super::*;

/// 1, 2, 3, …
pub async fn seqs_are_gapless_and_start_at_one(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    for round in 0..4_u64 {
        let appended = append(&*store, &vec![event("a.b"); 5]).await;
        let seqs: Vec<_> = appended.iter().map(|one| one.seq).collect();
        assert_eq!(seqs, (round * 5 + 1..=round * 5 + 5).collect::<Vec<_>>());
        assert!(appended.iter().all(|one| !one.duplicate));
    }
    assert_eq!(super::seqs(&*store, "a.b").await, (1..=20).collect::<Vec<_>>());
}

/// One answer for each event, at its place.
pub async fn the_answer_is_in_the_order_of_the_batch(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let batch: Vec<_> = (0..50_u128).map(|n| event(if n % 2 == 0 { "even" } else { "odd" }).id(n + 1)).collect();
    let appended = append(&*store, &batch).await;
    for (n, one) in appended.iter().enumerate() {
        assert_eq!((one.id, one.seq), (id(n as u128 + 1), n as u64 / 2 + 1));
    }
    assert_eq!(read_all(&*store, "odd").await[3].id, id(8));
}

/// Each topic has its own seqs, also within one batch.
pub async fn topics_count_for_themselves(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let names = ["t.a", "t.b", "t.c"];
    for _ in 0..3 {
        append(&*store, &names.map(event)).await;
    }
    for name in names {
        assert_eq!(seqs(&*store, name).await, [1, 2, 3]);
        assert!(read_all(&*store, name).await.iter().all(|event| event.topic.as_str() == name));
    }
}

/// Whatever JSON allows.
pub async fn an_event_reads_back_byte_for_byte(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let payloads = [r#""\ud800""#, "1e400", r#"{"a":1,"a":2}"#, "[1 ,\t2]", "null", r#""\u00e9é""#, "{}"];
    let made: Vec<NewEvent> = payloads
        .iter()
        .enumerate()
        .map(|(n, payload)| {
            event("raw").payload(*payload).key(format!("k\"\\{n}é")).ts(5 + n as u64).appended(9).new_event()
        })
        .collect();
    store.append(made.clone()).await.expect("appended");
    store.maintain(Millis(10)).await.expect("maintained");
    let back = read_all(&*store, "raw").await;
    assert_eq!(back.len(), made.len());
    for (seq, (back, made)) in (1..).zip(back.iter().zip(made)) {
        assert_eq!((back.ts, back.appended, back.spans), (made.ts, made.appended, made.spans));
        assert_eq!(back.to_json(), made.at(seq).to_json());
    }
}

/// Nothing asked, nothing done.
pub async fn an_empty_append_is_answered(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    assert_eq!(store.append(Vec::new()).await.expect("answered"), Vec::new());
}

/// The same id again is answered with the first one's place.
pub async fn an_id_that_is_on_the_topic_is_a_duplicate_with_its_first_seq(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    append(&*store, &[event("d"), event("d").id(7).payload("1"), event("d")]).await;
    for flushed in [false, true] {
        if flushed {
            store.maintain(Millis(2_000)).await.expect("maintained");
        }
        let again = append(&*store, &[event("d").id(7).payload("2")]).await;
        assert_eq!(again, [Appended { id: id(7), seq: 2, duplicate: true }]);
    }
    let all = read_all(&*store, "d").await;
    assert_eq!((all.len(), all[1].payload()), (3, "1"));
}

/// Also within one batch.
pub async fn an_id_twice_in_a_batch_is_stored_once(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let same = event("d").id(7);
    let appended = append(&*store, &[same.clone(), event("d"), same.clone(), same.unit(1)]).await;
    let told: Vec<_> = appended.iter().map(|one| (one.seq, one.duplicate)).collect();
    assert_eq!(told, [(1, false), (2, false), (1, true), (1, true)]);
    assert_eq!(seqs(&*store, "d").await, [1, 2]);
}

/// All or none, unit by unit.
pub async fn an_id_on_another_topic_refuses_its_unit_and_no_other(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    append(&*store, &[event("first").id(7)]).await;
    for round in 0..2 {
        let batch = [
            event("other").unit(1),
            event("other").unit(2),
            event("other").unit(2).id(7),
            event("other").unit(2),
            event("other").unit(3),
        ];
        let outcomes = store.append(batch.iter().map(Make::new_event).collect()).await.expect("answered");
        let refused = Outcome::DuplicateId { id: id(7), topic: topic("first") };
        assert_eq!(outcomes[1..4], vec![refused; 3]);
        assert!(matches!(outcomes[0], Outcome::Stored(one) if one.seq == round * 2 + 1));
        assert!(matches!(outcomes[4], Outcome::Stored(one) if one.seq == round * 2 + 2));
        store.maintain(Millis(2_000)).await.expect("maintained");
    }
    assert_eq!(seqs(&*store, "other").await, [1, 2, 3, 4]);
}

/// The second of the two is at fault.
pub async fn an_id_on_two_topics_in_one_unit_refuses_the_unit(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let batch = [event("one").id(7), event("two").id(7)];
    let outcomes = store.append(batch.iter().map(Make::new_event).collect()).await.expect("answered");
    assert_eq!(outcomes, vec![Outcome::DuplicateId { id: id(7), topic: topic("one") }; 2]);
    assert_eq!(store.topics().await.expect("listed"), Vec::<Topic>::new());
    let apart = [event("one").id(7).unit(1), event("two").id(7).unit(2)];
    let outcomes = store.append(apart.iter().map(Make::new_event).collect()).await.expect("answered");
    assert!(matches!(outcomes[0], Outcome::Stored(one) if one.seq == 1 && !one.duplicate));
    assert_eq!(outcomes[1], Outcome::DuplicateId { id: id(7), topic: topic("one") });
}

/// A retry may carry the id of the answer.
pub async fn a_client_may_bring_an_id_that_the_hub_made_and_it_is_a_duplicate(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let made = append(&*store, &vec![event("d"); 10]).await;
    for flushed in [false, true] {
        if flushed {
            store.maintain(Millis(2_000)).await.expect("maintained");
        }
        for one in &made {
            let number = u128::from_be_bytes(*one.id.as_bytes());
            let again = append(&*store, &[event("d").id(number)]).await;
            assert_eq!(again, [Appended { duplicate: true, ..*one }]);
        }
    }
}

/// Many at once.
pub async fn concurrent_appends_get_seqs_of_their_own(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let mut running = Vec::new();
    for publisher in 0..8_u128 {
        let store = store.clone();
        running.push(tokio::spawn(async move {
            let mut last = 0;
            for n in 0..25_u128 {
                let appended = append(&*store, &[event("busy").id(publisher * 100 + n + 1), event("busy")]).await;
                assert!(appended[0].seq > last && appended[1].seq == appended[0].seq + 1);
                last = appended[1].seq;
            }
        }));
    }
    for one in running {
        one.await.expect("no panic");
    }
    assert_eq!(seqs(&*store, "busy").await, (1..=400).collect::<Vec<_>>());
}
