//! The producer's side: the outbox, and the relay that publishes it.
//!
//! # Enqueueing
//! A service writes its messages into the outbox in the transaction of the business change, so that both are committed or
//! neither is. See [`Outbox`].
//!
//! # Publishing
//! The outbox is a log: rows are never updated, and removed only once they are old. A [`Relay`] reads it behind a cursor,
//! publishes with many messages in flight, and moves the cursor when the broker has acknowledged them.
//!
//! What holds, whatever happens:
//! - a message of a committed transaction is published at least once, one of a rolled-back transaction never;
//! - the first copies of one key's messages are stored in the order in which their transactions took the lock that
//!   serialises them; one transaction that stays open holds up its own messages only;
//! - an outage, however long, loses nothing, uses no attempt and puts nothing among the dead letters;
//! - what the broker acknowledged and then lost is noticed and published again.

mod auditor;
mod checkpoint;
mod cursor;
mod deliver;
mod ear;
mod enqueue;
mod gate;
mod health;
mod leader;
mod lease;
mod log;
mod look;
mod marks;
mod pace;
mod pipeline;
mod prune;
mod reader;
mod rebase;
mod relay;
mod relay_table;
mod requeue;
mod routes;
mod row;
mod slots;
mod snapshot;
mod status;
mod task;
mod term;

pub use enqueue::{EnqueueError, Outbox};
pub use health::{RelayControl, RelayHealth, RelayRole};
pub use prune::{count_settled, prune_settled};
pub use relay::{Relay, RelayError};
pub use status::{Pending, RelayStatus, relay_statuses};
