//! The outbox's relay.

use super::Check;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How the outbox is published.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RelaySettings {
    /// The relay's name: relays of one name share one cursor, and one of them is active.
    pub name: String,
    /// Rows read at once.
    pub page_rows: u32,
    /// Bytes of payload read at once; one larger message is read alone. Bounds the memory, with the two pages that
    /// are read ahead.
    pub page_bytes: u32,
    /// Messages published and not yet acknowledged. All relays of a stream together must stay below the server's
    /// limit of 10,000.
    pub window: u32,
    /// How long a relay that is gone keeps others waiting.
    #[serde(with = "humantime_serde")]
    pub lease: Duration,
    /// The shortest pause between two polls, while there is work.
    #[serde(with = "humantime_serde")]
    pub poll_min: Duration,
    /// The longest pause between two polls, while it sleeps: an enqueue wakes it, this is for a wake-up that got lost.
    #[serde(with = "humantime_serde")]
    pub poll_max: Duration,
    /// How long it polls in vain before it sleeps.
    #[serde(with = "humantime_serde")]
    pub sleep_after: Duration,
    /// How long a message that no stream covers holds up the others before it is parked among the dead letters. It
    /// is published from there as soon as a stream covers it.
    #[serde(with = "humantime_serde")]
    pub unroutable_grace: Duration,
    /// The pauses between two tries during an outage: the first, doubled up to `retry_max`.
    #[serde(with = "humantime_serde")]
    pub retry_min: Duration,
    /// The longest pause between two tries during an outage.
    #[serde(with = "humantime_serde")]
    pub retry_max: Duration,
    /// How often the log is compared with the streams, beside on every reconnect.
    #[serde(with = "humantime_serde")]
    pub checkpoint_interval: Duration,
}

impl Default for RelaySettings {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            page_rows: 2000,
            page_bytes: 4 * 1024 * 1024,
            window: 2000,
            lease: Duration::from_secs(10),
            poll_min: Duration::from_millis(2),
            poll_max: Duration::from_secs(1),
            sleep_after: Duration::from_secs(2),
            unroutable_grace: Duration::from_secs(30),
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(5),
            checkpoint_interval: Duration::from_secs(10),
        }
    }
}

impl RelaySettings {
    pub(super) fn validate(&self, check: &mut Check) {
        check.require(!self.name.is_empty(), "name", "is empty");
        check.require(
            (1..=50_000).contains(&self.page_rows),
            "page_rows",
            "must be between 1 and 50000",
        );
        check.require(
            self.page_bytes >= 64 * 1024,
            "page_bytes",
            "must be at least 65536",
        );
        check.require(
            (1..=8000).contains(&self.window),
            "window",
            "must be between 1 and 8000",
        );
        check.require(
            self.lease >= Duration::from_secs(1),
            "lease",
            "must be at least 1s",
        );
        check.require(!self.poll_min.is_zero(), "poll_min", "must be more than 0s");
        check.require(
            self.poll_max >= self.poll_min,
            "poll_max",
            "must not be below poll_min",
        );
        check.require(!self.retry_min.is_zero(), "retry_min", "must be more than 0s");
        check.require(
            self.retry_max >= self.retry_min,
            "retry_max",
            "must not be below retry_min",
        );
        check.require(
            self.checkpoint_interval >= Duration::from_secs(1),
            "checkpoint_interval",
            "must be at least 1s",
        );
    }
}
