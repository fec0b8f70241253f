//! What a child does: plain async work that knows nothing of actors.

use super::record::{ChildRecord, RunRecord};
use super::settings::RestartPolicy;
use futures_util::future::BoxFuture;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Any error.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Makes the work of a child, anew for every launch, so that nothing of a failed run is left in the next.
pub type WorkFactory = Arc<dyn Fn(WorkContext) -> BoxFuture<'static, Result<(), WorkError>> + Send + Sync>;

/// Why the work can't go on.
///
/// An outage of the database or the broker is none of these: the work says [`WorkContext::not_ready`] and tries again
/// in its own loop, so that a short outage does not use up restarts.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// Starting anew may help: the child is restarted after a wait.
    #[error("failed")]
    Failed(#[source] BoxError),
    /// It won't: the tree ends with code 70.
    #[error("failed fatally")]
    Fatal(#[source] BoxError),
    /// It won't until a setting is changed: the tree ends with code 78.
    #[error("is configured wrongly")]
    Configuration(#[source] BoxError),
}

impl WorkError {
    /// [`WorkError::Failed`] of any error.
    pub fn failed(error: impl Into<BoxError>) -> Self {
        Self::Failed(error.into())
    }

    /// [`WorkError::Fatal`] of any error.
    pub fn fatal(error: impl Into<BoxError>) -> Self {
        Self::Fatal(error.into())
    }

    /// [`WorkError::Configuration`] of any error.
    pub fn configuration(error: impl Into<BoxError>) -> Self {
        Self::Configuration(error.into())
    }
}

/// A child of the tree.
#[derive(Clone)]
pub struct ChildSpec {
    /// Its name, unique in the tree and hierarchical, such as `consumer/billing`.
    pub name: String,
    /// What it does.
    pub work: WorkFactory,
    /// When and how often it is restarted.
    pub restart: RestartPolicy,
}

impl ChildSpec {
    /// A child with the default restart policy.
    pub fn new<F, W>(name: impl Into<String>, work: F) -> Self
    where
        F: Fn(WorkContext) -> W + Send + Sync + 'static,
        W: Future<Output = Result<(), WorkError>> + Send + 'static,
    {
        Self {
            name: name.into(),
            work: Arc::new(move |context| Box::pin(work(context))),
            restart: RestartPolicy::default(),
        }
    }

    /// The same child with another restart policy.
    pub fn restart(mut self, restart: RestartPolicy) -> Self {
        self.restart = restart;
        self
    }
}

impl fmt::Debug for ChildSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildSpec")
            .field("name", &self.name)
            .field("restart", &self.restart)
            .finish_non_exhaustive()
    }
}

/// Why [`WorkContext::idle`] returned.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wake {
    /// The work is to finish what is in hand and return.
    Draining,
    /// Somebody knows of new work.
    Nudged,
    /// The time is over.
    Elapsed,
}

/// The work's side of its supervision: what it is asked, and what it says of itself.
///
/// Each run has one of its own. A clone may be handed to whatever the work consists of.
#[derive(Clone, Debug)]
pub struct WorkContext {
    pub(super) child: Arc<ChildRecord>,
    pub(super) run: Arc<RunRecord>,
    pub(super) drain: CancellationToken,
}

impl WorkContext {
    /// The child's name.
    pub fn name(&self) -> &str {
        &self.child.name
    }

    /// Counts the launches of this child, from 1.
    pub fn generation(&self) -> u64 {
        self.run.generation
    }

    /// Cancelled when the work is to take nothing new in hand, finish what it has, and return `Ok`: because the tree
    /// drains, or because this run is to be replaced by the next.
    pub fn drain(&self) -> &CancellationToken {
        &self.drain
    }

    /// Whether [`drain`](Self::drain) is cancelled.
    pub fn is_draining(&self) -> bool {
        self.drain.is_cancelled()
    }

    /// Returns once somebody has said that there is new work; at once, if they did since the last call. Safe to drop.
    pub async fn nudged(&self) {
        self.child.nudge.notified().await;
    }

    /// Waits until there may be something to do: a nudge, the end of `at_most`, or the drain, which comes first.
    /// Safe to drop.
    pub async fn idle(&self, at_most: Duration) -> Wake {
        tokio::select! {
            biased;
            () = self.drain.cancelled() => Wake::Draining,
            () = self.nudged() => Wake::Nudged,
            () = sleep(at_most) => Wake::Elapsed,
        }
    }

    /// Whether the work is to take nothing new in hand for now.
    pub fn is_paused(&self) -> bool {
        self.child.is_paused()
    }

    /// Returns when the work is paused. Safe to drop.
    pub async fn paused(&self) {
        // As below.
        let _ = self.child.paused.subscribe().wait_for(|paused| *paused).await;
    }

    /// Returns when the work is not paused or no longer so, or when it is to drain. Safe to drop.
    pub async fn resumed(&self) {
        let mut paused = self.child.paused.subscribe();
        tokio::select! {
            () = self.drain.cancelled() => {}
            // The sender lives in this context, so that the channel can't be closed.
            _ = paused.wait_for(|paused| !paused) => {}
        }
    }

    /// Says that progress was made. Cheap enough for every message.
    pub fn beat(&self) {
        self.run.beat();
    }

    /// Says whether there is work. Work without a [`beat`](Self::beat) for the policy's `stall_after` is a stall, and
    /// the child is restarted; the time of a pause or of a reported outage does not count.
    pub fn busy(&self, busy: bool) {
        self.run.set_busy(busy);
    }

    /// Says that the child can serve. Until it is said, each run counts as starting.
    pub fn ready(&self) {
        self.run.set_ready();
    }

    /// Says that the child can't serve for a reason that is not its own, such as `no connection to the database`.
    pub fn not_ready(&self, reason: impl Into<String>) {
        self.run.set_not_ready(reason.into());
    }

    /// Says what is in hand, for the list of what a drain had to leave behind; empty for nothing.
    pub fn in_hand(&self, text: impl Into<String>) {
        self.run.set_in_hand(text.into());
    }

    /// Says that nothing is in hand, such as before a pause: not [`busy`](Self::busy), and nothing to leave behind.
    pub fn put_down(&self) {
        self.busy(false);
        self.in_hand("");
    }
}
