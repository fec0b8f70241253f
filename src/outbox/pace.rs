//! How long to pause: between two polls, and between two tries during an outage.

use backon::BackoffBuilder as _;
use std::time::{Duration, Instant};

/// The longest pause between two polls of a relay that is awake.
const LONGEST_AWAKE: Duration = Duration::from_millis(64);

/// The pauses between polls: short while there is work, doubled with each poll in vain.
#[derive(Debug)]
pub(crate) struct Pace {
    shortest: Duration,
    longest: Duration,
    sleep_after: Duration,
    pause: Duration,
    idle_since: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(shortest: Duration, longest: Duration, sleep_after: Duration) -> Self {
        Self {
            shortest,
            longest: longest.min(LONGEST_AWAKE).max(shortest),
            sleep_after,
            pause: shortest,
            idle_since: None,
        }
    }

    /// A poll found something.
    pub(crate) fn found_work(&mut self) {
        self.pause = self.shortest;
        self.idle_since = None;
    }

    /// A poll found nothing: how long to pause.
    pub(crate) fn found_nothing(&mut self) -> Duration {
        self.idle_since.get_or_insert_with(Instant::now);
        let pause = self.pause;
        self.pause = (pause * 2).min(self.longest);
        pause
    }

    /// Whether polls have been in vain for so long that it is time to sleep.
    pub(crate) fn is_sleepy(&self) -> bool {
        self.idle_since
            .is_some_and(|since| since.elapsed() >= self.sleep_after)
    }
}

/// The pauses between two tries during an outage: doubled each time, with jitter, without end.
#[derive(Debug)]
pub(crate) struct Backoff {
    shortest: Duration,
    longest: Duration,
    pauses: backon::ExponentialBackoff,
}

impl Backoff {
    pub(crate) fn new(shortest: Duration, longest: Duration) -> Self {
        Self {
            shortest,
            longest,
            pauses: pauses(shortest, longest),
        }
    }

    /// The next pause.
    pub(crate) fn next(&mut self) -> Duration {
        // The jitter comes on top of the longest pause too.
        self.pauses.next().unwrap_or(self.longest).min(self.longest * 2)
    }

    /// It is over: the next outage begins with the shortest pause.
    pub(crate) fn reset(&mut self) {
        self.pauses = pauses(self.shortest, self.longest);
    }
}

fn pauses(shortest: Duration, longest: Duration) -> backon::ExponentialBackoff {
    backon::ExponentialBuilder::default()
        .with_min_delay(shortest)
        .with_max_delay(longest)
        .with_jitter()
        .without_max_times()
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_in_vain_grow_rare_and_work_brings_them_back() {
        let ms = Duration::from_millis;
        let mut pace = Pace::new(ms(2), Duration::from_secs(1), Duration::ZERO);
        assert!(!pace.is_sleepy());
        let pauses: Vec<Duration> = (0..8).map(|_| pace.found_nothing()).collect();
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 64, 64].map(ms));
        assert!(pace.is_sleepy());
        pace.found_work();
        assert!(!pace.is_sleepy());
        assert_eq!(pace.found_nothing(), ms(2));
    }

    #[test]
    fn an_outage_is_never_given_up() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let pauses: Vec<Duration> = (0..50).map(|_| backoff.next()).collect();
        assert!(pauses.iter().all(|pause| *pause >= Duration::from_millis(100)));
        assert!(pauses.iter().all(|pause| *pause <= Duration::from_secs(2)));
        assert!(pauses[40] >= Duration::from_secs(1));
        backoff.reset();
        assert!(backoff.next() < Duration::from_millis(250));
    }
}
