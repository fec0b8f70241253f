//! The tables `relay` and `relay_asleep`: the cursor, the lease, and whether an enqueue has to wake the relay.
//!
//! Every write but the taking of the lease is *fenced*: it names the epoch under which the writer holds the lease, and
//! changes nothing if somebody has taken it since. Times are the database's own.

use super::cursor::{Cursor, Reach};
use super::snapshot::Snapshot;
use crate::store::{Schema, Store};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _, SqlStr};
use std::time::Duration;

/// Who holds the lease of a relay.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    /// The database is a standby, where nobody can lead.
    pub(crate) in_recovery: bool,
    pub(crate) holder: Option<String>,
    /// Nobody holds it, or only on paper.
    pub(crate) free: bool,
}

/// What a new holder finds.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) epoch: i64,
    pub(crate) cursor: Cursor,
    /// Duplicates among rows up to this id are looked up.
    pub(crate) verify_through: i64,
}

/// What is saved together with a cursor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Saving {
    /// Rows published since the last save.
    pub(crate) published: i64,
    /// How long the lease is to last from now on.
    pub(crate) lease: Duration,
}

/// The statements on one relay's row.
#[derive(Clone, Debug)]
pub(crate) struct RelayTable {
    name: String,
    prepared: bool,
    standing: SqlStr,
    create: SqlStr,
    take: SqlStr,
    fence: SqlStr,
    save: SqlStr,
    aim: SqlStr,
    rewind: SqlStr,
    release: SqlStr,
    fall_asleep: SqlStr,
    wake: SqlStr,
}

