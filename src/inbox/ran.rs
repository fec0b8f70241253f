//! What a transaction over some messages came to, and whose fault it is if it failed.

use super::handler_error::HandlerError;
use crate::dead_letter::Reason;
use crate::error_text::with_causes;
use crate::store::{Fault, StoreError, fault_of};

/// What a transaction over some messages came to.
pub(super) enum Ran {
    /// It is committed. The messages at these places are another transaction's at this moment, and were left alone.
    Committed { busy: Vec<usize> },
    /// It met another transaction. Nobody's failure: run it again.
    Conflict,
    /// The database is away, or can't be used until a person acts, or the commit's outcome is unknown. Nobody's failure:
    /// run it again after a pause; the claim tells what was committed.
    Unusable(StoreError),
    /// The connection was lost while a handler ran. An outage, unless the handler does it.
    Cut {
        /// What the connection said.
        error: StoreError,
        /// The place of the message that was being handled, if it is known.
        at: Option<usize>,
    },
    /// A handler failed. With more than one message it may be any of them.
    Failed {
        /// How.
        failure: Failure,
        /// The place of the message that was being handled, if it is known.
        at: Option<usize>,
    },
    /// A handler ended the transaction itself: what is written of the messages at these places is not known. Running them
    /// again could do it twice, and skipping them not at all.
    Torn { places: Vec<usize> },
}

/// How a handler failed.
#[derive(Debug)]
pub(super) struct Failure {
    /// Whether running it again can't help, and what that makes it.
    pub(super) hopeless: Option<Reason>,
    /// In words.
    pub(super) error: String,
}

impl Failure {
    pub(super) fn retry(error: impl Into<String>) -> Self {
        Self {
            hopeless: None,
            error: error.into(),
        }
    }

    pub(super) fn hopeless(reason: Reason, error: impl Into<String>) -> Self {
        Self {
            hopeless: Some(reason),
            error: error.into(),
        }
    }
}

/// What stops a transaction before its commit.
pub(super) enum Stop {
    /// A statement of twinbox's own.
    Sql(sqlx::Error),
    /// The commit: deferred constraints speak here.
    Commit(sqlx::Error),
    Handler(HandlerError),
    Failure(Failure),
    /// Past its deadline; its connection was ended.
    Overdue(Failure),
    /// The connection was lost while a handler ran.
    Cut(sqlx::Error),
    /// It is not the transaction any more that made the claim.
    Torn,
    /// Ids that old were forgotten meanwhile: the messages have to be looked at again.
    FenceMoved,
}

impl From<sqlx::Error> for Stop {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

impl Stop {
    /// What it makes of the run, in which the messages at these places were new, and the one at this was being handled.
    pub(super) fn came_to(self, fresh: Vec<usize>, at: Option<usize>) -> Ran {
        match self {
            Self::Failure(failure) | Self::Overdue(failure) => Ran::Failed { failure, at },
            Self::Cut(error) => Ran::Cut {
                error: error.into(),
                at,
            },
            Self::Torn => Ran::Torn { places: fresh },
            Self::FenceMoved => Ran::Conflict,
            // No message is to blame for what twinbox itself asks.
            Self::Sql(error) => match fault_of(&error) {
                Fault::Conflict => Ran::Conflict,
                _ => Ran::Unusable(error.into()),
            },
            Self::Commit(error) => of_fault(fault_of(&error), with_causes(&error), error.into(), None),
            Self::Handler(error) => {
                let (fault, text) = (error.fault(), error.to_string());
                match error {
                    HandlerError::Database(error) => of_fault(fault, text, error.into(), at),
                    HandlerError::Reject(_) => Ran::Failed {
                        failure: Failure::hopeless(Reason::Rejected, text),
                        at,
                    },
                    HandlerError::Retry(_) => Ran::Failed {
                        failure: Failure::retry(text),
                        at,
                    },
                }
            }
        }
    }
}

/// For statements of the message's own.
fn of_fault(fault: Fault, text: String, error: StoreError, at: Option<usize>) -> Ran {
    let failure = match fault {
        Fault::Conflict => return Ran::Conflict,
        Fault::Infrastructure | Fault::Systemic => return Ran::Unusable(error),
        Fault::Data => Failure::hopeless(Reason::Rejected, text),
        Fault::Timeout | Fault::Constraint | Fault::Other => Failure::retry(text),
    };
    Ran::Failed { failure, at }
}

/// What somebody panicked with.
pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("something that is no text")
}
