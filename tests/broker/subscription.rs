use crate::{DEADLINE, RELAY_RETRY, connect, consumer, outgoing, shared, stream};
use futures_util::{StreamExt as _, TryStreamExt as _};
use std::time::Duration;
use twinbox::broker::{Incoming, Publisher as _, Subscription as _};
use twinbox::config::{ConsumerSettings, Retention, StreamSettings};
use twinbox::embedded::{NatsOptions, PrivateNats};
use twinbox::testing;

#[tokio::test]
async fn messages_come_whole_and_acknowledged_ones_do_not_come_again() {
    let (nats, name) = (shared().await, testing::unique("ORDERS"));
    nats.ensure_stream(&stream(&name), RELAY_RETRY).await.unwrap();
    for id in ["one", "two", "three"] {
        nats.publish(outgoing(format!("{name}.a"), id)).await.unwrap();
    }
    let settings = ConsumerSettings {
        ack_wait: Duration::from_secs(1),
        handler_deadline: Duration::from_millis(500),
        ..consumer("billing", &name)
    };
    let (subscription, findings) = nats.subscribe(&settings).await.unwrap();
    assert_eq!(findings, []);
    let mut messages = subscription.messages().await.unwrap();
    let first = messages.next().await.unwrap().unwrap();
    assert_eq!(first.subject, format!("{name}.a"));
    assert_eq!(&first.payload[..], b"body");
    let headers: Vec<(&str, &str)> = first.headers.iter().collect();
    assert_eq!(
        headers,
        [
            ("Nats-Msg-Id", "one"),
            ("Tag", "x"),
            ("Tag", "y"),
            ("Tenant", "a")
        ]
    );
    assert_eq!((first.position.sequence, first.redelivered), (1, false));
    first.receipt_handle.unwrap().acknowledge().await.unwrap();

    let second = messages.next().await.unwrap().unwrap();
    let third = messages.next().await.unwrap().unwrap();
    third.receipt_handle.unwrap().acknowledge().await.unwrap();
    let state = testing::wait_until("one is outstanding", DEADLINE, || async {
        let state = subscription.state().await.unwrap();
        (state.ack_pending == 1).then_some(state)
    })
    .await;
    assert_eq!(state.outstanding(), 2..=3);
    assert!(!state.is_ahead_of_stream());

    // The one that was not acknowledged comes again, and says so.
    let again = messages.next().await.unwrap().unwrap();
    assert_eq!(
        (again.position.clone(), again.redelivered),
        (second.position, true)
    );
    again.receipt_handle.unwrap().acknowledge().await.unwrap();
    testing::wait_until("none is outstanding", DEADLINE, || async {
        let state = subscription.state().await.unwrap();
        (state.ack_floor == 3 && state.outstanding().is_empty()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn several_subjects_are_taken_and_others_are_not() {
    let (nats, name) = (shared().await, testing::unique("ORDERS"));
    nats.ensure_stream(&stream(&name), RELAY_RETRY).await.unwrap();
    for (id, token) in ["a", "b", "c", "a"].into_iter().enumerate() {
        nats.publish(outgoing(format!("{name}.{token}"), &id.to_string()))
            .await
            .unwrap();
    }
    let settings = ConsumerSettings {
        subjects: vec![format!("{name}.a"), format!("{name}.c")],
        ..consumer("some", &name)
    };
    let (subscription, _) = nats.subscribe(&settings).await.unwrap();
    let mut messages = subscription.messages().await.unwrap();
    let mut sequences = Vec::new();
    for _ in 0..3 {
        let message = messages.next().await.unwrap().unwrap();
        sequences.push(message.position.sequence);
        message.receipt_handle.unwrap().acknowledge().await.unwrap();
    }
    assert_eq!(sequences, [1, 3, 4]);
    testing::wait_until("nothing is left over", DEADLINE, || async {
        let state = subscription.state().await.unwrap();
        state.ack_pending == 0 && state.pending == 0
    })
    .await;
    let read: Vec<Incoming> = subscription.read(1..=9).try_collect().await.unwrap();
    assert_eq!(
        read.iter()
            .map(|message| message.position.sequence)
            .collect::<Vec<_>>(),
        [1, 3, 4]
    );
}

#[tokio::test]
async fn a_work_queue_is_read_past_its_consumer() {
    let (nats, name) = (shared().await, testing::unique("JOBS"));
    let jobs = StreamSettings {
        retention: Retention::WorkQueue,
        ..stream(&name)
    };
    nats.ensure_stream(&jobs, RELAY_RETRY).await.unwrap();
    let (subscription, _) = nats.subscribe(&consumer("worker", &name)).await.unwrap();
    for id in ["one", "two", "three"] {
        nats.publish(outgoing(format!("{name}.a"), id)).await.unwrap();
    }
    let mut messages = subscription.messages().await.unwrap();
    let first = messages.next().await.unwrap().unwrap();
    let second = messages.next().await.unwrap().unwrap();
    first.receipt_handle.unwrap().acknowledge().await.unwrap();
    testing::wait_until("the first is gone", DEADLINE, || async {
        nats.dedup_id_at(&name, 1).await.unwrap().is_none()
    })
    .await;
    let state = subscription.state().await.unwrap();
    assert!(state.stream.removes_acknowledged);
    let read: Vec<Incoming> = subscription
        .read(state.outstanding())
        .try_collect()
        .await
        .unwrap();
    assert_eq!(read[0].position, second.position);
    assert!(read[0].redelivered && read[0].receipt_handle.is_none());
}

#[tokio::test]
async fn a_consumer_ahead_of_its_stream_shows_and_can_be_made_anew() {
    let mut server = PrivateNats::start(NatsOptions::new()).await.unwrap();
    let nats = connect(&server.url()).await;
    nats.ensure_stream(&stream("ORDERS"), RELAY_RETRY).await.unwrap();
    let (subscription, _) = nats.subscribe(&consumer("billing", "ORDERS")).await.unwrap();
    server.stop().await.unwrap();
    // The stream's messages of now, kept to be put back later: what a power cut or a restored backup leaves.
    let messages = server.store_directory().join("jetstream/$G/streams/ORDERS/msgs");
    let messages = if messages.exists() {
        messages
    } else {
        find(&server.store_directory(), "msgs")
    };
    let kept = messages.with_extension("kept");
    copy(&messages, &kept);
    server.restart().await.unwrap();
    testing::wait_until("connected again", DEADLINE, || async { nats.is_connected() }).await;

    for n in 0..20 {
        nats.publish(outgoing("ORDERS.a", &n.to_string())).await.unwrap();
    }
    let mut stream = subscription.messages().await.unwrap();
    for _ in 0..20 {
        stream
            .next()
            .await
            .unwrap()
            .unwrap()
            .receipt_handle
            .unwrap()
            .acknowledge()
            .await
            .unwrap();
    }
    testing::wait_until("all are acknowledged", DEADLINE, || async {
        subscription.state().await.unwrap().ack_floor == 20
    })
    .await;
    drop(stream);
    server.stop().await.unwrap();
    std::fs::remove_dir_all(&messages).unwrap();
    std::fs::rename(&kept, &messages).unwrap();
    server.restart().await.unwrap();
    testing::wait_until("connected again", DEADLINE, || async { nats.is_connected() }).await;

    let state = testing::wait_until("the stream answers", DEADLINE, || async {
        subscription.state().await
    })
    .await;
    assert_eq!(state.stream.last_sequence, 0);
    // Newer servers put a consumer back to the stream's end by themselves.
    if state.is_ahead_of_stream() {
        subscription.recreate().await.unwrap();
    }
    assert!(!subscription.state().await.unwrap().is_ahead_of_stream());
    nats.publish(outgoing("ORDERS.a", "after")).await.unwrap();
    let mut stream = subscription.messages().await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().position.sequence, 1);
}

fn find(directory: &std::path::Path, name: &str) -> std::path::PathBuf {
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && path.file_name().is_some_and(|found| found == name) {
                return path;
            }
            if path.is_dir() {
                open.push(path);
            }
        }
    }
    panic!("no {name} under {}", directory.display())
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}
