//! What the tests stand on: a database, a stream, an actor that does as it is told, and a consumer that can be stopped.

use serde::Deserialize;
use sqlx::PgConnection;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use twinbox::broker::nats::Nats;
use twinbox::broker::{Outgoing, Publisher as _, Subscription};
use twinbox::config::{ConsumerSettings, DatabaseSettings, NatsSettings, Retention, StreamSettings};
use twinbox::dead_letter::{DeadLetter, Desk, Filter};
use twinbox::inbox::{
    BusinessActor, Consumer, ConsumerControl, ConsumerError, Event, HandlerError, InboxTransaction,
};
use twinbox::store::{self, Store};
use twinbox::{Headers, header, testing};
use uuid::Uuid;

pub const DEADLINE: Duration = Duration::from_secs(30);

/// A database with its tables, a stream of its own, and what happens there.
pub struct House {
    pub store: Store,
    pub nats: Arc<Nats>,
    pub stream: StreamSettings,
}

impl House {
    pub async fn new() -> Self {
        Self::with(Retention::Limits).await
    }

    pub async fn with(retention: Retention) -> Self {
        let url = testing::fresh_database().await;
        let nats = testing::servers().await.nats.url();
        Self::on(&url, &nats, retention).await
    }

    pub async fn on(database_url: &str, nats_url: &str, retention: Retention) -> Self {
        let store = open(database_url).await;
        store::migrate(&store).await.unwrap();
        sqlx::raw_sql(
            "CREATE TABLE effect (id bigserial PRIMARY KEY, consumer text NOT NULL, key text, n int NOT NULL);
             CREATE TABLE shared (id int PRIMARY KEY, n int NOT NULL);
             INSERT INTO shared SELECT g, 0 FROM generate_series(0, 9) g",
        )
        .execute(store.pool())
        .await
        .unwrap();
        let nats = connect(nats_url).await;
        let name = testing::unique("S");
        let subjects = vec![format!("{name}.>")];
        let stream = StreamSettings {
            name,
            subjects,
            retention,
            ..StreamSettings::default()
        };
        nats.ensure_stream(&stream, Duration::ZERO).await.unwrap();
        Self { store, nats, stream }
    }

    pub fn settings(&self, name: &str) -> ConsumerSettings {
        ConsumerSettings {
            name: name.to_owned(),
            stream: self.stream.name.clone(),
            retry_min: Duration::from_millis(20),
            retry_max: Duration::from_millis(100),
            ..ConsumerSettings::default()
        }
    }

    pub fn subject(&self, last: &str) -> String {
        format!("{}.{last}", self.stream.name)
    }

    /// Publishes order `n` of a key: what the actor is told to do with it.
    pub async fn send(&self, key: &str, n: i32, act: &str) -> Uuid {
        let id = Uuid::now_v7();
        self.send_as(
            &[(header::ID, &id.to_string()), (header::KEY, key)],
            &order(key, n, act),
        )
        .await;
        id
    }

    pub async fn send_as(&self, headers: &[(&str, &str)], payload: &[u8]) {
        self.send_to("order", headers, payload).await;
    }

    pub async fn send_to(&self, last: &str, headers: &[(&str, &str)], payload: &[u8]) {
        // The deduplication id is another each time: it is the inbox that is tested.
        self.nats
            .publish(Outgoing {
                subject: self.subject(last),
                headers: headers.iter().copied().collect::<Headers>(),
                dedup_id: format!("{}", Uuid::now_v7()),
                payload: payload.to_vec().into(),
            })
            .await
            .unwrap();
    }

    pub async fn subscribe(&self, settings: &ConsumerSettings) -> Arc<dyn Subscription> {
        Arc::new(self.nats.subscribe(settings).await.unwrap().0)
    }

    /// Runs a consumer with the actor [`Acts`].
    pub async fn run(&self, settings: ConsumerSettings, memory: &Memory) -> Running {
        let subscription = self.subscribe(&settings).await;
        self.run_by(subscription, acting(settings, memory))
    }

