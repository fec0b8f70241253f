//! The shell of a child: an actor that launches its work, joins it and takes orders, but does no work itself.
//!
//! It lives as long as its child, over every restart of the work, so that orders are taken while the work backs off.
//! If it fails itself, its [keeper](super::keeper) restarts it under the same address.

use super::outcome::Ending;
use super::record::ChildRecord;
use super::restart_budget::{RestartBudget, Verdict};
use super::run::{Launcher, Run, RunEnd};
use super::settings::RestartPolicy;
use super::status::ChildState;
use super::tree_record::TreeRecord;
use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, SpawnHandle, Supervised, WrapFuture,
};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// How often in `stall_after` a child's progress is looked at: a stall is found at most a quarter too late.
const LOOKS_PER_STALL: u32 = 4;
/// Not more often than this, in milliseconds.
const SHORTEST_LOOK: Duration = Duration::from_millis(10);

/// What the shell waits for.
enum Phase {
    /// Nothing yet.
    Starting,
    /// The end of the work, unasked.
    Running,
    /// The end of the old work, asked for, to launch the new.
    Restarting { why: Why, deadline: SpawnHandle },
    /// The end of a wait.
    BackingOff { timer: SpawnHandle },
    /// The end of the work, asked for, to end too.
    Draining,
    /// Nothing any more.
    Done,
}

/// Why work is replaced by new.
enum Why {
    /// Somebody wants it, or the shell was restarted. Nothing failed.
    Asked,
    /// It failed in this way.
    Failed(String),
}

pub(super) struct Shell {
    pub(super) tree: Arc<TreeRecord>,
    pub(super) child: Arc<ChildRecord>,
    pub(super) policy: RestartPolicy,
    /// Shared with the keeper: failures of the work and of the shell use one budget.
    pub(super) budget: Rc<RefCell<RestartBudget>>,
    launcher: Launcher,
    run: Option<Run>,
    phase: Phase,
    #[cfg(feature = "testing")]
    pub(super) faults: super::fault::ArmedFaults,
}

impl Shell {
    pub(super) fn new(tree: Arc<TreeRecord>, launcher: Launcher, policy: RestartPolicy) -> Self {
        Self {
            tree,
            child: launcher.child.clone(),
            budget: Rc::new(RefCell::new(RestartBudget::new(policy.clone()))),
            policy,
            launcher,
            run: None,
            phase: Phase::Starting,
            #[cfg(feature = "testing")]
            faults: super::fault::ArmedFaults::default(),
        }
    }

    /// Launches the work if none runs and the tree goes on.
    fn launch(&mut self, context: &mut Context<Self>) {
        if self.tree.is_draining() {
            return self.finish(context);
        }
        let run = self.launcher.launch();
        info!(child = %self.child.name, generation = run.record.generation, "launched");
        self.run = Some(run);
        self.enter(Phase::Running);
        self.await_end(context);
    }

    fn await_end(&self, context: &mut Context<Self>) {
        let Some(run) = &self.run else { return };
        let ended = run
            .end
            .clone()
            .into_actor(self)
            .map(|end, shell, context| shell.work_ended(end, context));
        context.spawn(ended);
    }

    fn work_ended(&mut self, end: RunEnd, context: &mut Context<Self>) {
        self.run = None;
        let phase = std::mem::replace(&mut self.phase, Phase::Starting);
        let mut why = None;
        if let Phase::Restarting { why: asked, deadline } = phase {
            context.cancel_future(deadline);
            why = Some(asked);
        }
        match (end, why) {
            (RunEnd::Fatal(error), _) => self.escalate(format!("failed fatally: {error}"), context),
            (RunEnd::Configuration(error), _) => self.misconfigured(error, context),
            (RunEnd::RuntimeGone, _) => {
                self.escalate("lost the runtime that its work ran on".to_owned(), context);
            }
            (RunEnd::Failed(error), _) => self.failed(error, context),
            (RunEnd::Finished, _) if self.tree.is_draining() => self.finish(context),
            (RunEnd::Finished, Some(Why::Asked)) => self.launch(context),
            (RunEnd::Finished, Some(Why::Failed(error))) => self.failed(error, context),
            (RunEnd::Finished, None) => self.failed("ended although nobody asked it to".to_owned(), context),
        }
    }

    /// The work has failed and is gone: launch it again, later, unless that was once too often.
    fn failed(&mut self, error: String, context: &mut Context<Self>) {
        if self.tree.is_draining() {
            // Nothing is launched any more, and yet it was not finished: not a clean end.
            return self.escalate(format!("failed while it drained: {error}"), context);
        }
        let verdict = self.budget.borrow_mut().failure(Instant::now());
        match verdict {
            Verdict::Retry(wait) => {
                warn!(child = %self.child.name, error, ?wait, "failed, launched again after a wait");
                self.child.note_error(&error);
                let timer = context.run_later(wait, |shell, context| shell.launch(context));
                self.enter(Phase::BackingOff { timer });
            }
            Verdict::Exhausted => {
                self.escalate(format!("failed too often, the last time so: {error}"), context)
            }
        }
    }

