//! After a restore into another cluster: giving the log and the cursors transaction ids that mean something there.
//!
//! A dump keeps the rows' `xid` and the relays' snapshots as they are, but in the other cluster those numbers stand for
//! other transactions, or for none yet. What is settled is known all the same: a row that `settled` sees and whose id
//! is not above the floor is one of before the dump, and so is one that the target sees up to the position. All other
//! rows are pending, those among them that were inserted in the new cluster before a relay came. So:
//! - pending rows are stamped with this transaction's own id, which the new cursor does not see;
//! - settled rows whose stamp the new cursor does not see get an old one, so that going back in the log finds them;
//! - the checkpoints go, since their snapshots mean nothing any more.
//!
//! All in one transaction, under a lock that keeps inserts away: afterwards a transaction is either seen by the new
//! cursor's snapshot and has no pending rows, or it is not.

use super::cursor::Reach;
use super::snapshot::Snapshot;
use super::{checkpoint, log, relay_table};
use crate::store::{Store, StoreError};
use sqlx::Row as _;

/// The lock is waited for so long at a time: an insert that comes meanwhile waits behind it.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '3s'";

/// Does so if it has to be done. Safe to call from several processes at once.
///
/// # Errors
/// What the database said; that a lock was not to be had in time ([`crate::store::Fault::Conflict`]) asks for another
/// try.
pub(crate) async fn rebase_if_restored(store: &Store) -> Result<(), StoreError> {
    let mut connection = store.pool().acquire().await?;
    let restored = relay_table::is_restored(&mut connection, store).await?
        || log::has_foreign_rows(&mut connection, store).await?;
    drop(connection);
    if restored { rebase(store).await } else { Ok(()) }
}

async fn rebase(store: &Store) -> Result<(), StoreError> {
    let mut transaction = store.begin_with(BEGIN).await?;
    log::lock(&mut transaction, store).await?;
    let restored = relay_table::is_restored(&mut transaction, store).await?
        || log::has_foreign_rows(&mut transaction, store).await?;
    if !restored {
        transaction.rollback().await?;
        return Ok(());
    }
    // Nothing is uncommitted in the log now. Transactions that run and insert later are running for this snapshot, or from
    // its xmax on, with ids above the sequence's last.
    let row = sqlx::query(
        "SELECT system_identifier::text AS cluster, pg_current_xact_id()::text AS xid,
                pg_current_snapshot()::text AS snapshot
         FROM pg_control_system()",
    )
    .persistent(false)
    .fetch_one(&mut *transaction)
    .await?;
    let cluster: String = row.try_get("cluster")?;
    let xid_text: String = row.try_get("xid")?;
    let xid: u64 = xid_text
        .parse()
        .map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
    let seen: Snapshot = relay_table::snapshot_of(&row, "snapshot")?;
    let snapshot = seen.without(xid);
    let last_id = log::last_id(&mut transaction, store).await?;
    let restamped = log::restamp(&mut transaction, store, &cluster, xid, &snapshot.to_string()).await?;
    let settled = Reach {
        snapshot,
        floor: restamped.first_pending.map_or(last_id, |first| first - 1),
    };
    let relays = relay_table::rebase_all(&mut transaction, store, &cluster, &settled).await?;
    checkpoint::delete_all(&mut transaction, store).await?;
    transaction.commit().await?;
    tracing::warn!(
        relays,
        pending = restamped.pending,
        settled_restamped = restamped.settled,
        cluster,
        "the database was restored into another cluster: the cursors were set anew"
    );
    Ok(())
}
