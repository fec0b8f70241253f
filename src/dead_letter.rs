//! Dead letters: messages that could not be published or handled, kept whole, with the reason.
//!
//! Where a message of a key lies here, later messages of that key follow it (they are *quarantined*), in order, so
//! that a key is never silently reordered. Requeueing releases them in order; discarding gives one up.

mod desk;
mod reason;
mod table;

pub use desk::{DeadLetterError, Desk, Filter, Selection};
pub use reason::Reason;
pub(crate) use table::{NewDeadLetter, Table};

use crate::message::Headers;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use uuid::Uuid;

/// Which of the two boxes a dead letter comes from.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// It could not be published; the owner is the relay.
    Outbox,
    /// It could not be handled; the owner is the consumer.
    Inbox,
}

impl Origin {
    /// As it stands in the database.
    pub fn name(self) -> &'static str {
        match self {
            Self::Outbox => "outbox",
            Self::Inbox => "inbox",
        }
    }
}

/// A message among the dead letters.
#[derive(Clone, Debug, Serialize)]
pub struct DeadLetter {
    /// Its number here. Letters of one key are released in its order.
    pub id: i64,
    /// Which box it comes from.
    #[serde(rename = "box")]
    pub from: Origin,
    /// The relay or the consumer.
    pub owner: String,
    /// Whether it was requeued and waits to be taken up.
    pub requeued: bool,
    /// The message's id.
    pub message_id: Uuid,
    /// The outbox row it was, or 0.
    pub outbox_id: i64,
    /// The stream it came from.
    pub stream: Option<String>,
    /// Its number in the stream.
    pub sequence: Option<i64>,
    /// The subject.
    pub subject: String,
    /// The ordering key.
    pub key: Option<String>,
    /// The headers as they came.
    pub headers: Headers,
    /// The body.
    #[serde(skip)]
    pub payload: Bytes,
    /// When it was enqueued, where known.
    #[serde(with = "time::serde::rfc3339::option")]
    pub enqueued_at: Option<OffsetDateTime>,
    /// Why it is here.
    pub reason: Reason,
    /// The error in words, with its causes.
    pub error: String,
    /// How often its handler ran.
    pub runs: i32,
    /// When it came here.
    #[serde(with = "time::serde::rfc3339")]
    pub dead_at: OffsetDateTime,
}
