//! What can't be published goes to the dead letters, its key follows in order, and comes back in order.

use crate::bench::{Bench, DEADLINE, numbers};
use std::time::Duration;
use twinbox::Message;
use twinbox::config::StreamSettings;
use twinbox::dead_letter::{DeadLetter, Desk, Filter, Reason, Selection};
use twinbox::testing::{self, wait_until};

impl Bench {
    fn desk(&self) -> Desk {
        Desk::new(self.store.clone())
    }

    async fn letters(&self) -> Vec<DeadLetter> {
        self.desk().list(&Filter::default(), 0, 1000).await.unwrap()
    }

    async fn letters_are(&self, count: usize) -> Vec<DeadLetter> {
        wait_until("so many dead letters", DEADLINE, || async {
            let letters = self.letters().await;
            if letters.len() == count {
                Ok(letters)
            } else {
                Err(letters.len())
            }
        })
        .await
    }
}

fn of_key(key: &str) -> Selection {
    Selection::Matching(Filter {
        key: Some(key.to_owned()),
        ..Filter::default()
    })
}

fn reasons(letters: &[DeadLetter]) -> Vec<Reason> {
    letters.iter().map(|letter| letter.reason).collect()
}

#[tokio::test]
async fn what_no_stream_covers_is_parked_and_released_in_order_once_one_does() {
    let bench = Bench::new().await;
    let relay = bench.leader().await;
    let unrouted = testing::unique("UNROUTED");
    let unroutable = |number: usize| Message::new(format!("{unrouted}.a"), number.to_string());
    bench
        .enqueue_all([
            bench.message(0).key("k"),
            unroutable(1).key("k"),
            bench.message(2).key("k"),
            unroutable(3).key("k"),
            bench.message(4).key("k"),
            bench.message(5).key("other"),
            unroutable(6),
            bench.message(7),
        ])
        .await;
    let letters = bench.letters_are(5).await;
    let mut stored = numbers(&bench.stored(3).await);
    stored.sort_unstable();
    assert_eq!(stored, [0, 5, 7]);
    let of_k: Vec<&DeadLetter> = letters.iter().filter(|letter| letter.key.is_some()).collect();
    assert_eq!(
        of_k.iter().map(|letter| &letter.payload[..]).collect::<Vec<_>>(),
        [b"1", b"2", b"3", b"4"]
    );
    assert_eq!(of_k[0].reason, Reason::Unroutable);
    assert!(of_k[1..].iter().all(|letter| letter.reason == Reason::Follows));
    assert_eq!(relay.health().reason, None, "it is not held up any more");

    // Parked at once, since the subject is known to have no stream; and the key still follows.
    bench
        .enqueue_all([unroutable(8), bench.message(9).key("k")])
        .await;
    bench.letters_are(7).await;

    let stream = StreamSettings {
        name: unrouted.clone(),
        subjects: vec![format!("{unrouted}.>")],
        ..StreamSettings::default()
    };
    bench.nats.ensure_stream(&stream, Duration::ZERO).await.unwrap();
    bench.letters_are(0).await;
    let released =
        crate::bench::all_stored(&bench.nats.jetstream().get_stream(&unrouted).await.unwrap()).await;
    let of_k: Vec<usize> = released
        .iter()
        .filter(|message| message.headers.contains_key("Twinbox-Key"))
        .map(|message| message.number())
        .collect();
    assert_eq!((released.len(), of_k), (4, vec![1, 3]));
    let stored = bench.stored(6).await;
    let of_k: Vec<usize> = stored
        .iter()
        .filter(|message| message.headers.get("Twinbox-Key").is_some_and(|key| key == "k"))
        .map(|message| message.number())
        .collect();
    assert_eq!(of_k, [0, 2, 4, 9]);
    bench.is_settled().await;
    // The key is free again.
    bench.enqueue(bench.message(10).key("k")).await;
    bench.stored(7).await;
    relay.drain().await;
}

#[tokio::test]
async fn an_uncovered_subject_waits_for_its_grace_and_holds_up_its_key_only() {
    let mut bench = Bench::new().await;
    bench.settings.unroutable_grace = Duration::from_secs(3600);
    let relay = bench.leader().await;
    let unrouted = testing::unique("UNROUTED");
    bench
        .enqueue(Message::new(format!("{unrouted}.a"), "0").key("k"))
        .await;
    bench
        .enqueue_all((1..=50).map(|number| bench.message(number).key(format!("key-{number}"))))
        .await;
    relay
        .until("it says what holds it up", |health| {
            health
                .reason
                .as_ref()
                .is_some_and(|reason| reason.contains(&unrouted))
        })
        .await;
    let stream = StreamSettings {
        name: unrouted.clone(),
        subjects: vec![format!("{unrouted}.>")],
        ..StreamSettings::default()
    };
    bench.nats.ensure_stream(&stream, Duration::ZERO).await.unwrap();
    bench.stored(50).await;
    bench.is_settled().await;
    assert_eq!(
        bench
            .nats
            .jetstream()
            .get_stream(&unrouted)
            .await
            .unwrap()
            .get_info()
            .await
            .unwrap()
            .state
            .messages,
        1
    );
    assert!(bench.letters().await.is_empty());
    relay.drain().await;
}

