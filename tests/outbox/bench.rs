//! What the tests share: a database and a stream of their own, relays on them, and what is in the stream.

use async_nats::jetstream::stream::Stream;
use sqlx::{Postgres, Transaction};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use twinbox::Message;
use twinbox::broker::nats::Nats;
use twinbox::broker::{Publisher, StreamState};
use twinbox::config::{DatabaseSettings, NatsSettings, RelaySettings, StreamSettings};
use twinbox::outbox::{Outbox, Relay, RelayControl, RelayError, RelayHealth, RelayRole};
use twinbox::store::{Schema, Store, migrate};
use twinbox::testing::{self, wait_until};
use uuid::Uuid;

pub const DEADLINE: Duration = Duration::from_secs(30);

/// A database and a stream of its own.
pub struct Bench {
    pub store: Store,
    pub database: DatabaseSettings,
    pub nats_url: String,
    /// A connection of the test's.
    pub nats: Arc<Nats>,
    /// The stream, which covers `NAME.>`.
    pub stream: String,
    pub outbox: Outbox,
    pub settings: RelaySettings,
}

impl Bench {
    /// On the shared servers.
    pub async fn new() -> Self {
        Self::on(
            testing::fresh_database().await,
            testing::servers().await.nats.url(),
        )
        .await
    }

    pub async fn on(database_url: String, nats_url: String) -> Self {
        let database = DatabaseSettings {
            url: database_url.into(),
            max_connections: 8,
            acquire_timeout: Duration::from_secs(5),
            ..DatabaseSettings::default()
        };
        let store = Store::connect(&database).await.unwrap();
        migrate(&store).await.unwrap();
        let nats = connect(&nats_url, "test").await;
        let stream = testing::unique("OUT");
        let settings = RelaySettings {
            lease: Duration::from_secs(2),
            sleep_after: Duration::from_millis(300),
            retry_min: Duration::from_millis(20),
            retry_max: Duration::from_millis(200),
            unroutable_grace: Duration::from_millis(200),
            checkpoint_interval: Duration::from_secs(1),
            ..RelaySettings::default()
        };
        let bench = Self {
            store,
            database,
            nats_url,
            nats,
            outbox: Outbox::new(Schema::default()),
            stream,
            settings,
        };
        bench.create_stream(Duration::from_secs(120)).await;
        bench
    }

    pub async fn create_stream(&self, duplicate_window: Duration) {
        let stream = StreamSettings {
            name: self.stream.clone(),
            subjects: vec![format!("{}.>", self.stream)],
            duplicate_window,
            ..StreamSettings::default()
        };
        self.nats.ensure_stream(&stream, Duration::ZERO).await.unwrap();
    }

    pub fn subject(&self, name: &str) -> String {
        format!("{}.{name}", self.stream)
    }

    /// A message whose body is a number.
    pub fn message(&self, number: usize) -> Message {
        Message::new(self.subject("a"), number.to_string())
    }

