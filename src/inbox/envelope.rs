//! A message as a handler sees it.

use super::identity;
use crate::broker::Incoming;
use crate::dead_letter::DeadLetter;
use crate::message::Headers;
use crate::telemetry;
use bytes::Bytes;
use std::ops::Deref;
use std::sync::Arc;
use time::OffsetDateTime;
use tracing::Span;
use uuid::Uuid;

/// A message as it came.
#[derive(Clone, Debug)]
pub struct Envelope {
    /// Its identity: what the inbox claims.
    pub id: Uuid,
    /// The subject it was published to.
    pub subject: String,
    /// Its ordering key.
    pub key: Option<String>,
    /// The kind of event, by the `Event-Type` or `ce-type` header.
    pub kind: Option<String>,
    /// All headers.
    pub headers: Headers,
    /// The body as it came.
    pub payload: Bytes,
    /// When it was enqueued, by the producer's database clock, where its producer says so.
    pub enqueued_at: Option<OffsetDateTime>,
    /// Its number in the stream.
    pub sequence: u64,
    /// Which run of its handler this is, from one.
    pub run: u32,
}

impl Envelope {
    pub(super) fn of_incoming(incoming: Incoming) -> Self {
        let headers = incoming.headers;
        Self {
            id: identity::id_of(&headers, &incoming.position),
            subject: incoming.subject,
            key: identity::key_of(&headers).map(str::to_owned),
            kind: identity::kind_of(&headers).map(str::to_owned),
            enqueued_at: identity::time_of(&headers),
            headers,
            payload: incoming.payload,
            sequence: incoming.position.sequence,
            run: 1,
        }
    }

    /// The span in which its handler runs: it continues the trace of whoever enqueued the message.
    pub(super) fn span(&self) -> Span {
        let span = tracing::info_span!(
            "handle",
            otel.kind = "consumer",
            messaging.system = "nats",
            messaging.operation.type = "process",
            messaging.destination.name = self.subject,
            messaging.message.id = %self.id,
            run = self.run,
        );
        telemetry::continue_trace(&span, &self.headers);
        span
    }

    pub(super) fn of_letter(letter: &DeadLetter) -> Self {
        Self {
            id: letter.message_id,
            subject: letter.subject.clone(),
            key: letter.key.clone(),
            kind: identity::kind_of(&letter.headers).map(str::to_owned),
            headers: letter.headers.clone(),
            payload: letter.payload.clone(),
            enqueued_at: letter.enqueued_at,
            sequence: letter
                .sequence
                .and_then(|sequence| u64::try_from(sequence).ok())
                .unwrap_or_default(),
            run: 1,
        }
    }
}

/// An event with the message it came in. Dereferences to the event.
#[derive(Clone, Debug)]
pub struct Event<E> {
    /// The message. Shared with the lane, which keeps it until it is settled.
    pub envelope: Arc<Envelope>,
    /// What its payload says.
    pub payload: E,
}

impl<E> Deref for Event<E> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.payload
    }
}