    fn escalate(&mut self, reason: String, context: &mut Context<Self>) {
        self.child.note_error(&reason);
        self.tree.escalate(Ending::Escalated {
            child: self.child.name.to_string(),
            reason,
        });
        self.finish(context);
    }

    fn misconfigured(&mut self, reason: String, context: &mut Context<Self>) {
        self.child.note_error(&reason);
        self.tree.escalate(Ending::Configuration {
            child: self.child.name.to_string(),
            reason,
        });
        self.finish(context);
    }

    /// Asks the work to end, so that new can be launched. It is waited for, and never aborted.
    fn replace(&mut self, why: Why, context: &mut Context<Self>) {
        let Some(run) = &self.run else { return };
        run.retire();
        let deadline = context.run_later(self.policy.retire_deadline, |shell, _| {
            let why = match &shell.phase {
                Phase::Restarting {
                    why: Why::Failed(error),
                    ..
                } => format!(" after it {error}"),
                _ => String::new(),
            };
            let reason = format!(
                "was asked to end for a restart{why}, and did not within {:?}",
                shell.policy.retire_deadline
            );
            shell.child.note_error(&reason);
            // This drains the tree, this child included.
            shell.tree.escalate(Ending::Escalated {
                child: shell.child.name.to_string(),
                reason,
            });
        });
        self.enter(Phase::Restarting { why, deadline });
    }

    fn look_at_progress(&mut self, stall_after: Duration, context: &mut Context<Self>) {
        let stalled = matches!(self.phase, Phase::Running)
            && !self.child.is_paused()
            && self
                .run
                .as_ref()
                .is_some_and(|run| run.record.is_stalled(stall_after));
        if stalled {
            warn!(child = %self.child.name, ?stall_after, "has work and makes no progress");
            let error = format!("had work and made no progress for {stall_after:?}");
            self.child.note_error(&error);
            self.replace(Why::Failed(error), context);
        }
    }

    fn drain(&mut self, context: &mut Context<Self>) {
        match std::mem::replace(&mut self.phase, Phase::Draining) {
            Phase::Restarting { deadline: timer, .. } | Phase::BackingOff { timer } => {
                context.cancel_future(timer);
            }
            Phase::Starting | Phase::Running | Phase::Draining | Phase::Done => {}
        }
        if self.run.is_some() {
            self.enter(Phase::Draining);
        } else {
            self.finish(context);
        }
    }

    fn finish(&mut self, context: &mut Context<Self>) {
        self.enter(Phase::Done);
        context.stop();
    }

    /// Launches the work again because somebody wants it. Nothing failed, so the budget stays as it is.
    pub(super) fn restart(&mut self, context: &mut Context<Self>) -> bool {
        match &self.phase {
            Phase::Running => self.replace(Why::Asked, context),
            Phase::BackingOff { timer } => {
                context.cancel_future(*timer);
                self.launch(context);
            }
            Phase::Starting | Phase::Restarting { .. } => {}
            Phase::Draining | Phase::Done => return false,
        }
        true
    }

    fn enter(&mut self, phase: Phase) {
        self.child.set_state(match &phase {
            Phase::Starting => ChildState::Starting,
            Phase::Running => ChildState::Running,
            Phase::Restarting { .. } => ChildState::Restarting,
            Phase::BackingOff { .. } => ChildState::BackingOff,
            Phase::Draining => ChildState::Draining,
            Phase::Done => ChildState::Done,
        });
        self.phase = phase;
    }
}

impl Actor for Shell {
    type Context = Context<Self>;

    /// Also called after every [`Supervised::restarting`], since that puts the context back to its beginning.
    fn started(&mut self, context: &mut Self::Context) {
        #[cfg(feature = "testing")]
        self.faults.on_started();
        let drain = self.tree.drain.clone().cancelled_owned();
        context.spawn(
            drain
                .into_actor(self)
                .map(|(), shell, context| shell.drain(context)),
        );
        if let Some(stall_after) = self.policy.stall_after {
            let look = (stall_after / LOOKS_PER_STALL).max(SHORTEST_LOOK);
            context.run_interval(look, move |shell, context| {
                shell.look_at_progress(stall_after, context)
            });
        }
        if self.run.is_some() {
            // Work of before the shell failed. It may have ended meanwhile; its end says how.
            self.await_end(context);
            self.replace(Why::Asked, context);
        } else {
            self.launch(context);
        }
    }
}

impl Supervised for Shell {
    /// A panic may have torn what the shell knew, and the context has dropped its timers. What is kept is the work
    /// that runs, which is set in one step.
    fn restarting(&mut self, _: &mut Self::Context) {
        #[cfg(feature = "testing")]
        self.faults.on_restarting();
        self.enter(Phase::Starting);
    }
}
