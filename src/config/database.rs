//! PostgreSQL.

use super::{Check, SecretUrl};
use crate::store::Schema;
use secrecy::ExposeSecret as _;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How PostgreSQL is reached.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct DatabaseSettings {
    /// `postgres://user:password@host:5432/database`, the primary's.
    pub url: SecretUrl,
    /// The address past a connection pooler, for what needs a session: migrations and LISTEN. Default: `url`.
    pub direct_url: Option<SecretUrl>,
    /// The schema that holds twinbox's tables and functions.
    pub schema: Schema,
    /// Connections of twinbox's own pool.
    pub max_connections: u32,
    /// How long to wait for a free connection.
    #[serde(with = "humantime_serde")]
    pub acquire_timeout: Duration,
    /// Set it behind a pooler that gives a connection for a transaction only (pgbouncer in transaction mode).
    pub transaction_pooler: bool,
    /// After what time PostgreSQL ends a session that does nothing inside a transaction, so that a host that
    /// vanished does not hold claims and locks.
    #[serde(with = "humantime_serde")]
    pub idle_in_transaction_timeout: Duration,
}

impl Default for DatabaseSettings {
    fn default() -> Self {
        Self {
            url: "postgres://localhost:5432/postgres".into(),
            direct_url: None,
            schema: Schema::default(),
            max_connections: 12,
            acquire_timeout: Duration::from_secs(10),
            transaction_pooler: false,
            idle_in_transaction_timeout: Duration::from_secs(30),
        }
    }
}

impl DatabaseSettings {
    pub(super) fn validate(&self, check: &mut Check) {
        let is_postgres = |url: &SecretUrl| {
            let url = url.expose_secret();
            url.starts_with("postgres://") || url.starts_with("postgresql://")
        };
        let form = "must look like postgres://user:password@host:5432/database";
        check.require(is_postgres(&self.url), "url", form);
        check.require(
            self.direct_url.as_ref().is_none_or(is_postgres),
            "direct_url",
            form,
        );
        check.require(
            self.max_connections >= 4,
            "max_connections",
            "must be at least 4: the relay alone takes 2",
        );
        check.require(
            !self.acquire_timeout.is_zero(),
            "acquire_timeout",
            "must be more than 0s",
        );
        check.require(
            self.idle_in_transaction_timeout >= Duration::from_secs(1),
            "idle_in_transaction_timeout",
            "must be at least 1s",
        );
    }
}
