//! The table, as the relay and the lanes use it, inside their transactions.

use super::{DeadLetter, Origin, Reason};
use crate::message::Headers;
use crate::store::Schema;
use bytes::Bytes;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row as _, SqlStr};
use std::collections::{HashMap, HashSet};
use time::OffsetDateTime;
use uuid::Uuid;

/// The columns that [`dead_letter_of`] reads.
pub(super) const COLUMNS: &str = "id, box, owner, state = 'requeued' AS requeued, message_id, outbox_id, stream, \
     sequence, subject, key, headers::text AS headers, payload, enqueued_at, reason, error, runs, dead_at";

/// A message on its way to the dead letters.
#[derive(Clone, Debug)]
pub(crate) struct NewDeadLetter {
    pub(crate) message_id: Uuid,
    /// 0 for the inbox's.
    pub(crate) outbox_id: i64,
    pub(crate) stream: Option<String>,
    pub(crate) sequence: Option<i64>,
    pub(crate) subject: String,
    pub(crate) key: Option<String>,
    pub(crate) headers: Headers,
    pub(crate) payload: Bytes,
    pub(crate) enqueued_at: Option<OffsetDateTime>,
    pub(crate) reason: Reason,
    pub(crate) error: String,
    pub(crate) runs: i32,
}

/// The dead letters of one relay or consumer.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    from: Origin,
    owner: String,
    prepared: bool,
    insert: SqlStr,
    insert_again: SqlStr,
    quarantined: SqlStr,
    quarantined_from: SqlStr,
    requeued: SqlStr,
    requeue_where_reason: SqlStr,
    release_followers: SqlStr,
    may_release: SqlStr,
    subjects: SqlStr,
    remove: SqlStr,
    put_back: SqlStr,
}

