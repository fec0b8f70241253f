//! What a consumer lets others see of itself, and how it is told to end.

use serde::Serialize;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How a consumer is.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct ConsumerHealth {
    /// Whether it does its work: database and broker answer.
    pub ready: bool,
    /// Why not.
    pub reason: Option<String>,
    /// Messages in hand.
    pub in_hand: usize,
    /// Messages settled since it started: handled, skipped, or among the dead letters.
    pub settled: u64,
    /// Rises whenever it comes forward: a consumer with messages in hand for which it stands still is stuck.
    pub beats: u64,
    /// What is wrong with each side.
    #[serde(skip)]
    troubles: [Option<String>; 2],
}

/// A server that the consumer needs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    Database,
    Broker,
}

/// The handle of a running consumer. Clones belong to the same consumer.
#[derive(Clone, Debug)]
pub struct ConsumerControl {
    drain: CancellationToken,
    health: Arc<watch::Sender<ConsumerHealth>>,
}

impl ConsumerControl {
    /// A handle whose consumer drains when the token is cancelled: it fetches no more, finishes the transactions it is in,
    /// acknowledges, and ends. What it had fetched beyond that comes again.
    pub fn new(drain: CancellationToken) -> Self {
        let health = ConsumerHealth {
            ready: false,
            reason: Some("starting".to_owned()),
            in_hand: 0,
            settled: 0,
            beats: 0,
            troubles: [Side::Database, Side::Broker].map(|_| Some("starting".to_owned())),
        };
        Self {
            drain,
            health: Arc::new(watch::Sender::new(health)),
        }
    }

    /// How the consumer is, now and from now on.
    pub fn health(&self) -> watch::Receiver<ConsumerHealth> {
        self.health.subscribe()
    }

    pub(super) fn drain(&self) -> &CancellationToken {
        &self.drain
    }

    pub(super) fn is_draining(&self) -> bool {
        self.drain.is_cancelled()
    }

    fn update(&self, change: impl FnOnce(&mut ConsumerHealth)) {
        self.health.send_modify(|health| {
            change(health);
            health.beats += 1;
        });
    }

    pub(super) fn beat(&self) {
        self.update(|_| {});
    }

    pub(super) fn holds(&self, in_hand: usize) {
        // No beat: holding is not coming forward.
        self.health
            .send_if_modified(|health| std::mem::replace(&mut health.in_hand, in_hand) != in_hand);
    }

    pub(super) fn settled(&self, messages: usize) {
        self.update(|health| health.settled += messages as u64);
    }

    /// Messages settled so far.
    pub(super) fn settled_so_far(&self) -> u64 {
        self.health.borrow().settled
    }

    pub(super) fn works(&self, side: Side) {
        self.set(side, None);
    }

    pub(super) fn is_held_up(&self, side: Side, reason: impl Into<String>) {
        self.set(side, Some(reason.into()));
    }

    fn set(&self, side: Side, trouble: Option<String>) {
        // No beat either.
        self.health.send_if_modified(|health| {
            if health.troubles[side as usize] == trouble {
                return false;
            }
            health.troubles[side as usize] = trouble;
            health.reason = health.troubles.iter().flatten().next().cloned();
            health.ready = health.reason.is_none();
            true
        });
    }
}
