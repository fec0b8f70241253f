//! The poll: one statement that reads and writes nothing, whatever it finds.

use super::cursor::{Reach, horizon};
use crate::dead_letter::Origin;
use crate::store::Store;
use sqlx::{PgConnection, Row as _, SqlStr};

/// What a poll sees.
#[derive(Debug)]
pub(crate) struct Seen {
    /// There are rows that `settled` does not see.
    pub(crate) found: bool,
    /// There are dead letters of this relay.
    pub(crate) letters: bool,
    /// Some of them were requeued.
    pub(crate) requeued: bool,
    /// The last id that the sequence gave out: the floor of a snapshot that is taken after this.
    pub(crate) last_id: i64,
    /// The database is a standby, where a snapshot does not tell what is uncommitted.
    pub(crate) standby: bool,
    /// The relay's row, to see that it is what its holder wrote last.
    pub(crate) epoch: i64,
    pub(crate) settled: String,
    pub(crate) target: Option<String>,
    pub(crate) same_cluster: bool,
}

/// The poll's statement.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    prepared: bool,
    statement: SqlStr,
}

impl Look {
    pub(crate) fn new(store: &Store) -> Self {
        Self {
            prepared: store.prepared(),
            // Both halves ask for the first row in an index's order: there is no plan for it but to begin there, which is
            // why this statement may be prepared. A late transaction is looked into only once it has ended.
            statement: store.sql(
                "SELECT r.epoch, r.settled::text, r.target::text, pg_is_in_recovery() AS standby,
                        r.cluster = (SELECT system_identifier::text FROM pg_control_system()) AS same_cluster,
                        (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {s}.outbox_id_seq) AS last_id,
                        EXISTS (SELECT FROM {s}.dead_letter WHERE box = $2 AND owner = $1) AS letters,
                        EXISTS (SELECT FROM {s}.dead_letter
                                WHERE box = $2 AND owner = $1 AND state = 'requeued') AS requeued,
                        (SELECT o.id FROM {s}.outbox AS o
                         WHERE o.id > $3 AND NOT pg_visible_in_snapshot(o.xid, $4::text::pg_snapshot)
                         ORDER BY o.id LIMIT 1) IS NOT NULL
                        OR EXISTS (
                            SELECT FROM unnest($5::text[]) AS x (xid) CROSS JOIN LATERAL (
                                SELECT o.id FROM {s}.outbox AS o
                                WHERE (o.xid, o.id) > (x.xid::xid8, 0)
                                  AND (o.xid, o.id) <= (x.xid::xid8, 9223372036854775807)
                                ORDER BY o.xid, o.id LIMIT 1) AS late
                            WHERE pg_visible_in_snapshot(x.xid::xid8, pg_current_snapshot())) AS found
                 FROM {s}.relay AS r WHERE r.name = $1",
            ),
        }
    }

    #[cfg(test)]
    pub(crate) fn statement_text(&self) -> String {
        self.statement.as_str().to_owned()
    }

    /// Polls; `None` where the relay has no row.
    pub(crate) async fn look(
        &self,
        connection: &mut PgConnection,
        relay: &str,
        settled: &Reach,
    ) -> sqlx::Result<Option<Seen>> {
        let running: Vec<String> = settled.snapshot.running().iter().map(u64::to_string).collect();
        let row = sqlx::query(self.statement.clone())
            .persistent(self.prepared)
            .bind(relay)
            .bind(Origin::Outbox.name())
            .bind(settled.floor)
            .bind(horizon(&settled.snapshot))
            .bind(running)
            .fetch_optional(connection)
            .await?;
        row.map(|row| {
            Ok(Seen {
                found: row.try_get("found")?,
                letters: row.try_get("letters")?,
                requeued: row.try_get("requeued")?,
                last_id: row.try_get("last_id")?,
                standby: row.try_get("standby")?,
                epoch: row.try_get("epoch")?,
                settled: row.try_get("settled")?,
                target: row.try_get("target")?,
                same_cluster: row.try_get("same_cluster")?,
            })
        })
        .transpose()
    }
}
