//! What is to be seen of a child from outside.

use serde::{Serialize, Serializer};
use std::time::Duration;

/// What a child is doing.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ChildState {
    /// It is about to be launched.
    Starting,
    /// Its work runs.
    Running,
    /// Its work runs and was asked to take nothing new in hand for now.
    Paused,
    /// Its old work was asked to end, so that new can be launched.
    Restarting,
    /// It has failed and waits before the next launch.
    BackingOff,
    /// It was asked to finish what is in hand, and has not ended yet.
    Draining,
    /// It has ended for good.
    Done,
}

/// One child, as it is at this moment.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ChildStatus {
    /// Its name, such as `consumer/billing`.
    pub name: String,
    /// What it is doing.
    pub state: ChildState,
    /// Counts its launches: 1 is the first, 0 none yet.
    pub generation: u64,
    /// How often it was launched again.
    pub restarts: u64,
    /// The last failure in words, with its causes. It stays after a restart.
    pub last_error: Option<String>,
    /// Whether it can serve: its work runs and says so.
    pub ready: bool,
    /// Why it can't.
    pub not_ready_reason: Option<String>,
    /// Whether it has work.
    pub busy: bool,
    /// How long ago it made progress last, or was launched. `None` if it does not run.
    #[serde(rename = "progress_age_ms", serialize_with = "milliseconds")]
    pub progress_age: Option<Duration>,
    /// What it says it has in hand.
    pub in_hand: Option<String>,
}

pub(super) fn milliseconds<S: Serializer>(age: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match age {
        Some(age) => serializer.serialize_some(&u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
        None => serializer.serialize_none(),
    }
}
