//! A shop of two hops: an order is charged, the payment is booked.

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use twinbox::broker::Publisher as _;
use twinbox::broker::nats::Nats;
use twinbox::config::{ConsumerSettings, Settings, StreamSettings};
use twinbox::embedded::PrivateServers;
use twinbox::inbox::{BusinessActor, Consumer, Event, HandlerError, InboxTransaction};
use twinbox::store::{self, Store};
use twinbox::{Message, Outbox, Service, ServiceHandle, testing};

pub const DEADLINE: Duration = Duration::from_secs(30);
const KEYS: u32 = 5;

pub struct Shop {
    pub store: Store,
    pub settings: Settings,
    /// The stream of both hops, and the first token of its subjects.
    pub stream: String,
    /// How often the handler of a panicking order was entered.
    pub panics: Arc<AtomicU32>,
}

/// What happens to an order.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum Fate {
    #[default]
    Charged,
    Slow,
    PanicsOnce,
    Panics,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Order {
    pub number: u32,
    pub fate: Fate,
}

impl Shop {
    pub async fn new() -> Self {
        let url = testing::fresh_database().await;
        Self::with(url, testing::servers().await.nats.url()).await
    }

    pub async fn on(servers: &PrivateServers) -> Self {
        let url = servers.postgres.create_database("shop").await.unwrap();
        Self::with(url, servers.nats.url()).await
    }

    async fn with(database_url: String, nats_url: String) -> Self {
        let stream = testing::unique("shop");
        let mut settings = Settings::default();
        settings.database.url = database_url.into();
        settings.nats.url = nats_url.into();
        settings.relay.lease = Duration::from_secs(2);
        settings.streams.push(StreamSettings {
            name: stream.clone(),
            subjects: vec![format!("{stream}.>")],
            ..StreamSettings::default()
        });
        let store = Store::connect(&settings.database).await.unwrap();
        store::migrate(&store).await.unwrap();
        // No unique constraint, so that a second effect would show.
        sqlx::raw_sql(
            "CREATE TABLE charge (id bigserial PRIMARY KEY, number bigint NOT NULL);
             CREATE TABLE booking (LIKE charge INCLUDING ALL)",
        )
        .execute(store.pool())
        .await
        .unwrap();
        Self {
            store,
            settings,
            stream,
            panics: Arc::default(),
        }
    }

    fn consumer(&self, name: &str, hop: &str) -> ConsumerSettings {
        ConsumerSettings {
            name: name.to_owned(),
            stream: self.stream.clone(),
            subjects: vec![format!("{}.{hop}", self.stream)],
            retry_min: Duration::from_millis(20),
            retry_max: Duration::from_millis(100),
            max_attempts: 3,
            ..ConsumerSettings::default()
        }
    }

    /// The whole of it, not yet started.
    pub fn service(&self) -> Service {
        let next = format!("{}.captured", self.stream);
        let panics = self.panics.clone();
        let billing = Consumer::builder(self.consumer("billing", "placed")).actor(">", move || Billing {
            next: next.clone(),
            panics: panics.clone(),
        });
        let ledger = Consumer::builder(self.consumer("ledger", "captured")).actor(">", || Ledger);
        Service::new(self.settings.clone())
            .consumer(billing.build().unwrap())
            .consumer(ledger.build().unwrap())
    }

    pub async fn start(&self) -> ServiceHandle {
        self.service().start().await.unwrap()
    }

    /// Places orders, each in a transaction with its message.
    pub async fn place(&self, numbers: std::ops::RangeInclusive<u32>, fate: Fate) {
        let outbox = Outbox::new(self.store.schema().clone());
        for number in numbers {
            let mut transaction = self.store.begin().await.unwrap();
            let message = Message::json(format!("{}.placed", self.stream), &Order { number, fate })
                .unwrap()
                .key(format!("k{}", number % KEYS));
            outbox.enqueue(&mut transaction, message).await.unwrap();
            transaction.commit().await.unwrap();
        }
    }

    async fn numbers(&self, table: &str) -> sqlx::Result<Vec<u32>> {
        let statement = sqlx::AssertSqlSafe(format!("SELECT number FROM {table} ORDER BY id"));
        let numbers: Vec<i64> = sqlx::query_scalar(statement).fetch_all(self.store.pool()).await?;
        Ok(numbers
            .into_iter()
            .map(|number| number.try_into().unwrap())
            .collect())
    }

