//! The seam to NATS JetStream, against a real server (`NATS_SERVER` names another).

#![allow(
    clippy::unwrap_used,
    reason = "a panic is how a test fails, in its helpers too"
)]

#[path = "broker/publisher.rs"]
mod publisher;
#[path = "broker/refusals.rs"]
mod refusals;
#[path = "broker/subscription.rs"]
mod subscription;
#[path = "broker/topology.rs"]
mod topology;

use std::sync::Arc;
use std::time::Duration;
use twinbox::Headers;
use twinbox::broker::Outgoing;
use twinbox::broker::nats::Nats;
use twinbox::config::{ConsumerSettings, NatsSettings, StreamSettings};
use twinbox::testing;

const RELAY_RETRY: Duration = Duration::from_secs(30);
const DEADLINE: Duration = Duration::from_secs(20);

fn settings(url: &str) -> NatsSettings {
    NatsSettings {
        url: url.into(),
        request_timeout: Duration::from_secs(10),
        ..NatsSettings::default()
    }
}

async fn connect(url: &str) -> Arc<Nats> {
    use twinbox::broker::Publisher as _;
    let nats = Nats::connect(&settings(url), "test").await.unwrap();
    testing::wait_until("connected", DEADLINE, || async { nats.is_connected() }).await;
    nats
}

async fn shared() -> Arc<Nats> {
    connect(&testing::servers().await.nats.url()).await
}

/// A stream of its own, which covers `NAME.>`.
fn stream(name: &str) -> StreamSettings {
    StreamSettings {
        name: name.to_owned(),
        subjects: vec![format!("{name}.>")],
        ..StreamSettings::default()
    }
}

fn consumer(name: &str, stream: &str) -> ConsumerSettings {
    ConsumerSettings {
        name: name.to_owned(),
        stream: stream.to_owned(),
        ..ConsumerSettings::default()
    }
}

fn outgoing(subject: impl Into<String>, id: &str) -> Outgoing {
    Outgoing {
        subject: subject.into(),
        headers: Headers::from_iter([("Tenant", "a"), ("Tag", "x"), ("Tag", "y")]),
        dedup_id: id.to_owned(),
        payload: "body".into(),
    }
}
