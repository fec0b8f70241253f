//! How a tree ended, as an exit code and in words.

use super::status::milliseconds;
use serde::Serialize;
use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

/// The codes a process ends with. All but [`BLOCKED`](exit_code::BLOCKED) mean what `sysexits.h` says.
pub mod exit_code {
    /// All children ended when they were asked to.
    pub const CLEAN: u8 = 0;
    /// A fault of the software (`EX_SOFTWARE`): a child failed too often or fatally, or the root was lost.
    pub const ESCALATED: u8 = 70;
    /// The thread of the tree was blocked.
    pub const BLOCKED: u8 = 71;
    /// The drain took longer than it may (`EX_TEMPFAIL`): what was in hand will be done again.
    pub const ABANDONED: u8 = 75;
    /// A setting is wrong (`EX_CONFIG`): starting again without changing it is of no use.
    pub const CONFIGURATION: u8 = 78;
}

/// Why a tree ended.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(tag = "ending", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Ending {
    /// It was asked to, and every child ended in time.
    Drained,
    /// It was asked to, and some children did not end in time.
    DrainExpired,
    /// A child failed fatally, failed too often, or failed while it drained.
    Escalated {
        /// The child.
        child: String,
        /// What happened, in words.
        reason: String,
    },
    /// A child can't work with its settings.
    Configuration {
        /// The child.
        child: String,
        /// What is wrong, in words.
        reason: String,
    },
    /// The thread of the tree gave no sign of life.
    Blocked,
    /// The root itself failed.
    RootLost {
        /// What happened, in words.
        reason: String,
    },
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drained => f.write_str("drained"),
            Self::DrainExpired => f.write_str("not drained in time"),
            Self::Escalated { child, reason } => write!(f, "{child} {reason}"),
            Self::Configuration { child, reason } => {
                write!(f, "{child} can't work with its settings: {reason}")
            }
            Self::Blocked => f.write_str("the thread of the supervision tree is blocked"),
            Self::RootLost { reason } => write!(f, "the root of the supervision tree was lost: {reason}"),
        }
    }
}

/// A child whose work had not ended when the tree did. Its task is not aborted: it goes on until it returns or the
/// process ends.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Abandoned {
    /// The child.
    pub name: String,
    /// Which run of it.
    pub generation: u64,
    /// What it said it had in hand.
    pub in_hand: Option<String>,
    /// Whether it had work.
    pub busy: bool,
    /// How long ago it had made progress last.
    #[serde(rename = "progress_age_ms", serialize_with = "milliseconds")]
    pub progress_age: Option<Duration>,
}

/// How a tree ended.
///
/// The first cause decides. If a child escalates and a sibling then fails to drain, the code is still 70 and the
/// sibling stands among the abandoned: what to repair is the former.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Outcome {
    /// Why.
    #[serde(flatten)]
    pub ending: Ending,
    /// Whose work was left behind.
    pub abandoned: Vec<Abandoned>,
}

impl Outcome {
    /// The code for the process to end with; see [`exit_code`].
    pub fn exit_code(&self) -> u8 {
        match self.ending {
            Ending::Drained => exit_code::CLEAN,
            Ending::DrainExpired => exit_code::ABANDONED,
            Ending::Escalated { .. } | Ending::RootLost { .. } => exit_code::ESCALATED,
            Ending::Configuration { .. } => exit_code::CONFIGURATION,
            Ending::Blocked => exit_code::BLOCKED,
        }
    }

    /// Whether every child ended because it was asked to.
    pub fn is_clean(&self) -> bool {
        self.exit_code() == exit_code::CLEAN
    }
}

impl From<&Outcome> for ExitCode {
    fn from(outcome: &Outcome) -> Self {
        Self::from(outcome.exit_code())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ending)?;
        for (index, child) in self.abandoned.iter().enumerate() {
            let lead = if index == 0 { "; abandoned: " } else { ", " };
            let in_hand = child.in_hand.as_deref().unwrap_or("nothing named");
            write!(f, "{lead}{} ({in_hand})", child.name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_says_who_was_left_behind_with_what() {
        let left = |name: &str, in_hand: Option<&str>| Abandoned {
            name: name.to_owned(),
            generation: 1,
            in_hand: in_hand.map(str::to_owned),
            busy: true,
            progress_age: None,
        };
        let outcome = Outcome {
            ending: Ending::DrainExpired,
            abandoned: vec![left("relay", Some("page 7")), left("pruner", None)],
        };
        assert_eq!(
            outcome.to_string(),
            "not drained in time; abandoned: relay (page 7), pruner (nothing named)"
        );
        assert_eq!(outcome.exit_code(), exit_code::ABANDONED);
    }
}
