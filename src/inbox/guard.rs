//! Whether this still is the transaction that made the claim: a handler may have ended it, or gone on after an SQL error.

use super::batch::Bench;
use super::claim::{Claims, Counts};
use super::ran::{Failure, Stop};
use sqlx::{PgConnection, Postgres, Transaction};
use time::OffsetDateTime;

const CURRENT: &str = "SELECT pg_current_xact_id_if_assigned()::text";

impl Bench {
    /// The last statement before the commit. `oldest` is the time of the oldest message in hand.
    pub(super) async fn count_and_guard(
        &self,
        transaction: &mut Transaction<'static, Postgres>,
        counts: Counts,
        claims: &Claims,
        oldest: Option<OffsetDateTime>,
    ) -> Result<(), Stop> {
        match self.inbox.count(&mut *transaction, self.lane, counts).await {
            Ok((id, forgotten_before)) => {
                of_claim(id.as_deref(), claims)?;
                let fence_moved = forgotten_before > claims.forgotten_before;
                if fence_moved && oldest.is_some_and(|oldest| oldest < forgotten_before) {
                    return Err(Stop::FenceMoved);
                }
                Ok(())
            }
            Err(error) => Err(swallowed(error)),
        }
    }

    /// Asked before what enqueues: outside of the claim's transaction that would be written whatever becomes of the claim.
    pub(super) async fn guard(&self, connection: &mut PgConnection, claims: &Claims) -> Result<(), Stop> {
        match self.current(connection).await {
            Ok(id) => of_claim(id.as_deref(), claims),
            Err(error) => Err(swallowed(error)),
        }
    }

    /// Asked after a handler failed: it may have ended the transaction before. Rolls back.
    pub(super) async fn is_torn(
        &self,
        mut transaction: Transaction<'static, Postgres>,
        transaction_id: &str,
    ) -> bool {
        let current = self.current(&mut transaction).await;
        // What could not be rolled back is rolled back by the server when the connection ends.
        transaction.rollback().await.ok();
        match current {
            Ok(id) => id.as_deref() != Some(transaction_id),
            Err(error) if is_aborted(&error) => false,
            // The connection is gone, and can't be asked any more what it did before.
            Err(_) => self.is_committed(transaction_id).await,
        }
    }

    async fn current(&self, connection: &mut PgConnection) -> sqlx::Result<Option<String>> {
        sqlx::query_scalar(CURRENT)
            .persistent(self.store.prepared())
            .fetch_one(connection)
            .await
    }

    /// What can't be asked now is not; the claim is met again in any case.
    async fn is_committed(&self, transaction_id: &str) -> bool {
        let status: sqlx::Result<Option<String>> =
            sqlx::query_scalar("SELECT pg_xact_status($1::text::xid8)")
                .persistent(self.store.prepared())
                .bind(transaction_id)
                .fetch_one(self.store.pool())
                .await;
        matches!(status, Ok(Some(status)) if status == "committed")
    }
}

fn of_claim(id: Option<&str>, claims: &Claims) -> Result<(), Stop> {
    if id == Some(claims.transaction_id.as_str()) {
        Ok(())
    } else {
        Err(Stop::Torn)
    }
}

fn swallowed(error: sqlx::Error) -> Stop {
    if is_aborted(&error) {
        let text = "the handler returned Ok after an SQL error, which had aborted its transaction: return the error, or use a \
                    savepoint";
        return Stop::Failure(Failure::retry(text));
    }
    Stop::Sql(error)
}

/// `in_failed_sql_transaction`
fn is_aborted(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(|database| database.code().as_deref() == Some("25P02"))
}
