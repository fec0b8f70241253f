//! Forgetting claims. What may be forgotten is decided elsewhere (`pruner/window.rs`); here it is done, safely beside claims.

use super::registry::in_microseconds;
use crate::broker::StreamId;
use crate::store::{Store, StoreError};
use sqlx::postgres::types::PgInterval;
use std::time::Duration;
use uuid::Uuid;

/// Which of the claims that are old enough.
#[derive(Clone, Debug)]
pub(crate) enum Forgettable {
    /// All.
    All,
    /// Those of other incarnations of the stream than this, and those before this number.
    Before {
        /// The row of the stream's present incarnation, if it was ever seen.
        stream: Option<i32>,
        /// The number.
        sequence: u64,
    },
    /// These.
    Ids(Vec<Uuid>),
}

impl Forgettable {
    fn binds(&self) -> (Option<i32>, i64, Option<&[Uuid]>) {
        match self {
            Self::All => (None, 0, None),
            // A row that there is not: then no claim is of the present incarnation.
            Self::Before { stream, sequence } => (
                Some(stream.unwrap_or(0)),
                i64::try_from(*sequence).unwrap_or(i64::MAX),
                None,
            ),
            Self::Ids(ids) => (None, 0, Some(ids)),
        }
    }
}

const CONDITION: &str = "consumer = $1 AND claimed_at < now() - $5
    AND ($2::integer IS NULL OR stream <> $2 OR sequence < $3)
    AND ($4::uuid[] IS NULL OR message_id = ANY ($4))";

/// The inbox of one consumer, for the pruner.
pub(crate) struct Claims<'a> {
    store: &'a Store,
    consumer: i32,
    keep: PgInterval,
    skew: PgInterval,
}

impl<'a> Claims<'a> {
    /// Of a consumer by its name: `None` if it has never run. Claims younger than `keep` are not looked at; clocks may be
    /// `skew` apart.
    pub(crate) async fn of(
        store: &'a Store,
        consumer: &str,
        keep: Duration,
        skew: Duration,
    ) -> Result<Option<Self>, StoreError> {
        let id: Option<i32> = sqlx::query_scalar(store.sql("SELECT id FROM {s}.consumer WHERE name = $1"))
            .persistent(store.prepared())
            .bind(consumer)
            .fetch_optional(store.pool())
            .await?;
        Ok(id.map(|consumer| Self {
            store,
            consumer,
            keep: interval(keep),
            skew: interval(skew),
        }))
    }

    /// The row of a stream's incarnation, if anything of it was ever claimed.
    pub(crate) async fn stream(&self, stream: &StreamId) -> Result<Option<i32>, StoreError> {
        let id = sqlx::query_scalar(
            self.store
                .sql("SELECT id FROM {s}.stream WHERE name = $1 AND created_at = $2"),
        )
        .persistent(self.store.prepared())
        .bind(&stream.name)
        .bind(in_microseconds(stream.created))
        .fetch_optional(self.store.pool())
        .await?;
        Ok(id)
    }

    /// How many there are.
    pub(crate) async fn count(&self, which: &Forgettable) -> Result<u64, StoreError> {
        let (stream, sequence, ids) = which.binds();
        let statement = format!("SELECT count(*) FROM {{s}}.inbox WHERE {CONDITION}");
        let count: i64 = sqlx::query_scalar(self.store.sql(&statement))
            .persistent(false)
            .bind(self.consumer)
            .bind(stream)
            .bind(sequence)
            .bind(ids)
            .bind(self.keep)
            .fetch_one(self.store.pool())
            .await?;
        Ok(count.unsigned_abs())
    }

    /// Old claims at or after a number, with their numbers.
    pub(crate) async fn at_or_after(
        &self,
        stream: i32,
        sequence: u64,
        limit: i64,
    ) -> Result<Vec<(Uuid, i64)>, StoreError> {
        let rows = sqlx::query_as(self.store.sql(
            "SELECT message_id, sequence FROM {s}.inbox
             WHERE consumer = $1 AND claimed_at < now() - $4 AND stream = $2 AND sequence >= $3
             ORDER BY claimed_at LIMIT $5",
        ))
        .persistent(false)
        .bind(self.consumer)
        .bind(stream)
        .bind(i64::try_from(sequence).unwrap_or(i64::MAX))
        .bind(self.keep)
        .bind(limit)
        .fetch_all(self.store.pool())
        .await?;
        Ok(rows)
    }

    /// Forgets at most `batch` of them and raises the staleness fence over them, in one transaction. Returns how many.
    ///
    /// A claim that waits for this very row goes on once this is committed, with a snapshot from before: that is why the last
    /// statement of every inbox transaction looks at the fence again.
    pub(crate) async fn forget(&self, which: &Forgettable, batch: u32) -> Result<u64, StoreError> {
        let (stream, sequence, ids) = which.binds();
        let statement = format!(
            "WITH old AS (
                SELECT message_id FROM {{s}}.inbox WHERE {CONDITION}
                ORDER BY claimed_at LIMIT $6 FOR UPDATE SKIP LOCKED),
             gone AS (
                DELETE FROM {{s}}.inbox AS i USING old
                WHERE i.consumer = $1 AND i.message_id = old.message_id RETURNING i.claimed_at),
             fence AS (
                UPDATE {{s}}.consumer
                SET forgotten_before = greatest(forgotten_before, (SELECT max(claimed_at) FROM gone) + $7)
                WHERE id = $1 AND EXISTS (SELECT FROM gone))
             SELECT count(*) FROM gone"
        );
        let mut transaction = self.store.begin().await?;
        let gone: i64 = sqlx::query_scalar(self.store.sql(&statement))
            .persistent(false)
            .bind(self.consumer)
            .bind(stream)
            .bind(sequence)
            .bind(ids)
            .bind(self.keep)
            .bind(i64::from(batch))
            .bind(self.skew)
            .fetch_one(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(gone.unsigned_abs())
    }
}

fn interval(duration: Duration) -> PgInterval {
    let microseconds = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
    PgInterval {
        months: 0,
        days: 0,
        microseconds,
    }
}
