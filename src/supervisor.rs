//! The supervision tree: runs long-lived work, restarts what fails, and ends in order.
//!
//! A service is a handful of loops that are to run until they are told to end: a relay, consumers, a pruner. Any of
//! them may fail, panic, or hang, and a task that is gone in silence is the worst of it. Here each loop is the *work*
//! of a child in a tree:
//!
//! - A child that fails, panics, or returns unasked is launched again from its factory, after a wait that grows. Too
//!   many failures in a window end the tree, since somebody above (systemd, Kubernetes) is to decide then.
//! - A child that has work and makes no progress is restarted: health is progress, not liveness.
//! - An outage is no failure. The work says [`WorkContext::not_ready`] and tries again in its own loop.
//! - A drain asks all children at once to finish what they have in hand, under one deadline, and names whom it had to
//!   leave behind with what.
//! - How the tree ended is an [`Outcome`] with an [exit code](exit_code).
//!
//! ```
//! use std::time::Duration;
//! use twinbox::supervisor::{ChildSpec, Tree, TreeSettings};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let relay = ChildSpec::new("relay/main", |context| async move {
//!         // All state is made in here: each launch begins with none.
//!         context.ready();
//!         while !context.is_draining() {
//!             // Do a piece of work, say context.beat(), and when there is none left:
//!             context.idle(Duration::from_secs(1)).await;
//!         }
//!         Ok(())
//!     });
//!     let tree = Tree::new(TreeSettings::default()).child(relay).start()?;
//!
//!     tree.nudge("relay/main")?;
//!     assert_eq!(tree.observe()[0].name, "relay/main");
//!
//!     tree.drain();
//!     let outcome = tree.wait().await;
//!     assert_eq!(outcome.exit_code(), 0, "{outcome}");
//!     Ok(())
//! }
//! ```
//!
//! # How it is made
//!
//! *The actor is the control shell, a task does the work.* Per child there is one actor, its shell, which launches the
//! work as a task on the runtime of the program and joins it. A restart therefore drops nothing that may be inside a
//! transaction: the old work is asked to end, and waited for. No task is ever aborted; one that does not end in time
//! ends the tree. The shell itself is restarted by its keeper under the same address, and the keepers are joined by the
//! root. All of these live on one thread of their own, which a plain watchdog thread looks after.
//!
//! What is asked of everybody at once is a token that stays set and not a message, and what is to be seen is shared
//! memory and not an answer, so that neither depends on an actor that may be the one in trouble.
//!
//! Nothing of actix shows outside of this module.

#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fault;
mod handle;
mod keeper;
mod orders;
mod outcome;
mod record;
mod restart_budget;
mod root;
mod run;
mod settings;
mod shell;
#[cfg(unix)]
mod signals;
mod status;
mod tree;
mod tree_record;
mod watchdog;
mod words;
mod work;

pub use handle::{OrderError, TreeHandle};
pub use outcome::{Abandoned, Ending, Outcome, exit_code};
pub use settings::{InvalidSetting, OnBlocked, RestartPolicy, TreeSettings};
#[cfg(unix)]
pub use signals::drain_on_signals;
pub use status::{ChildState, ChildStatus};
pub use tree::{StartError, Tree};
pub use work::{BoxError, ChildSpec, Wake, WorkContext, WorkError, WorkFactory};