    /// The bookings that are there, the end of both hops.
    pub async fn booked(&self) -> Vec<u32> {
        self.numbers("booking").await.unwrap()
    }

    /// Waits until so many payments are booked.
    pub async fn until_booked(&self, wanted: usize) {
        self.until("booking", wanted).await;
    }

    /// Waits until so many orders are charged.
    pub async fn until_charged(&self, wanted: usize) {
        self.until("charge", wanted).await;
    }

    async fn until(&self, table: &str, wanted: usize) {
        let what = format!("{wanted} rows of {table}");
        testing::wait_until(&what, DEADLINE, || async {
            // The database may be away.
            match self.numbers(table).await {
                Ok(found) if found.len() >= wanted => Ok(()),
                Ok(found) => Err(format!("{} rows", found.len())),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
    }

    async fn nats(&self) -> Arc<Nats> {
        Nats::connect(&self.settings.nats, "shop").await.unwrap()
    }

    pub async fn delete_stream(&self) {
        let nats = self.nats().await;
        testing::wait_until("the stream is deleted", DEADLINE, || async {
            nats.jetstream().delete_stream(&self.stream).await
        })
        .await;
    }

    /// Waits until so many messages are in the stream.
    pub async fn until_stored(&self, wanted: u64) {
        let nats = self.nats().await;
        testing::wait_until("the messages are in the stream", DEADLINE, || async {
            match nats.stream_state(&self.stream).await {
                Ok(Some(state)) if state.last_sequence >= wanted => Ok(()),
                seen => Err(format!("{seen:?}")),
            }
        })
        .await;
    }

    /// Both hops of every order took effect once.
    pub async fn assert_once(&self, numbers: std::ops::RangeInclusive<u32>) {
        for table in ["charge", "booking"] {
            let mut found = self.numbers(table).await.unwrap();
            found.sort_unstable();
            assert_eq!(found, numbers.clone().collect::<Vec<_>>(), "{table}");
        }
    }

    /// Both hops kept the order of each key.
    pub async fn assert_in_order(&self) {
        for table in ["charge", "booking"] {
            let found = self.numbers(table).await.unwrap();
            for key in 0..KEYS {
                let of_key: Vec<_> = found.iter().filter(|number| *number % KEYS == key).collect();
                assert!(of_key.is_sorted(), "{table} of key k{key}: {of_key:?}");
            }
        }
    }
}

pub async fn until_ready(service: &ServiceHandle) {
    testing::wait_until("ready", DEADLINE, || async {
        if service.is_ready() {
            Ok(())
        } else {
            Err(format!("{:?}", service.observe()))
        }
    })
    .await;
}

/// Charges, and tells of it.
struct Billing {
    next: String,
    panics: Arc<AtomicU32>,
}

impl BusinessActor for Billing {
    type Event = Order;

    async fn handle(
        &mut self,
        order: Event<Order>,
        transaction: &mut InboxTransaction<'_>,
    ) -> Result<(), HandlerError> {
        insert(
            "INSERT INTO charge (number) VALUES ($1)",
            order.number,
            transaction,
        )
        .await?;
        let message = Message::json(&self.next, &order.payload)?;
        transaction.enqueue(match &order.envelope.key {
            Some(key) => message.key(key),
            None => message,
        })?;
        match order.fate {
            Fate::Charged => {}
            // How long a handler takes.
            Fate::Slow => tokio::time::sleep(Duration::from_millis(20)).await,
            Fate::PanicsOnce => {
                let before = self.panics.fetch_add(1, Ordering::Relaxed);
                // The first is in a batch, the second by itself, and that is the run that counts.
                assert!(before >= 2, "this actor has a fault");
            }
            Fate::Panics => {
                self.panics.fetch_add(1, Ordering::Relaxed);
                panic!("this actor has a fault")
            }
        }
        Ok(())
    }
}

/// Books.
struct Ledger;

impl BusinessActor for Ledger {
    type Event = Order;

    async fn handle(
        &mut self,
        payment: Event<Order>,
        transaction: &mut InboxTransaction<'_>,
    ) -> Result<(), HandlerError> {
        insert(
            "INSERT INTO booking (number) VALUES ($1)",
            payment.number,
            transaction,
        )
        .await
    }
}

async fn insert(
    statement: &'static str,
    number: u32,
    transaction: &mut InboxTransaction<'_>,
) -> Result<(), HandlerError> {
    sqlx::query(statement)
        .bind(i64::from(number))
        .execute(&mut **transaction)
        .await?;
    Ok(())
}
