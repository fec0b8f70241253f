use crate::{RELAY_RETRY, consumer, shared, stream};
use async_nats::jetstream;
use std::time::Duration;
use twinbox::broker::{Finding, Severity};
use twinbox::config::{ConsumerSettings, Retention, StreamSettings};
use twinbox::testing;

fn errors(findings: &[Finding]) -> Vec<&str> {
    let severe = findings
        .iter()
        .filter(|finding| finding.severity >= Severity::Warning);
    severe.map(|finding| finding.found.as_str()).collect()
}

#[tokio::test]
async fn what_is_absent_is_created_and_fits() {
    let nats = shared().await;
    for retention in [Retention::Limits, Retention::Interest, Retention::WorkQueue] {
        let name = testing::unique("ORDERS");
        let settings = StreamSettings {
            retention,
            ..stream(&name)
        };
        for _ in 0..2 {
            assert_eq!(nats.ensure_stream(&settings, RELAY_RETRY).await.unwrap(), []);
            assert_eq!(nats.subscribe(&consumer("billing", &name)).await.unwrap().1, []);
        }
    }
}

#[tokio::test]
async fn a_stream_that_is_present_is_checked_and_not_changed() {
    let (nats, name) = (shared().await, testing::unique("ORDERS"));
    let present = jetstream::stream::Config {
        name: name.clone(),
        subjects: vec![format!("{name}.old")],
        duplicate_window: Duration::from_secs(1),
        max_messages_per_subject: 1,
        max_messages: 10,
        retention: jetstream::stream::RetentionPolicy::WorkQueue,
        ..Default::default()
    };
    nats.jetstream().create_stream(present).await.unwrap();
    let findings = nats.ensure_stream(&stream(&name), RELAY_RETRY).await.unwrap();
    let found = errors(&findings).join("\n");
    for part in [
        "duplicate window is 1s",
        "retention is WorkQueue",
        "does not cover",
        "last 1 messages",
        "drops the oldest",
    ] {
        assert!(found.contains(part), "{part:?} should be in:\n{found}");
    }
    assert!(findings.iter().all(|finding| !finding.remedy.is_empty()));
    let info = nats
        .jetstream()
        .get_stream(&name)
        .await
        .unwrap()
        .get_info()
        .await
        .unwrap();
    assert_eq!(info.config.subjects, [format!("{name}.old")]);
    assert_eq!(info.config.max_messages_per_subject, 1);
}

#[tokio::test]
async fn a_consumer_that_is_present_is_checked_and_not_changed() {
    let (nats, name) = (shared().await, testing::unique("ORDERS"));
    nats.ensure_stream(&stream(&name), RELAY_RETRY).await.unwrap();
    let present = jetstream::consumer::pull::Config {
        durable_name: Some("billing".into()),
        ack_policy: jetstream::consumer::AckPolicy::Explicit,
        ack_wait: Duration::from_secs(5),
        max_deliver: 3,
        deliver_policy: jetstream::consumer::DeliverPolicy::New,
        filter_subject: format!("{name}.other"),
        max_ack_pending: 10,
        ..Default::default()
    };
    nats.jetstream()
        .create_consumer_on_stream(present, &name)
        .await
        .unwrap();
    let settings = ConsumerSettings {
        handler_deadline: Duration::from_secs(10),
        ..consumer("billing", &name)
    };
    let (_, findings) = nats.subscribe(&settings).await.unwrap();
    let found = errors(&findings).join("\n");
    for part in [
        "gives up on a message after 3",
        "waits 5s",
        "does not begin",
        "hands out",
        "stops at 10",
    ] {
        assert!(found.contains(part), "{part:?} should be in:\n{found}");
    }
    let consumer: jetstream::consumer::PullConsumer = nats
        .jetstream()
        .get_consumer_from_stream("billing", &name)
        .await
        .unwrap();
    assert_eq!(consumer.cached_info().config.max_deliver, 3);
}

#[tokio::test]
async fn a_stream_of_somebody_else_is_named() {
    let (nats, name) = (shared().await, testing::unique("ORDERS"));
    nats.ensure_stream(&stream(&name), RELAY_RETRY).await.unwrap();
    let other = StreamSettings {
        name: testing::unique("OTHER"),
        ..stream(&name)
    };
    let refused = nats
        .ensure_stream(&other, RELAY_RETRY)
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("another stream covers"), "{refused}");
    let absent = nats
        .subscribe(&consumer("billing", "NOWHERE"))
        .await
        .unwrap_err()
        .to_string();
    assert!(absent.contains("stream not found"), "{absent}");
}