#[tokio::test]
async fn the_unpublishable_go_at_once_and_their_keys_follow() {
    let bench = Bench::new().await;
    let relay = bench.leader().await;
    let subject = bench.subject("a");
    bench.enqueue(bench.message(0).key("large")).await;
    let large = Message::new(subject.as_str(), vec![b'x'; 1_100_000]).key("large");
    bench
        .enqueue_all([
            large,
            bench.message(1).key("large"),
            bench.message(2).key("other"),
        ])
        .await;
    bench
        .insert(&subject, Some("headers"), Some(r#"{"Note": 7}"#), b"3")
        .await;
    bench.insert(&subject, Some("headers"), None, b"4").await;
    bench
        .insert(
            &subject,
            Some("reserved"),
            Some(r#"{"Nats-Rollup": "all"}"#),
            b"5",
        )
        .await;
    bench
        .insert(
            &subject,
            Some("newline"),
            Some(r#"{"Note": "a\r\nNats-Rollup: all"}"#),
            b"6",
        )
        .await;
    bench.insert("not a subject", None, None, b"7").await;
    bench.insert(&subject, Some(" spaces "), None, b"8").await;
    bench.enqueue(bench.message(9)).await;
    let letters = bench.letters_are(8).await;
    assert_eq!(
        letters
            .iter()
            .filter(|letter| letter.reason == Reason::Follows)
            .count(),
        2
    );
    assert_eq!(
        letters
            .iter()
            .filter(|letter| letter.reason == Reason::Unpublishable)
            .count(),
        6
    );
    let mut stored = numbers(&bench.stored(3).await);
    stored.sort_unstable();
    assert_eq!(stored, [0, 2, 9]);

    // A letter keeps what was wrong with it. Mended, it goes out, and then what follows it.
    let of_headers: Vec<&DeadLetter> = letters
        .iter()
        .filter(|letter| letter.key.as_deref() == Some("headers"))
        .collect();
    assert_eq!(of_headers[0].headers.get("Note"), Some("7"));
    bench.desk().requeue(&of_key("headers")).await.unwrap();
    bench.letters_are(6).await;
    assert_eq!(numbers(&bench.stored(5).await)[3..], [3, 4]);

    // Still too large: it comes back, and what follows it stays.
    bench.desk().requeue(&of_key("large")).await.unwrap();
    wait_until("it failed again", DEADLINE, || async {
        let letters = bench.letters().await;
        letters.iter().any(|letter| letter.runs == 1 && !letter.requeued)
    })
    .await;
    assert_eq!(bench.letters().await.len(), 6);
    // Given up, it frees its key.
    let large = letters
        .iter()
        .find(|letter| letter.payload.len() > 1_000_000)
        .unwrap();
    bench.desk().discard(&Selection::Id(large.id)).await.unwrap();
    bench.letters_are(4).await;
    assert_eq!(numbers(&bench.stored(6).await)[5..], [1]);
    bench.is_settled().await;
    relay.drain().await;
}

#[tokio::test]
async fn a_key_is_followed_across_pages_and_relays_until_it_is_requeued() {
    let mut bench = Bench::new().await;
    bench.settings.page_rows = 3;
    bench
        .insert(&bench.subject("a"), Some("k"), Some(r#"{"Note": 7}"#), b"0")
        .await;
    bench
        .enqueue_all((1..40).map(|number| bench.message(number).key("k")))
        .await;
    let relay = bench.leader().await;
    bench.letters_are(40).await;
    relay.drain().await;
    let relay = bench.leader().await;
    bench
        .enqueue_all((40..50).map(|number| bench.message(number).key("k")))
        .await;
    let letters = bench.letters_are(50).await;
    assert_eq!(reasons(&letters)[0], Reason::Unpublishable);
    assert_eq!(bench.desk().requeue(&of_key("k")).await.unwrap(), 50);
    // What comes meanwhile takes its place at the end, wherever it finds the others.
    bench
        .enqueue_all((50..60).map(|number| bench.message(number).key("k")))
        .await;
    assert_eq!(numbers(&bench.stored(60).await), (0..60).collect::<Vec<_>>());
    bench.letters_are(0).await;
    bench.is_settled().await;
    relay.drain().await;
}

#[tokio::test]
async fn a_requeued_duplicate_is_looked_up() {
    let bench = Bench::new().await;
    let relay = bench.leader().await;
    let ids = bench
        .enqueue_all((0..2).map(|number| bench.message(number).key("k")))
        .await;
    bench.stored(2).await;
    bench.is_settled().await;
    let letters_again = "INSERT INTO twinbox.dead_letter (box, owner, state, message_id, outbox_id, subject, key, payload,
                                                  enqueued_at, reason, error)
                         SELECT 'outbox', 'default', 'requeued', message_id, id, subject, key, payload, enqueued_at,
                                'unpublishable', 'by hand'
                         FROM twinbox.outbox ORDER BY id";
    bench.execute(letters_again).await;
    bench.letters_are(0).await;
    assert_eq!(bench.state().await.last_sequence, 2, "both were there");

    // Purged, the broker still knows the ids.
    bench
        .nats
        .jetstream()
        .get_stream(&bench.stream)
        .await
        .unwrap()
        .purge()
        .await
        .unwrap();
    bench.execute(letters_again).await;
    bench.letters_are(0).await;
    let stored = bench.stored(2).await;
    for (message, id) in stored.iter().zip(ids) {
        assert_eq!(message.id(), id);
        assert_eq!(message.headers["Nats-Msg-Id"], format!("{id}:r1"));
    }
    relay.drain().await;
}
