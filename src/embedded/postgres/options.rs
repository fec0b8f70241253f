use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use crate::embedded::error::EmbeddedError;

/// What stands in every private PostgreSQL's configuration.
const SETTINGS: [(&str, &str); 8] = [
    ("listen_addresses", "127.0.0.1"),
    // Clients have a URL. A socket's path would have to be short, and a directory for it open to nobody else.
    ("unix_socket_directories", ""),
    ("max_connections", "200"),
    // In the data directory, so that a server that was killed leaves nothing in /dev/shm.
    ("dynamic_shared_memory_type", "mmap"),
    ("log_destination", "stderr"),
    ("logging_collector", "off"),
    ("log_line_prefix", "%m [%p] "),
    ("timezone", "UTC"),
];

/// What `fast` changes. Only the flush to the disk itself: processes may still be killed without losing a commit,
/// which `synchronous_commit = off` or `full_page_writes = off` would not allow (a killed process can leave half a
/// page in the kernel's cache).
const FAST: [(&str, &str); 1] = [("fsync", "off")];

/// How a private PostgreSQL is started.
#[derive(Debug, Clone)]
#[must_use]
pub struct PostgresOptions {
    pub(super) bin_dir: Option<PathBuf>,
    settings: Vec<(String, String)>,
    fast: bool,
    pub(super) ready_within: Duration,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            bin_dir: None,
            settings: Vec::new(),
            fast: false,
            ready_within: Duration::from_secs(60),
        }
    }
}

impl PostgresOptions {
    /// Durable, with room for 200 connections, ready within 60 s.
    pub fn new() -> Self {
        Self::default()
    }

    /// Leaves out the flushes to the disk (`fsync = off`). Killed processes still lose nothing; a machine that
    /// crashes may.
    pub fn fast(mut self) -> Self {
        self.fast = true;
        self
    }

    /// Adds a setting of `postgresql.conf`, which also overrides one that stands there.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Names the directory of the programs `postgres` and `initdb`, instead of having it looked for.
    pub fn bin_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.bin_dir = Some(directory.into());
        self
    }

    /// How long making the data directory, and every start, may take.
    pub fn ready_within(mut self, limit: Duration) -> Self {
        self.ready_within = limit;
        self
    }

    /// The configuration as a file's text.
    pub(super) fn configuration(&self) -> Result<String, EmbeddedError> {
        let fast: &[_] = if self.fast { &FAST } else { &[] };
        let own = SETTINGS.iter().chain(fast).copied();
        let added = self
            .settings
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        let mut text = String::new();
        for (name, value) in own.chain(added) {
            let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
            if name.is_empty() || !name.chars().all(legal) {
                return Err(EmbeddedError::Invalid {
                    what: "PostgreSQL setting",
                    value: name.to_owned(),
                    advice: "its name consists of letters, digits, _ and .",
                });
            }
            if value.contains(['\n', '\r', '\0']) {
                return Err(EmbeddedError::Invalid {
                    what: "value of a PostgreSQL setting",
                    value: value.to_owned(),
                    advice: "it must be one line",
                });
            }
            let quoted = value.replace('\\', r"\\").replace('\'', "''");
            // Writing to a string can't fail.
            let _ = writeln!(text, "{name} = '{quoted}'");
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_quoted_and_checked() {
        let text = PostgresOptions::new()
            .fast()
            .setting("search_path", r"it's \here")
            .configuration()
            .unwrap();
        assert!(text.contains("fsync = 'off'\n"), "{text}");
        assert!(text.ends_with("search_path = 'it''s \\\\here'\n"), "{text}");
        assert!(!PostgresOptions::new().configuration().unwrap().contains("fsync"));
        for (name, value) in [("", "1"), ("a b", "1"), ("a", "1\nb = 2")] {
            assert!(
                PostgresOptions::new()
                    .setting(name, value)
                    .configuration()
                    .is_err(),
                "{name:?}"
            );
        }
    }
}
