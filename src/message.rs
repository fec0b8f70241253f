//! The message: what a service enqueues, and what an actor is handed.

mod headers;
mod rules;

pub use headers::Headers;
pub use rules::{InvalidMessage, MAX_HEADERS_BYTES, MAX_KEY_BYTES, MAX_SUBJECT_BYTES};

use bytes::Bytes;
use serde::Serialize;
use uuid::Uuid;

/// Names of the headers that twinbox sets on what it publishes. Applications may read them, not set them.
pub mod header {
    /// The message's identity: a UUID. Unlike `Nats-Msg-Id` it never changes, also when a message has to be
    /// published again under a fresh deduplication id.
    pub const ID: &str = "Twinbox-Id";
    /// The ordering key.
    pub const KEY: &str = "Twinbox-Key";
    /// When the message was enqueued, by the producer's database clock, in RFC 3339.
    pub const TIME: &str = "Twinbox-Time";
    /// The kind of event, by which a consumer may route. Set by the application with [`Message::kind`].
    ///
    /// [`Message::kind`]: super::Message::kind
    pub const KIND: &str = "Event-Type";
    /// What JetStream deduplicates by.
    pub const NATS_MSG_ID: &str = "Nats-Msg-Id";
    /// The media type of the payload.
    pub const CONTENT_TYPE: &str = "Content-Type";
    /// The W3C trace context.
    pub const TRACEPARENT: &str = "traceparent";
}

/// A message to enqueue.
///
/// ```
/// use twinbox::Message;
///
/// # fn main() -> Result<(), twinbox::InvalidMessage> {
/// let message = Message::json("orders.placed", &serde_json::json!({"order": 7, "amount_cents": 1250}))?
///     .key("order-7")
///     .kind("OrderPlaced");
/// message.validate()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// The identity, if the application chose it; else one is made at enqueue (UUIDv7).
    pub id: Option<Uuid>,
    /// The subject it is published to.
    pub subject: String,
    /// Messages of one key keep their order; those without one are independent.
    pub key: Option<String>,
    /// Headers of the application.
    pub headers: Headers,
    /// The body, carried byte for byte.
    pub payload: Bytes,
}

impl Message {
    /// A message with a body of any kind.
    pub fn new(subject: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            id: None,
            subject: subject.into(),
            key: None,
            headers: Headers::new(),
            payload: payload.into(),
        }
    }

    /// A message whose body is `event` as JSON, with its `Content-Type`.
    ///
    /// # Errors
    /// [`InvalidMessage::Payload`] where `event` has no JSON form, for example a map with keys that are not strings.
    pub fn json(subject: impl Into<String>, event: &impl Serialize) -> Result<Self, InvalidMessage> {
        let payload = serde_json::to_vec(event).map_err(InvalidMessage::Payload)?;
        Ok(Self::new(subject, payload).header(header::CONTENT_TYPE, "application/json"))
    }

    /// Sets the ordering key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        self.headers.append(name, value);
        self
    }

    /// Names the kind of event, by which a consumer may route.
    #[must_use]
    pub fn kind(self, kind: impl AsRef<str>) -> Self {
        self.header(header::KIND, kind)
    }

    /// Sets the identity, for callers that have one of their own. Two messages of one id are one message to
    /// every inbox.
    #[must_use]
    pub fn id(mut self, id: Uuid) -> Self {
        self.id = Some(id);
        self
    }

    /// Checks what would make the message impossible to publish.
    ///
    /// # Errors
    /// [`InvalidMessage`] says which part, and what is allowed.
    pub fn validate(&self) -> Result<(), InvalidMessage> {
        rules::check_subject(&self.subject)?;
        if let Some(key) = &self.key {
            rules::check_key(key)?;
        }
        rules::check_headers(&self.headers)
    }
}
