//! Restart intensity: how many failures in a window are borne, and how long to wait after each.

use super::settings::RestartPolicy;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// What follows a failure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// Start again after this wait.
    Retry(Duration),
    /// There were too many: the next level decides.
    Exhausted,
}

/// The failures of one child in the window, whether they were the work's or the shell's.
#[derive(Debug)]
pub(super) struct RestartBudget {
    policy: RestartPolicy,
    failures: VecDeque<Instant>,
    jitter: RandomState,
    drawn: u64,
}

impl RestartBudget {
    pub(super) fn new(policy: RestartPolicy) -> Self {
        Self {
            policy,
            failures: VecDeque::new(),
            jitter: RandomState::new(),
            drawn: 0,
        }
    }

    /// Notes a failure at `now` and judges it.
    pub(super) fn failure(&mut self, now: Instant) -> Verdict {
        while let Some(oldest) = self.failures.front()
            && now.duration_since(*oldest) >= self.policy.window
        {
            self.failures.pop_front();
        }
        let earlier = self.failures.len();
        if earlier >= self.policy.max_failures as usize {
            return Verdict::Exhausted;
        }
        self.failures.push_back(now);
        let jitter = self.draw();
        Verdict::Retry(backoff(&self.policy, earlier, jitter))
    }

    /// A number from 0 to 1. The hasher's keys are random, which is all that jitter needs.
    fn draw(&mut self) -> f64 {
        self.drawn = self.drawn.wrapping_add(1);
        self.jitter.hash_one(self.drawn) as f64 / u64::MAX as f64
    }
}

/// The wait after a failure with `earlier` ones in the window: between half of the exponential step and all of it, so
/// that children which failed together don't come back together.
fn backoff(policy: &RestartPolicy, earlier: usize, jitter: f64) -> Duration {
    // Beyond 2^31 steps of a millisecond every maximum is reached.
    let doublings = u32::try_from(earlier).unwrap_or(u32::MAX).min(31);
    let step = policy
        .backoff_min
        .saturating_mul(1 << doublings)
        .min(policy.backoff_max);
    step.mul_f64(0.5 + jitter / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> RestartPolicy {
        RestartPolicy {
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(1),
            max_failures: 3,
            window: Duration::from_secs(10),
            ..RestartPolicy::default()
        }
    }

    #[test]
    fn waits_double_up_to_the_maximum() {
        let full = |earlier| backoff(&policy(), earlier, 1.0);
        assert_eq!(full(0), Duration::from_millis(100));
        assert_eq!(full(1), Duration::from_millis(200));
        assert_eq!(full(3), Duration::from_millis(800));
        assert_eq!(full(4), Duration::from_secs(1));
        assert_eq!(full(usize::MAX), Duration::from_secs(1));
        assert_eq!(backoff(&policy(), 1, 0.0), Duration::from_millis(100));
    }

    #[test]
    fn one_more_than_the_most_is_too_many() {
        let mut budget = RestartBudget::new(policy());
        let start = Instant::now();
        for second in 0..3 {
            let verdict = budget.failure(start + Duration::from_secs(second));
            assert!(matches!(verdict, Verdict::Retry(_)), "{second}: {verdict:?}");
        }
        assert_eq!(budget.failure(start + Duration::from_secs(3)), Verdict::Exhausted);
    }

    #[test]
    fn failures_leave_the_window_and_the_wait_falls_back() {
        let mut budget = RestartBudget::new(policy());
        let start = Instant::now();
        for second in [0, 11, 22, 33, 44, 55] {
            let Verdict::Retry(wait) = budget.failure(start + Duration::from_secs(second)) else {
                panic!("exhausted after {second} s");
            };
            assert!(wait <= Duration::from_millis(100), "{wait:?}");
        }
    }

    #[test]
    fn jitter_differs_and_stays_in_bounds() {
        let mut budget = RestartBudget::new(policy());
        let drawn: Vec<f64> = (0..100).map(|_| budget.draw()).collect();
        assert!(drawn.iter().all(|value| (0.0..=1.0).contains(value)));
        assert!(drawn.windows(2).any(|pair| pair[0] != pair[1]));
    }
}
