//! What can go wrong with the database.

use super::{Fault, fault_of};

/// An error of the database or of the way to it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The address can't be read.
    #[error("the database URL can't be read: it looks like postgres://user:password@host:5432/database")]
    Url(#[source] sqlx::Error),
    /// PostgreSQL or the network.
    #[error("the database: {0}")]
    Database(#[from] sqlx::Error),
    /// A migration.
    #[error("migrating the database")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// Somebody else is migrating and does not come to an end.
    #[error(
        "another process has been migrating schema {schema} for {waited_s} s: see pg_locks for the advisory lock's holder"
    )]
    MigrationLock {
        /// The schema.
        schema: String,
        /// How long this one waited, in seconds.
        waited_s: u64,
    },
    /// A standby, where a snapshot does not tell what is uncommitted.
    #[error("the database is a standby (pg_is_in_recovery): give the primary's address")]
    Standby,
    /// The schema is missing or of another version.
    #[error("schema {schema} has no twinbox tables of this version: run `twinbox migrate`")]
    NotMigrated {
        /// The schema.
        schema: String,
    },
}

impl StoreError {
    /// Of what kind it is: whether waiting helps, and whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Database(error) => fault_of(error),
            Self::Migrate(sqlx::migrate::MigrateError::Execute(error)) => fault_of(error),
            Self::Standby => Fault::Infrastructure,
            Self::MigrationLock { .. } => Fault::Conflict,
            Self::Url(_) | Self::Migrate(_) | Self::NotMigrated { .. } => Fault::Systemic,
        }
    }
}
