//! The keeper of a shell: restarts it when it panics.
//!
//! `actix::Supervisor` does not: a panic unwinds out of the task it polls the actor in, the task is lost, the address
//! closes, and the process lives on without the child. The keeper polls the same `ContextFut` by reference and
//! catches the panic, so that the context, the address and the queued messages are still there, and calls the same
//! `restart()`. It needs `panic = "unwind"`.

use super::outcome::Ending;
use super::record::ChildRecord;
use super::restart_budget::{RestartBudget, Verdict};
use super::shell::Shell;
use super::status::ChildState;
use super::tree_record::TreeRecord;
use super::words;
use actix::dev::ContextFut;
use actix::dev::channel::AddressReceiver;
use actix::{Addr, Context};
use futures_util::FutureExt;
use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tracing::warn;

/// Runs `shell` until its child has ended for good.
///
/// `address` is kept only because a context whose last address is gone is not restarted.
pub(super) async fn keep(shell: Shell, mailbox: AddressReceiver<Shell>, _address: Addr<Shell>) {
    let tree = shell.tree.clone();
    let child = shell.child.clone();
    let budget = shell.budget.clone();
    let mut shell = Context::with_receiver(mailbox).into_future(shell);

    loop {
        let polled = AssertUnwindSafe(&mut shell).catch_unwind().await;
        let mut fault = match polled {
            Ok(()) if child.is_done() => return,
            Ok(()) => "stopped although nobody asked it to".to_owned(),
            Err(payload) => panicked(payload),
        };
        // Restarting is the shell's own code too, and may panic as well.
        loop {
            child.note_error(&format!("its shell {fault}"));
            let wait = match wait_before_restart(&tree, &budget) {
                Ok(wait) => wait,
                Err(when) => {
                    return give_up(&tree, &child, format!("has a shell that {fault}, {when}")).await;
                }
            };
            warn!(child = %child.name, fault, ?wait, "shell failed, restarted after a wait");
            child.set_state(ChildState::BackingOff);
            tokio::select! {
                () = sleep(wait) => {}
                // Only a shell can see to it that its work drains.
                () = tree.drain.cancelled() => {}
            }
            match restart(&mut shell) {
                Ok(()) => break,
                Err(again) => fault = again,
            }
        }
    }
}

fn wait_before_restart(tree: &TreeRecord, budget: &RefCell<RestartBudget>) -> Result<Duration, &'static str> {
    if tree.is_draining() {
        return Err("while it drained");
    }
    match budget.borrow_mut().failure(Instant::now()) {
        Verdict::Retry(wait) => Ok(wait),
        Verdict::Exhausted => Err("after too many failures"),
    }
}

/// Ends the tree without the shell. Its work is then without one, but not alone: the tree's drain has asked it to end,
/// and it is waited for.
async fn give_up(tree: &TreeRecord, child: &ChildRecord, reason: String) {
    tree.escalate(Ending::Escalated {
        child: child.name.to_string(),
        reason,
    });
    if let Some(run) = child.live_run() {
        child.set_state(ChildState::Draining);
        run.ended.cancelled().await;
    }
    child.set_state(ChildState::Done);
}

fn restart(shell: &mut ContextFut<Shell, Context<Shell>>) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(|| shell.restart())) {
        Ok(true) => Ok(()),
        Ok(false) => Err("has no address any more".to_owned()),
        Err(payload) => Err(panicked(payload)),
    }
}

fn panicked(payload: Box<dyn Any + Send>) -> String {
    format!("panicked: {}", words::of_panic(payload))
}
