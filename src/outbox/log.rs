//! The table `outbox`, as it is read: a log behind the relay's cursor. (What writes it is
//! [`crate::store::OutboxInsert`].)

#[cfg(test)]
mod plans;

use super::cursor::{Span, horizon};
use super::row::LogRow;
use crate::store::{Store, StoreError};
use sqlx::{PgConnection, Row as _, SqlStr};
use std::time::Duration;

/// Rows that a span adds, by id. They come in two disjoint halves (see [`super::cursor`]):
/// - of transactions from `settled`'s xmax on: their ids are above the floor, so the primary key is walked from there.
///   That `xid` is at or above xmax is written as a function, so that no index on `xid` looks inviting, whatever the
///   statistics say;
/// - of transactions that ran then and have ended: one by one, by the index on (xid, id). It is asked with a comparison of
///   rows, not with `xid = …`, so that the primary key, which has no such order, can't look inviting.
///
/// Parameters: $1 above, $2 floor, $3 the horizon of `settled`, $4 the target, $5 the late transactions, $6 rows.
const SPAN: &str = "
    (SELECT {columns} FROM {s}.outbox AS o
     WHERE o.id > greatest($1::bigint, $2::bigint)
       AND NOT pg_visible_in_snapshot(o.xid, $3::text::pg_snapshot)
       AND pg_visible_in_snapshot(o.xid, $4::text::pg_snapshot)
     ORDER BY o.id LIMIT $6)
    UNION ALL
    (SELECT late.* FROM unnest($5::text[]) AS x (xid) CROSS JOIN LATERAL (
        SELECT {columns} FROM {s}.outbox AS o
        WHERE (o.xid, o.id) > (x.xid::xid8, $1::bigint)
          AND (o.xid, o.id) <= (x.xid::xid8, 9223372036854775807)
        ORDER BY o.xid, o.id LIMIT $6) AS late)";

const PAGE_COLUMNS: &str = "o.id, o.message_id, o.enqueued_at, o.subject, o.key, o.headers, o.payload";

/// The span's next rows, as many as go into $7 bytes, but one at the least. If there is one more, it comes without its
/// payload, to tell that there is. A time that RFC 3339 has no words for is left out.
const PAGE: &str = "
    SELECT id, message_id, subject, key, headers, bytes,
           CASE WHEN bytes <= $7::bigint OR bytes = own_bytes THEN payload END AS payload,
           CASE WHEN enqueued_at BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00'
                THEN enqueued_at END AS enqueued_at
    FROM (SELECT next.*, sum(own_bytes) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) AS bytes
          FROM (SELECT id, message_id, enqueued_at, subject, key, headers, payload,
                       octet_length(payload) + coalesce(octet_length(headers), 0) AS own_bytes
                FROM (SELECT id, message_id, enqueued_at, subject, key, headers::text AS headers, payload
                      FROM ({span}) AS span
                      ORDER BY id LIMIT $6) AS first) AS next) AS counted
    WHERE bytes - own_bytes <= $7
    ORDER BY id";

/// A page of the log.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) rows: Vec<LogRow>,
    /// There is nothing after it in the span.
    pub(crate) last: bool,
}

/// Reads the log.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    store: Store,
    page: SqlStr,
}

impl Log {
    pub(crate) fn new(store: &Store) -> Self {
        Self {
            store: store.clone(),
            page: store.sql(&page_template()),
        }
    }

