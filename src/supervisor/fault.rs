//! Faults of the supervision itself, which nothing but a test can bring about.

use super::root::Root;
use super::shell::Shell;
use actix::{ActorContext, AsyncContext, Context, Handler, Message, WrapFuture};
use std::time::Duration;

/// A fault of a shell.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub enum Fault {
    /// A handler panics.
    Panic,
    /// A future of the shell panics.
    PanicInFuture,
    /// It stops, as an actor may.
    Stop,
    /// It panics, and so do its next starts.
    PanicInStarted {
        /// How many starts.
        times: u32,
    },
    /// It panics, and so do its next restarts.
    PanicInRestarting {
        /// How many restarts.
        times: u32,
    },
    /// It blocks the tree's thread.
    Block(Duration),
}

/// What is still to happen.
#[derive(Debug, Default)]
pub(super) struct ArmedFaults {
    started: u32,
    restarting: u32,
}

impl ArmedFaults {
    pub(super) fn on_started(&mut self) {
        if let Some(left) = self.started.checked_sub(1) {
            self.started = left;
            panic!("injected in started");
        }
    }

    pub(super) fn on_restarting(&mut self) {
        if let Some(left) = self.restarting.checked_sub(1) {
            self.restarting = left;
            panic!("injected in restarting");
        }
    }
}

pub(super) struct Inject(pub(super) Fault);

impl Message for Inject {
    type Result = ();
}

impl Handler<Inject> for Shell {
    type Result = ();

    fn handle(&mut self, Inject(fault): Inject, context: &mut Context<Self>) {
        match fault {
            Fault::Panic => panic!("injected"),
            Fault::PanicInFuture => {
                context.spawn(async { panic!("injected in a future") }.into_actor(self));
            }
            Fault::Stop => context.stop(),
            Fault::PanicInStarted { times } => {
                self.faults.started = times;
                panic!("injected");
            }
            Fault::PanicInRestarting { times } => {
                self.faults.restarting = times;
                panic!("injected");
            }
            Fault::Block(time) => std::thread::sleep(time),
        }
    }
}

pub(super) struct Probe;

impl Message for Probe {
    type Result = u64;
}

impl Handler<Probe> for Shell {
    type Result = u64;

    fn handle(&mut self, _: Probe, _: &mut Context<Self>) -> u64 {
        self.child.status().generation
    }
}

pub(super) struct RootPanic;

impl Message for RootPanic {
    type Result = ();
}

impl Handler<RootPanic> for Root {
    type Result = ();

    fn handle(&mut self, _: RootPanic, _: &mut Context<Self>) {
        panic!("injected");
    }
}
