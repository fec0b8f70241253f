//! The root: starts a keeper for every child, and ends when they have, or when it has waited long enough.

use super::keeper::keep;
use super::outcome::Ending;
use super::run::Launcher;
use super::settings::RestartPolicy;
use super::shell::Shell;
use super::tree_record::TreeRecord;
use super::words;
use actix::dev::channel::AddressReceiver;
use actix::{Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, WrapFuture};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinError, JoinHandle};
use tracing::{info, warn};

/// A child before its shell is made, which can only be done on the tree's thread.
pub(super) struct Unborn {
    pub(super) launcher: Launcher,
    pub(super) policy: RestartPolicy,
    pub(super) mailbox: AddressReceiver<Shell>,
    pub(super) address: Addr<Shell>,
}

pub(super) struct Root {
    tree: Arc<TreeRecord>,
    drain_deadline: Duration,
    unborn: Vec<Unborn>,
    /// Children that have not ended.
    alive: usize,
}

impl Root {
    pub(super) fn new(tree: Arc<TreeRecord>, drain_deadline: Duration, unborn: Vec<Unborn>) -> Self {
        Self {
            tree,
            drain_deadline,
            alive: unborn.len(),
            unborn,
        }
    }

    fn child_ended(&mut self, name: &str, joined: Result<(), JoinError>, context: &mut Context<Self>) {
        let fault = match joined.map_err(JoinError::try_into_panic) {
            Ok(()) if self.tree.is_draining() => None,
            Ok(()) => Some("has a keeper that ended although nobody asked it to".to_owned()),
            Err(Ok(payload)) => Some(format!(
                "has a keeper that panicked: {}",
                words::of_panic(payload)
            )),
            Err(Err(_cancelled)) => Some("has a keeper that was cancelled".to_owned()),
        };
        if let Some(reason) = fault {
            self.tree.escalate(Ending::Escalated {
                child: name.to_owned(),
                reason,
            });
        }
        self.alive = self.alive.saturating_sub(1);
        if self.alive == 0 {
            context.stop();
        }
    }

    /// All children were asked at once, by the token; here is what limits the wait for them.
    fn drain(&mut self, context: &mut Context<Self>) {
        info!(children = self.alive, deadline = ?self.drain_deadline, "draining");
        context.run_later(self.drain_deadline, |root, context| {
            warn!(children = root.alive, deadline = ?root.drain_deadline, "drain is past its deadline");
            context.stop();
        });
        let now = self.tree.drain_now.clone().cancelled_owned();
        context.spawn(now.into_actor(self).map(|(), root, context| {
            warn!(children = root.alive, "drain is cut short");
            context.stop();
        }));
    }
}

impl Actor for Root {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        let drain = self.tree.drain.clone().cancelled_owned();
        context.spawn(
            drain
                .into_actor(self)
                .map(|(), root, context| root.drain(context)),
        );
        for unborn in std::mem::take(&mut self.unborn) {
            let name = unborn.launcher.child.name.clone();
            let shell = Shell::new(self.tree.clone(), unborn.launcher, unborn.policy);
            let keeper = spawn_keeper(keep(shell, unborn.mailbox, unborn.address));
            let ended = keeper
                .into_actor(self)
                .map(move |joined, root, context| root.child_ended(&name, joined, context));
            context.spawn(ended);
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the root joins every keeper, so that its panic reaches somebody"
)]
fn spawn_keeper(keeper: impl Future<Output = ()> + 'static) -> JoinHandle<()> {
    tokio::task::spawn_local(keeper)
}
