//! PostgreSQL: the pool, the one place where transactions begin, migrations, and what SQL the boxes share.

mod error;
mod migrate;
mod outbox_row;
mod schema;
mod sqlstate;
mod transaction;

pub use error::StoreError;
pub use migrate::{MigrationState, migrate, migration_state};
pub(crate) use outbox_row::{OutboxInsert, OutboxRow};
pub use schema::{InvalidSchema, Schema};
pub use sqlstate::{Fault, fault_of};

use crate::config::DatabaseSettings;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, SqlStr};
use std::str::FromStr as _;

/// The database as both boxes see it: a pool of twinbox's own, and the schema its objects live in.
///
/// The pool belongs to the runtime that made it. It is not the application's pool: what an application does with
/// its connections (a future dropped while a transaction begins, for one) must not reach twinbox's.
#[derive(Clone, Debug)]
pub struct Store {
    pool: PgPool,
    schema: Schema,
    prepared: bool,
    direct: PgConnectOptions,
}

impl Store {
    /// Opens the pool and one connection, to see that the database answers.
    ///
    /// # Errors
    /// [`StoreError::Url`] for an address that can't be read, else what PostgreSQL or the network said.
    pub async fn connect(settings: &DatabaseSettings) -> Result<Self, StoreError> {
        let store = Self::connect_lazily(settings)?;
        // Past the pool, which tries until its time is over and then does not say why it failed.
        store.pool.connect_options().connect().await?.close().await?;
        Ok(store)
    }

    /// The same without connecting: the first use does, so that a service can start while its database is away.
    ///
    /// # Errors
    /// [`StoreError::Url`] for an address that can't be read.
    pub fn connect_lazily(settings: &DatabaseSettings) -> Result<Self, StoreError> {
        use secrecy::ExposeSecret as _;
        let parse = |url: &str| PgConnectOptions::from_str(url).map_err(StoreError::Url);
        let pooled = parse(settings.url.expose_secret())?.application_name("twinbox");
        let direct = match &settings.direct_url {
            Some(url) => parse(url.expose_secret())?.application_name("twinbox"),
            None => pooled.clone(),
        };
        // Behind a transaction pooler start-up options are refused or dropped, and only unnamed statements work.
        let prepared = !settings.transaction_pooler;
        let pooled = if prepared {
            pooled.options([
                // A session whose peer died inside a transaction must not hold claims and locks for ever.
                (
                    "idle_in_transaction_session_timeout",
                    settings.idle_in_transaction_timeout.as_millis().to_string(),
                ),
                ("client_connection_check_interval", "5000".to_owned()),
            ])
        } else {
            pooled.statement_cache_capacity(0)
        };
        let pool = PgPoolOptions::new()
            .max_connections(settings.max_connections)
            .acquire_timeout(settings.acquire_timeout)
            .connect_lazy_with(pooled);
        Ok(Self {
            pool,
            schema: settings.schema.clone(),
            prepared,
            direct,
        })
    }

    /// The pool, for statements that need no transaction: reads, and single writes that may be lost.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// The schema that holds twinbox's objects.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// How to reach the database past any pooler: LISTEN and migrations need a session of their own.
    pub fn direct(&self) -> &PgConnectOptions {
        &self.direct
    }

    /// Whether named prepared statements may be used; pass it to `persistent()` of every query.
    pub fn prepared(&self) -> bool {
        self.prepared
    }

    /// A statement with `{s}` replaced by the schema's quoted name. Values are bound, never written in.
    pub fn sql(&self, template: &str) -> SqlStr {
        self.schema.sql(template)
    }

    /// Closes the pool: waits until every connection is back.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}