    pub async fn begin(&self) -> Transaction<'static, Postgres> {
        self.store.begin().await.unwrap()
    }

    /// Enqueues in a transaction of its own.
    pub async fn enqueue(&self, message: Message) -> Uuid {
        let mut transaction = self.begin().await;
        let id = self.outbox.enqueue(&mut transaction, message).await.unwrap();
        transaction.commit().await.unwrap();
        id
    }

    pub async fn enqueue_all(&self, messages: impl IntoIterator<Item = Message>) -> Vec<Uuid> {
        let mut transaction = self.begin().await;
        let ids = self.outbox.enqueue_all(&mut transaction, messages).await.unwrap();
        transaction.commit().await.unwrap();
        ids
    }

    /// Inserts a row as somebody might by plain SQL.
    pub async fn insert(
        &self,
        subject: &str,
        key: Option<&str>,
        headers: Option<&str>,
        payload: &[u8],
    ) -> Uuid {
        let mut transaction = self.begin().await;
        let id = sqlx::query_scalar(
            "INSERT INTO twinbox.outbox (subject, key, headers, payload)
             VALUES ($1, $2, $3::jsonb, $4) RETURNING message_id",
        )
        .bind(subject)
        .bind(key)
        .bind(headers)
        .bind(payload)
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
        transaction.commit().await.unwrap();
        id
    }

    /// Starts a relay with a connection of its own.
    pub async fn relay(&self) -> Running {
        let nats = connect(&self.nats_url, "relay").await;
        self.relay_by(nats).await
    }

    pub async fn relay_by(&self, publisher: Arc<dyn Publisher>) -> Running {
        let store = Store::connect(&self.database).await.unwrap();
        Running::start(store, publisher, self.settings.clone())
    }

    /// Starts a relay and waits until it leads.
    pub async fn leader(&self) -> Running {
        let relay = self.relay().await;
        relay.leads().await;
        relay
    }

    pub async fn state(&self) -> StreamState {
        self.nats.stream_state(&self.stream).await.unwrap().unwrap()
    }

    /// Waits until the stream holds so many messages, and returns them.
    pub async fn stored(&self, messages: usize) -> Vec<Stored> {
        let what = format!("{messages} messages in the stream");
        wait_until(&what, DEADLINE, || async {
            let state = self.state().await;
            let there = usize::try_from(state.last_sequence + 1 - state.first_sequence).unwrap();
            if there >= messages { Ok(()) } else { Err(there) }
        })
        .await;
        let stored = self.all_stored().await;
        assert_eq!(stored.len(), messages, "messages in the stream");
        stored
    }

    /// What is in the stream, in its order.
    pub async fn all_stored(&self) -> Vec<Stored> {
        all_stored(&self.nats.jetstream().get_stream(&self.stream).await.unwrap()).await
    }

    /// Everything enqueued is settled.
    pub async fn is_settled(&self) {
        wait_until("nothing is pending", DEADLINE, || async {
            let statuses = twinbox::outbox::relay_statuses(&self.store).await.unwrap();
            match statuses.first().and_then(|status| status.pending) {
                Some(pending) if pending.rows == 0 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    pub async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql)
            .fetch_one(self.store.pool())
            .await
            .unwrap()
    }

    pub async fn execute(&self, sql: &'static str) {
        let mut transaction = self.begin().await;
        sqlx::query(sql).execute(&mut *transaction).await.unwrap();
        transaction.commit().await.unwrap();
    }
}

pub async fn connect(url: &str, name: &str) -> Arc<Nats> {
    let settings = NatsSettings {
        url: url.into(),
        publish_timeout: Duration::from_secs(2),
        request_timeout: Duration::from_secs(2),
        ..NatsSettings::default()
    };
    let nats = Nats::connect(&settings, name).await.unwrap();
    wait_until("connected", DEADLINE, || async { nats.is_connected() }).await;
    nats
}

/// A message in a stream.
#[derive(Clone, Debug)]
pub struct Stored {
    pub subject: String,
    pub headers: HashMap<String, String>,
    pub payload: Vec<u8>,
}

impl Stored {
    pub fn id(&self) -> Uuid {
        self.headers["Twinbox-Id"].parse().unwrap()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.payload).unwrap()
    }

    pub fn number(&self) -> usize {
        self.text().parse().unwrap()
    }
}

pub async fn all_stored(stream: &Stream) -> Vec<Stored> {
    use async_nats::jetstream::consumer::pull::OrderedConfig;
    use futures_util::StreamExt as _;
    let info = stream.get_info().await.unwrap();
    let messages = usize::try_from(info.state.messages).unwrap();
    if messages == 0 {
        return Vec::new();
    }
    let consumer = stream.create_consumer(OrderedConfig::default()).await.unwrap();
    let read = consumer.messages().await.unwrap().take(messages);
    read.map(|message| {
        let message = message.unwrap();
        let headers = message.headers.iter().flat_map(|headers| headers.iter());
        Stored {
            subject: message.subject.to_string(),
            headers: headers
                .map(|(name, values)| (name.to_string(), values[0].to_string()))
                .collect(),
            payload: message.payload.to_vec(),
        }
    })
    .collect()
    .await
}

pub fn numbers(stored: &[Stored]) -> Vec<usize> {
    stored.iter().map(Stored::number).collect()
}

/// A relay at work.
pub struct Running {
    pub control: RelayControl,
    pub holder: String,
    task: JoinHandle<Result<(), RelayError>>,
}

impl Running {
    pub fn start(store: Store, publisher: Arc<dyn Publisher>, settings: RelaySettings) -> Self {
        let relay = Relay::new(store, publisher, settings);
        let control = RelayControl::new(CancellationToken::new());
        Self {
            holder: relay.holder().to_owned(),
            task: tokio::spawn(relay.run(control.clone())),
            control,
        }
    }

    pub fn health(&self) -> RelayHealth {
        self.control.health().borrow().clone()
    }

    pub async fn leads(&self) {
        self.until("the relay leads", |health| {
            health.role == RelayRole::Leader && health.ready
        })
        .await;
    }

    pub async fn until(&self, what: &str, holds: impl Fn(&RelayHealth) -> bool) {
        wait_until(what, DEADLINE, || {
            let health = self.health();
            let held = if holds(&health) {
                Ok(())
            } else {
                Err(format!("{health:?}"))
            };
            async { held }
        })
        .await;
    }

    /// Drops the future that runs it.
    pub fn drop_it(self) {
        self.task.abort();
    }

    pub async fn drain(self) {
        self.control.drain();
        tokio::time::timeout(DEADLINE, self.task)
            .await
            .expect("the relay drains in time")
            .unwrap()
            .unwrap();
    }
}
