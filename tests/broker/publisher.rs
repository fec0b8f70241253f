use crate::{DEADLINE, RELAY_RETRY, connect, outgoing, shared, stream};
use twinbox::broker::{PublishError, Publisher as _};
use twinbox::embedded::{NatsOptions, PrivateNats};
use twinbox::testing;

#[tokio::test]
async fn a_second_copy_is_named_a_duplicate() {
    let (nats, name) = (shared().await, testing::unique("ORDERS"));
    nats.ensure_stream(&stream(&name), RELAY_RETRY).await.unwrap();
    let first = nats.publish(outgoing(format!("{name}.a"), "one")).await.unwrap();
    let again = nats.publish(outgoing(format!("{name}.b"), "one")).await.unwrap();
    assert!(!first.duplicate && again.duplicate);
    assert_eq!((first.stream.as_str(), first.sequence), (name.as_str(), 1));
    assert_eq!(again.sequence, 1);
    assert_eq!(nats.dedup_id_at(&name, 1).await.unwrap().as_deref(), Some("one"));
    assert_eq!(nats.dedup_id_at(&name, 2).await.unwrap(), None);
    let state = nats.stream_state(&name).await.unwrap().unwrap();
    assert_eq!((state.first_sequence, state.last_sequence), (1, 1));
    assert!(nats.stream_state("nowhere").await.unwrap().is_none());
}

#[tokio::test]
async fn a_subject_without_a_stream_is_unroutable() {
    let nats = shared().await;
    let subject = format!("{}.x", testing::unique("nowhere"));
    assert_eq!(nats.stream_of(&subject).await.unwrap(), None);
    match nats.publish(outgoing(&subject, "one")).await {
        Err(PublishError::Unroutable { subject: named }) => assert_eq!(named, subject),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_is_too_large_or_malformed_is_unpublishable_and_harms_nobody() {
    let (nats, name) = (shared().await, testing::unique("ORDERS"));
    nats.ensure_stream(&stream(&name), RELAY_RETRY).await.unwrap();
    let subject = format!("{name}.a");
    let limit = nats.max_payload();

    let mut large = outgoing(&subject, "large");
    large.payload = vec![b'x'; limit].into();
    let mut broken = outgoing(&subject, "broken");
    broken.headers.append("Note", "a\r\nNats-Rollup: all");
    let mut named = outgoing(&subject, "named");
    named.headers.append("No te", "a");
    for message in [large, broken, named] {
        match nats.publish(message).await {
            Err(PublishError::Unpublishable(reason)) => assert!(!reason.is_empty()),
            other => panic!("{other:?}"),
        }
    }

    // The largest that fits does fit.
    let mut largest = outgoing(&subject, "largest");
    largest.headers = twinbox::Headers::new();
    let head = "NATS/1.0\r\nNats-Msg-Id: largest\r\n\r\n".len();
    largest.payload = vec![b'x'; limit - head].into();
    assert_eq!(nats.publish(largest.clone()).await.unwrap().sequence, 1);
    largest.payload = vec![b'x'; limit - head + 1].into();
    assert!(matches!(
        nats.publish(largest).await,
        Err(PublishError::Unpublishable(_))
    ));
}

#[tokio::test]
async fn without_a_connection_nothing_is_sent() {
    let mut server = PrivateNats::start(NatsOptions::new()).await.unwrap();
    let nats = connect(&server.url()).await;
    nats.ensure_stream(&stream("ORDERS"), RELAY_RETRY).await.unwrap();
    let before = nats.connections();
    server.kill().await.unwrap();
    testing::wait_until("the connection is gone", DEADLINE, || async {
        !nats.is_connected()
    })
    .await;
    match nats.publish(outgoing("ORDERS.a", "one")).await {
        Err(PublishError::Outage(_)) => {}
        other => panic!("{other:?}"),
    }
    server.restart().await.unwrap();
    testing::wait_until("connected again", DEADLINE, || async { nats.is_connected() }).await;
    assert!(nats.connections() > before);
    // What was refused above was not sent later.
    let receipt = nats.publish(outgoing("ORDERS.a", "two")).await.unwrap();
    assert_eq!(receipt.sequence, 1);

    let made = nats.connections();
    nats.reconnect().await.unwrap();
    testing::wait_until("connected anew", DEADLINE, || async {
        nats.is_connected() && nats.connections() > made
    })
    .await;
    assert!(nats.publish(outgoing("ORDERS.a", "two")).await.unwrap().duplicate);
}
