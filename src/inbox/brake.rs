//! The contention brake: how many transactions of a consumer run at once.
//!
//! Batches hold row locks longer than single messages do, and take them in any order, so lanes whose handlers touch each
//! other's rows deadlock, and each deadlock costs PostgreSQL's `deadlock_timeout` (1 s). So a batch waits for a lock only
//! for a short time; a conflict is nobody's failure and runs the batch again; and where they are no accident, they lower how
//! many transactions run at once, which grows back slowly while there is calm. Smaller batches would not help: measured, they
//! were slower.
//!
//! Processes that contend share the brake: one that is down to a single transaction runs it under an advisory lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A conflict less than so many transactions after the one before is no accident. Below that rate, waiting for a lock now and then
/// costs less than running fewer at once.
const ACCIDENT: u32 = 50;
/// Transactions after which one more may run at once; doubled by each time that one less may, up to the second figure, and
/// halved again by each growth that lasts.
const CALM: (u32, u32) = (20, 2000);
/// The longest a batch waits for a lock that somebody else holds.
pub(super) const LONGEST_LOCK_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(super) struct Brake {
    permits: Arc<Semaphore>,
    state: Arc<Mutex<State>>,
    lanes: usize,
    lock_timeout: Duration,
}

#[derive(Debug)]
struct State {
    /// How many may run at once.
    allowed: usize,
    /// Transactions since the last conflict.
    since_conflict: u32,
    /// Transactions since more, or fewer, were allowed.
    since_change: u32,
    /// So many of them make one more.
    needed: u32,
    /// The last change was for more.
    grew: bool,
    /// How long a lock is waited for now.
    lock_timeout: Duration,
}

impl Brake {
    pub(super) fn new(lanes: usize, lock_timeout: Duration) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(lanes)),
            state: Arc::new(Mutex::new(State {
                allowed: lanes,
                since_conflict: ACCIDENT,
                since_change: 0,
                needed: CALM.0,
                grew: false,
                lock_timeout,
            })),
            lanes,
            lock_timeout,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a transaction may begin.
    pub(super) async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().acquire_owned().await.ok()
    }

    /// How long a transaction of this moment waits for a lock.
    pub(super) fn lock_timeout(&self) -> Duration {
        self.state().lock_timeout
    }

    /// Whether one transaction at a time is all that may run, in this process and in its siblings.
    pub(super) fn is_tight(&self) -> bool {
        self.state().allowed == 1 && self.lanes > 1
    }

    /// A transaction met no conflict.
    pub(super) fn calm(&self) {
        let mut state = self.state();
        state.since_conflict = state.since_conflict.saturating_add(1);
        state.since_change += 1;
        if state.since_change < state.needed {
            return;
        }
        if state.grew {
            state.needed = (state.needed / 2).max(CALM.0);
        }
        (state.since_change, state.grew) = (0, true);
        state.lock_timeout = self.lock_timeout;
        if state.allowed < self.lanes {
            state.allowed += 1;
            self.permits.add_permits(1);
        }
    }

    /// A transaction met another. If that is no accident, one less may run at once; if it ran alone, the lock is somebody else's,
    /// and waiting for it longer is right.
    pub(super) fn conflict(&self, permit: OwnedSemaphorePermit) {
        let mut state = self.state();
        if std::mem::take(&mut state.since_conflict) >= ACCIDENT {
            return;
        }
        state.needed = (state.needed * 2).min(CALM.1);
        (state.since_change, state.grew) = (0, false);
        if state.allowed > 1 {
            state.allowed -= 1;
            permit.forget();
        } else {
            state.lock_timeout = (state.lock_timeout * 2).min(LONGEST_LOCK_TIMEOUT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(brake: &Brake) -> (usize, u128) {
        (
            brake.permits.available_permits(),
            brake.lock_timeout().as_millis(),
        )
    }

    async fn conflicts(brake: &Brake, conflicts: u32) {
        for _ in 0..conflicts {
            brake.conflict(brake.acquire().await.unwrap());
        }
    }

    #[tokio::test]
    async fn conflicts_brake_and_calm_lets_go() {
        let brake = Brake::new(3, Duration::from_millis(50));
        conflicts(&brake, 3).await;
        assert_eq!(seen(&brake), (1, 50));
        conflicts(&brake, 20).await;
        assert_eq!(seen(&brake), (1, LONGEST_LOCK_TIMEOUT.as_millis()));
        for _ in 0..CALM.1 * 2 {
            brake.calm();
        }
        assert_eq!(seen(&brake), (3, 50));
    }

    #[tokio::test]
    async fn a_conflict_now_and_then_is_an_accident() {
        let brake = Brake::new(3, Duration::from_millis(50));
        for _ in 0..100 {
            conflicts(&brake, 1).await;
            assert_eq!(seen(&brake), (3, 50));
            (0..ACCIDENT).for_each(|_| brake.calm());
        }
    }

    #[tokio::test]
    async fn after_a_storm_it_is_soon_as_ready_to_grow_as_before() {
        let brake = Brake::new(3, Duration::from_millis(50));
        conflicts(&brake, 50).await;
        for _ in 0..CALM.1 * 3 {
            brake.calm();
        }
        conflicts(&brake, 2).await;
        assert_eq!(seen(&brake).0, 2);
        for _ in 0..CALM.0 * 4 {
            brake.calm();
        }
        assert_eq!(seen(&brake).0, 3);
    }
}
