//! How many messages a transaction takes: a batch of slow ones would hold its locks, and a drain, for too long.

use std::time::Duration;

/// How long a transaction is to take at most.
const TARGET: Duration = Duration::from_secs(1);
/// Messages in the first transaction, of which nothing is known yet.
const FIRST: u32 = 10;
/// The weight of the last transaction in the average.
const WEIGHT: f64 = 0.25;

/// What a lane knows of the speed of its messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    seconds_per_message: f64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            seconds_per_message: TARGET.as_secs_f64() / f64::from(FIRST),
        }
    }
}

impl Pace {
    /// A transaction over so many messages took so long.
    pub(super) fn learn(&mut self, messages: usize, took: Duration) {
        let each = took.as_secs_f64() / messages.max(1) as f64;
        // Slowness counts at once: the next transaction must not be as long.
        self.seconds_per_message = each.max(self.seconds_per_message * (1.0 - WEIGHT) + each * WEIGHT);
    }

    /// How many messages the next transaction may take.
    pub(super) fn limit(self, most: u16) -> usize {
        let fit = TARGET.as_secs_f64() / self.seconds_per_message.max(f64::MIN_POSITIVE);
        // Saturates.
        (fit as usize).clamp(1, usize::from(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_messages_make_small_transactions_and_fast_ones_large_ones_again() {
        let mut pace = Pace::default();
        assert_eq!(pace.limit(100), 10);
        pace.learn(10, Duration::from_secs(20));
        assert_eq!(pace.limit(100), 1);
        for _ in 0..30 {
            pace.learn(1, Duration::from_millis(4));
        }
        assert_eq!(pace.limit(100), 100);
        pace.learn(100, Duration::ZERO);
        assert_eq!(pace.limit(100), 100);
    }
}
