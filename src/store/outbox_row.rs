//! Writing rows into the outbox: the statement that the producer's `enqueue` and a consumer's next hop share.

use super::Schema;
use crate::message::Message;
use sqlx::{PgConnection, SqlStr};
use uuid::Uuid;

/// A message with the identity it is enqueued under.
#[derive(Clone, Debug)]
pub(crate) struct OutboxRow {
    pub(crate) id: Uuid,
    pub(crate) message: Message,
}

/// The statements that insert into the outbox and wake the relay if it sleeps.
#[derive(Clone, Debug)]
pub(crate) struct OutboxInsert {
    one: SqlStr,
    many: SqlStr,
    wake_channel: String,
    prepared: bool,
}

impl OutboxInsert {
    /// `prepared` as of [`super::Store::prepared`].
    pub(crate) fn new(schema: &Schema, prepared: bool) -> Self {
        let one = schema.sql(
            "WITH enqueued AS (
                INSERT INTO {s}.outbox (message_id, subject, key, headers, payload)
                VALUES ($1, $2, $3, $4::jsonb, $5))
             SELECT pg_notify($6, '') FROM {s}.relay_asleep LIMIT 1",
        );
        // Ids are drawn in the order of the arrays: the sort stands below the INSERT, which draws them.
        let many = schema.sql(
            "WITH enqueued AS (
                INSERT INTO {s}.outbox (message_id, subject, key, headers, payload)
                SELECT m.id, m.subject, m.key, m.headers::jsonb, m.payload
                FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bytea[])
                    WITH ORDINALITY AS m (id, subject, key, headers, payload, position)
                ORDER BY m.position)
             SELECT pg_notify($6, '') FROM {s}.relay_asleep LIMIT 1",
        );
        Self {
            one,
            many,
            wake_channel: schema.wake_channel(),
            prepared,
        }
    }

    /// Inserts the rows in their order, in one statement.
    pub(crate) async fn insert(&self, connection: &mut PgConnection, rows: &[OutboxRow]) -> sqlx::Result<()> {
        match rows {
            [] => Ok(()),
            [row] => self.insert_one(connection, row).await,
            rows => self.insert_many(connection, rows).await,
        }
    }

    async fn insert_one(&self, connection: &mut PgConnection, row: &OutboxRow) -> sqlx::Result<()> {
        sqlx::query(self.one.clone())
            .persistent(self.prepared)
            .bind(row.id)
            .bind(&row.message.subject)
            .bind(&row.message.key)
            .bind(headers_json(row))
            .bind(&row.message.payload[..])
            .bind(&self.wake_channel)
            .execute(connection)
            .await?;
        Ok(())
    }

    async fn insert_many(&self, connection: &mut PgConnection, rows: &[OutboxRow]) -> sqlx::Result<()> {
        let ids: Vec<Uuid> = rows.iter().map(|row| row.id).collect();
        let subjects: Vec<&str> = rows.iter().map(|row| row.message.subject.as_str()).collect();
        let keys: Vec<Option<&str>> = rows.iter().map(|row| row.message.key.as_deref()).collect();
        let headers: Vec<Option<String>> = rows.iter().map(headers_json).collect();
        let payloads: Vec<&[u8]> = rows.iter().map(|row| &row.message.payload[..]).collect();
        sqlx::query(self.many.clone())
            .persistent(self.prepared)
            .bind(ids)
            .bind(subjects)
            .bind(keys)
            .bind(headers)
            .bind(payloads)
            .bind(&self.wake_channel)
            .execute(connection)
            .await?;
        Ok(())
    }
}

fn headers_json(row: &OutboxRow) -> Option<String> {
    let headers = &row.message.headers;
    if headers.is_empty() {
        return None;
    }
    #[expect(clippy::expect_used, reason = "strings to a string: it can't fail")]
    let json = serde_json::to_string(headers).expect("headers are strings");
    Some(json)
}
