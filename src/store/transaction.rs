//! The one place where transactions begin.

use super::{Store, StoreError};
use sqlx::{Postgres, SqlSafeStr, Transaction};

impl Store {
    /// Begins a transaction.
    ///
    /// In sqlx 0.9.0 a `Pool::begin()` whose future is dropped while BEGIN is on its way leaves a connection in the
    /// pool that is inside a transaction; later writes through it return `Ok` and are never committed
    /// (transact-rs/sqlx issues 4385 and 4393). Here BEGIN runs on a task of its own, which nobody drops: if the
    /// caller goes away, the transaction is rolled back when the task ends. `tests/store.rs` checks it.
    ///
    /// # Errors
    /// What PostgreSQL or the network said, or that no connection became free in time.
    pub async fn begin(&self) -> Result<Transaction<'static, Postgres>, StoreError> {
        self.begin_with("BEGIN").await
    }

    /// The same, with settings sent along in the same round trip, such as `BEGIN; SET LOCAL lock_timeout = '50ms'`.
    ///
    /// # Errors
    /// As [`Store::begin`].
    pub async fn begin_with(
        &self,
        statement: impl SqlSafeStr + Send + 'static,
    ) -> Result<Transaction<'static, Postgres>, StoreError> {
        let pool = self.pool().clone();
        #[expect(
            clippy::disallowed_methods,
            reason = "this is the one place that may begin, on a task of its own"
        )]
        let begin = tokio::spawn(async move { pool.begin_with(statement).await });
        match begin.await {
            Ok(begun) => Ok(begun?),
            // The task is never aborted, so it panicked, or the runtime is going down.
            Err(join) if join.is_panic() => std::panic::resume_unwind(join.into_panic()),
            Err(_) => Err(sqlx::Error::PoolClosed.into()),
        }
    }
}
