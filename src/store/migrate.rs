//! Bringing the schema up to date.

use super::{Store, StoreError};
use sqlx::migrate::{Migrate as _, Migrator};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection};
use std::time::{Duration, Instant};

static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// How long to wait for another process that is migrating.
const LOCK_DEADLINE: Duration = Duration::from_secs(60);
/// How often to try for the lock.
const LOCK_RETRY: Duration = Duration::from_millis(100);

/// What the database has, and what this version of twinbox brings.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Serialize)]
pub struct MigrationState {
    /// Migrations of this version that are applied.
    pub applied: usize,
    /// Migrations that this version brings.
    pub known: usize,
    /// Migrations that a newer version applied.
    pub newer: usize,
}

impl MigrationState {
    /// Whether this version can run on the database.
    pub fn is_current(&self) -> bool {
        self.applied == self.known
    }
}

/// Creates the schema if it is absent and applies what is missing. Safe to call from several processes at once.
///
/// The lock is tried for, never waited for: a session that waits in `pg_advisory_lock` deadlocks with the holder's
/// `CREATE INDEX CONCURRENTLY`, which waits for every older snapshot. Migrations of a newer version are left alone,
/// so that an older process can start beside it.
///
/// # Errors
/// [`StoreError::MigrationLock`] where another process does not come to an end, else what PostgreSQL said.
pub async fn migrate(store: &Store) -> Result<MigrationState, StoreError> {
    let mut connection = store.direct().connect().await?;
    lock(&mut connection, store).await?;
    let migrated = migrate_locked(&mut connection, store).await;
    // The lock is the session's: closing gives it back whatever happened.
    connection.close().await.ok();
    migrated
}

async fn lock(connection: &mut PgConnection, store: &Store) -> Result<(), StoreError> {
    let begun = Instant::now();
    let key = format!("twinbox migration of {}", store.schema().name());
    loop {
        let locked: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock(hashtextextended($1, 0))")
            .bind(&key)
            .fetch_one(&mut *connection)
            .await?;
        if locked {
            return Ok(());
        }
        if begun.elapsed() > LOCK_DEADLINE {
            return Err(StoreError::MigrationLock {
                schema: store.schema().name().to_owned(),
                waited_s: LOCK_DEADLINE.as_secs(),
            });
        }
        tokio::time::sleep(LOCK_RETRY).await;
    }
}

async fn migrate_locked(connection: &mut PgConnection, store: &Store) -> Result<MigrationState, StoreError> {
    let exists: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)")
        .bind(store.schema().name())
        .fetch_one(&mut *connection)
        .await?;
    if !exists {
        // Asked first, since IF NOT EXISTS wants the right to create schemas even where there is nothing to do.
        sqlx::raw_sql(store.sql("CREATE SCHEMA {s}"))
            .execute(&mut *connection)
            .await?;
    }
    sqlx::raw_sql(store.sql("SET search_path TO {s}"))
        .execute(&mut *connection)
        .await?;
    let mut migrator = Migrator::with_migrations(MIGRATIONS.iter().cloned().collect());
    migrator.set_locking(false).set_ignore_missing(true);
    // Hidden in the docs, made for this: a reference to a connection in a future that has to be `Send`.
    migrator.run_direct(None, &mut *connection, false).await?;
    state_of(connection).await
}

/// What the database has, without changing it.
///
/// # Errors
/// What PostgreSQL or the network said.
pub async fn migration_state(store: &Store) -> Result<MigrationState, StoreError> {
    let mut connection = store.direct().connect().await?;
    let known = MIGRATIONS.iter().count();
    let table: Option<String> = sqlx::query_scalar("SELECT to_regclass($1)::text")
        .bind(format!("{}._sqlx_migrations", store.schema().quoted()))
        .fetch_one(&mut connection)
        .await?;
    if table.is_none() {
        return Ok(MigrationState {
            applied: 0,
            known,
            newer: 0,
        });
    }
    sqlx::raw_sql(store.sql("SET search_path TO {s}"))
        .execute(&mut connection)
        .await?;
    state_of(&mut connection).await
}

async fn state_of(connection: &mut PgConnection) -> Result<MigrationState, StoreError> {
    let applied = connection.list_applied_migrations("_sqlx_migrations").await?;
    let known = applied
        .iter()
        .filter(|migration| MIGRATIONS.version_exists(migration.version))
        .count();
    Ok(MigrationState {
        applied: known,
        known: MIGRATIONS.iter().count(),
        newer: applied.len() - known,
    })
}
