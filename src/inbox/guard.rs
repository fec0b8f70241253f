//! Whether this still is the transaction that made the claim: a handler may have ended it, or gone on after an SQL error.

use super::batch::Bench;
use super::claim::{Claims, Counts};
use super::ran::{Failure, Stop};
use sqlx::{PgConnection, Postgres, Transaction};
use time::OffsetDateTime;

const CURRENT: &str = "SELECT pg_current_xact_id_if_assigned()::text";

/// How a transaction stands after a handler failed in it.
pub(super) enum Standing {
    /// It is still the one that made the claim.
    Claims,
    /// The handler ended it.
    Torn,
    /// Its connection is gone.
    Gone(sqlx::Error),
}

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

    /// Asked after a handler failed: it may have ended the transaction before.
    pub(super) async fn standing(
        &self,
        transaction: &mut Transaction<'static, Postgres>,
        claim: &str,
    ) -> Standing {
        match self.current(transaction).await {
            Ok(id) if id.as_deref() == Some(claim) => Standing::Claims,
            Ok(_) => Standing::Torn,
            Err(error) if is_aborted(&error) => Standing::Claims,
            Err(error) => Standing::Gone(error),
        }
    }

    async fn current(&self, connection: &mut PgConnection) -> sqlx::Result<Option<String>> {
        sqlx::query_scalar(CURRENT)
            .persistent(self.store.prepared())
            .fetch_one(connection)
            .await
    }

    /// Asked from another connection, where the transaction's own was ended. What can't be asked now counts as not committed.
    pub(super) async fn is_committed(&self, transaction_id: &str) -> bool {
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
