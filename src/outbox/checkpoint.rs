//! Checkpoints: where the log met the stream. The table `checkpoint`, and which of its rows are kept.

use super::cursor::Reach;
use super::relay_table::snapshot_of;
use super::row::DedupId;
use crate::store::Store;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};
use std::time::Duration;
use time::OffsetDateTime;

/// So many of the newest are kept; before those, fewer the older they are.
const KEPT_NEWEST: i64 = 16;

/// What was settled when a message was the last one acknowledged in a stream.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    pub(crate) id: i64,
    pub(crate) met: Met,
    pub(crate) reach: Reach,
}

/// A message in a stream.
#[derive(Clone, Debug)]
pub(crate) struct Met {
    pub(crate) stream: String,
    pub(crate) created: OffsetDateTime,
    pub(crate) sequence: u64,
    pub(crate) dedup_id: DedupId,
}

const COLUMNS: &str = "id, stream, stream_created, sequence, dedup_id, settled::text, floor";

/// Takes a checkpoint for each of these.
pub(crate) async fn insert(
    connection: &mut PgConnection,
    store: &Store,
    relay: &str,
    settled: &Reach,
    met: &[Met],
) -> sqlx::Result<()> {
    for met in met {
        sqlx::query(store.sql(
            "INSERT INTO {s}.checkpoint (relay, stream, stream_created, sequence, dedup_id, settled, floor)
             VALUES ($1, $2, $3, $4, $5, $6::text::pg_snapshot, $7)",
        ))
        .persistent(store.prepared())
        .bind(relay)
        .bind(&met.stream)
        .bind(met.created)
        .bind(i64::try_from(met.sequence).unwrap_or(i64::MAX))
        .bind(met.dedup_id.text())
        .bind(settled.snapshot.to_string())
        .bind(settled.floor)
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

/// All of a stream, the newest first.
pub(crate) async fn of_stream(
    connection: &mut PgConnection,
    store: &Store,
    relay: &str,
    stream: &str,
) -> sqlx::Result<Vec<Checkpoint>> {
    let rows = sqlx::query(store.sql(&format!(
        "SELECT {COLUMNS} FROM {{s}}.checkpoint WHERE relay = $1 AND stream = $2 ORDER BY id DESC"
    )))
    .persistent(false)
    .bind(relay)
    .bind(stream)
    .fetch_all(connection)
    .await?;
    rows.iter().map(checkpoint_of).collect()
}

/// Removes all of a relay that were taken after one; 0 removes them all. What was settled at those is no longer.
pub(crate) async fn delete_after(
    connection: &mut PgConnection,
    store: &Store,
    relay: &str,
    last_kept: i64,
) -> sqlx::Result<()> {
    sqlx::query(store.sql("DELETE FROM {s}.checkpoint WHERE relay = $1 AND id > $2"))
        .persistent(false)
        .bind(relay)
        .bind(last_kept)
        .execute(connection)
        .await?;
    Ok(())
}

/// Removes those of all relays.
pub(crate) async fn delete_all(connection: &mut PgConnection, store: &Store) -> sqlx::Result<()> {
    sqlx::query(store.sql("DELETE FROM {s}.checkpoint"))
        .persistent(false)
        .execute(connection)
        .await?;
    Ok(())
}

/// Thins a relay's checkpoints out: the newest stay, and of the older ones the first in each quarter of a doubling of the
/// age. So there are some dozens at the most, whatever the interval and the retention.
pub(crate) async fn trim(connection: &mut PgConnection, store: &Store, relay: &str) -> sqlx::Result<()> {
    sqlx::query(store.sql(
        "DELETE FROM {s}.checkpoint AS c
         USING (SELECT id, row_number() OVER (PARTITION BY stream ORDER BY id DESC) AS newest,
                       row_number() OVER (PARTITION BY stream, floor(4 * log(2.0, greatest(
                           1.0, extract(epoch FROM clock_timestamp() - taken_at)::numeric))) ORDER BY id) AS of_its_age
                FROM {s}.checkpoint WHERE relay = $1) AS placed
         WHERE c.id = placed.id AND placed.newest > $2 AND placed.of_its_age > 1",
    ))
    .persistent(store.prepared())
    .bind(relay)
    .bind(KEPT_NEWEST)
    .execute(connection)
    .await?;
    Ok(())
}

/// Removes those that point before what the log retains. The newest of a stream stays: it also tells whether the stream
/// lost something, and going back to it is going back to the first row there is.
pub(crate) async fn prune(
    connection: &mut PgConnection,
    store: &Store,
    older_than: Duration,
) -> sqlx::Result<()> {
    sqlx::query(store.sql(
        "DELETE FROM {s}.checkpoint AS c
         WHERE c.taken_at < clock_timestamp() - make_interval(secs => $1)
           AND EXISTS (SELECT FROM {s}.checkpoint AS n
                       WHERE n.relay = c.relay AND n.stream = c.stream AND n.id > c.id)",
    ))
    .persistent(false)
    .bind(older_than.as_secs_f64())
    .execute(connection)
    .await?;
    Ok(())
}

fn checkpoint_of(row: &PgRow) -> sqlx::Result<Checkpoint> {
    let sequence: i64 = row.try_get("sequence")?;
    Ok(Checkpoint {
        id: row.try_get("id")?,
        met: Met {
            stream: row.try_get("stream")?,
            created: row.try_get("stream_created")?,
            sequence: u64::try_from(sequence).unwrap_or(0),
            dedup_id: DedupId::of_text(row.try_get("dedup_id")?),
        },
        reach: Reach {
            snapshot: snapshot_of(row, "settled")?,
            floor: row.try_get("floor")?,
        },
    })
}