    /// The next rows of a span: at the most so many, of so many bytes, though a larger one comes alone.
    pub(crate) async fn page(&self, span: &Span, rows: u32, bytes: u32) -> Result<Page, StoreError> {
        // Never a named statement: PostgreSQL might settle for a generic plan, which does not know where the floor is.
        let read = sqlx::query(self.page.clone())
            .persistent(false)
            .bind(span.above)
            .bind(span.settled.floor)
            .bind(horizon(&span.settled.snapshot))
            .bind(span.target.to_string())
            .bind(span.late_transactions())
            .bind(i64::from(rows))
            .bind(i64::from(bytes))
            .fetch_all(self.store.pool())
            .await?;
        let bytes_read: i64 = match read.last() {
            Some(row) => row.try_get("bytes")?,
            None => 0,
        };
        let last = read.len() < usize::try_from(rows).unwrap_or(usize::MAX) && bytes_read <= i64::from(bytes);
        let rows_read = read.iter().map(LogRow::read).filter_map(Result::transpose);
        Ok(Page {
            rows: rows_read.collect::<sqlx::Result<_>>()?,
            last,
        })
    }

    /// Counts what a span adds, up to a cap, and finds the age of its oldest row.
    pub(crate) async fn count(&self, span: &Span, cap: i64) -> Result<(i64, Option<Duration>), StoreError> {
        let span_rows = SPAN.replace("{columns}", "o.id, o.enqueued_at");
        let row = sqlx::query(self.store.sql(&format!(
            "SELECT count(*) AS rows,
                    extract(epoch FROM clock_timestamp() - min(enqueued_at) FILTER (WHERE isfinite(enqueued_at)))
                        ::double precision AS age
             FROM (SELECT * FROM ({span_rows}) AS span LIMIT $6) AS pending"
        )))
        .persistent(false)
        .bind(span.above)
        .bind(span.settled.floor)
        .bind(horizon(&span.settled.snapshot))
        .bind(span.target.to_string())
        .bind(span.late_transactions())
        .bind(cap)
        .fetch_one(self.store.pool())
        .await?;
        let age: Option<f64> = row.try_get("age")?;
        let age = age.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok());
        Ok((row.try_get("rows")?, age))
    }
}

fn page_template() -> String {
    PAGE.replace("{span}", SPAN).replace("{columns}", PAGE_COLUMNS)
}

/// Holds up every insert and waits for those that are not committed yet.
pub(crate) async fn lock(connection: &mut PgConnection, store: &Store) -> sqlx::Result<()> {
    sqlx::query(store.sql("LOCK TABLE {s}.outbox IN SHARE ROW EXCLUSIVE MODE"))
        .persistent(false)
        .execute(connection)
        .await?;
    Ok(())
}

/// What was stamped anew after a restore.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restamped {
    pub(crate) pending: i64,
    pub(crate) settled: i64,
    /// The first id of those that are pending.
    pub(crate) first_pending: Option<i64>,
}

/// Stamps rows with transaction ids that mean something in this cluster: pending ones with the current transaction's, `xid`,
/// settled ones with an old one where `now` does not see theirs.
///
/// A row is settled if it is so for every relay. In another cluster a transaction id may stand for two transactions, one
/// of before the restore and one after; what tells them apart is the row's id, since the sequence was restored too.
pub(crate) async fn restamp(
    connection: &mut PgConnection,
    store: &Store,
    cluster: &str,
    xid: u64,
    now: &str,
) -> sqlx::Result<Restamped> {
    let row = sqlx::query(store.sql(
        "WITH judged AS MATERIALIZED (
            SELECT o.id, EXISTS (SELECT FROM {s}.relay) AND NOT EXISTS (
                SELECT FROM {s}.relay AS r
                WHERE NOT coalesce(
                       (pg_visible_in_snapshot(o.xid, r.settled) AND (r.cluster = $1 OR o.id <= r.floor))
                    OR (o.id <= r.position AND pg_visible_in_snapshot(o.xid, r.target)), false)) AS settled
            FROM {s}.outbox AS o),
         stamped AS (
            UPDATE {s}.outbox AS o
            SET xid = CASE WHEN judged.settled THEN '3' ELSE $2::text::xid8 END
            FROM judged
            WHERE judged.id = o.id
              AND (NOT judged.settled OR NOT pg_visible_in_snapshot(o.xid, $3::text::pg_snapshot))
            RETURNING o.id, judged.settled)
         SELECT count(*) FILTER (WHERE NOT settled) AS pending, count(*) FILTER (WHERE settled) AS settled,
                min(id) FILTER (WHERE NOT settled) AS first_pending
         FROM stamped",
    ))
    .persistent(false)
    .bind(cluster)
    .bind(xid.to_string())
    .bind(now)
    .fetch_one(connection)
    .await?;
    Ok(Restamped {
        pending: row.try_get("pending")?,
        settled: row.try_get("settled")?,
        first_pending: row.try_get("first_pending")?,
    })
}

