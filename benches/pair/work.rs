//! What the messages do: rows of a ledger are counted up, drawn by the random part of the message's id.

use crate::house::Place;
use sqlx::PgConnection;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use twinbox::inbox::{BusinessActor, Envelope, Event, HandlerError, InboxTransaction};
use uuid::Uuid;

/// Rows of the ledger.
pub const LEDGER: u32 = 100_000;

#[derive(Clone, Copy)]
pub struct Work {
    /// Drawn from so many rows.
    pub rows: u32,
    /// So many statements a message.
    pub updates: u32,
}

impl Work {
    /// One of all rows.
    pub const SPREAD: Self = Self {
        rows: LEDGER,
        updates: 1,
    };
    /// One of few rows, where lanes collide.
    pub const HOT: Self = Self {
        rows: 1000,
        updates: 1,
    };
    /// Two of few rows, where transactions can wait for each other.
    pub const HOT_TWICE: Self = Self {
        rows: 1000,
        updates: 2,
    };

    fn draws(self, id: Uuid) -> impl Iterator<Item = i32> {
        // The lower half of a UUIDv7 is random.
        let (_, random) = id.as_u64_pair();
        (0..self.updates).map(move |n| (((random >> (20 * n)) & 0xf_ffff) as u32 % self.rows).cast_signed())
    }

    pub async fn apply(self, connection: &mut PgConnection, id: Uuid) -> sqlx::Result<()> {
        for row in self.draws(id) {
            sqlx::query("UPDATE ledger SET n = n + 1 WHERE id = $1")
                .bind(row)
                .execute(&mut *connection)
                .await?;
        }
        Ok(())
    }
}

/// The ledger, made anew.
pub async fn prepare(place: &Place) {
    let statements = format!(
        "DROP TABLE IF EXISTS ledger;
         CREATE TABLE ledger (id int PRIMARY KEY, n bigint NOT NULL);
         INSERT INTO ledger SELECT g, 0 FROM generate_series(0, {LEDGER} - 1) g"
    );
    place.sql(&statements).await;
    place.sql("VACUUM ANALYZE ledger").await;
    place.sql("CHECKPOINT").await;
}

/// Updates that took effect.
pub async fn effects(place: &Place) -> i64 {
    sqlx::query_scalar("SELECT sum(n)::bigint FROM ledger")
        .fetch_one(place.store.pool())
        .await
        .unwrap()
}

/// Nothing of a message but its id is looked at.
type Anything = serde::de::IgnoredAny;

/// One message after the other.
pub struct OneByOne(pub Work);

impl BusinessActor for OneByOne {
    type Event = Anything;

    async fn handle(
        &mut self,
        event: Event<Anything>,
        transaction: &mut InboxTransaction<'_>,
    ) -> Result<(), HandlerError> {
        Ok(self.0.apply(transaction, event.envelope.id).await?)
    }

    fn decode(_: &Envelope) -> Result<Anything, HandlerError> {
        Ok(Anything {})
    }
}

/// A batch in one statement.
pub struct Together(pub Work);

impl BusinessActor for Together {
    type Event = Anything;

    async fn handle(
        &mut self,
        event: Event<Anything>,
        transaction: &mut InboxTransaction<'_>,
    ) -> Result<(), HandlerError> {
        self.handle_batch(vec![event], transaction).await
    }

    async fn handle_batch(
        &mut self,
        events: Vec<Event<Anything>>,
        transaction: &mut InboxTransaction<'_>,
    ) -> Result<(), HandlerError> {
        let draws: Vec<i32> = events
            .iter()
            .flat_map(|event| self.0.draws(event.envelope.id))
            .collect();
        sqlx::query(
            "UPDATE ledger SET n = ledger.n + drawn.n
             FROM (SELECT id, count(*) AS n FROM unnest($1) AS id GROUP BY id ORDER BY id) AS drawn
             WHERE ledger.id = drawn.id",
        )
        .bind(draws)
        .execute(&mut **transaction)
        .await?;
        Ok(())
    }

    fn decode(_: &Envelope) -> Result<Anything, HandlerError> {
        Ok(Anything {})
    }
}

/// One of a hundred messages fails at its first try.
#[derive(Clone)]
pub struct Stumbling {
    pub work: Work,
    pub failed: Arc<Mutex<HashSet<Uuid>>>,
}

impl BusinessActor for Stumbling {
    type Event = Anything;

    async fn handle(
        &mut self,
        event: Event<Anything>,
        transaction: &mut InboxTransaction<'_>,
    ) -> Result<(), HandlerError> {
        let id = event.envelope.id;
        let is_first_failure = || {
            let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.insert(id)
        };
        if id.as_u128().is_multiple_of(100) && is_first_failure() {
            return Err(HandlerError::retry("stumbled"));
        }
        Ok(self.work.apply(transaction, id).await?)
    }

    fn decode(_: &Envelope) -> Result<Anything, HandlerError> {
        Ok(Anything {})
    }
}
