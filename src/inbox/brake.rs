//! The contention brake: how many transactions of a consumer run at once.
//!
//! Batches hold row locks longer than single messages do, and take them in any order, so lanes whose handlers touch each
//! other's rows deadlock, and each deadlock costs PostgreSQL's `deadlock_timeout` (1 s). So a batch waits for a lock only
//! for a short time; a conflict is nobody's failure and runs the batch again; and it lowers how many transactions run at
//! once, which grows back slowly while there is calm. Smaller batches would not help: measured, they were slower.
//!
//! Processes that contend share the brake: one that is down to a single transaction runs it under an advisory lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Transactions without a conflict before one more may run at once; doubled by each conflict up to the second figure.
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
    calm: u32,
    /// So many of them make one more.
    needed: u32,
    /// How long a lock is waited for now.
    lock_timeout: Duration,
}

impl Brake {
    pub(super) fn new(lanes: usize, lock_timeout: Duration) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(lanes)),
            state: Arc::new(Mutex::new(State {
                allowed: lanes,
                calm: 0,
                needed: CALM.0,
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
        state.calm += 1;
        if state.calm < state.needed {
            return;
        }
        state.calm = 0;
        state.lock_timeout = self.lock_timeout;
        if state.allowed < self.lanes {
            state.allowed += 1;
            self.permits.add_permits(1);
        }
    }

    /// A transaction met another. One less may run at once; if it ran alone, the lock is somebody else's, and waiting for it
    /// longer is right.
    pub(super) fn conflict(&self, permit: OwnedSemaphorePermit) {
        let mut state = self.state();
        state.calm = 0;
        state.needed = (state.needed * 2).min(CALM.1);
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

    #[tokio::test]
    async fn conflicts_brake_and_calm_lets_go() {
        let brake = Brake::new(3, Duration::from_millis(50));
        for _ in 0..2 {
            brake.conflict(brake.acquire().await.unwrap());
        }
        assert_eq!(
            (
                brake.permits.available_permits(),
                brake.lock_timeout().as_millis()
            ),
            (1, 50)
        );
        for _ in 0..20 {
            brake.conflict(brake.acquire().await.unwrap());
        }
        assert_eq!(
            (brake.permits.available_permits(), brake.lock_timeout()),
            (1, LONGEST_LOCK_TIMEOUT)
        );
        for _ in 0..CALM.1 * 2 {
            brake.calm();
        }
        assert_eq!(
            (
                brake.permits.available_permits(),
                brake.lock_timeout().as_millis()
            ),
            (3, 50)
        );
    }
}