/// Whether a row is stamped with a transaction id that this cluster has not given out yet: it was restored from another.
pub(crate) async fn has_foreign_rows(connection: &mut PgConnection, store: &Store) -> sqlx::Result<bool> {
    sqlx::query_scalar(store.sql(
        "SELECT coalesce((SELECT xid FROM {s}.outbox ORDER BY xid DESC, id DESC LIMIT 1)
                         >= pg_snapshot_xmax(pg_current_snapshot()), false)",
    ))
    .persistent(false)
    .fetch_one(connection)
    .await
}

/// The last id that the sequence gave out.
pub(crate) async fn last_id(connection: &mut PgConnection, store: &Store) -> sqlx::Result<i64> {
    sqlx::query_scalar(
        store.sql("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {s}.outbox_id_seq"),
    )
    .persistent(false)
    .fetch_one(connection)
    .await
}

/// Of the first rows after an id, deletes those that are old enough and settled for every relay. Returns how many rows
/// it looked at, how many it deleted, and where it came to.
pub(crate) async fn delete_settled(
    connection: &mut PgConnection,
    store: &Store,
    after: i64,
    older_than: Duration,
    batch: u32,
) -> sqlx::Result<(i64, i64, i64)> {
    let row = sqlx::query(store.sql(
        "WITH first AS MATERIALIZED (
            SELECT id, xid, enqueued_at FROM {s}.outbox WHERE id > $1 ORDER BY id LIMIT $2),
         deleted AS (
            DELETE FROM {s}.outbox AS o USING first
            WHERE o.id = first.id
              AND first.enqueued_at < clock_timestamp() - make_interval(secs => $3)
              AND EXISTS (SELECT FROM {s}.relay)
              AND NOT EXISTS (
                SELECT FROM {s}.relay AS r
                WHERE NOT pg_visible_in_snapshot(first.xid, r.settled)
                   OR r.cluster <> (SELECT system_identifier::text FROM pg_control_system()))
            RETURNING o.id)
         SELECT (SELECT count(*) FROM first) AS looked_at, (SELECT count(*) FROM deleted) AS deleted,
                coalesce((SELECT max(id) FROM first), $1) AS last",
    ))
    .persistent(false)
    .bind(after)
    .bind(i64::from(batch))
    .bind(older_than.as_secs_f64())
    .fetch_one(connection)
    .await?;
    Ok((
        row.try_get("looked_at")?,
        row.try_get("deleted")?,
        row.try_get("last")?,
    ))
}

/// How many rows [`delete_settled`] would delete in all.
pub(crate) async fn count_settled(
    connection: &mut PgConnection,
    store: &Store,
    older_than: Duration,
) -> sqlx::Result<i64> {
    sqlx::query_scalar(store.sql(
        "SELECT count(*) FROM {s}.outbox AS o
         WHERE o.enqueued_at < clock_timestamp() - make_interval(secs => $1)
           AND EXISTS (SELECT FROM {s}.relay)
           AND NOT EXISTS (
             SELECT FROM {s}.relay AS r
             WHERE NOT pg_visible_in_snapshot(o.xid, r.settled)
                OR r.cluster <> (SELECT system_identifier::text FROM pg_control_system()))",
    ))
    .persistent(false)
    .bind(older_than.as_secs_f64())
    .fetch_one(connection)
    .await
}
