//! Removing what is settled and old.

use super::{checkpoint, log};
use crate::store::{Store, StoreError};
use std::time::Duration;

/// Deletes rows of the outbox that every relay has settled and that were enqueued longer than `older_than` ago, by id, at
/// the most `batch` in a transaction, until there are no more. Returns how many.
///
/// An enqueue never waits for it. Where there is no relay nothing is settled, and after a restore into another cluster
/// nothing is deleted until a relay has set its cursor anew. The row of a message that lies among the dead letters may go:
/// the dead letter has it whole.
///
/// # Errors
/// What the database said. What was deleted before stays deleted.
///
/// ```no_run
/// # async fn example(store: twinbox::store::Store) -> Result<(), twinbox::store::StoreError> {
/// use std::time::Duration;
///
/// let three_days = Duration::from_secs(3 * 24 * 3600);
/// let deleted = twinbox::outbox::prune_settled(&store, three_days, 5000).await?;
/// # let _ = deleted;
/// # Ok(())
/// # }
/// ```
pub async fn prune_settled(store: &Store, older_than: Duration, batch: u32) -> Result<u64, StoreError> {
    let batch = batch.max(1);
    let mut deleted_in_all = 0;
    let mut after = 0;
    loop {
        let mut transaction = store.begin().await?;
        let (looked_at, deleted, last) =
            log::delete_settled(&mut transaction, store, after, older_than, batch).await?;
        transaction.commit().await?;
        deleted_in_all += u64::try_from(deleted).unwrap_or(0);
        after = last;
        // The log is in the order of time, but for transactions that were long open: a batch with nothing to delete is
        // where the young ones begin.
        if deleted == 0 || looked_at < i64::from(batch) {
            break;
        }
    }
    let mut transaction = store.begin().await?;
    checkpoint::prune(&mut transaction, store, older_than).await?;
    transaction.commit().await?;
    Ok(deleted_in_all)
}

/// How many rows [`prune_settled`] would delete. Reads the whole table.
///
/// # Errors
/// What the database said.
pub async fn count_settled(store: &Store, older_than: Duration) -> Result<u64, StoreError> {
    let mut connection = store.pool().acquire().await?;
    let count = log::count_settled(&mut connection, store, older_than).await?;
    Ok(u64::try_from(count).unwrap_or(0))
}
