//! What the root, the shells, the watchdog and the handle all see of the tree.

use super::outcome::{Ending, Outcome};
use super::record::ChildRecord;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info};

/// A tree. Everything in it can be used from any thread, so that a blocked one holds up nobody else.
#[derive(Debug)]
pub(super) struct TreeRecord {
    pub(super) children: Vec<Arc<ChildRecord>>,
    /// Every task that runs a child's work.
    pub(super) tasks: TaskTracker,
    /// Asks every child to finish what is in hand. It stays set, so that no panic of a receiver can lose it.
    pub(super) drain: CancellationToken,
    /// Asks not to wait for them any longer.
    pub(super) drain_now: CancellationToken,
    /// The first reason to end other than having been asked to.
    cause: OnceLock<Ending>,
    pub(super) outcome: watch::Sender<Option<Outcome>>,
    beats: AtomicU64,
}

impl TreeRecord {
    pub(super) fn new(children: Vec<Arc<ChildRecord>>) -> Self {
        Self {
            children,
            tasks: TaskTracker::new(),
            drain: CancellationToken::new(),
            drain_now: CancellationToken::new(),
            cause: OnceLock::new(),
            outcome: watch::Sender::new(None),
            beats: AtomicU64::new(0),
        }
    }

    pub(super) fn is_draining(&self) -> bool {
        self.drain.is_cancelled()
    }

    /// Ends the tree for `cause`, unless there is one already: drains every child, then reports.
    pub(super) fn escalate(&self, cause: Ending) {
        error!(%cause, "supervision tree escalates");
        // A second cause is a consequence or a coincidence; the log has it.
        let _ = self.cause.set(cause);
        self.drain.cancel();
    }

    /// The tree has ended, one way or another. Only the first call counts.
    pub(super) fn publish_outcome(&self) -> Outcome {
        let mut first = false;
        self.outcome.send_if_modified(|slot| {
            first = slot.is_none();
            if first {
                *slot = Some(self.outcome_now());
            }
            first
        });
        let outcome = self
            .outcome
            .borrow()
            .clone()
            .unwrap_or_else(|| self.outcome_now());
        if first && outcome.is_clean() {
            info!(exit_code = outcome.exit_code(), reason = %outcome, "supervision tree ended");
        } else if first {
            error!(exit_code = outcome.exit_code(), reason = %outcome, "supervision tree ended");
        }
        outcome
    }

    fn outcome_now(&self) -> Outcome {
        let abandoned: Vec<_> = self
            .children
            .iter()
            .filter_map(|child| child.abandoned())
            .collect();
        let ending = match self.cause.get() {
            Some(cause) => cause.clone(),
            None if abandoned.is_empty() => Ending::Drained,
            None => Ending::DrainExpired,
        };
        Outcome { ending, abandoned }
    }

    /// A sign of life of the tree's thread.
    pub(super) fn beat(&self) {
        self.beats.fetch_add(1, Relaxed);
    }

    pub(super) fn beats(&self) -> u64 {
        self.beats.load(Relaxed)
    }
}
