//! Transactional outbox and idempotent inbox for PostgreSQL and NATS JetStream.
//!
//! A message enqueued in a committed transaction is published at least once; its business effect, as far as it
//! lies in the consumer's database transaction, is applied exactly once. Together: **effectively-once**
//! processing. Delivery stays at-least-once, and an effect outside that transaction is not covered unless it
//! goes through an outbox row again or carries an idempotency key that the other side honours.

pub mod broker;
pub mod config;
pub mod dead_letter;
#[cfg(feature = "embedded")]
pub mod embedded;
mod error_text;
pub mod inbox;
mod message;
pub mod outbox;
pub mod pruner;
pub mod service;
pub mod store;
pub mod supervisor;
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;

pub use error_text::with_causes;
pub use message::{
    Headers, InvalidMessage, MAX_HEADERS_BYTES, MAX_KEY_BYTES, MAX_SUBJECT_BYTES, Message, header,
};
pub use outbox::Outbox;
pub use service::{Service, ServiceError, ServiceHandle};

/// The README's examples, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
