//! The handle of a running tree.

use super::orders::{Pause, Restart, Resume};
use super::outcome::{Ending, Outcome};
use super::root::Root;
use super::shell::Shell;
use super::status::ChildStatus;
use super::tree_record::TreeRecord;
use actix::dev::ToEnvelope;
use actix::{Actor, Addr, Handler, Message};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long an order may take to be answered, in seconds. A shell answers at once, so long as it is not backing off
/// after a failure of its own and its thread is not blocked.
const ORDER_TIMEOUT: Duration = Duration::from_secs(5);

/// Why an order to a child was not carried out.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// The tree has no child of that name.
    #[error("no such child")]
    NoSuchChild,
    /// The tree drains or has ended.
    #[error("the tree is ending")]
    Ending,
    /// The child's shell failed with the order in hand; whether it was carried out is unknown.
    #[error("the child's shell failed with the order in hand")]
    Lost,
    /// The shell did not answer in time; it may still carry out the order.
    #[error("no answer in time")]
    NoAnswer,
}

/// A running tree, from any thread.
///
/// Dropping every handle does not end the tree: it goes on until it is drained or escalates. It would otherwise end
/// because some function returned early.
#[derive(Clone)]
pub struct TreeHandle {
    parts: Arc<Parts>,
}

struct Parts {
    tree: Arc<TreeRecord>,
    /// In the order of the tree's children.
    shells: Vec<Addr<Shell>>,
    root: Addr<Root>,
}

impl TreeHandle {
    pub(super) fn new(tree: Arc<TreeRecord>, shells: Vec<Addr<Shell>>, root: Addr<Root>) -> Self {
        Self {
            parts: Arc::new(Parts { tree, shells, root }),
        }
    }

    /// Asks all children at once to finish what they have in hand. Asking again changes nothing.
    pub fn drain(&self) {
        self.parts.tree.drain.cancel();
    }

    /// Ends the drain, or the tree, without waiting for anybody.
    pub fn drain_now(&self) {
        self.parts.tree.drain.cancel();
        self.parts.tree.drain_now.cancel();
    }

    /// Whether the tree was asked to end, or escalates.
    pub fn is_draining(&self) -> bool {
        self.parts.tree.is_draining()
    }

    /// Waits until the tree has ended. Safe to drop.
    pub async fn wait(&self) -> Outcome {
        let mut outcome = self.parts.tree.outcome.subscribe();
        // The sender lives in this handle, and what the tree's thread runs always ends with an outcome.
        match outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone(),
            Err(_) => None,
        }
        .unwrap_or_else(|| Outcome {
            ending: Ending::RootLost {
                reason: "it left no outcome".to_owned(),
            },
            abandoned: Vec::new(),
        })
    }

    /// The outcome, if the tree has ended.
    pub fn outcome(&self) -> Option<Outcome> {
        self.parts.tree.outcome.borrow().clone()
    }

    /// All children as they are, in the order in which they were added. It asks no actor, so it answers also while the
    /// tree's thread is blocked, and after the tree has ended.
    pub fn observe(&self) -> Vec<ChildStatus> {
        let children = &self.parts.tree.children;
        children.iter().map(|child| child.status()).collect()
    }

    /// Tells a child that there is new work. Many nudges are one until the child has seen it; safe to call for every
    /// message.
    ///
    /// # Errors
    /// [`OrderError::NoSuchChild`].
    pub fn nudge(&self, name: &str) -> Result<(), OrderError> {
        let index = self.index(name)?;
        self.parts.tree.children[index].nudge.notify_one();
        Ok(())
    }

    /// Asks a child to take nothing new in hand. It stays paused over restarts.
    ///
    /// # Errors
    /// See [`OrderError`].
    pub async fn pause(&self, name: &str) -> Result<(), OrderError> {
        self.order(name, Pause).await
    }

    /// Asks a paused child to go on.
    ///
    /// # Errors
    /// See [`OrderError`].
    pub async fn resume(&self, name: &str) -> Result<(), OrderError> {
        self.order(name, Resume).await
    }

    /// Asks a child to end its work and launches it anew, at once if it is backing off. It returns before that is
    /// done; [`ChildStatus::generation`] shows it. It does not count as a failure, but work that does not end within
    /// the policy's `retire_deadline` ends the tree.
    ///
    /// # Errors
    /// See [`OrderError`].
    pub async fn restart(&self, name: &str) -> Result<(), OrderError> {
        let possible = self.order(name, Restart).await?;
        possible.then_some(()).ok_or(OrderError::Ending)
    }

    async fn order<M>(&self, name: &str, order: M) -> Result<M::Result, OrderError>
    where
        M: Message + Send + 'static,
        M::Result: Send,
        Shell: Handler<M>,
        <Shell as Actor>::Context: ToEnvelope<Shell, M>,
    {
        let index = self.index(name)?;
        if self.is_draining() {
            return Err(OrderError::Ending);
        }
        match timeout(ORDER_TIMEOUT, self.parts.shells[index].send(order)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) if self.is_draining() => Err(OrderError::Ending),
            Ok(Err(_)) => Err(OrderError::Lost),
            Err(_elapsed) => Err(OrderError::NoAnswer),
        }
    }

    fn index(&self, name: &str) -> Result<usize, OrderError> {
        let children = &self.parts.tree.children;
        let found = children.iter().position(|child| *child.name == *name);
        found.ok_or(OrderError::NoSuchChild)
    }
}

#[cfg(feature = "testing")]
impl TreeHandle {
    /// Makes a child's shell fail, for tests of the tree itself.
    #[doc(hidden)]
    pub fn inject(&self, name: &str, fault: super::fault::Fault) -> Result<(), OrderError> {
        let index = self.index(name)?;
        self.parts.shells[index].do_send(super::fault::Inject(fault));
        Ok(())
    }

    /// Asks a child's shell through its mailbox for the generation of its work, for tests of the tree itself.
    #[doc(hidden)]
    pub async fn probe(&self, name: &str) -> Result<u64, OrderError> {
        self.order(name, super::fault::Probe).await
    }

    /// Makes the root panic, for tests of the tree itself.
    #[doc(hidden)]
    pub fn inject_root_panic(&self) {
        self.parts.root.do_send(super::fault::RootPanic);
    }
}

impl fmt::Debug for TreeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeHandle")
            .field("root_connected", &self.parts.root.connected())
            .field("tree", &self.parts.tree)
            .finish_non_exhaustive()
    }
}
