//! The watchdog: a plain thread that sees when the tree's thread is blocked, which nothing on that thread can.

use super::outcome::Ending;
use super::settings::{OnBlocked, TreeSettings};
use super::tree_record::TreeRecord;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{io, thread};

/// How many looks in a row must find no sign of life. Looks are counted and not time: in a process that was stopped
/// and goes on, hours have passed and one look.
const LOOKS: u32 = 5;

/// How often the tree's thread gives a sign of life between two looks.
const BEATS_PER_LOOK: u32 = 2;

/// How often it is looked whether the work has drained, in milliseconds, where nothing can wake this thread.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// How often the tree's thread has to give a sign of life.
pub(super) fn beat_interval(blocked_after: Duration) -> Duration {
    blocked_after / (LOOKS * BEATS_PER_LOOK)
}

/// Starts the watchdog. It ends when the sender of `tree_thread` is dropped, which the tree's thread does at its end,
/// however that comes.
pub(super) fn start(
    tree: Arc<TreeRecord>,
    settings: TreeSettings,
    tree_thread: Receiver<Infallible>,
) -> io::Result<()> {
    thread::Builder::new()
        .name("twinbox-watch".to_owned())
        .spawn(move || watch(&tree, &settings, &tree_thread))
        .map(drop)
}

fn watch(tree: &TreeRecord, settings: &TreeSettings, tree_thread: &Receiver<Infallible>) {
    let look = settings.blocked_after / LOOKS;
    // From zero: the thread may block before its first sign of life.
    let mut seen = 0;
    let mut unchanged = 0;
    while unchanged < LOOKS {
        match tree_thread.recv_timeout(look) {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(never) => match never {},
        }
        let beats = tree.beats();
        unchanged = if beats == seen { unchanged + 1 } else { 0 };
        seen = beats;
    }
    blocked(tree, settings);
}

/// The work itself is on other threads and may be well: it is drained before the outcome is told.
fn blocked(tree: &TreeRecord, settings: &TreeSettings) {
    tree.escalate(Ending::Blocked);
    let asked = Instant::now();
    while !tree.tasks.is_empty()
        && !tree.drain_now.is_cancelled()
        && asked.elapsed() < settings.drain_deadline
    {
        thread::sleep(DRAIN_LOOK);
    }
    let outcome = tree.publish_outcome();
    if settings.on_blocked == OnBlocked::ExitProcess {
        std::process::exit(outcome.exit_code().into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn settings() -> TreeSettings {
        TreeSettings {
            blocked_after: Duration::from_millis(100),
            ..TreeSettings::default()
        }
    }

    #[test]
    fn a_thread_that_never_gave_a_sign_of_life_is_blocked() {
        let tree = TreeRecord::new(Vec::new());
        let (_alive, tree_thread) = mpsc::channel();
        watch(&tree, &settings(), &tree_thread);
        assert!(tree.is_draining());
        assert_eq!(tree.publish_outcome().ending, Ending::Blocked);
    }

    #[test]
    fn a_thread_that_has_ended_is_not_blocked() {
        let tree = TreeRecord::new(Vec::new());
        let (alive, tree_thread) = mpsc::channel();
        drop(alive);
        watch(&tree, &settings(), &tree_thread);
        assert!(!tree.is_draining());
    }

    #[test]
    fn signs_of_life_come_more_often_than_looks() {
        let blocked_after = Duration::from_secs(10);
        assert!(beat_interval(blocked_after) < blocked_after / LOOKS);
    }
}
