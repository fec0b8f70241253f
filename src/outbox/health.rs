//! What a relay lets others see of itself, and how it is told to end.

use serde::Serialize;
use std::sync::Arc;
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

/// What a relay is doing.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RelayRole {
    /// It has not reached the database yet.
    Starting,
    /// Another relay of its name publishes; it waits to take over.
    Standby,
    /// It publishes.
    Leader,
}

/// How a relay is.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct RelayHealth {
    /// What it is doing.
    pub role: RelayRole,
    /// The epoch of its lease, or of the last one it had.
    pub epoch: i64,
    /// Whether it does its work: database and broker answer. A standby is ready.
    pub ready: bool,
    /// Why it is not ready, or what it is held up by.
    pub reason: Option<String>,
    /// The last row of the outbox below which everything in hand is settled.
    pub position: i64,
    /// Messages published since it took the lease.
    pub published: u64,
    /// About how many rows wait to be published. Rolled-back ones are among them.
    pub pending: u64,
    /// Whether it sleeps until an enqueue wakes it.
    pub asleep: bool,
    /// Rises with every round and every receipt: a relay for which it stands still is stuck.
    pub beats: u64,
}

impl Default for RelayHealth {
    fn default() -> Self {
        Self {
            role: RelayRole::Starting,
            epoch: 0,
            ready: false,
            reason: Some("starting".to_owned()),
            position: 0,
            published: 0,
            pending: 0,
            asleep: false,
            beats: 0,
        }
    }
}

/// The handle of a running relay: ends it, wakes it, and tells how it is. Clones belong to the same relay.
///
/// ```
/// use tokio_util::sync::CancellationToken;
/// use twinbox::outbox::{RelayControl, RelayRole};
///
/// let shutdown = CancellationToken::new();
/// let control = RelayControl::new(shutdown.child_token());
/// assert_eq!(control.health().borrow().role, RelayRole::Starting);
/// shutdown.cancel();
/// assert!(control.is_draining());
/// ```
#[derive(Clone, Debug)]
pub struct RelayControl {
    drain: CancellationToken,
    nudge: Arc<Notify>,
    health: Arc<watch::Sender<RelayHealth>>,
}

impl RelayControl {
    /// A handle whose relay drains when the token is cancelled: it waits for what is in flight, saves its cursor, gives
    /// its lease back and ends.
    pub fn new(drain: CancellationToken) -> Self {
        Self {
            drain,
            nudge: Arc::new(Notify::new()),
            health: Arc::new(watch::Sender::new(RelayHealth::default())),
        }
    }

    /// How the relay is, now and from now on.
    pub fn health(&self) -> watch::Receiver<RelayHealth> {
        self.health.subscribe()
    }

    /// Lets the relay look for rows at once.
    pub fn nudge(&self) {
        self.nudge.notify_one();
    }

    /// Lets the relay end, as its token does.
    pub fn drain(&self) {
        self.drain.cancel();
    }

    /// Whether the relay was told to end.
    pub fn is_draining(&self) -> bool {
        self.drain.is_cancelled()
    }

    /// The same handle with a token of its own, which is cancelled when the guard is dropped.
    pub(super) fn into_guarded(self) -> (Self, DropGuard) {
        let drain = self.drain.child_token();
        let guard = drain.clone().drop_guard();
        (Self { drain, ..self }, guard)
    }

    pub(super) fn draining(&self) -> &CancellationToken {
        &self.drain
    }

    pub(super) fn nudged(&self) -> Arc<Notify> {
        self.nudge.clone()
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut RelayHealth)) {
        self.health.send_modify(|health| {
            change(health);
            health.beats += 1;
        });
    }

    /// It works again, or still.
    pub(super) fn works(&self) {
        self.update(|health| {
            health.ready = true;
            health.reason = None;
        });
    }

    /// It does not, through no fault of its own.
    pub(super) fn is_held_up(&self, reason: &str) {
        self.update(|health| {
            health.ready = false;
            health.reason = Some(reason.to_owned());
        });
    }
}
