//! The seam to a message broker, no wider than the flow needs.
//!
//! The relay, the consumer and the pruner know a broker only by these traits; [`nats`] is the first behind them. A
//! broker here is a log of messages: it numbers what it stores, it can be asked what stands at a number, and it
//! remembers for each consumer what was acknowledged.

mod finding;
pub mod nats;
mod subject;

pub use finding::{Finding, Severity};
pub use subject::subject_matches;

use crate::message::Headers;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;

/// A message on its way to the broker.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The subject.
    pub subject: String,
    /// All headers but the deduplication id, twinbox's own among them.
    pub headers: Headers,
    /// What the broker drops a second copy by, for as long as its window is.
    pub dedup_id: String,
    /// The body.
    pub payload: Bytes,
}

/// The broker's word that it has stored a message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Receipt {
    /// The stream it is in.
    pub stream: String,
    /// Its number there; of a duplicate, the first copy's.
    pub sequence: u64,
    /// The broker had the deduplication id already and stored nothing. It does not prove that the first copy is
    /// still there: after a purge the id is remembered and the message gone.
    pub duplicate: bool,
}

/// Why a message was not acknowledged. Only one of the three touches the message.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// No connection, no answer, no room, no leader: whether it was stored is unknown. Retry for ever.
    #[error("the broker does not take messages now: {0}")]
    Outage(String),
    /// The broker answers, and no stream takes the subject.
    #[error("no stream covers subject {subject}: create one, or add the subject to a stream")]
    Unroutable {
        /// The subject.
        subject: String,
    },
    /// The broker will never take this message.
    #[error("{0}")]
    Unpublishable(String),
}

/// The broker could not be asked. Asking again may help.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// No connection or no answer.
    #[error("the broker does not answer: {0}")]
    Unavailable(String),
    /// The broker refused: a right or a setting is missing.
    #[error("the broker refuses: {0}")]
    Refused(String),
    /// The consumer is not there, or not any more.
    #[error("there is no consumer {consumer} on stream {stream}")]
    NoConsumer {
        /// Its name.
        consumer: String,
        /// The stream's.
        stream: String,
    },
}

/// A stream in one incarnation.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct StreamId {
    /// The stream's name.
    pub name: String,
    /// When it was created. Deleted and created again, it is another one; restored from a backup, the same.
    pub created: OffsetDateTime,
}

/// What a stream holds.
#[derive(Clone, Debug)]
pub struct StreamState {
    /// Which stream.
    pub id: StreamId,
    /// The number of the oldest message; of an empty stream, the one after the last.
    pub first_sequence: u64,
    /// The number of the newest message that was ever stored.
    pub last_sequence: u64,
    /// How long it keeps a message, if it says.
    pub max_age: Option<Duration>,
    /// Whether a message goes once it is acknowledged (work-queue and interest streams), so that the oldest number
    /// proves nothing about those after it.
    pub removes_acknowledged: bool,
}

/// Publishing. Cheap to clone behind an `Arc`.
pub trait Publisher: Send + Sync {
    /// Publishes and waits for the receipt. Nothing is sent before the future is polled; futures that are polled
    /// in some order send in that order.
    fn publish(&self, message: Outgoing) -> BoxFuture<'static, Result<Receipt, PublishError>>;

    /// Whether there is a connection at this moment.
    fn is_connected(&self) -> bool;

    /// How often the connection was made anew: a change is the occasion to compare the log with the stream.
    fn connections(&self) -> u64;

    /// Gives up the connection and makes a new one, so that what is still queued in the old one is never sent.
    fn reconnect(&self) -> BoxFuture<'_, Result<(), BrokerError>>;

    /// The largest message that is taken, in bytes of payload and headers.
    fn max_payload(&self) -> usize;

    /// The stream that covers a subject.
    fn stream_of(&self, subject: &str) -> BoxFuture<'_, Result<Option<String>, BrokerError>>;

    /// What a stream holds, or `None` if there is none of that name.
    fn stream_state(&self, stream: &str) -> BoxFuture<'_, Result<Option<StreamState>, BrokerError>>;

