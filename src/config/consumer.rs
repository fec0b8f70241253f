//! Consumers.

use super::{Check, Impossible};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The longest deadline of a handler. PostgreSQL counts its own in milliseconds, in 31 bits.
const LONGEST_DEADLINE: Duration = Duration::from_secs(60 * 60);

/// What happens to a message that no handler is registered for.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unhandled {
    /// It goes to the dead letters, so that nothing is overlooked.
    #[default]
    DeadLetter,
    /// It is acknowledged and forgotten.
    Skip,
}

/// A handler written in SQL.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SqlHandlerSettings {
    /// The subjects it handles; wildcards allowed. Default: all of the consumer's.
    #[serde(default = "all_subjects")]
    pub subject: String,
    /// The event kind it handles, by the `Event-Type` or `ce-type` header. Default: any.
    #[serde(default)]
    pub kind: Option<String>,
    /// The statement, run in the transaction of the claim. It may use `:id` (uuid), `:subject`, `:key` (text),
    /// `:headers` (jsonb), `:payload` (jsonb) and `:payload_bytes` (bytea).
    pub sql: String,
}

fn all_subjects() -> String {
    ">".to_owned()
}

/// A consumer: which messages it takes, and how it runs them.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConsumerSettings {
    /// Its name: the inbox's key, and the durable consumer's name on the server.
    pub name: String,
    /// The stream it reads.
    pub stream: String,
    /// The subjects it takes; wildcards allowed. Empty: all of the stream.
    pub subjects: Vec<String>,
    /// Lanes: how many transactions run at once. A key stays in its lane.
    pub lanes: u16,
    /// The most messages of one transaction.
    pub batch: u16,
    /// Messages taken from the server and not yet acknowledged. After a crash so many wait for `ack_wait` on the
    /// server; it allows four times as many before it holds back new ones.
    pub max_in_flight: u32,
    /// How long the server waits for an acknowledgement, or for word that the work goes on, before it hands the message
    /// out again.
    #[serde(with = "humantime_serde")]
    pub ack_wait: Duration,
    /// How long one message's handler may take. Past it the run has failed, and its connection is closed.
    #[serde(with = "humantime_serde")]
    pub handler_deadline: Duration,
    /// How often a message's handler runs before the message goes to the dead letters.
    pub max_attempts: u16,
    /// The pause before the second run; it doubles with each, up to `retry_max`.
    #[serde(with = "humantime_serde")]
    pub retry_min: Duration,
    /// The longest pause between two runs.
    #[serde(with = "humantime_serde")]
    pub retry_max: Duration,
    /// How long a batch waits for a lock that another transaction holds. It is lengthened while waiting is right.
    #[serde(with = "humantime_serde")]
    pub lock_timeout: Duration,
    /// What happens to a message that no handler is registered for.
    pub unhandled: Unhandled,
    /// How far back the producer may publish a message again: how long its outbox keeps rows. The inbox keeps ids at
    /// least as long.
    #[serde(with = "humantime_serde")]
    pub producer_retention: Duration,
    /// Handlers in SQL.
    pub handlers: Vec<SqlHandlerSettings>,
}

impl Default for ConsumerSettings {
    fn default() -> Self {
        Self {
            name: String::new(),
            stream: String::new(),
            subjects: Vec::new(),
            lanes: 4,
            batch: 100,
            max_in_flight: 1000,
            ack_wait: Duration::from_secs(30),
            handler_deadline: Duration::from_secs(10),
            max_attempts: 5,
            retry_min: Duration::from_millis(200),
            retry_max: Duration::from_secs(30),
            lock_timeout: Duration::from_millis(50),
            unhandled: Unhandled::DeadLetter,
            producer_retention: Duration::from_secs(3 * 24 * 3600),
            handlers: Vec::new(),
        }
    }
}

impl ConsumerSettings {
    /// All that is impossible in these settings; empty if nothing is.
    pub fn faults(&self) -> Vec<Impossible> {
        let mut check = Check {
            section: format!("consumer {}", self.name),
            faults: Vec::new(),
        };
        self.validate(&mut check);
        check.faults
    }

    pub(super) fn validate(&self, check: &mut Check) {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        check.require(
            !self.name.is_empty() && self.name.len() <= 64 && self.name.chars().all(legal),
            "name",
            "must be letters, digits, - and _, at most 64",
        );
        check.require(
            !self.stream.is_empty(),
            "stream",
            "is empty: name the stream to read",
        );
        check.require(
            (1..=256).contains(&self.lanes),
            "lanes",
            "must be between 1 and 256",
        );
        // Each claim takes an advisory lock, from a table that all sessions share.
        check.require(
            (1..=500).contains(&self.batch),
            "batch",
            "must be between 1 and 500",
        );
        check.require(
            u64::from(self.max_in_flight) >= u64::from(self.batch),
            "max_in_flight",
            "must be at least batch",
        );
        check.require(
            self.max_in_flight <= 100_000,
            "max_in_flight",
            "must be at most 100000",
        );
        check.require(
            self.ack_wait >= Duration::from_secs(1),
            "ack_wait",
            "must be at least 1s",
        );
        check.require(
            !self.handler_deadline.is_zero() && self.handler_deadline <= LONGEST_DEADLINE,
            "handler_deadline",
            "must be more than 0s and at most 1h",
        );
        check.require(
            self.ack_wait > self.handler_deadline,
            "ack_wait",
            "must be longer than handler_deadline, or messages are handed out again while they run",
        );
        check.require(self.max_attempts >= 1, "max_attempts", "must be at least 1");
        check.require(!self.retry_min.is_zero(), "retry_min", "must be more than 0s");
        check.require(
            self.retry_max >= self.retry_min,
            "retry_max",
            "must not be below retry_min",
        );
        check.require(
            (Duration::from_millis(1)..=LONGEST_DEADLINE).contains(&self.lock_timeout),
            "lock_timeout",
            "must be between 1ms and 1h",
        );
        for (index, handler) in self.handlers.iter().enumerate() {
            let key = format!("handlers[{index}].sql");
            check.require(!handler.sql.trim().is_empty(), &key, "is empty");
        }
    }
}