    pub fn run_by(&self, subscription: Arc<dyn Subscription>, consumer: Consumer) -> Running {
        let drain = CancellationToken::new();
        let (store, control) = (self.store.clone(), ConsumerControl::new(drain.clone()));
        let watched = control.clone();
        let task = tokio::spawn(async move { consumer.run(&store, subscription, control).await });
        Running {
            drain,
            control: watched,
            task,
        }
    }

    /// The numbers that took effect for a key, in order.
    pub async fn effects(&self, key: &str) -> Vec<i32> {
        sqlx::query_scalar("SELECT n FROM effect WHERE key IS NOT DISTINCT FROM $1 ORDER BY id")
            .bind(Some(key).filter(|key| !key.is_empty()))
            .fetch_all(self.store.pool())
            .await
            .unwrap()
    }

    pub async fn count(&self, table: &str) -> i64 {
        let statement = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
        sqlx::query_scalar(statement)
            .fetch_one(self.store.pool())
            .await
            .unwrap()
    }

    /// Waits until so many effects are there.
    pub async fn until_effects(&self, wanted: i64) {
        testing::wait_until("the effects", DEADLINE, || async {
            match self.count("effect").await {
                found if found >= wanted => Ok(()),
                found => Err(format!("{found} of {wanted}")),
            }
        })
        .await;
    }

    /// Waits until the broker has nothing left for a consumer.
    pub async fn until_quiet(&self, settings: &ConsumerSettings) {
        let subscription = self.nats.look_at(settings);
        testing::wait_until("nothing is on its way", DEADLINE, || async {
            let state = subscription.state().await.map_err(|error| error.to_string())?;
            match (state.pending, state.ack_pending) {
                (0, 0) => Ok(()),
                left => Err(format!("{left:?} pending and unacknowledged")),
            }
        })
        .await;
    }

    pub fn desk(&self) -> Desk {
        Desk::new(self.store.clone())
    }

    pub async fn dead(&self) -> Vec<DeadLetter> {
        self.desk().list(&Filter::default(), 0, 1000).await.unwrap()
    }

    /// Waits until so many dead letters are there.
    pub async fn until_dead(&self, wanted: usize) -> Vec<DeadLetter> {
        testing::wait_until("the dead letters", DEADLINE, || async {
            let dead = self.dead().await;
            if dead.len() == wanted {
                Ok(dead)
            } else {
                Err(format!("{} of {wanted}", dead.len()))
            }
        })
        .await
    }
}

pub async fn open(database_url: &str) -> Store {
    let settings = DatabaseSettings {
        url: database_url.into(),
        ..DatabaseSettings::default()
    };
    Store::connect(&settings).await.unwrap()
}

pub async fn connect(url: &str) -> Arc<Nats> {
    let settings = NatsSettings {
        url: url.into(),
        ..NatsSettings::default()
    };
    let nats = Nats::connect(&settings, "test").await.unwrap();
    testing::wait_until("connected", DEADLINE, || async { nats.is_connected() }).await;
    nats
}

pub fn order(key: &str, n: i32, act: &str) -> Vec<u8> {
    serde_json::json!({"key": key, "n": n, "act": act})
        .to_string()
        .into_bytes()
}

/// A consumer that runs.
pub struct Running {
    drain: CancellationToken,
    pub control: ConsumerControl,
    task: JoinHandle<Result<(), ConsumerError>>,
}

impl Running {
    /// Drains it and waits for its end.
    pub async fn stop(self) {
        self.drain.cancel();
        tokio::time::timeout(DEADLINE, self.task)
            .await
            .expect("it drains in time")
            .unwrap()
            .unwrap();
    }
}

/// How often each order's handler ran, over all lives of an actor.
#[derive(Clone, Default)]
pub struct Memory(Arc<Mutex<HashMap<i32, u32>>>);

impl Memory {
    pub fn runs(&self, n: i32) -> u32 {
        self.0.lock().unwrap().get(&n).copied().unwrap_or(0)
    }

    fn ran(&self, n: i32) -> u32 {
        let mut runs = self.0.lock().unwrap();
        *runs.entry(n).and_modify(|runs| *runs += 1).or_insert(1)
    }
}

pub fn acting(settings: ConsumerSettings, memory: &Memory) -> Consumer {
    let (name, memory) = (settings.name.clone(), memory.clone());
    Consumer::builder(settings)
        .actor(">", move || Acts::new(&name, &memory))
        .build()
        .unwrap()
}

