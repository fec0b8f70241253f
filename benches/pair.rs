//! What the pair reaches, as ratios to the limit and to what is written by hand, the two sides alternating in one run.
//!
//! `cargo bench --features testing`; `ROWS` and `ROUNDS` set the size. Figures of one run on one machine mean nothing
//! beside those of another.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and a panic is how it fails"
)]

use async_nats::jetstream;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use std::future::IntoFuture as _;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use twinbox::broker::nats::Nats;
use twinbox::config::{ConsumerSettings, DatabaseSettings, NatsSettings, RelaySettings, StreamSettings};
use twinbox::inbox::{BusinessActor, Consumer, ConsumerControl, Event, HandlerError, InboxTransaction};
use twinbox::outbox::{Relay, RelayControl};
use twinbox::store::{self, Store};
use twinbox::testing;

const PAYLOAD: usize = 256;
const KEYS: u32 = 10_000;
const WINDOW: usize = 1000;

struct Set {
    store: Store,
    nats: Arc<Nats>,
    rows: u32,
}

#[tokio::main]
async fn main() {
    // `cargo test --all-targets` runs this too, without the flag.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let number = |name: &str, default: u32| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse().ok())
            .unwrap_or(default)
    };
    let (rows, rounds) = (number("ROWS", 50_000), number("ROUNDS", 5));
    let servers = testing::servers().await;
    let database = DatabaseSettings {
        url: testing::fresh_database().await.into(),
        ..DatabaseSettings::default()
    };
    let nats = NatsSettings {
        url: servers.nats.url().into(),
        ..NatsSettings::default()
    };
    let set = Set {
        store: Store::connect(&database).await.unwrap(),
        nats: Nats::connect(&nats, "bench").await.unwrap(),
        rows,
    };
    store::migrate(&set.store).await.unwrap();
    sqlx::raw_sql("CREATE TABLE counter (id int PRIMARY KEY, n int NOT NULL); INSERT INTO counter SELECT g, 0 FROM generate_series(0, 99999) g")
        .execute(set.store.pool())
        .await
        .unwrap();

    println!("{rows} messages of {PAYLOAD} bytes, {KEYS} keys, {rounds} rounds; messages a second");
    let (mut relay, mut consumer) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let limit = set.publish_from_memory().await;
        let drained = set.drain().await;
        relay.push(report(
            "relay, drained backlog : publish from memory",
            drained,
            limit,
        ));
        let by_hand = set.consume_by_hand().await;
        let consumed = set.consume().await;
        consumer.push(report(
            "consumer : one transaction a message, 16 at a time",
            consumed,
            by_hand,
        ));
    }
    println!(
        "median: relay {:.2}, consumer {:.2}",
        median(relay),
        median(consumer)
    );
}

fn report(what: &str, ours: f64, other: f64) -> f64 {
    println!("{what:52} {ours:8.0} {other:8.0} {:.2}", ours / other);
    ours / other
}

fn median(mut ratios: Vec<f64>) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

impl Set {
    fn rate(&self, begun: Instant) -> f64 {
        f64::from(self.rows) / begun.elapsed().as_secs_f64()
    }

    async fn stream(&self) -> jetstream::stream::Stream {
        let jetstream = self.nats.jetstream();
        jetstream.delete_stream("BENCH").await.ok();
        let settings = StreamSettings {
            name: "BENCH".into(),
            subjects: vec!["bench.>".into()],
            ..StreamSettings::default()
        };
        self.nats.ensure_stream(&settings, Duration::ZERO).await.unwrap();
        jetstream.get_stream("BENCH").await.unwrap()
    }

    /// The limit: the same messages, published from memory with as many in flight.
    async fn publish_from_memory(&self) -> f64 {
        self.stream().await;
        let jetstream = self.nats.jetstream();
        let payload: bytes::Bytes = vec![b'x'; PAYLOAD].into();
        let begun = Instant::now();
        let mut in_flight = FuturesUnordered::new();
        for n in 0..self.rows {
            let id = uuid::Uuid::now_v7().to_string();
            let mut headers = async_nats::HeaderMap::new();
            headers.insert("Nats-Msg-Id", id.as_str());
            headers.insert("Twinbox-Id", id.as_str());
            headers.insert("Twinbox-Key", format!("key-{}", n % KEYS).as_str());
            headers.insert("Twinbox-Time", "2026-01-01T00:00:00.000000Z");
            headers.insert(
                "traceparent",
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            );
            let subject = format!("bench.{}", n % 16);
            let sent = jetstream
                .publish_with_headers(subject, headers, payload.clone())
                .await
                .unwrap();
            in_flight.push(sent.into_future());
            if in_flight.len() >= WINDOW {
                in_flight.next().await.unwrap().unwrap();
            }
        }
        while let Some(acknowledged) = in_flight.next().await {
            acknowledged.unwrap();
        }
        self.rate(begun)
    }

