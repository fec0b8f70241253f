//! Builds a tree and runs it on a thread of its own.

use super::handle::TreeHandle;
use super::outcome::Ending;
use super::record::ChildRecord;
use super::root::{Root, Unborn};
use super::run::Launcher;
use super::settings::{InvalidSetting, TreeSettings, validate_name};
use super::shell::Shell;
use super::tree_record::TreeRecord;
use super::work::ChildSpec;
use super::{watchdog, words};
use actix::dev::channel::{self, AddressReceiver};
use actix::{Addr, Context, System};
use futures_util::FutureExt;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{io, thread};
use tokio::runtime::Handle;
use tokio::time::{MissedTickBehavior, interval, sleep};

/// How many orders a mailbox holds before senders wait. They are answered at once; more is a sender gone wild.
const MAILBOX_ORDERS: usize = 16;

/// Why a tree was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// It was called outside of a tokio runtime, and the work needs one.
    #[error("no tokio runtime here: start the tree from async code")]
    NoRuntime,
    /// A tree without children would never do anything.
    #[error("the tree has no children")]
    NoChildren,
    /// Two children have one name.
    #[error("two children are named {0}")]
    SameName(String),
    /// The settings of the tree can't be.
    #[error("the tree's {0}")]
    Tree(#[source] InvalidSetting),
    /// The settings of a child can't be.
    #[error("{child}: {setting}")]
    Child {
        /// The child.
        child: String,
        /// What is wrong.
        #[source]
        setting: InvalidSetting,
    },
    /// The system gave no thread.
    #[error("the tree's threads were not started")]
    Thread(#[source] io::Error),
}

/// A supervision tree that is being built; see the [module](super).
#[derive(Debug)]
#[must_use = "a tree does nothing until it is started"]
pub struct Tree {
    settings: TreeSettings,
    children: Vec<ChildSpec>,
}

impl Tree {
    /// A tree without children.
    pub fn new(settings: TreeSettings) -> Self {
        Self {
            settings,
            children: Vec::new(),
        }
    }

    /// Adds a child.
    pub fn child(mut self, child: ChildSpec) -> Self {
        self.children.push(child);
        self
    }

    /// Starts the tree on a thread of its own; the children's work runs on the tokio runtime of the caller.
    ///
    /// # Errors
    /// If a setting or a name can't be, there is no tokio runtime, or there are no threads to be had. Nothing runs
    /// then.
    pub fn start(self) -> Result<TreeHandle, StartError> {
        self.validate()?;
        let runtime = Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        let records = self
            .children
            .iter()
            .map(|child| Arc::new(ChildRecord::new(&child.name)))
            .collect();
        let tree = Arc::new(TreeRecord::new(records));

        let mut unborn = Vec::with_capacity(self.children.len());
        let mut shells = Vec::with_capacity(self.children.len());
        for (child, record) in self.children.into_iter().zip(&tree.children) {
            let (sender, mailbox) = channel::channel::<Shell>(MAILBOX_ORDERS);
            let address = Addr::new(sender);
            shells.push(address.clone());
            let launcher = Launcher {
                work: child.work,
                child: record.clone(),
                runtime: runtime.clone(),
                tasks: tree.tasks.clone(),
                drain: tree.drain.clone(),
            };
            unborn.push(Unborn {
                launcher,
                policy: child.restart,
                mailbox,
                address,
            });
        }
        let (sender, mailbox) = channel::channel::<Root>(MAILBOX_ORDERS);
        let root = Addr::new(sender);

        let (alive, tree_thread) = mpsc::channel();
        watchdog::start(tree.clone(), self.settings.clone(), tree_thread).map_err(StartError::Thread)?;
        let thread_tree = tree.clone();
        thread::Builder::new()
            .name("twinbox-tree".to_owned())
            .spawn(move || {
                let _alive = alive;
                run(&thread_tree, &self.settings, unborn, mailbox);
            })
            .map_err(StartError::Thread)?;
        Ok(TreeHandle::new(tree, shells, root))
    }

    fn validate(&self) -> Result<(), StartError> {
        self.settings.validate().map_err(StartError::Tree)?;
        if self.children.is_empty() {
            return Err(StartError::NoChildren);
        }
        let mut names = HashSet::new();
        for child in &self.children {
            let valid = validate_name(&child.name).and_then(|()| child.restart.validate());
            valid.map_err(|setting| StartError::Child {
                child: child.name.clone(),
                setting,
            })?;
            if !names.insert(&child.name) {
                return Err(StartError::SameName(child.name.clone()));
            }
        }
        Ok(())
    }
}

/// The tree's thread from its beginning to its end, which always has an outcome.
fn run(tree: &Arc<TreeRecord>, settings: &TreeSettings, unborn: Vec<Unborn>, mailbox: AddressReceiver<Root>) {
    let ran = catch_unwind(AssertUnwindSafe(|| run_system(tree, settings, unborn, mailbox)));
    let lost = match ran {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(words::with_causes(&error)),
        Err(payload) => Some(format!("panicked: {}", words::of_panic(payload))),
    };
    if let Some(reason) = lost {
        tree.escalate(Ending::RootLost { reason });
    }
    // After everything of the system is dropped: who waits for the outcome finds nothing of the tree left but work
    // that was abandoned.
    tree.publish_outcome();
}

fn run_system(
    tree: &Arc<TreeRecord>,
    settings: &TreeSettings,
    unborn: Vec<Unborn>,
    mailbox: AddressReceiver<Root>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    let system = System::with_tokio_rt(move || runtime);
    system.block_on(async {
        let root = Root::new(tree.clone(), settings.drain_deadline, unborn);
        let root = run_root(tree, settings, root, mailbox);
        tokio::select! {
            () = root => {}
            () = give_signs_of_life(tree, settings.blocked_after) => {}
        }
    });
    Ok(())
}

/// Runs the root, and stands in for it if it is lost: the children are drained all the same, by their keepers.
async fn run_root(tree: &TreeRecord, settings: &TreeSettings, root: Root, mailbox: AddressReceiver<Root>) {
    let root = Context::with_receiver(mailbox).into_future(root);
    let reason = match AssertUnwindSafe(root).catch_unwind().await {
        Ok(()) if tree.is_draining() => return,
        Ok(()) => "stopped although nobody asked it to".to_owned(),
        Err(payload) => format!("panicked: {}", words::of_panic(payload)),
    };
    tree.escalate(Ending::RootLost { reason });
    tree.tasks.close();
    tokio::select! {
        () = tree.tasks.wait() => {}
        () = tree.drain_now.cancelled() => {}
        () = sleep(settings.drain_deadline) => {}
    }
}

async fn give_signs_of_life(tree: &TreeRecord, blocked_after: Duration) {
    let mut beats = interval(watchdog::beat_interval(blocked_after));
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        beats.tick().await;
        tree.beat();
    }
}