/// Does as the order says.
pub struct Acts {
    consumer: String,
    memory: Memory,
    /// What it remembers itself: lost with every rollback.
    done: Vec<i32>,
}

#[derive(Deserialize)]
pub struct Order {
    key: String,
    pub n: i32,
    act: String,
}

impl BusinessActor for Acts {
    type Event = Order;

    async fn handle(
        &mut self,
        order: Event<Order>,
        transaction: &mut InboxTransaction<'_>,
    ) -> Result<(), HandlerError> {
        let run = self.memory.ran(order.n);
        // What a rollback took back must not be remembered.
        assert!(
            !self.done.contains(&order.n),
            "{} was done by this very actor",
            order.n
        );
        self.done.push(order.n);
        match order.act.as_str() {
            "fail once" if run <= 2 => return Err(HandlerError::retry("not yet")),
            "fail" => return Err(HandlerError::retry("never")),
            "reject" => return Err(HandlerError::reject("no good")),
            "panic" => panic!("at the order's word"),
            "panic once" => assert!(run > 2, "at the order's word"),
            "swallow" => {
                self.effect(&order, transaction).await?;
                transaction.enqueue(twinbox::Message::new("next.hop", ""))?;
                sqlx::query("SELECT 1 / 0")
                    .execute(&mut **transaction)
                    .await
                    .unwrap_err();
                return Ok(());
            }
            "COMMIT" | "ROLLBACK" => {
                self.effect(&order, transaction).await?;
                transaction.enqueue(twinbox::Message::new("next.hop", ""))?;
                sqlx::raw_sql(sqlx::AssertSqlSafe(order.act.clone()))
                    .execute(&mut **transaction)
                    .await?;
                return Ok(());
            }
            "savepoint" => {
                use sqlx::Connection as _;
                let mut savepoint = transaction.begin().await?;
                sqlx::query("SELECT 1 / 0")
                    .execute(&mut *savepoint)
                    .await
                    .unwrap_err();
                savepoint.rollback().await?;
            }
            "die" => std::process::abort(),
            "hang" => std::future::pending().await,
            // It commits, and goes wrong after that.
            "COMMIT and fail" => {
                self.effect(&order, transaction).await?;
                sqlx::raw_sql("COMMIT").execute(&mut **transaction).await?;
                return Err(HandlerError::retry("after its own commit"));
            }
            "lose the connection" => lose_connection(transaction).await?,
            // An application may wrap what sqlx says.
            "lose the connection once" if run == 1 => {
                lose_connection(transaction).await.map_err(HandlerError::retry)?;
            }
            // How long a handler takes.
            "slow" => tokio::time::sleep(Duration::from_millis(300)).await,
            "missing table" => {
                sqlx::query("INSERT INTO not_there VALUES (1)")
                    .execute(&mut **transaction)
                    .await?;
            }
            "collide" => {
                for _ in 0..3 {
                    let row = i32::try_from(Uuid::now_v7().as_u128() % 10).unwrap();
                    sqlx::query("UPDATE shared SET n = n + 1 WHERE id = $1")
                        .bind(row)
                        .execute(&mut **transaction)
                        .await?;
                }
            }
            "next" => transaction.enqueue(twinbox::Message::new("next.hop", order.n.to_string()))?,
            _ => {}
        }
        self.effect(&order, transaction).await?;
        Ok(())
    }
}

async fn lose_connection(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query("SELECT pg_terminate_backend(pg_backend_pid())")
        .execute(connection)
        .await?;
    Ok(())
}

impl Acts {
    pub fn new(consumer: &str, memory: &Memory) -> Self {
        Self {
            consumer: consumer.to_owned(),
            memory: memory.clone(),
            done: Vec::new(),
        }
    }

    async fn effect(&self, order: &Event<Order>, connection: &mut PgConnection) -> sqlx::Result<()> {
        sqlx::query("INSERT INTO effect (consumer, key, n) VALUES ($1, nullif($2, ''), $3)")
            .bind(&self.consumer)
            .bind(&order.key)
            .bind(order.n)
            .execute(connection)
            .await?;
        Ok(())
    }
}
