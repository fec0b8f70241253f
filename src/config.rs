//! Settings: what they are, their defaults, and what makes them impossible.
//!
//! They are layered: defaults, then `twinbox.toml`, then variables (`TWINBOX_RELAY__PAGE_ROWS=500`; also
//! `DATABASE_URL` and `NATS_URL`), then what the program sets itself, such as flags.

mod consumer;
mod database;
mod known;
mod load;
mod nats;
mod pruner;
mod relay;
mod secret;
mod stream;
mod telemetry;

pub use consumer::{ConsumerSettings, SqlHandlerSettings, Unhandled};
pub use database::DatabaseSettings;
pub use load::{ConfigError, Loader};
pub use nats::NatsSettings;
pub use pruner::PrunerSettings;
pub use relay::RelaySettings;
pub use secret::SecretUrl;
pub use stream::{Retention, StreamSettings};
pub use telemetry::{LogFormat, TelemetrySettings};

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// All settings of a service.
///
/// ```
/// use twinbox::config::Settings;
///
/// let settings = Settings::default();
/// assert!(settings.validate().is_empty());
/// ```
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// PostgreSQL.
    pub database: DatabaseSettings,
    /// NATS.
    pub nats: NatsSettings,
    /// What runs, and how it ends.
    pub run: RunSettings,
    /// The outbox's relay.
    pub relay: RelaySettings,
    /// Streams that are created if absent and checked if present.
    pub streams: Vec<StreamSettings>,
    /// Consumers whose handlers are SQL; those in Rust are registered by the program.
    pub consumers: Vec<ConsumerSettings>,
    /// The pruner.
    pub pruner: PrunerSettings,
    /// Logs and traces.
    pub telemetry: TelemetrySettings,
}

/// A part of the service.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Publishes the outbox.
    Relay,
    /// Runs the consumers.
    Consumer,
    /// Removes what can no longer come again.
    Pruner,
}

/// What runs, and how it ends.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunSettings {
    /// The parts that run in this process.
    pub roles: Vec<Role>,
    /// Whether the schema is brought up to date at the start.
    pub migrate: bool,
    /// How long a shutdown may take before what is left is abandoned. Nothing is lost then, but done again.
    #[serde(with = "humantime_serde")]
    pub drain_deadline: Duration,
}

impl Default for RunSettings {
    fn default() -> Self {
        Self {
            roles: vec![Role::Relay, Role::Consumer, Role::Pruner],
            migrate: true,
            drain_deadline: Duration::from_secs(20),
        }
    }
}

/// A value that can't be, with the key it stands under and what would be possible.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Impossible {
    /// The key, such as `relay.page_rows`.
    pub key: String,
    /// What is wrong with its value and what would be right.
    pub fault: String,
}

impl std::fmt::Display for Impossible {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.key, self.fault)
    }
}

/// Collects what is impossible, so that all of it is told at once.
pub(crate) struct Check {
    section: String,
    faults: Vec<Impossible>,
}

impl Check {
    /// Goes on to another section of the settings.
    fn section(&mut self, section: impl Into<String>) -> &mut Self {
        self.section = section.into();
        self
    }

    /// Notes that `key` is at fault unless `holds`.
    fn require(&mut self, holds: bool, key: &str, fault: impl Into<String>) {
        if !holds {
            self.faults.push(Impossible {
                key: format!("{}.{key}", self.section),
                fault: fault.into(),
            });
        }
    }
}

impl Settings {
    /// All that is impossible in these settings; empty if nothing is.
    pub fn validate(&self) -> Vec<Impossible> {
        let mut check = Check {
            section: String::new(),
            faults: Vec::new(),
        };
        self.database.validate(check.section("database"));
        self.nats.validate(check.section("nats"));
        self.relay.validate(check.section("relay"));
        self.pruner.validate(check.section("pruner"));
        check.section("run").require(
            self.run.drain_deadline <= Duration::from_secs(24 * 3600),
            "drain_deadline",
            "must be at most 24h",
        );
        check.section("run").require(
            !self.run.roles.is_empty(),
            "roles",
            "is empty: name relay, consumer, pruner or some of them",
        );
        for (index, stream) in self.streams.iter().enumerate() {
            stream.validate(check.section(format!("streams[{index}]")));
        }
        for (index, consumer) in self.consumers.iter().enumerate() {
            consumer.validate(check.section(format!("consumers[{index}]")));
            let again = self.consumers[..index]
                .iter()
                .any(|earlier| earlier.name == consumer.name);
            check.require(!again, "name", format!("{:?} stands twice", consumer.name));
        }
        check.faults
    }
}
