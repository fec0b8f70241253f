//! Why a message is among the dead letters.

use serde::{Deserialize, Serialize};

/// Why a message is among the dead letters.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The broker will never take it: too large, or an illegal subject or header.
    Unpublishable,
    /// No stream covers its subject. Released by itself once one does.
    Unroutable,
    /// Its handler rejected it.
    Rejected,
    /// Its handler failed as often as it may.
    Exhausted,
    /// Its payload is not what the handler takes.
    Undecodable,
    /// No handler is registered for it.
    Unhandled,
    /// It is older than what the inbox remembers, so that it can't be told whether it was handled.
    TooOld,
    /// A handler ended the transaction that it ran in, so that it is not known what of it took effect.
    Torn,
    /// An earlier message of its key is here.
    Follows,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Unpublishable,
        Self::Unroutable,
        Self::Rejected,
        Self::Exhausted,
        Self::Undecodable,
        Self::Unhandled,
        Self::TooOld,
        Self::Torn,
        Self::Follows,
    ];

    /// As it stands in the database and on screens.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unpublishable => "unpublishable",
            Self::Unroutable => "unroutable",
            Self::Rejected => "rejected",
            Self::Exhausted => "exhausted",
            Self::Undecodable => "undecodable",
            Self::Unhandled => "unhandled",
            Self::TooOld => "too_old",
            Self::Torn => "torn",
            Self::Follows => "follows",
        }
    }

    /// The reason of a name. One that this version does not know counts as a rejection.
    pub(super) fn of_name(name: &str) -> Self {
        Self::ALL
            .into_iter()
            .find(|reason| reason.name() == name)
            .unwrap_or(Self::Rejected)
    }

    /// What a person can do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Unpublishable => "change the message or the broker's limit, then requeue it; or discard it",
            Self::Unroutable => "create a stream for the subject: it is published by itself then",
            Self::Rejected | Self::Exhausted => "mend the cause, then requeue it; or discard it",
            Self::Undecodable => "mend the producer or the handler's type, then requeue it; or discard it",
            Self::Unhandled => {
                "register a handler, or set unhandled = \"skip\", then requeue it; or discard it"
            }
            Self::TooOld | Self::Torn => {
                "look whether its effect is there; discard it if so, else requeue it"
            }
            Self::Follows => "deal with the earlier message of its key, then requeue the key",
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
