//! The rows that stand for consumers and streams.

use crate::broker::StreamId;
use crate::store::{Store, StoreError};
use time::{Duration, OffsetDateTime};

/// The consumer's row, made if it is absent.
pub(super) async fn consumer_id(store: &Store, name: &str, stream: &str) -> Result<i32, StoreError> {
    let mut transaction = store.begin().await?;
    let id = sqlx::query_scalar(store.sql(
        "INSERT INTO {s}.consumer (name, stream) VALUES ($1, $2)
         ON CONFLICT (name) DO UPDATE SET stream = excluded.stream RETURNING id",
    ))
    .persistent(store.prepared())
    .bind(name)
    .bind(stream)
    .fetch_one(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(id)
}

/// The row of a stream's incarnation, made if it is absent.
pub(super) async fn stream_id(store: &Store, stream: &StreamId) -> Result<i32, StoreError> {
    let mut transaction = store.begin().await?;
    let id = sqlx::query_scalar(store.sql(
        "INSERT INTO {s}.stream AS t (name, created_at) VALUES ($1, $2)
         ON CONFLICT (name, created_at) DO UPDATE SET name = t.name RETURNING id",
    ))
    .persistent(store.prepared())
    .bind(&stream.name)
    .bind(in_microseconds(stream.created))
    .fetch_one(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(id)
}

/// PostgreSQL keeps microseconds, the broker tells nanoseconds: what is compared must be cut alike.
pub(crate) fn in_microseconds(time: OffsetDateTime) -> OffsetDateTime {
    time - Duration::nanoseconds(i64::from(time.nanosecond() % 1000))
}

/// Folds the counters of processes that are long gone into one row each, so that their number stays bounded.
pub(super) async fn fold_counters(store: &Store, consumer: i32) -> Result<(), StoreError> {
    let mut transaction = store.begin().await?;
    sqlx::query(store.sql(
        "WITH gone AS (
            DELETE FROM {s}.consumer_counter
            WHERE consumer = $1 AND updated_at < now() - interval '1 day'
              AND instance <> '00000000-0000-0000-0000-000000000000'
            RETURNING claimed, duplicates, retries, dead),
         total AS (
            SELECT sum(claimed) AS claimed, sum(duplicates) AS duplicates, sum(retries) AS retries, sum(dead) AS dead
            FROM gone)
         INSERT INTO {s}.consumer_counter AS c (consumer, instance, lane, claimed, duplicates, retries, dead)
         SELECT $1, '00000000-0000-0000-0000-000000000000', 0, claimed, duplicates, retries, dead
         FROM total WHERE claimed IS NOT NULL
         ON CONFLICT (consumer, instance, lane) DO UPDATE SET
            claimed = c.claimed + excluded.claimed, duplicates = c.duplicates + excluded.duplicates,
            retries = c.retries + excluded.retries, dead = c.dead + excluded.dead",
    ))
    .persistent(store.prepared())
    .bind(consumer)
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(())
}
