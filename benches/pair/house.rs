//! What all rows of the table stand on: private, durable servers, and a database with a stream.

use async_nats::jetstream;
use std::future::IntoFuture as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use twinbox::broker::nats::Nats;
use twinbox::config::{DatabaseSettings, NatsSettings, StreamSettings};
use twinbox::embedded::{NatsOptions, PostgresOptions, PrivateServers};
use twinbox::store::{self, Store};
use uuid::Uuid;

/// What every message carries beside its own: the context of a trace.
pub const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
/// Ordering keys are drawn from so many.
pub const KEYS: u32 = 10_000;
/// Subjects are drawn from so many.
pub const SUBJECTS: u32 = 16;
/// Publishes in flight, where somebody writes it by hand.
const WINDOW: usize = 1000;

/// The servers: their own defaults, and every commit is flushed to the disk.
pub struct House {
    servers: PrivateServers,
    nats: Arc<Nats>,
}

impl House {
    pub async fn start() -> Self {
        let servers = PrivateServers::start(PostgresOptions::new(), NatsOptions::new().anonymous());
        let servers = servers.await.unwrap();
        let settings = NatsSettings {
            url: servers.nats.url().into(),
            ..NatsSettings::default()
        };
        let nats = Nats::connect(&settings, "bench").await.unwrap();
        Self { servers, nats }
    }

    /// A new place, with nothing in it.
    pub async fn place(&self, name: &str) -> Place {
        let url = self.servers.postgres.create_database(name).await.unwrap();
        let database = DatabaseSettings {
            url: url.into(),
            ..DatabaseSettings::default()
        };
        let store = Store::connect(&database).await.unwrap();
        store::migrate(&store).await.unwrap();
        Place {
            store,
            database,
            broker: NatsSettings {
                url: self.servers.nats.url().into(),
                ..NatsSettings::default()
            },
            nats: self.nats.clone(),
            stream: name.to_uppercase(),
        }
    }

    /// The end of PostgreSQL's log.
    pub fn log(&self, lines: usize) -> String {
        self.servers.postgres.log_tail(lines)
    }
}

/// A database with a stream of its own.
pub struct Place {
    pub store: Store,
    pub nats: Arc<Nats>,
    pub stream: String,
    pub database: DatabaseSettings,
    pub broker: NatsSettings,
}

/// Messages that are published without an outbox.
#[derive(Clone, Copy)]
pub struct Load {
    pub messages: u32,
    /// Bytes.
    pub payload: usize,
    /// Of a hundred, so many repeat an id that was published before.
    pub repeated: u32,
}

/// What was published.
pub struct Published {
    /// Messages a second.
    pub rate: f64,
    /// Ids among them.
    pub distinct: u32,
}

impl Load {
    pub fn of(messages: u32) -> Self {
        Self {
            messages,
            payload: 256,
            repeated: 0,
        }
    }
}

impl Place {
    pub async fn sql(&self, statements: &str) {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statements))
            .execute(self.store.pool())
            .await
            .unwrap();
    }

    /// The prefix of its subjects.
    pub fn subject(&self) -> String {
        self.stream.to_lowercase()
    }

    pub fn stream_settings(&self) -> StreamSettings {
        StreamSettings {
            name: self.stream.clone(),
            subjects: vec![format!("{}.>", self.subject())],
            ..StreamSettings::default()
        }
    }

    /// The stream, empty.
    pub async fn fresh_stream(&self) -> jetstream::stream::Stream {
        let jetstream = self.nats.jetstream();
        jetstream.delete_stream(&self.stream).await.ok();
        self.nats
            .ensure_stream(&self.stream_settings(), Duration::ZERO)
            .await
            .unwrap();
        jetstream.get_stream(&self.stream).await.unwrap()
    }

    /// Publishes from memory, into an empty stream, as fast as the client can.
    pub async fn publish(&self, load: Load) -> Published {
        self.fresh_stream().await;
        let (jetstream, prefix) = (self.nats.jetstream(), self.subject());
        let payload: bytes::Bytes = vec![b'x'; load.payload].into();
        let mut in_flight = FuturesUnordered::new();
        let (mut ids, mut distinct) = (Vec::new(), 0);
        // A message that is older than what the inbox has forgotten would not be run.
        let time = OffsetDateTime::now_utc().format(&Rfc3339).unwrap();
        let begun = Instant::now();
        for n in 0..load.messages {
            let publish_id = Uuid::now_v7();
            // What a producer publishes again, later than the broker remembers.
            let repeated = (n % 100 < load.repeated).then(|| ids.pop()).flatten();
            let id = repeated.unwrap_or_else(|| {
                distinct += 1;
                ids.push(publish_id);
                publish_id
            });
            let mut headers = async_nats::HeaderMap::new();
            headers.insert("Nats-Msg-Id", publish_id.to_string());
            headers.insert("Twinbox-Id", id.to_string());
            headers.insert("Twinbox-Key", format!("key-{}", id.as_u128() % u128::from(KEYS)));
            headers.insert("Twinbox-Time", time.as_str());
            headers.insert("traceparent", TRACEPARENT);
            let subject = format!("{prefix}.{}", n % SUBJECTS);
            let sent = jetstream.publish_with_headers(subject, headers, payload.clone());
            in_flight.push(sent.await.unwrap().into_future());
            if in_flight.len() >= WINDOW {
                in_flight.next().await.unwrap().unwrap();
            }
        }
        while let Some(acknowledged) = in_flight.next().await {
            acknowledged.unwrap();
        }
        Published {
            rate: rate(load.messages, begun),
            distinct,
        }
    }
}

/// Messages, or anything else, a second.
pub fn rate(count: u32, begun: Instant) -> f64 {
    f64::from(count) / begun.elapsed().as_secs_f64()
}
