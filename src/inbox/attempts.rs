//! Attempts: handler runs of messages that did not succeed at once. Deliveries are not counted.
//!
//! A run that is counted before it begins is *open*, without an error, until it ends. One that stays open belongs to a process
//! that died meanwhile, perhaps of this very message.

use crate::store::{Store, StoreError};
use sqlx::SqlStr;
use uuid::Uuid;

/// The attempts of one consumer.
#[derive(Clone, Debug)]
pub(super) struct Attempts {
    store: Store,
    consumer: i32,
    note: SqlStr,
    open: SqlStr,
    describe: SqlStr,
    take_back: SqlStr,
    forget: SqlStr,
}

impl Attempts {
    pub(super) fn new(store: &Store, consumer: i32) -> Self {
        Self {
            store: store.clone(),
            consumer,
            note: store.sql(
                "INSERT INTO {s}.attempt AS a (consumer, message_id, runs, last_error) VALUES ($1, $2, 1, $3)
                 ON CONFLICT (consumer, message_id) DO UPDATE
                    SET runs = a.runs + 1, last_error = excluded.last_error, last_run_at = now()
                 RETURNING runs",
            ),
            open: store.sql(
                "SELECT message_id FROM {s}.attempt
                 WHERE consumer = $1 AND message_id = ANY ($2) AND last_error IS NULL",
            ),
            describe: store.sql(
                "UPDATE {s}.attempt SET last_error = $3 WHERE consumer = $1 AND message_id = $2",
            ),
            take_back: store.sql(
                "WITH last AS (
                    DELETE FROM {s}.attempt WHERE consumer = $1 AND message_id = $2 AND runs <= 1)
                 UPDATE {s}.attempt SET runs = runs - 1, last_error = 'not run: another process was at it, or this one was ending'
                 WHERE consumer = $1 AND message_id = $2 AND runs > 1",
            ),
            forget: store.sql("DELETE FROM {s}.attempt WHERE consumer = $1 AND message_id = $2"),
        }
    }

    /// Counts a run, in a transaction of its own: before it begins, for a message that may kill the process, or after it
    /// failed. Returns how many there were.
    pub(super) async fn note(&self, message: Uuid, error: Option<&str>) -> Result<u32, StoreError> {
        let mut transaction = self.store.begin().await?;
        let runs: i32 = sqlx::query_scalar(self.note.clone())
            .persistent(self.store.prepared())
            .bind(self.consumer)
            .bind(message)
            .bind(error.map(|error| error.replace('\0', "\u{FFFD}")))
            .fetch_one(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(u32::try_from(runs).unwrap_or(u32::MAX))
    }

    /// Takes a run back that was counted before it began, and then was none.
    pub(super) async fn take_back(&self, message: Uuid) -> Result<(), StoreError> {
        let mut transaction = self.store.begin().await?;
        sqlx::query(self.take_back.clone())
            .persistent(self.store.prepared())
            .bind(self.consumer)
            .bind(message)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Which of these messages have an open run.
    pub(super) async fn open(&self, messages: &[Uuid]) -> Result<Vec<Uuid>, StoreError> {
        let open = sqlx::query_scalar(self.open.clone())
            .persistent(self.store.prepared())
            .bind(self.consumer)
            .bind(messages)
            .fetch_all(self.store.pool())
            .await?;
        Ok(open)
    }

    /// Says how a run that was counted before it began has failed.
    pub(super) async fn describe(&self, message: Uuid, error: &str) -> Result<(), StoreError> {
        let mut transaction = self.store.begin().await?;
        sqlx::query(self.describe.clone())
            .persistent(self.store.prepared())
            .bind(self.consumer)
            .bind(message)
            .bind(error.replace('\0', "\u{FFFD}"))
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Forgets a message's runs, in the transaction that settles it.
    pub(super) async fn forget(
        &self,
        connection: &mut sqlx::PgConnection,
        message: Uuid,
    ) -> sqlx::Result<()> {
        sqlx::query(self.forget.clone())
            .persistent(self.store.prepared())
            .bind(self.consumer)
            .bind(message)
            .execute(connection)
            .await?;
        Ok(())
    }
}