impl Table {
    /// `prepared` as of [`crate::store::Store::prepared`].
    pub(crate) fn new(schema: &Schema, prepared: bool, from: Origin, owner: impl Into<String>) -> Self {
        Self {
            from,
            owner: owner.into(),
            prepared,
            // A relay that dies after this and before it saves its cursor comes here again.
            insert: schema.sql(
                "INSERT INTO {s}.dead_letter (box, owner, message_id, outbox_id, stream, sequence, subject, key,
                    headers, payload, enqueued_at, reason, error, runs)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9::json, $10, $11, $12, $13, $14)
                 ON CONFLICT (box, owner, message_id, outbox_id) DO NOTHING",
            ),
            // With its old number: what follows it still comes after it.
            insert_again: schema.sql(
                "INSERT INTO {s}.dead_letter (box, owner, message_id, outbox_id, stream, sequence, subject, key,
                    headers, payload, enqueued_at, reason, error, runs, id)
                 OVERRIDING SYSTEM VALUE
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9::json, $10, $11, $12, $13, $14, $15)
                 ON CONFLICT DO NOTHING",
            ),
            quarantined: schema.sql(
                "SELECT DISTINCT key FROM {s}.dead_letter WHERE box = $1 AND owner = $2 AND key = ANY($3)",
            ),
            quarantined_from: schema.sql(
                "SELECT key, min(outbox_id) AS outbox_id FROM {s}.dead_letter
                 WHERE box = $1 AND owner = $2 AND key = ANY($3) GROUP BY key",
            ),
            // Of a key, only what has nothing before it that still lies there: order holds.
            requeued: schema.sql(&format!(
                "SELECT {COLUMNS} FROM {{s}}.dead_letter AS d
                 WHERE box = $1 AND owner = $2 AND state = 'requeued'
                   AND NOT EXISTS (SELECT FROM {{s}}.dead_letter AS e WHERE e.box = d.box AND e.owner = d.owner
                                   AND e.key = d.key AND e.id < d.id AND e.state <> 'requeued')
                 ORDER BY id LIMIT $3"
            )),
            // All that follows an unroutable message of a key was parked because of it, unless it has a fault too.
            requeue_where_reason: schema.sql(
                "UPDATE {s}.dead_letter AS d SET state = 'requeued'
                 WHERE box = $1 AND owner = $2 AND state = 'dead' AND subject = $4
                   AND (reason = $3 OR (reason = 'follows' AND EXISTS (
                        SELECT FROM {s}.dead_letter AS e WHERE e.box = d.box AND e.owner = d.owner
                        AND e.key = d.key AND e.id < d.id AND e.reason = $3)))",
            ),
            release_followers: schema.sql(
                "UPDATE {s}.dead_letter AS d SET state = 'requeued'
                 WHERE box = $1 AND owner = $2 AND state = 'dead' AND reason = $3 AND NOT EXISTS (
                    SELECT FROM {s}.dead_letter AS e
                    WHERE e.box = d.box AND e.owner = d.owner AND e.key = d.key AND e.id < d.id AND e.reason <> $3)",
            ),
            subjects: schema.sql(
                "SELECT DISTINCT subject FROM {s}.dead_letter
                 WHERE box = $1 AND owner = $2 AND reason = $3 AND state = 'dead' AND subject > $4
                 ORDER BY subject LIMIT $5",
            ),
            // Not past an earlier one of its key, which may have failed again meanwhile.
            remove: schema.sql(
                "DELETE FROM {s}.dead_letter AS d WHERE id = $1 AND state = 'requeued' AND NOT EXISTS (
                    SELECT FROM {s}.dead_letter AS e
                    WHERE e.box = d.box AND e.owner = d.owner AND e.key = d.key AND e.id < d.id)",
            ),
            may_release: schema.sql(
                "SELECT EXISTS (SELECT FROM {s}.dead_letter WHERE box = $1 AND owner = $2
                                AND (state = 'requeued' OR reason = $3))",
            ),
            put_back: schema.sql(
                "UPDATE {s}.dead_letter SET state = 'dead', reason = $2, error = $3, runs = $4, dead_at = now()
                 WHERE id = $1",
            ),
        }
    }

    /// Adds letters. One that is there already is left as it is.
    pub(crate) async fn insert(
        &self,
        connection: &mut PgConnection,
        letters: &[NewDeadLetter],
    ) -> sqlx::Result<()> {
        for letter in letters {
            self.bound(self.insert.clone(), letter)
                .execute(&mut *connection)
                .await?;
        }
        Ok(())
    }

    /// Adds a letter that was removed, under its old number.
    pub(crate) async fn insert_again(
        &self,
        connection: &mut PgConnection,
        id: i64,
        letter: &NewDeadLetter,
    ) -> sqlx::Result<()> {
        self.bound(self.insert_again.clone(), letter)
            .bind(id)
            .execute(connection)
            .await?;
        Ok(())
    }

    fn bound<'q>(&'q self, statement: SqlStr, letter: &'q NewDeadLetter) -> Query<'q, Postgres, PgArguments> {
        sqlx::query(statement)
            .persistent(self.prepared)
            .bind(self.from.name())
            .bind(&self.owner)
            .bind(letter.message_id)
            .bind(letter.outbox_id)
            .bind(letter.stream.as_deref())
            .bind(letter.sequence)
            .bind(without_nul(&letter.subject))
            .bind(letter.key.as_deref().map(without_nul))
            .bind(serde_json::to_string(&letter.headers).unwrap_or_else(|_| "{}".to_owned()))
            .bind(&letter.payload[..])
            .bind(letter.enqueued_at)
            .bind(letter.reason.name())
            .bind(without_nul(&letter.error))
            .bind(letter.runs)
    }

    /// Which of these keys are quarantined.
    pub(crate) async fn quarantined(
        &self,
        connection: &mut PgConnection,
        keys: &[&str],
    ) -> sqlx::Result<HashSet<String>> {
        let found: Vec<String> = sqlx::query_scalar(self.quarantined.clone())
            .persistent(self.prepared)
            .bind(self.from.name())
            .bind(&self.owner)
            .bind(keys)
            .fetch_all(connection)
            .await?;
        Ok(found.into_iter().collect())
    }

    /// Which of these keys are quarantined, each with the first outbox row that lies here. Rows before that one follow
    /// nothing: a relay that goes back in the log meets them again.
    pub(crate) async fn quarantined_from(
        &self,
        connection: &mut PgConnection,
        keys: &[&str],
    ) -> sqlx::Result<HashMap<String, i64>> {
        let rows = sqlx::query(self.quarantined_from.clone())
            .persistent(self.prepared)
            .bind(self.from.name())
            .bind(&self.owner)
            .bind(keys)
            .fetch_all(connection)
            .await?;
        rows.iter()
            .map(|row| Ok((row.try_get("key")?, row.try_get("outbox_id")?)))
            .collect()
    }

    /// Whether there may be something to release: the cheap question before the dearer ones.
    pub(crate) async fn may_release(&self, connection: &mut PgConnection) -> sqlx::Result<bool> {
        sqlx::query_scalar(self.may_release.clone())
            .persistent(self.prepared)
            .bind(self.from.name())
            .bind(&self.owner)
            .bind(Reason::Follows.name())
            .fetch_one(connection)
            .await
    }

    /// Requeues letters that follow nothing any more: the earlier ones of their key were published or discarded. Returns
    /// how many.
    pub(crate) async fn release_followers(&self, connection: &mut PgConnection) -> sqlx::Result<u64> {
        let done = sqlx::query(self.release_followers.clone())
            .persistent(self.prepared)
            .bind(self.from.name())
            .bind(&self.owner)
            .bind(Reason::Follows.name())
            .execute(connection)
            .await?;
        Ok(done.rows_affected())
    }

    /// What was requeued and may be taken up, in order.
    pub(crate) async fn requeued(
        &self,
        connection: &mut PgConnection,
        limit: i64,
    ) -> sqlx::Result<Vec<DeadLetter>> {
        let rows = sqlx::query(self.requeued.clone())
            .persistent(self.prepared)
            .bind(self.from.name())
            .bind(&self.owner)
            .bind(limit)
            .fetch_all(connection)
            .await?;
        rows.iter().map(dead_letter_of).collect()
    }

    /// Subjects of the letters with a reason, some at a time, those after one.
    pub(crate) async fn subjects(
        &self,
        connection: &mut PgConnection,
        reason: Reason,
        after: &str,
        limit: i64,
    ) -> sqlx::Result<Vec<String>> {
        sqlx::query_scalar(self.subjects.clone())
            .persistent(self.prepared)
            .bind(self.from.name())
            .bind(&self.owner)
            .bind(reason.name())
            .bind(after)
            .bind(limit)
            .fetch_all(connection)
            .await
    }

    /// Requeues all letters with a reason and a subject, and what followed them. Returns how many.
    pub(crate) async fn requeue_subject(
        &self,
        connection: &mut PgConnection,
        reason: Reason,
        subject: &str,
    ) -> sqlx::Result<u64> {
        let done = sqlx::query(self.requeue_where_reason.clone())
            .persistent(self.prepared)
            .bind(self.from.name())
            .bind(&self.owner)
            .bind(reason.name())
            .bind(subject)
            .execute(connection)
            .await?;
        Ok(done.rows_affected())
    }

    /// Removes a letter that was requeued. `false`: somebody else did, or took it back.
    pub(crate) async fn remove(&self, connection: &mut PgConnection, id: i64) -> sqlx::Result<bool> {
        let done = sqlx::query(self.remove.clone())
            .persistent(self.prepared)
            .bind(id)
            .execute(connection)
            .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Puts a letter back that failed again. `false`: it is not there any more.
    pub(crate) async fn put_back(
        &self,
        connection: &mut PgConnection,
        id: i64,
        reason: Reason,
        error: &str,
        runs: i32,
    ) -> sqlx::Result<bool> {
        let done = sqlx::query(self.put_back.clone())
            .persistent(self.prepared)
            .bind(id)
            .bind(reason.name())
            .bind(without_nul(error))
            .bind(runs)
            .execute(connection)
            .await?;
        Ok(done.rows_affected() == 1)
    }
}

