//! The transaction in which a message is claimed and handled.

use super::handler_error::HandlerError;
use super::identity;
use crate::message::Message;
use crate::store::OutboxRow;
use crate::telemetry;
use sqlx::{PgConnection, Postgres, Transaction};
use std::ops::{Deref, DerefMut};
use uuid::Uuid;

/// The transaction in which a message is claimed and handled. Dereferences to the connection: run statements with
/// `.execute(&mut **transaction)`, as with sqlx's own.
///
/// It is not the handler's to commit or roll back: one that sends `COMMIT` or `ROLLBACK` itself, or goes on after an SQL error
/// that it swallowed, is found out before the commit, and has failed. Savepoints (`transaction.begin()`) are fine.
#[derive(Debug)]
pub struct InboxTransaction<'a> {
    inner: &'a mut Transaction<'static, Postgres>,
    consumer: &'a str,
    cause: Uuid,
    /// Whether the cause is what is being handled, and not merely the first of several.
    is_told: bool,
    ordinal: u32,
    enqueued: Vec<OutboxRow>,
}

impl<'a> InboxTransaction<'a> {
    pub(super) fn new(inner: &'a mut Transaction<'static, Postgres>, consumer: &'a str) -> Self {
        Self {
            inner,
            consumer,
            cause: Uuid::nil(),
            is_told: false,
            ordinal: 0,
            enqueued: Vec::new(),
        }
    }

    /// What is enqueued from now on is caused by this message. Call it in a `handle_batch` of your own, event by event, so that
    /// ids are derived as `handle` would, and so that it is known at which message the handler failed.
    pub fn caused_by(&mut self, message: Uuid) {
        self.begins_with(message);
        self.is_told = true;
    }

    /// Several messages are handled, the first of which is this: the cause until the handler tells.
    pub(super) fn begins_with(&mut self, message: Uuid) {
        self.cause = message;
        self.is_told = false;
        self.ordinal = 0;
    }

    /// The message that is being handled, if the handler tells.
    pub(super) fn handling(&self) -> Option<Uuid> {
        self.is_told.then_some(self.cause)
    }

    pub(super) fn into_enqueued(self) -> Vec<OutboxRow> {
        self.enqueued
    }

    /// Enqueues the next hop: it is published if this transaction commits.
    ///
    /// Its id is derived from the handled message's, unless it has one: if the handler runs again, after a restore say, the
    /// next consumer recognises what it enqueues. The row is written just before the commit.
    ///
    /// # Errors
    /// [`HandlerError::Reject`] for a message that no broker could carry.
    pub fn enqueue(&mut self, mut message: Message) -> Result<(), HandlerError> {
        message.validate()?;
        telemetry::carry_current_span(&mut message.headers);
        let id = message
            .id
            .unwrap_or_else(|| identity::derived_id(self.consumer, self.cause, self.ordinal));
        self.ordinal += 1;
        self.enqueued.push(OutboxRow { id, message });
        Ok(())
    }
}

impl Deref for InboxTransaction<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.inner
    }
}

impl DerefMut for InboxTransaction<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.inner
    }
}
