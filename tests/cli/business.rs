//! A business without a line of Rust: one stream, one consumer whose handler is SQL, and a table of its effects.

use std::time::Duration;

use sqlx::{FromRow, PgConnection};
use twinbox::testing;

use crate::SOON;
use crate::child::Running;
use crate::world::World;

/// Effects have no unique constraint, so that a second one would show.
const TABLES: &str = "
    CREATE TABLE effect (
        n          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        message_id uuid, subject text, key text, kind text, headers jsonb, payload bytea);";

/// The handler: what came, as it came.
pub(crate) const HANDLER: &str = "INSERT INTO public.effect (message_id, subject, key, kind, headers, payload) \
                                  VALUES (:id, :subject, :key, :kind, :headers, :payload_bytes)";

/// A stream and a consumer that nobody else has.
pub(crate) struct Business {
    pub(crate) world: World,
    /// Also the first token of its subjects.
    pub(crate) stream: String,
}

#[derive(Debug, FromRow)]
pub(crate) struct Effect {
    pub(crate) message_id: uuid::Uuid,
    pub(crate) subject: String,
    pub(crate) key: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) headers: serde_json::Value,
    pub(crate) payload: Vec<u8>,
}

impl Effect {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.payload).unwrap()
    }
}

impl Business {
    /// On the servers that all tests share.
    pub(crate) async fn new() -> Self {
        Self::of(World::new().await).await
    }

    pub(crate) async fn of(world: World) -> Self {
        world.execute(TABLES).await;
        let business = Self {
            world,
            stream: testing::unique("orders"),
        };
        business.configure("", HANDLER);
        business.world.run(&["migrate"]).await.ok();
        business
    }

    /// The settings, with more of the consumer's and another handler.
    pub(crate) fn configure(&self, more: &str, handler: &str) {
        self.configure_stream("", more, handler);
    }

    pub(crate) fn configure_stream(&self, more_of_stream: &str, more_of_consumer: &str, handler: &str) {
        let stream = &self.stream;
        self.world.settings(&format!(
            "[[streams]]\nname = \"{stream}\"\nsubjects = [\"{stream}.>\"]\n{more_of_stream}\n\
             [[consumers]]\nname = \"billing\"\nstream = \"{stream}\"\n{more_of_consumer}\n\
             [[consumers.handlers]]\nsql = \"\"\"{handler}\"\"\"\n"
        ));
    }

    /// A subject of the stream.
    pub(crate) fn subject(&self, name: &str) -> String {
        format!("{}.{name}", self.stream)
    }

    /// Enqueues rows whose payloads are the numbers of a range, with a key, in one transaction.
    pub(crate) async fn enqueue(&self, from: i32, to: i32) {
        sqlx::query(
            "SELECT twinbox.enqueue($1, n::text, key => 'k' || n % 10) FROM generate_series($2, $3) AS n",
        )
        .bind(self.subject("placed"))
        .bind(from)
        .bind(to)
        .execute(&mut self.world.database().await)
        .await
        .unwrap();
    }

    /// Starts `twinbox run`.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        self.world.start(&[&["run"], args].concat())
    }

    pub(crate) async fn effects(&self) -> Vec<Effect> {
        sqlx::query_as("SELECT message_id, subject, key, kind, headers, payload FROM effect ORDER BY n")
            .fetch_all(&mut self.world.database().await)
            .await
            .unwrap()
    }

    pub(crate) async fn count(&self) -> i64 {
        self.world.count("SELECT count(*) FROM effect").await
    }

    /// Waits until there are so many effects.
    pub(crate) async fn wait_for(&self, effects: i64) {
        self.wait_for_within(effects, SOON).await;
    }

    pub(crate) async fn wait_for_within(&self, effects: i64, deadline: Duration) {
        let what = format!("{effects} effects are there");
        let database = tokio::sync::Mutex::new(self.world.database().await);
        testing::wait_until(&what, deadline, || async {
            let connection: &mut PgConnection = &mut *database.lock().await;
            let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM effect")
                .fetch_one(connection)
                .await
                .unwrap();
            if seen >= effects {
                Ok(())
            } else {
                Err(format!("{seen} effects"))
            }
        })
        .await;
    }

    /// Waits until broker and inbox have nothing left to do, by `twinbox status`.
    pub(crate) async fn wait_until_quiet(&self) {
        testing::wait_until("nothing is pending or in flight", SOON, || async {
            let status = self.world.run(&["status", "--json"]).await.json();
            let relay = &status["relays"][0]["pending"]["rows"];
            let consumer = &status["consumers"][0];
            let quiet = [
                relay,
                &consumer["broker"]["lag"],
                &consumer["broker"]["in_flight"],
            ]
            .iter()
            .all(|figure| **figure == 0);
            if quiet { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
    }

    /// Every number of the range has had its effect once, and the keys kept their order.
    pub(crate) async fn assert_once_in_order(&self, from: i32, to: i32) {
        let effects = self.effects().await;
        let mut numbers: Vec<i32> = effects
            .iter()
            .map(|effect| effect.text().parse().unwrap())
            .collect();
        for key in 0..10 {
            let of_key: Vec<i32> = numbers
                .iter()
                .copied()
                .filter(|number| number % 10 == key)
                .collect();
            assert!(of_key.is_sorted(), "key k{key} out of order: {of_key:?}");
        }
        numbers.sort_unstable();
        assert_eq!(numbers, (from..=to).collect::<Vec<_>>());
    }
}
