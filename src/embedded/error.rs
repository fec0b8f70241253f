use std::io;
use std::process::ExitStatus;
use std::time::Duration;

/// Why a private server could not be started, stopped or asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbeddedError {
    /// A server's program is not on this machine, or not where a variable or an option says.
    #[error("{program} not found (looked at {searched}): {advice}")]
    MissingBinary {
        /// What was looked for.
        program: &'static str,
        /// Where it was looked for.
        searched: String,
        /// What to install, or what to correct.
        advice: String,
    },
    /// The operating system refused something.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried.
        action: String,
        /// What the system answered.
        source: io::Error,
    },
    /// A program ended instead of becoming ready or doing its work.
    #[error("{program} ended with {status}; its log ends with:\n{log}")]
    Ended {
        /// Which program.
        program: &'static str,
        /// How it ended.
        status: ExitStatus,
        /// The last lines that it logged.
        log: String,
    },
    /// A program runs but was not ready, or not done, within the deadline. It has been ended.
    #[error("{program} not ready after {waited:?} ({last}); its log ends with:\n{log}")]
    NotReady {
        /// Which program.
        program: &'static str,
        /// How long it was waited for.
        waited: Duration,
        /// What the last look at it gave.
        last: String,
        /// The last lines that it logged.
        log: String,
    },
    /// A server did not end within the deadline after it was asked to; it was then killed.
    #[error("{program} did not stop within {waited:?} and was killed; its log ends with:\n{log}")]
    DidNotStop {
        /// Which program.
        program: &'static str,
        /// How long it was waited for.
        waited: Duration,
        /// The last lines that it logged.
        log: String,
    },
    /// A setting or a name that can't be passed on to the server.
    #[error("{what} {value:?} is not usable: {advice}")]
    Invalid {
        /// What was given.
        what: &'static str,
        /// Its value.
        value: String,
        /// What is asked for.
        advice: &'static str,
    },
    /// The private PostgreSQL answered with an error.
    #[error("cannot {action}: {source}")]
    Database {
        /// What was tried.
        action: String,
        /// What PostgreSQL or the client answered.
        source: sqlx::Error,
    },
}

impl EmbeddedError {
    /// For `map_err`: names what was tried when the system refused.
    pub(super) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }
}
