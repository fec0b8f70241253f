//! How children are restarted, and how the tree ends.

use std::time::Duration;

/// The longest duration that a setting may have, in hours: long enough for any of them, and far from where adding
/// it to an `Instant` overflows.
const LONGEST_HOURS: u64 = 24;
const LONGEST: Duration = Duration::from_secs(LONGEST_HOURS * 60 * 60);

/// The shortest backoff, in milliseconds: a restart without any wait is a hot loop.
const SHORTEST_BACKOFF: Duration = Duration::from_millis(1);

/// The shortest time after which a thread counts as blocked, in milliseconds: below it, an ordinary pause of the
/// scheduler on a busy machine looks like one.
const SHORTEST_BLOCKED_AFTER: Duration = Duration::from_millis(100);

/// The most failures that a window may allow; each is remembered with its time.
const MOST_FAILURES: u32 = 10_000;

/// The longest name of a child, in bytes: it stands in every log line and as a label of metrics.
const LONGEST_NAME_BYTES: usize = 128;

/// A value that a tree can't be started with.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{field} {fault}")]
pub struct InvalidSetting {
    /// The field, such as `backoff_min`.
    pub field: &'static str,
    /// What is wrong with its value and what would be right.
    pub fault: String,
}

/// When and how often a child is restarted.
///
/// A failure is followed by a wait that doubles with each failure in the window, with jitter; more than
/// `max_failures` in the window are no longer answered by a restart but end the tree.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RestartPolicy {
    /// The wait after the first failure.
    pub backoff_min: Duration,
    /// What the wait grows to at most.
    pub backoff_max: Duration,
    /// How many failures in `window` are borne. One more ends the tree; with 0, the first does.
    pub max_failures: u32,
    /// The time over which failures are counted.
    pub window: Duration,
    /// How long a child that has work may make no progress before it is restarted; `None`: for ever.
    pub stall_after: Option<Duration>,
    /// How long the old work may take to end before the new is started. Beyond it the tree ends, since two of one
    /// kind must never run side by side and a task that holds a transaction is never aborted.
    pub retire_deadline: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            backoff_min: Duration::from_millis(200),
            backoff_max: Duration::from_secs(30),
            max_failures: 5,
            window: Duration::from_secs(60),
            stall_after: Some(Duration::from_secs(60)),
            retire_deadline: Duration::from_secs(15),
        }
    }
}

impl RestartPolicy {
    /// Checks that a child can be restarted by these values.
    ///
    /// # Errors
    /// The first value that can't be.
    pub fn validate(&self) -> Result<(), InvalidSetting> {
        within("backoff_min", self.backoff_min, SHORTEST_BACKOFF)?;
        within("backoff_max", self.backoff_max, self.backoff_min)?;
        within("window", self.window, SHORTEST_BACKOFF)?;
        within("retire_deadline", self.retire_deadline, SHORTEST_BACKOFF)?;
        if let Some(stall_after) = self.stall_after {
            within("stall_after", stall_after, SHORTEST_BACKOFF)?;
        }
        if self.max_failures > MOST_FAILURES {
            return Err(InvalidSetting {
                field: "max_failures",
                fault: format!("is {}: {MOST_FAILURES} at most", self.max_failures),
            });
        }
        Ok(())
    }
}

/// What happens when the thread of the tree is blocked. Nothing on that thread can say so any more.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OnBlocked {
    /// The handle reports the outcome; what the process does about it is the program's choice.
    #[default]
    Report,
    /// The process ends with the outcome's code. For a daemon, which somebody restarts.
    ExitProcess,
}

/// How the tree ends.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TreeSettings {
    /// How long all children together may take to finish what they have in hand.
    pub drain_deadline: Duration,
    /// How long the thread of the tree may give no sign of life before it counts as blocked.
    pub blocked_after: Duration,
    /// What happens then.
    pub on_blocked: OnBlocked,
}

impl Default for TreeSettings {
    fn default() -> Self {
        Self {
            // Below the 30 s that Kubernetes gives between SIGTERM and SIGKILL.
            drain_deadline: Duration::from_secs(20),
            blocked_after: Duration::from_secs(10),
            on_blocked: OnBlocked::default(),
        }
    }
}

impl TreeSettings {
    /// Checks that a tree can be run by these values.
    ///
    /// # Errors
    /// The first value that can't be.
    pub fn validate(&self) -> Result<(), InvalidSetting> {
        within("drain_deadline", self.drain_deadline, Duration::ZERO)?;
        within("blocked_after", self.blocked_after, SHORTEST_BLOCKED_AFTER)
    }
}

/// Checks a child's name: hierarchical, such as `consumer/billing`, and fit for a log line and a metric's label.
pub(super) fn validate_name(name: &str) -> Result<(), InvalidSetting> {
    let legible = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    let parts_hold = name
        .split('/')
        .all(|part| !part.is_empty() && part.chars().all(legible));
    if parts_hold && name.len() <= LONGEST_NAME_BYTES {
        return Ok(());
    }
    Err(InvalidSetting {
        field: "name",
        fault: format!(
            "is {name:?}: parts of ASCII letters, digits, '-', '_' and '.', joined by '/', \
             {LONGEST_NAME_BYTES} bytes at most"
        ),
    })
}

fn within(field: &'static str, value: Duration, least: Duration) -> Result<(), InvalidSetting> {
    if (least..=LONGEST).contains(&value) {
        return Ok(());
    }
    Err(InvalidSetting {
        field,
        fault: format!("is {value:?}: from {least:?} to {LONGEST_HOURS} hours"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_hold() {
        assert_eq!(RestartPolicy::default().validate(), Ok(()));
        assert_eq!(TreeSettings::default().validate(), Ok(()));
    }

    #[test]
    fn the_field_at_fault_is_named() {
        let policy = RestartPolicy {
            backoff_max: Duration::from_millis(1),
            ..RestartPolicy::default()
        };
        assert_eq!(policy.validate().unwrap_err().field, "backoff_max");
        let settings = TreeSettings {
            drain_deadline: Duration::MAX,
            ..TreeSettings::default()
        };
        assert_eq!(settings.validate().unwrap_err().field, "drain_deadline");
    }

    #[test]
    fn names_are_hierarchical() {
        for name in ["relay", "consumer/billing", "relay/eu-1.main_2"] {
            assert_eq!(validate_name(name), Ok(()), "{name}");
        }
        for name in ["", "/", "consumer/", "a b", "a\n", "é", &"x".repeat(129)] {
            assert!(validate_name(name).is_err(), "{name:?}");
        }
    }
}
