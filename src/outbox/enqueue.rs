//! Enqueueing, in the transaction of the business change.

use crate::message::{InvalidMessage, Message};
use crate::store::{OutboxInsert, OutboxRow, Schema};
use crate::telemetry::carry_current_span;
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

/// Why a message was not enqueued. The transaction can go on after [`EnqueueError::Invalid`], not after the others.
#[derive(Debug, thiserror::Error)]
pub enum EnqueueError {
    /// The message can't be published, so it is refused here.
    #[error("message {index} can't be published: {source}")]
    Invalid {
        /// Which of the messages, from 0 on.
        index: usize,
        /// What is wrong with it.
        #[source]
        source: InvalidMessage,
    },
    /// The schema is missing, or another one than was named.
    #[error(
        "schema {schema} has no outbox of this version: run `twinbox migrate`, or name the schema it has"
    )]
    NotMigrated {
        /// The schema.
        schema: String,
        /// What PostgreSQL said.
        #[source]
        source: sqlx::Error,
    },
    /// The database.
    #[error("the outbox could not be written: {0}")]
    Database(#[source] sqlx::Error),
}

/// Enqueues messages in the caller's own transaction. Cheap to clone; needs no connection of its own.
///
/// # The contract
/// Messages of one key are published in the order of the row lock that serialises their transactions. So **change the
/// aggregate first** (or `SELECT … FOR UPDATE` it), **and enqueue after**, in the same transaction. Transactions that share
/// no lock have no order, with or without a key.
///
/// It takes a transaction, not a connection: outside of one, the message would be committed without the change it tells
/// of.
///
/// ```no_run
/// use twinbox::outbox::Outbox;
/// use twinbox::store::Schema;
/// use twinbox::Message;
///
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = Outbox::new(Schema::default());
///
/// let mut transaction = pool.begin().await?;
/// sqlx::query("UPDATE orders SET state = 'paid' WHERE id = $1")
///     .bind(7_i64)
///     .execute(&mut *transaction)
///     .await?;
/// let message = Message::json("orders.paid", &serde_json::json!({"order": 7}))?.key("order-7");
/// let message_id = outbox.enqueue(&mut transaction, message).await?;
/// transaction.commit().await?;
/// # let _ = message_id;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Outbox {
    schema: Schema,
    insert: OutboxInsert,
}

impl Outbox {
    /// The outbox in a schema.
    pub fn new(schema: Schema) -> Self {
        Self {
            insert: OutboxInsert::new(&schema, true),
            schema,
        }
    }

    /// Set it where the application's connections go through a pooler in transaction mode (pgbouncer): then no named
    /// prepared statement is used.
    #[must_use]
    pub fn transaction_pooler(mut self, pooler: bool) -> Self {
        self.insert = OutboxInsert::new(&self.schema, !pooler);
        self
    }

    /// Enqueues a message. It is published once the transaction is committed, and never if it is rolled back. Returns the
    /// message's id: the one it has, or a new UUIDv7. The current span goes with it.
    ///
    /// # Errors
    /// [`EnqueueError::Invalid`] for a message that no broker would take; then nothing was sent to the database. Else what
    /// the database said; then the transaction can only be rolled back.
    pub async fn enqueue(
        &self,
        transaction: &mut Transaction<'_, Postgres>,
        message: Message,
    ) -> Result<Uuid, EnqueueError> {
        let row = prepare(0, message)?;
        let id = row.id;
        self.write(transaction, &[row]).await?;
        Ok(id)
    }

    /// Enqueues messages in their order, in one statement. Returns their ids in the same order.
    ///
    /// # Errors
    /// As [`Outbox::enqueue`]. Where one message is invalid, none is enqueued.
    pub async fn enqueue_all(
        &self,
        transaction: &mut Transaction<'_, Postgres>,
        messages: impl IntoIterator<Item = Message>,
    ) -> Result<Vec<Uuid>, EnqueueError> {
        let rows = messages
            .into_iter()
            .enumerate()
            .map(|(index, message)| prepare(index, message))
            .collect::<Result<Vec<OutboxRow>, _>>()?;
        self.write(transaction, &rows).await?;
        Ok(rows.into_iter().map(|row| row.id).collect())
    }

    async fn write(
        &self,
        transaction: &mut Transaction<'_, Postgres>,
        rows: &[OutboxRow],
    ) -> Result<(), EnqueueError> {
        self.insert
            .insert(transaction, rows)
            .await
            .map_err(|source| self.error_of(source))
    }

    fn error_of(&self, source: sqlx::Error) -> EnqueueError {
        let code = source.as_database_error().and_then(|error| error.code());
        match code.as_deref() {
            // undefined_table, invalid_schema_name, undefined_column
            Some("42P01" | "3F000" | "42703") => EnqueueError::NotMigrated {
                schema: self.schema.name().to_owned(),
                source,
            },
            _ => EnqueueError::Database(source),
        }
    }
}

impl Default for Outbox {
    fn default() -> Self {
        Self::new(Schema::default())
    }
}

fn prepare(index: usize, mut message: Message) -> Result<OutboxRow, EnqueueError> {
    carry_current_span(&mut message.headers);
    message
        .validate()
        .map_err(|source| EnqueueError::Invalid { index, source })?;
    let id = message.id.unwrap_or_else(Uuid::now_v7);
    Ok(OutboxRow { id, message })
}
