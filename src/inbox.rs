//! The inbox: messages are claimed and handled in one transaction.
//!
//! A [`Consumer`] takes messages from one durable consumer of a stream and routes them by the hash of their key to *lanes*,
//! so that a key keeps its order. A lane runs what is ready in one transaction: it claims the messages' ids under a
//! UNIQUE constraint, runs the [`BusinessActor`]s of those that are new, writes what they enqueue, makes sure that this still
//! is the claim's transaction, commits, and only then acknowledges. A message that comes again finds its id claimed and is
//! skipped.
//!
//! If anything in a batch fails, it is rolled back and run one message a transaction, so that only the failing one fails: it is
//! tried again after a pause, or goes to the dead letters with its reason.

mod actor;
mod alone;
mod attempts;
mod batch;
mod brake;
mod bury;
mod claim;
mod consumer;
mod control;
mod delivery;
mod envelope;
mod guard;
mod handler_error;
mod identity;
mod lane;
mod lanes;
mod letters;
mod pace;
mod prune;
mod ran;
mod registry;
mod router;
mod session;
mod sort;
mod split;
mod sql_handler;
mod status;
mod transaction;

pub use actor::BusinessActor;
pub use consumer::{Consumer, ConsumerBuilder, ConsumerConfigError, ConsumerError};
pub use control::{ConsumerControl, ConsumerHealth};
pub use envelope::{Envelope, Event};
pub use handler_error::HandlerError;
pub(crate) use prune::{Claims, Forgettable};
pub use sql_handler::SqlHandlerError;
pub use status::{InboxStatus, status};
pub use transaction::InboxTransaction;
