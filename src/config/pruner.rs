//! The pruner.

use super::Check;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What is removed, and how gently.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct PrunerSettings {
    /// How often it runs.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
    /// How long the outbox keeps rows that are settled: how far the relay can go back if the broker loses what it
    /// acknowledged.
    #[serde(with = "humantime_serde")]
    pub outbox_retention: Duration,
    /// How long the inbox keeps an id where the broker's state proves nothing (a stream without a limit on age, for one).
    #[serde(with = "humantime_serde")]
    pub fallback_age: Duration,
    /// Keep ids at least so long, whatever is proved. Refused at the start if it is shorter than what can be proved.
    #[serde(with = "humantime_serde")]
    pub inbox_retention: Option<Duration>,
    /// Rows of one statement at the most; fewer if the database is slow.
    pub batch: u32,
}

impl Default for PrunerSettings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(60),
            outbox_retention: Duration::from_secs(3 * 24 * 3600),
            fallback_age: Duration::from_secs(7 * 24 * 3600),
            inbox_retention: None,
            batch: 5000,
        }
    }
}

impl PrunerSettings {
    pub(super) fn validate(&self, check: &mut Check) {
        check.require(
            self.interval >= Duration::from_secs(1),
            "interval",
            "must be at least 1s",
        );
        check.require(
            (1..=100_000).contains(&self.batch),
            "batch",
            "must be between 1 and 100000",
        );
    }
}