    /// The deduplication id of the message at a number: `None` where no message stands there, `Some("")` where one
    /// without an id does.
    fn dedup_id_at(&self, stream: &str, sequence: u64) -> BoxFuture<'_, Result<Option<String>, BrokerError>>;
}

/// Where a message stands in its stream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Position {
    /// The stream.
    pub stream: Arc<StreamId>,
    /// The message's number in it.
    pub sequence: u64,
    /// When the broker stored it.
    pub stored_at: OffsetDateTime,
}

/// A message from the broker.
pub struct Incoming {
    /// The subject.
    pub subject: String,
    /// All headers, the broker's own among them.
    pub headers: Headers,
    /// The body.
    pub payload: Bytes,
    /// Where it stands.
    pub position: Position,
    /// Whether it may have been handed out before: then a run of it may have killed a process.
    pub redelivered: bool,
    /// How to tell the broker about it: `None` for what was read straight from the stream.
    pub receipt_handle: Option<Box<dyn ReceiptHandle>>,
}

/// The broker's end of one delivery. None of these can be relied on: a lost one leads to another delivery, which the
/// inbox meets.
pub trait ReceiptHandle: Send + Sync {
    /// It is done and need not come again.
    fn acknowledge(&self) -> BoxFuture<'_, Result<(), BrokerError>>;

    /// It is still being worked on: start the wait for the acknowledgement anew.
    fn in_progress(&self) -> BoxFuture<'_, Result<(), BrokerError>>;
}

/// How far a consumer has come.
#[derive(Clone, Debug)]
pub struct ConsumerState {
    /// Every message up to this number is acknowledged.
    pub ack_floor: u64,
    /// The highest number that was handed out.
    pub delivered: u64,
    /// Messages handed out and not acknowledged.
    pub ack_pending: u64,
    /// Messages not handed out yet.
    pub pending: u64,
    /// All deliveries there ever were, repeated ones included.
    pub deliveries: u64,
    /// The stream's state, read right after.
    pub stream: StreamState,
}

impl ConsumerState {
    /// Whether the consumer stands after the end of its stream, which lost its tail or was restored. The broker would
    /// hand out nothing until the stream has caught up, without a word.
    pub fn is_ahead_of_stream(&self) -> bool {
        self.delivered > self.stream.last_sequence
    }

    /// The numbers that were handed out and may not be acknowledged.
    pub fn outstanding(&self) -> RangeInclusive<u64> {
        self.ack_floor.max(self.stream.first_sequence.saturating_sub(1)) + 1..=self.delivered
    }
}

/// Consuming from one durable consumer of one stream. Cheap to clone behind an `Arc`.
pub trait Subscription: Send + Sync {
    /// Messages as the broker hands them out. The stream ends with its first error; open another after a pause.
    fn messages(
        &self,
    ) -> BoxFuture<'_, Result<BoxStream<'static, Result<Incoming, BrokerError>>, BrokerError>>;

    /// The messages of these numbers that this consumer's filters let through, in order, straight from the stream and
    /// with no effect on the consumer. Numbers where no message stands are left out.
    fn read(&self, sequences: RangeInclusive<u64>) -> BoxStream<'static, Result<Incoming, BrokerError>>;

    /// How far the consumer has come.
    fn state(&self) -> BoxFuture<'_, Result<ConsumerState, BrokerError>>;

    /// Deletes the consumer, if it is there, and creates it with the same settings, so that it hands out the stream from its start.
    /// What was done before is met by the inbox.
    fn recreate(&self) -> BoxFuture<'_, Result<(), BrokerError>>;

    /// Whether there is a connection at this moment.
    fn is_connected(&self) -> bool;

    /// How often the connection was made anew: after a change, what was in flight is unknown.
    fn connections(&self) -> u64;

    /// How long the broker waits for an acknowledgement before it hands the message out again.
    fn ack_wait(&self) -> Duration;

    /// Sends what is still buffered, such as acknowledgements, before the process ends.
    fn flush(&self) -> BoxFuture<'_, Result<(), BrokerError>>;
}