impl RelayTable {
    pub(crate) fn new(store: &Store, name: &str) -> Self {
        let schema: &Schema = store.schema();
        Self {
            name: name.to_owned(),
            prepared: store.prepared(),
            standing: schema.sql(
                "SELECT pg_is_in_recovery() AS in_recovery, r.holder,
                        coalesce(r.lease_until <= clock_timestamp(), true) AS free
                 FROM (SELECT) AS one LEFT JOIN {s}.relay AS r ON r.name = $1",
            ),
            create: schema.sql(
                "INSERT INTO {s}.relay (name, cluster) SELECT $1, system_identifier::text FROM pg_control_system()
                 ON CONFLICT (name) DO NOTHING",
            ),
            take: schema.sql(
                "UPDATE {s}.relay
                 SET holder = $2, epoch = epoch + 1, updated_at = now(),
                     lease_until = clock_timestamp() + make_interval(secs => $3)
                 WHERE name = $1 AND (lease_until <= clock_timestamp() OR holder = $2)
                 RETURNING epoch, settled::text, floor, target::text, target_floor, position, verify_through",
            ),
            // FOR SHARE keeps the row, and so the epoch, until this transaction ends.
            fence: schema.sql("SELECT true FROM {s}.relay WHERE name = $1 AND epoch = $2 FOR SHARE"),
            save: schema.sql(
                "UPDATE {s}.relay
                 SET settled = $3::text::pg_snapshot, floor = $4, target = $5::text::pg_snapshot, target_floor = $6,
                     position = $7, published = published + $8, updated_at = now(),
                     lease_until = clock_timestamp() + make_interval(secs => $9)
                 WHERE name = $1 AND epoch = $2",
            ),
            aim: schema.sql(
                "UPDATE {s}.relay
                 SET settled = $3::text::pg_snapshot, floor = $4, target = pg_current_snapshot(), target_floor = $5,
                     position = 0, published = published + $6, updated_at = now(),
                     lease_until = clock_timestamp() + make_interval(secs => $7)
                 WHERE name = $1 AND epoch = $2
                 RETURNING target::text",
            ),
            rewind: schema.sql(
                "UPDATE {s}.relay
                 SET settled = $3::text::pg_snapshot, floor = $4, target = NULL, target_floor = NULL, position = 0,
                     verify_through = greatest(verify_through, $5), published = published + $6, updated_at = now(),
                     lease_until = clock_timestamp() + make_interval(secs => $7)
                 WHERE name = $1 AND epoch = $2
                 RETURNING verify_through",
            ),
            release: schema.sql(
                "UPDATE {s}.relay SET holder = NULL, lease_until = '-infinity' WHERE name = $1 AND epoch = $2",
            ),
            fall_asleep: schema.sql("INSERT INTO {s}.relay_asleep (relay) VALUES ($1) ON CONFLICT DO NOTHING"),
            wake: schema.sql("DELETE FROM {s}.relay_asleep WHERE relay = $1"),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Who holds the lease. A relay that has no row yet is free.
    pub(crate) async fn standing(&self, connection: &mut PgConnection) -> sqlx::Result<Standing> {
        let row = sqlx::query(self.standing.clone())
            .persistent(self.prepared)
            .bind(&self.name)
            .fetch_one(connection)
            .await?;
        Ok(Standing {
            in_recovery: row.try_get("in_recovery")?,
            holder: row.try_get("holder")?,
            free: row.try_get("free")?,
        })
    }

    /// Makes the relay's row if it has none: it begins at the beginning of the log.
    pub(crate) async fn create(&self, connection: &mut PgConnection) -> sqlx::Result<()> {
        sqlx::query(self.create.clone())
            .persistent(self.prepared)
            .bind(&self.name)
            .execute(connection)
            .await?;
        Ok(())
    }

    /// Takes the lease if it is free, or held by the same holder under an older epoch. `None`: somebody else has it.
    pub(crate) async fn take(
        &self,
        connection: &mut PgConnection,
        holder: &str,
        lease: Duration,
    ) -> sqlx::Result<Option<Taken>> {
        let row = sqlx::query(self.take.clone())
            .persistent(self.prepared)
            .bind(&self.name)
            .bind(holder)
            .bind(lease.as_secs_f64())
            .fetch_optional(connection)
            .await?;
        row.map(|row| {
            Ok(Taken {
                epoch: row.try_get("epoch")?,
                cursor: cursor_of(&row)?,
                verify_through: row.try_get("verify_through")?,
            })
        })
        .transpose()
    }

    /// Whether the epoch still holds; if so, it does until the transaction ends.
    pub(crate) async fn fence(&self, connection: &mut PgConnection, epoch: i64) -> sqlx::Result<bool> {
        let held = sqlx::query(self.fence.clone())
            .persistent(self.prepared)
            .bind(&self.name)
            .bind(epoch)
            .fetch_optional(connection)
            .await?;
        Ok(held.is_some())
    }

    /// Saves the cursor and prolongs the lease. `false`: the epoch is over.
    pub(crate) async fn save(
        &self,
        connection: &mut PgConnection,
        epoch: i64,
        cursor: &Cursor,
        saving: Saving,
    ) -> sqlx::Result<bool> {
        let target = cursor.target.as_ref();
        let done = sqlx::query(self.save.clone())
            .persistent(self.prepared)
            .bind(&self.name)
            .bind(epoch)
            .bind(cursor.settled.snapshot.to_string())
            .bind(cursor.settled.floor)
            .bind(target.map(|target| target.snapshot.to_string()))
            .bind(target.map(|target| target.floor))
            .bind(cursor.position)
            .bind(saving.published)
            .bind(saving.lease.as_secs_f64())
            .execute(connection)
            .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Saves what is settled, makes the statement's own snapshot the target, and prolongs the lease. `None`: the epoch is
    /// over. `floor` must have been read before a transaction id was given out to a transaction that has ended by now.
    pub(crate) async fn aim(
        &self,
        connection: &mut PgConnection,
        epoch: i64,
        settled: &Reach,
        floor: i64,
        saving: Saving,
    ) -> sqlx::Result<Option<Snapshot>> {
        let row = sqlx::query(self.aim.clone())
            .persistent(self.prepared)
            .bind(&self.name)
            .bind(epoch)
            .bind(settled.snapshot.to_string())
            .bind(settled.floor)
            .bind(floor)
            .bind(saving.published)
            .bind(saving.lease.as_secs_f64())
            .fetch_optional(connection)
            .await?;
        row.map(|row| snapshot_of(&row, "target")).transpose()
    }

    /// Goes back in the log. Returns up to which id duplicates are looked up; `None`: the epoch is over.
    pub(crate) async fn rewind(
        &self,
        connection: &mut PgConnection,
        epoch: i64,
        to: &Reach,
        verify_through: i64,
        saving: Saving,
    ) -> sqlx::Result<Option<i64>> {
        sqlx::query_scalar(self.rewind.clone())
            .persistent(self.prepared)
            .bind(&self.name)
            .bind(epoch)
            .bind(to.snapshot.to_string())
            .bind(to.floor)
            .bind(verify_through)
            .bind(saving.published)
            .bind(saving.lease.as_secs_f64())
            .fetch_optional(connection)
            .await
    }

    /// Gives the lease back. `false`: the epoch is over.
    pub(crate) async fn release(&self, connection: &mut PgConnection, epoch: i64) -> sqlx::Result<bool> {
        let done = sqlx::query(self.release.clone())
            .persistent(self.prepared)
            .bind(&self.name)
            .bind(epoch)
            .execute(connection)
            .await?;
        Ok(done.rows_affected() == 1)
    }

    /// From now on every enqueue notifies.
    pub(crate) async fn fall_asleep(&self, connection: &mut PgConnection) -> sqlx::Result<()> {
        self.mark(&self.fall_asleep, connection).await
    }

    /// From now on no enqueue notifies for this relay.
    pub(crate) async fn wake(&self, connection: &mut PgConnection) -> sqlx::Result<()> {
        self.mark(&self.wake, connection).await
    }

    async fn mark(&self, statement: &SqlStr, connection: &mut PgConnection) -> sqlx::Result<()> {
        sqlx::query(statement.clone())
            .persistent(self.prepared)
            .bind(&self.name)
            .execute(connection)
            .await?;
        Ok(())
    }
}

/// Whether a relay's transaction ids come from another cluster.
pub(crate) async fn is_restored(connection: &mut PgConnection, store: &Store) -> sqlx::Result<bool> {
    sqlx::query_scalar(store.sql(
        "SELECT EXISTS (SELECT FROM {s}.relay
                        WHERE cluster <> (SELECT system_identifier::text FROM pg_control_system()))",
    ))
    .persistent(false)
    .fetch_one(connection)
    .await
}

/// Sets the cursors of all relays after a restore. The epochs rise, so that who held a lease in the other cluster
/// begins anew.
pub(crate) async fn rebase_all(
    connection: &mut PgConnection,
    store: &Store,
    cluster: &str,
    settled: &Reach,
) -> sqlx::Result<u64> {
    let done = sqlx::query(store.sql(
        "UPDATE {s}.relay
         SET cluster = $1, settled = $2::text::pg_snapshot, floor = $3, target = NULL, target_floor = NULL, position = 0,
             epoch = epoch + 1, holder = NULL, lease_until = '-infinity', updated_at = now()",
    ))
    .persistent(false)
    .bind(cluster)
    .bind(settled.snapshot.to_string())
    .bind(settled.floor)
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}

fn cursor_of(row: &PgRow) -> sqlx::Result<Cursor> {
    let target = match row.try_get::<Option<String>, _>("target")? {
        Some(_) => Some(Reach {
            snapshot: snapshot_of(row, "target")?,
            floor: row.try_get("target_floor")?,
        }),
        None => None,
    };
    Ok(Cursor {
        settled: Reach {
            snapshot: snapshot_of(row, "settled")?,
            floor: row.try_get("floor")?,
        },
        target,
        position: row.try_get("position")?,
    })
}

/// A snapshot in a column of text.
pub(crate) fn snapshot_of(row: &PgRow, column: &str) -> sqlx::Result<Snapshot> {
    row.try_get::<&str, _>(column)?
        .parse()
        .map_err(
            |error: super::snapshot::InvalidSnapshot| sqlx::Error::ColumnDecode {
                index: column.to_owned(),
                source: Box::new(error),
            },
        )
}

pub(crate) use status::{RelayRow, all};

mod status {
    use super::{Cursor, PgConnection, Store, cursor_of};
    use sqlx::Row as _;
    use time::OffsetDateTime;

    /// A relay's row, for those who look on.
    #[derive(Clone, Debug)]
    pub(crate) struct RelayRow {
        pub(crate) name: String,
        pub(crate) cursor: Cursor,
        pub(crate) holder: Option<String>,
        pub(crate) epoch: i64,
        /// `None`: never held, or given back.
        pub(crate) lease_until: Option<OffsetDateTime>,
        pub(crate) leased: bool,
        pub(crate) published: i64,
        pub(crate) asleep: bool,
        pub(crate) same_cluster: bool,
        /// The statement's own snapshot.
        pub(crate) now: super::Snapshot,
    }

    pub(crate) async fn all(connection: &mut PgConnection, store: &Store) -> sqlx::Result<Vec<RelayRow>> {
        let rows = sqlx::query(store.sql(
            "SELECT r.name, r.settled::text, r.floor, r.target::text, r.target_floor, r.position, r.holder, r.epoch,
                    CASE WHEN isfinite(r.lease_until) THEN r.lease_until END AS lease_until,
                    r.lease_until > clock_timestamp() AS leased, r.published,
                    EXISTS (SELECT FROM {s}.relay_asleep AS a WHERE a.relay = r.name) AS asleep,
                    r.cluster = (SELECT system_identifier::text FROM pg_control_system()) AS same_cluster,
                    pg_current_snapshot()::text AS now
             FROM {s}.relay AS r ORDER BY r.name",
        ))
        .persistent(false)
        .fetch_all(connection)
        .await?;
        rows.iter()
            .map(|row| {
                Ok(RelayRow {
                    name: row.try_get("name")?,
                    cursor: cursor_of(row)?,
                    holder: row.try_get("holder")?,
                    epoch: row.try_get("epoch")?,
                    lease_until: row.try_get("lease_until")?,
                    leased: row.try_get("leased")?,
                    published: row.try_get("published")?,
                    asleep: row.try_get("asleep")?,
                    same_cluster: row.try_get("same_cluster")?,
                    now: super::snapshot_of(row, "now")?,
                })
            })
            .collect()
    }
}
