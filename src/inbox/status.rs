//! How the inboxes are, by their tables.

use crate::store::{Store, StoreError};
use serde::Serialize;
use time::OffsetDateTime;

/// How one inbox is.
#[derive(Clone, Debug, Serialize, sqlx::FromRow)]
pub struct InboxStatus {
    /// The consumer.
    pub name: String,
    /// The stream it reads.
    pub stream: String,
    /// Messages claimed so far: handled, or moved to the dead letters.
    pub claimed: i64,
    /// Messages met again and skipped.
    pub duplicates: i64,
    /// Handler runs that failed and were to be tried again.
    pub retries: i64,
    /// Messages moved to the dead letters so far.
    pub dead: i64,
    /// Dead letters now.
    pub dead_letters: i64,
    /// Messages that wait to be tried again, or were run by a process that died.
    pub unfinished: i64,
    /// A message enqueued before this is not run: ids that old may have been forgotten.
    #[serde(with = "time::serde::rfc3339")]
    pub forgotten_before: OffsetDateTime,
}

/// How all inboxes of the database are.
///
/// # Errors
/// What the database said.
pub async fn status(store: &Store) -> Result<Vec<InboxStatus>, StoreError> {
    let statuses = sqlx::query_as(store.sql(
        "SELECT c.name, c.stream, c.forgotten_before,
                coalesce(n.claimed, 0) AS claimed, coalesce(n.duplicates, 0) AS duplicates,
                coalesce(n.retries, 0) AS retries, coalesce(n.dead, 0) AS dead,
                (SELECT count(*) FROM {s}.dead_letter AS d WHERE d.box = 'inbox' AND d.owner = c.name) AS dead_letters,
                (SELECT count(*) FROM {s}.attempt AS a WHERE a.consumer = c.id) AS unfinished
         FROM {s}.consumer AS c
         LEFT JOIN LATERAL (
            SELECT sum(claimed)::bigint AS claimed, sum(duplicates)::bigint AS duplicates,
                   sum(retries)::bigint AS retries, sum(dead)::bigint AS dead
            FROM {s}.consumer_counter WHERE consumer = c.id) AS n ON true
         ORDER BY c.name",
    ))
    .persistent(false)
    .fetch_all(store.pool())
    .await?;
    Ok(statuses)
}
