//! How a handler fails.

use crate::error_text::with_causes;
use crate::message::InvalidMessage;
use crate::store::{Fault, fault_of};

type Source = Box<dyn std::error::Error + Send + Sync>;

/// How a handler fails. In any case its transaction is rolled back, claim and all.
///
/// `?` on sqlx's errors makes the right one: what another transaction or an outage caused costs no attempt, data that can't be
/// stored is rejected, and the rest is tried again.
#[derive(Debug, thiserror::Error)]
pub enum HandlerError {
    /// It may work later: it is run again after a pause, up to `max_attempts` times, then goes to the dead letters.
    #[error("{}", with_causes(.0.as_ref()))]
    Retry(Source),
    /// It will never work: the message goes to the dead letters at once.
    #[error("{}", with_causes(.0.as_ref()))]
    Reject(Source),
    /// The database: what it calls for is told by its SQLSTATE.
    #[error("{}", with_causes(.0))]
    Database(#[from] sqlx::Error),
}

impl HandlerError {
    /// It may work later.
    ///
    /// ```
    /// use twinbox::inbox::HandlerError;
    /// let error = HandlerError::retry("the price list is not there yet");
    /// assert_eq!(error.to_string(), "the price list is not there yet");
    /// ```
    pub fn retry(source: impl Into<Source>) -> Self {
        Self::Retry(source.into())
    }

    /// It will never work.
    pub fn reject(source: impl Into<Source>) -> Self {
        Self::Reject(source.into())
    }

    pub(super) fn fault(&self) -> Fault {
        match self {
            Self::Retry(_) => Fault::Other,
            Self::Reject(_) => Fault::Data,
            Self::Database(error) => fault_of(error),
        }
    }
}

impl From<serde_json::Error> for HandlerError {
    fn from(error: serde_json::Error) -> Self {
        Self::reject(error)
    }
}

impl From<InvalidMessage> for HandlerError {
    fn from(error: InvalidMessage) -> Self {
        Self::reject(error)
    }
}