    /// The relay, from the first poll until all is acknowledged and the cursor is saved.
    async fn drain(&self) -> f64 {
        let mut stream = self.stream().await;
        sqlx::query(
            "INSERT INTO twinbox.outbox (subject, key, headers, payload)
             SELECT 'bench.' || g % 16, 'key-' || floor(random() * $2)::int,
                    '{\"traceparent\": \"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\"}', convert_to(repeat('x', 256), 'UTF8')
             FROM generate_series(1, $1) g",
        )
        .bind(i64::from(self.rows))
        .bind(f64::from(KEYS))
        .execute(self.store.pool())
        .await
        .unwrap();
        sqlx::query("VACUUM ANALYZE twinbox.outbox")
            .execute(self.store.pool())
            .await
            .unwrap();
        let control = RelayControl::new(CancellationToken::new());
        let settings = RelaySettings {
            lease: Duration::from_secs(2),
            ..RelaySettings::default()
        };
        let begun = Instant::now();
        let relay =
            tokio::spawn(Relay::new(self.store.clone(), self.nats.clone(), settings).run(control.clone()));
        let rows = u64::from(self.rows);
        while stream.info().await.unwrap().state.messages < rows {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        control.drain();
        relay.await.unwrap().unwrap();
        self.rate(begun)
    }

    fn consumer_settings(&self, name: &str) -> ConsumerSettings {
        ConsumerSettings {
            name: name.into(),
            stream: "BENCH".into(),
            ..ConsumerSettings::default()
        }
    }

    async fn consume(&self) -> f64 {
        let name = testing::unique("ours");
        let settings = self.consumer_settings(&name);
        let (subscription, _) = self.nats.subscribe(&settings).await.unwrap();
        let consumer = Consumer::builder(settings)
            .actor("bench.>", || Count)
            .build()
            .unwrap();
        let drain = CancellationToken::new();
        let control = ConsumerControl::new(drain.clone());
        let mut health = control.health();
        let store = self.store.clone();
        let begun = Instant::now();
        let running =
            tokio::spawn(async move { consumer.run(&store, Arc::new(subscription), control).await });
        health
            .wait_for(|health| health.settled >= u64::from(self.rows))
            .await
            .unwrap();
        let rate = self.rate(begun);
        drain.cancel();
        running.await.unwrap().unwrap();
        rate
    }

    /// What a good engineer writes by hand.
    async fn consume_by_hand(&self) -> f64 {
        sqlx::raw_sql("DROP TABLE IF EXISTS by_hand; CREATE TABLE by_hand (id uuid PRIMARY KEY)")
            .execute(self.store.pool())
            .await
            .unwrap();
        let stream = self.nats.jetstream().get_stream("BENCH").await.unwrap();
        let config = jetstream::consumer::pull::Config {
            durable_name: Some("by-hand".into()),
            max_ack_pending: 20_000,
            ..Default::default()
        };
        let messages = stream
            .create_consumer(config)
            .await
            .unwrap()
            .messages()
            .await
            .unwrap();
        let pool = sqlx::PgPool::connect_with((*self.store.pool().connect_options()).clone())
            .await
            .unwrap();
        let pool = sqlx::postgres::PgPoolOptions::new()
            .max_connections(16)
            .connect_with((*pool.connect_options()).clone())
            .await
            .unwrap();
        let begun = Instant::now();
        messages
            .take(self.rows as usize)
            .for_each_concurrent(16, |message| {
                let pool = pool.clone();
                async move {
                    let message = message.unwrap();
                    let id: uuid::Uuid = message
                        .headers
                        .as_ref()
                        .unwrap()
                        .get("Nats-Msg-Id")
                        .unwrap()
                        .as_str()
                        .parse()
                        .unwrap();
                    #[expect(
                        clippy::disallowed_methods,
                        reason = "this is the other side, and it drops nothing"
                    )]
                    let mut transaction = pool.begin().await.unwrap();
                    let claimed = sqlx::query("INSERT INTO by_hand VALUES ($1) ON CONFLICT DO NOTHING")
                        .bind(id)
                        .execute(&mut *transaction)
                        .await
                        .unwrap();
                    if claimed.rows_affected() == 1 {
                        count(&mut transaction, id).await.unwrap();
                    }
                    transaction.commit().await.unwrap();
                    message.ack().await.unwrap();
                }
            })
            .await;
        self.rate(begun)
    }
}

/// The work: one row of 100,000, drawn by the message's id.
async fn count(connection: &mut sqlx::PgConnection, id: uuid::Uuid) -> sqlx::Result<()> {
    let row = i32::try_from(id.as_u128() % 100_000).unwrap();
    sqlx::query("UPDATE counter SET n = n + 1 WHERE id = $1")
        .bind(row)
        .execute(connection)
        .await?;
    Ok(())
}

struct Count;

impl BusinessActor for Count {
    type Event = serde::de::IgnoredAny;

    async fn handle(
        &mut self,
        event: Event<serde::de::IgnoredAny>,
        transaction: &mut InboxTransaction<'_>,
    ) -> Result<(), HandlerError> {
        count(transaction, event.envelope.id).await?;
        Ok(())
    }

    fn decode(_: &twinbox::inbox::Envelope) -> Result<serde::de::IgnoredAny, HandlerError> {
        Ok(serde::de::IgnoredAny)
    }
}
