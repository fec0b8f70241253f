//! Streams.

use super::Check;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// When a stream lets go of a message.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Retention {
    /// By age and size. The one that can be replayed, and the safest.
    #[default]
    Limits,
    /// When every consumer has acknowledged it.
    Interest,
    /// When one consumer has acknowledged it.
    WorkQueue,
}

/// A stream that is created if it is absent. One that is present is checked and never changed.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamSettings {
    /// Its name.
    pub name: String,
    /// The subjects it covers.
    pub subjects: Vec<String>,
    /// When it lets go of a message.
    pub retention: Retention,
    /// How long it keeps a message.
    #[serde(with = "humantime_serde")]
    pub max_age: Duration,
    /// How many bytes it may hold. Full, it refuses what comes, and the relay waits. Default: no limit.
    pub max_bytes: Option<u64>,
    /// How long it remembers a deduplication id.
    #[serde(with = "humantime_serde")]
    pub duplicate_window: Duration,
    /// Copies in a cluster.
    pub replicas: u8,
}

impl Default for StreamSettings {
    fn default() -> Self {
        Self {
            name: String::new(),
            subjects: Vec::new(),
            retention: Retention::Limits,
            max_age: Duration::from_secs(7 * 24 * 3600),
            max_bytes: None,
            duplicate_window: Duration::from_secs(120),
            replicas: 1,
        }
    }
}

impl StreamSettings {
    pub(super) fn validate(&self, check: &mut Check) {
        let legal =
            |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '.' | '*' | '>' | '/' | '\\');
        check.require(
            !self.name.is_empty() && self.name.chars().all(legal),
            "name",
            "must be a name without dots, wildcards, slashes and white space",
        );
        check.require(
            !self.subjects.is_empty(),
            "subjects",
            "is empty: name what the stream covers, such as orders.>",
        );
        check.require(
            matches!(self.replicas, 1 | 3 | 5),
            "replicas",
            "must be 1, 3 or 5",
        );
        check.require(
            self.duplicate_window >= Duration::from_millis(100),
            "duplicate_window",
            "must be at least 100ms, which is the server's least",
        );
        check.require(
            self.max_age.is_zero() || self.duplicate_window <= self.max_age,
            "duplicate_window",
            "must not be longer than max_age",
        );
    }
}
