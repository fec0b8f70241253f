//! The lease, as its holder sees it: until when it may publish.
//!
//! The lease itself is a row in the database, timed by the database's clock and fenced by an epoch. The fence stops late
//! writes to the database, not late publishes; so the holder keeps a deadline of its own, on its monotonic clock, which
//! runs from before it asked for the lease and ends a margin before the lease does. After it the holder publishes
//! nothing more.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// When the holder may still publish. Shared by the tasks of one term.
#[derive(Debug)]
pub(crate) struct LeaseClock {
    begun: Instant,
    lease: Duration,
    /// Milliseconds after `begun`.
    deadline: AtomicU64,
    over: AtomicBool,
}

impl LeaseClock {
    /// For a lease that was asked for at `asked`.
    pub(crate) fn new(asked: Instant, lease: Duration) -> Self {
        let clock = Self {
            begun: asked,
            lease,
            deadline: AtomicU64::new(0),
            over: AtomicBool::new(false),
        };
        clock.renewed(asked);
        clock
    }

    /// The lease was granted anew, to a request sent at `asked`.
    pub(crate) fn renewed(&self, asked: Instant) {
        let margin = self.lease / 4;
        let until = asked.duration_since(self.begun) + self.lease - margin;
        let until_ms = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
        self.deadline.fetch_max(until_ms, Ordering::Relaxed);
    }

    /// Somebody else has the lease.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Whether the holder may publish at this moment.
    pub(crate) fn holds(&self) -> bool {
        let deadline = Duration::from_millis(self.deadline.load(Ordering::Relaxed));
        !self.over.load(Ordering::Relaxed) && self.begun.elapsed() < deadline
    }
}

/// How often a holder renews a lease that nothing else prolongs.
pub(crate) fn renewal(lease: Duration) -> Duration {
    lease / 3
}

/// How often a standby looks whether the lease is free.
pub(crate) fn standby_pause(lease: Duration) -> Duration {
    (lease / 10).clamp(Duration::from_millis(100), Duration::from_millis(500))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_lies_a_margin_before_the_lease_ends() {
        let lease = Duration::from_secs(8);
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        assert!(LeaseClock::new(ago(5), lease).holds());
        assert!(!LeaseClock::new(ago(6), lease).holds());
        let renewed = LeaseClock::new(ago(7), lease);
        assert!(!renewed.holds());
        renewed.renewed(ago(2));
        assert!(renewed.holds());
        renewed.end();
        assert!(!renewed.holds());
    }
}