/// PostgreSQL's text holds no NUL; a message's subject and a decoder's error may.
fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{FFFD}")
}

pub(super) fn dead_letter_of(row: &PgRow) -> sqlx::Result<DeadLetter> {
    let headers: Option<String> = row.try_get("headers")?;
    let from: String = row.try_get("box")?;
    let payload: Vec<u8> = row.try_get("payload")?;
    Ok(DeadLetter {
        id: row.try_get("id")?,
        from: if from == Origin::Outbox.name() {
            Origin::Outbox
        } else {
            Origin::Inbox
        },
        owner: row.try_get("owner")?,
        requeued: row.try_get("requeued")?,
        message_id: row.try_get("message_id")?,
        outbox_id: row.try_get("outbox_id")?,
        stream: row.try_get("stream")?,
        sequence: row.try_get("sequence")?,
        subject: row.try_get("subject")?,
        key: row.try_get("key")?,
        headers: headers
            .and_then(|json| serde_json::from_str(&json).ok())
            .unwrap_or_default(),
        payload: payload.into(),
        enqueued_at: row.try_get("enqueued_at")?,
        reason: Reason::of_name(row.try_get("reason")?),
        error: row.try_get("error")?,
        runs: row.try_get("runs")?,
        dead_at: row.try_get("dead_at")?,
    })
}
