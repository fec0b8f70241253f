//! What the work, its shell, its keeper and the handle all see of a child.
//!
//! It is shared memory and not an answer from a mailbox, so that a child can be looked at while it backs off and
//! while the thread of the tree is blocked, which is when somebody looks.

use super::outcome::Abandoned;
use super::status::{ChildState, ChildStatus};
use super::words;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// What one run of the work says about itself. A later run has one of its own, so that a straggler of an earlier one
/// can't speak for it.
#[derive(Debug)]
pub(super) struct RunRecord {
    pub(super) generation: u64,
    launched: Instant,
    busy: AtomicBool,
    /// When progress was made last, in milliseconds since the launch: a beat must cost nothing.
    progress_at: AtomicU64,
    readiness: Mutex<Readiness>,
    in_hand: Mutex<Option<String>>,
    /// Cancelled when the task is gone, however it went.
    pub(super) ended: CancellationToken,
}

#[derive(Debug)]
enum Readiness {
    Starting,
    Ready,
    NotReady(String),
}

impl RunRecord {
    pub(super) fn new(generation: u64) -> Self {
        Self {
            generation,
            launched: Instant::now(),
            busy: AtomicBool::new(false),
            progress_at: AtomicU64::new(0),
            readiness: Mutex::new(Readiness::Starting),
            in_hand: Mutex::new(None),
            ended: CancellationToken::new(),
        }
    }

    pub(super) fn beat(&self) {
        let millis = u64::try_from(self.launched.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.progress_at.store(millis, Relaxed);
    }

    pub(super) fn set_busy(&self, busy: bool) {
        let was_busy = self.busy.swap(busy, Relaxed);
        if busy && !was_busy {
            // The time in which there was nothing to do is not held against it.
            self.beat();
        }
    }

    pub(super) fn set_ready(&self) {
        let was = std::mem::replace(&mut *lock(&self.readiness), Readiness::Ready);
        if matches!(was, Readiness::NotReady(_)) {
            // Nor is the time of an outage.
            self.beat();
        }
    }

    pub(super) fn set_not_ready(&self, reason: String) {
        *lock(&self.readiness) = Readiness::NotReady(words::bounded(reason));
    }

    pub(super) fn set_in_hand(&self, text: String) {
        *lock(&self.in_hand) = Some(words::bounded(text)).filter(|text| !text.is_empty());
    }

    fn progress_age(&self) -> Duration {
        let at = Duration::from_millis(self.progress_at.load(Relaxed));
        self.launched.elapsed().saturating_sub(at)
    }

    /// Whether it has work and has made no progress for `stall_after`. An outage that it has reported is no stall.
    pub(super) fn is_stalled(&self, stall_after: Duration) -> bool {
        self.busy.load(Relaxed)
            && !matches!(*lock(&self.readiness), Readiness::NotReady(_))
            && self.progress_age() >= stall_after
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }
}

/// A child over all its runs.
#[derive(Debug)]
pub(super) struct ChildRecord {
    pub(super) name: Arc<str>,
    pub(super) nudge: Notify,
    pub(super) paused: watch::Sender<bool>,
    standing: Mutex<Standing>,
}

#[derive(Debug)]
struct Standing {
    state: ChildState,
    last_error: Option<String>,
    run: Option<Arc<RunRecord>>,
}

impl ChildRecord {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            nudge: Notify::new(),
            paused: watch::Sender::new(false),
            standing: Mutex::new(Standing {
                state: ChildState::Starting,
                last_error: None,
                run: None,
            }),
        }
    }

    /// Begins the record of the next run.
    pub(super) fn next_run(&self) -> Arc<RunRecord> {
        let mut standing = lock(&self.standing);
        let generation = standing.run.as_ref().map_or(0, |run| run.generation) + 1;
        let run = Arc::new(RunRecord::new(generation));
        standing.run = Some(run.clone());
        run
    }

    /// The run that has not ended yet.
    pub(super) fn live_run(&self) -> Option<Arc<RunRecord>> {
        lock(&self.standing).run.clone().filter(|run| !run.has_ended())
    }

    pub(super) fn set_state(&self, state: ChildState) {
        lock(&self.standing).state = state;
    }

    pub(super) fn is_done(&self) -> bool {
        lock(&self.standing).state == ChildState::Done
    }

    pub(super) fn note_error(&self, error: &str) {
        lock(&self.standing).last_error = Some(error.to_owned());
    }

    pub(super) fn is_paused(&self) -> bool {
        *self.paused.borrow()
    }

    pub(super) fn set_paused(&self, paused: bool) {
        self.paused.send_replace(paused);
        if let Some(run) = self.live_run() {
            // What a pause held up is no stall once it is over.
            run.beat();
        }
    }

    pub(super) fn status(&self) -> ChildStatus {
        let (state, last_error, run) = {
            let standing = lock(&self.standing);
            (standing.state, standing.last_error.clone(), standing.run.clone())
        };
        let state = match state {
            ChildState::Running if self.is_paused() => ChildState::Paused,
            state => state,
        };
        let live = run.as_ref().filter(|run| !run.has_ended());
        let not_ready_reason = match (state, live) {
            (ChildState::Running | ChildState::Paused, Some(run)) => match &*lock(&run.readiness) {
                Readiness::Starting => Some("starting".to_owned()),
                Readiness::Ready => None,
                Readiness::NotReady(reason) => Some(reason.clone()),
            },
            (ChildState::Draining, _) => Some("draining".to_owned()),
            (ChildState::Done, _) => Some("done".to_owned()),
            (ChildState::BackingOff, _) => Some("backing off after a failure".to_owned()),
            _ => Some("starting".to_owned()),
        };
        let generation = run.as_ref().map_or(0, |run| run.generation);
        ChildStatus {
            name: self.name.to_string(),
            state,
            generation,
            restarts: generation.saturating_sub(1),
            last_error,
            ready: not_ready_reason.is_none(),
            not_ready_reason,
            busy: live.is_some_and(|run| run.busy.load(Relaxed)),
            progress_age: live.map(|run| run.progress_age()),
            in_hand: live.and_then(|run| lock(&run.in_hand).clone()),
        }
    }

    /// The run that is left behind if the tree ends now.
    pub(super) fn abandoned(&self) -> Option<Abandoned> {
        let run = self.live_run()?;
        Some(Abandoned {
            name: self.name.to_string(),
            generation: run.generation,
            in_hand: lock(&run.in_hand).clone(),
            busy: run.busy.load(Relaxed),
            progress_age: Some(run.progress_age()),
        })
    }
}

/// What is written under these locks is written in one step, so that a panic leaves nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: Duration = Duration::from_secs(3600);

    #[test]
    fn only_work_without_progress_is_a_stall() {
        let run = RunRecord::new(1);
        assert!(!run.is_stalled(Duration::ZERO), "idle");
        run.set_busy(true);
        assert!(run.is_stalled(Duration::ZERO));
        assert!(!run.is_stalled(NEVER));
        run.set_not_ready("no database".to_owned());
        assert!(!run.is_stalled(Duration::ZERO), "an outage");
        run.set_ready();
        assert!(run.is_stalled(Duration::ZERO));
        run.set_busy(false);
        assert!(!run.is_stalled(Duration::ZERO));
    }

    #[test]
    fn a_straggler_does_not_speak_for_the_next_run() {
        let child = ChildRecord::new("relay");
        let old = child.next_run();
        let new = child.next_run();
        child.set_state(ChildState::Running);
        new.set_ready();
        old.set_not_ready("late".to_owned());
        assert!(child.status().ready);
        assert_eq!((child.status().generation, child.status().restarts), (2, 1));
    }
}
