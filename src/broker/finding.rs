//! What was noticed about streams and consumers that are already there.

use serde::Serialize;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    Note,
    /// The guarantee holds, at a cost or by a narrower margin.
    Warning,
    /// The guarantee does not hold while it is so.
    Error,
}

/// Something about a stream or consumer, with what to do about it.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What it is about, such as `stream ORDERS`.
    pub about: String,
    /// What was found.
    pub found: String,
    /// What to do.
    pub remedy: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}: {}", self.about, self.found, self.remedy)
    }
}

impl Finding {
    /// Writes it to the log, at the level of its severity.
    pub fn log(&self) {
        let Self {
            about, found, remedy, ..
        } = self;
        match self.severity {
            Severity::Note => tracing::info!(about, remedy, "{found}"),
            Severity::Warning => tracing::warn!(about, remedy, "{found}"),
            Severity::Error => tracing::error!(about, remedy, "{found}"),
        }
    }
}
