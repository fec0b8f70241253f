//! The outbox, from enqueue to stream, against real servers.

#![allow(
    clippy::unwrap_used,
    reason = "a panic is how a test fails, in its helpers too"
)]

#[path = "outbox/bench.rs"]
mod bench;
#[path = "outbox/crash.rs"]
mod crash;
#[path = "outbox/drain.rs"]
mod drain;
#[path = "outbox/enqueue.rs"]
mod enqueue;
#[path = "outbox/lease.rs"]
mod lease;
#[path = "outbox/letters.rs"]
mod letters;
#[path = "outbox/loss.rs"]
mod loss;
#[path = "outbox/order.rs"]
mod order;
#[path = "outbox/outage.rs"]
mod outage;
#[path = "outbox/prune.rs"]
mod prune;
#[path = "outbox/publishers.rs"]
mod publishers;
#[path = "outbox/restore.rs"]
mod restore;
#[path = "outbox/sleep.rs"]
mod sleep;
