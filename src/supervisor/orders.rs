//! The orders that a shell takes. Mailboxes carry these and nothing else: never work.
//!
//! There is no order to drain, to nudge or to observe. A drain is a token that stays set, since a message can be lost
//! to a panic of the handler that has it; the other two need nothing of the shell.

use super::shell::Shell;
use actix::{Context, Handler, Message};

/// Take nothing new in hand.
pub(super) struct Pause;

/// Go on.
pub(super) struct Resume;

/// End the work and launch it again. The answer is whether that is still possible.
pub(super) struct Restart;

impl Message for Pause {
    type Result = ();
}

impl Message for Resume {
    type Result = ();
}

impl Message for Restart {
    type Result = bool;
}

impl Handler<Pause> for Shell {
    type Result = ();

    fn handle(&mut self, _: Pause, _: &mut Context<Self>) {
        self.child.set_paused(true);
    }
}

impl Handler<Resume> for Shell {
    type Result = ();

    fn handle(&mut self, _: Resume, _: &mut Context<Self>) {
        self.child.set_paused(false);
    }
}

impl Handler<Restart> for Shell {
    type Result = bool;

    fn handle(&mut self, _: Restart, context: &mut Context<Self>) -> bool {
        self.restart(context)
    }
}
