//! What one run of the pruner did, and why it might.

use crate::store::{Store, StoreError};
use humantime_serde::re::humantime::format_duration;
use serde::Serialize;
use std::time::Duration;
use time::OffsetDateTime;

/// What one run did to one box.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Report {
    /// `outbox`, or `inbox CONSUMER`.
    pub name: String,
    /// Rows removed; in a dry run, rows that would be.
    pub rows: u64,
    /// Younger rows are kept, whatever is proved, in seconds.
    #[serde(rename = "keep_s", serialize_with = "seconds")]
    pub keep: Duration,
    /// What proves that the older ones can't come again; or why nothing was removed.
    pub proof: String,
}

fn seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(duration.as_secs())
}

impl Report {
    /// How long rows are kept, for people.
    pub fn keep_text(&self) -> String {
        format_duration(self.keep).to_string()
    }

    /// Writes it to the log.
    pub fn log(&self) {
        let Self {
            name, rows, proof, ..
        } = self;
        if *rows > 0 {
            tracing::info!(name, rows, proof, "pruned");
        } else {
            tracing::debug!(name, proof, "nothing to prune");
        }
    }

    /// Leaves it in the database, for `twinbox status`.
    pub(super) async fn save(&self, store: &Store) -> sqlx::Result<()> {
        sqlx::query(store.sql(
            "INSERT INTO {s}.pruner AS p (name, keep_s, proof, last_deleted, deleted)
             VALUES ($1, $2, $3, $4, $4)
             ON CONFLICT (name) DO UPDATE SET keep_s = excluded.keep_s, proof = excluded.proof,
                last_deleted = excluded.last_deleted, deleted = p.deleted + excluded.deleted, last_run_at = now()",
        ))
        .persistent(store.prepared())
        .bind(&self.name)
        .bind(i64::try_from(self.keep.as_secs()).unwrap_or(i64::MAX))
        .bind(&self.proof)
        .bind(i64::try_from(self.rows).unwrap_or(i64::MAX))
        .execute(store.pool())
        .await?;
        Ok(())
    }
}

/// What a pruner last did, as the database shows it.
#[derive(Clone, Debug, Serialize, sqlx::FromRow)]
pub struct PrunerStatus {
    /// `outbox`, or `inbox CONSUMER`.
    pub name: String,
    /// Younger rows are kept, whatever is proved, in seconds.
    pub keep_s: i64,
    /// What proves that the older ones can't come again.
    pub proof: String,
    /// Rows removed by the last run.
    pub last_deleted: i64,
    /// Rows removed so far.
    pub deleted: i64,
    /// When it last ran.
    #[serde(with = "time::serde::rfc3339")]
    pub last_run_at: OffsetDateTime,
}

/// What the pruners last did, by name.
///
/// # Errors
/// What the database said.
pub async fn status(store: &Store) -> Result<Vec<PrunerStatus>, StoreError> {
    let statuses = sqlx::query_as(store.sql(
        "SELECT name, keep_s, proof, last_deleted, deleted, last_run_at FROM {s}.pruner ORDER BY name DESC",
    ))
    .persistent(false)
    .fetch_all(store.pool())
    .await?;
    Ok(statuses)
}
