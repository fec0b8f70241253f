//! Claiming messages: the statement that decides every race.

use super::delivery::Delivery;
use crate::store::Store;
use sqlx::{PgConnection, Row as _, SqlStr};
use std::collections::{HashMap, HashSet};
use time::OffsetDateTime;
use uuid::Uuid;

/// What became of a claim.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Claim {
    /// It is this transaction's.
    Claimed,
    /// It was handled before.
    Duplicate,
    /// Another transaction is at it.
    Busy,
}

/// What the claim of a batch told.
#[derive(Debug)]
pub(super) struct Claims {
    claimed: HashSet<Uuid>,
    busy: Vec<Uuid>,
    /// The transaction that holds the claims.
    pub(super) transaction_id: String,
    /// The process of the server that runs it.
    pub(super) backend: i32,
    /// Whether the consumer has dead letters, so that keys may be quarantined.
    pub(super) has_dead_letters: bool,
    /// Ids older than this may have been forgotten.
    pub(super) forgotten_before: OffsetDateTime,
}

impl Claims {
    /// What became of a message that is no letter.
    pub(super) fn of(&self, id: Uuid) -> Claim {
        if self.claimed.contains(&id) {
            Claim::Claimed
        } else if self.busy.contains(&id) {
            Claim::Busy
        } else {
            Claim::Duplicate
        }
    }
}

/// The inbox of one consumer.
#[derive(Clone, Debug)]
pub(super) struct Inbox {
    pub(super) consumer: i32,
    pub(super) name: String,
    prepared: bool,
    claim: SqlStr,
    seen_later: SqlStr,
    handled: SqlStr,
    count: SqlStr,
}

impl Inbox {
    pub(super) fn new(store: &Store, consumer: i32, name: &str) -> Self {
        Self {
            consumer,
            name: name.to_owned(),
            prepared: store.prepared(),
            // The advisory lock tells a twin that is at work apart from one that is done, without waiting for it. Ids are
            // inserted in order, so that two batches can't wait for each other in a circle.
            claim: store.sql(
                "WITH wanted AS MATERIALIZED (
                    SELECT w.id, w.sequence, w.stream,
                           pg_try_advisory_xact_lock(uuid_hash_extended(w.id, $1::bigint)) AS free
                    FROM unnest($2::uuid[], $3::bigint[], $4::integer[]) AS w (id, sequence, stream)),
                 claimed AS (
                    INSERT INTO {s}.inbox (message_id, sequence, consumer, stream)
                    SELECT id, sequence, $1, stream FROM wanted WHERE free ORDER BY id
                    ON CONFLICT DO NOTHING RETURNING message_id)
                 SELECT (SELECT array_agg(message_id) FROM claimed) AS claimed,
                        (SELECT array_agg(id) FROM wanted WHERE NOT free) AS busy,
                        pg_current_xact_id()::text AS transaction_id, pg_backend_pid() AS backend,
                        EXISTS (SELECT FROM {s}.dead_letter WHERE box = 'inbox' AND owner = $5) AS has_dead_letters,
                        (SELECT forgotten_before FROM {s}.consumer WHERE id = $1) AS forgotten_before",
            ),
            // A second copy that stands later in the stream can come again for longer than the first.
            seen_later: store.sql(
                "UPDATE {s}.inbox AS i SET sequence = d.sequence, stream = d.stream
                 FROM unnest($2::uuid[], $3::bigint[], $4::integer[]) AS d (id, sequence, stream)
                 WHERE i.consumer = $1 AND i.message_id = d.id
                   AND (i.stream, i.sequence) < (d.stream, d.sequence)",
            ),
            handled: store.sql(
                "SELECT message_id FROM {s}.inbox WHERE consumer = $1 AND message_id = ANY ($2)",
            ),
            // Asked last: whether this still is the transaction that holds the claims. In one that was aborted it fails.
            count: store.sql(
                "WITH counted AS (
                    INSERT INTO {s}.consumer_counter AS c
                        (consumer, instance, lane, claimed, duplicates, retries, dead)
                    SELECT $1, $2, $3, $4, $5, $6, $7 WHERE $4 + $5 + $6 + $7 > 0
                    ON CONFLICT (consumer, instance, lane) DO UPDATE SET
                        claimed = c.claimed + excluded.claimed, duplicates = c.duplicates + excluded.duplicates,
                        retries = c.retries + excluded.retries, dead = c.dead + excluded.dead,
                        updated_at = now())
                 SELECT pg_current_xact_id_if_assigned()::text AS transaction_id,
                        (SELECT forgotten_before FROM {s}.consumer WHERE id = $1) AS forgotten_before",
            ),
        }
    }

    /// Claims messages, each id once.
    pub(super) async fn claim(
        &self,
        connection: &mut PgConnection,
        deliveries: &[Delivery],
    ) -> sqlx::Result<Claims> {
        let mut places: HashMap<Uuid, (i64, i32)> = HashMap::with_capacity(deliveries.len());
        for delivery in deliveries.iter().filter(|delivery| delivery.letter.is_none()) {
            let place = (delivery.sequence(), delivery.stream);
            places
                .entry(delivery.id())
                .and_modify(|known| *known = place.max(*known))
                .or_insert(place);
        }
        let (ids, sequences, streams) = columns(places.into_iter());
        let row = sqlx::query(self.claim.clone())
            .persistent(self.prepared)
            .bind(self.consumer)
            .bind(&ids)
            .bind(&sequences)
            .bind(&streams)
            .bind(&self.name)
            .fetch_one(&mut *connection)
            .await?;
        let ids = |name| {
            row.try_get::<Option<Vec<Uuid>>, _>(name)
                .map(Option::unwrap_or_default)
        };
        Ok(Claims {
            claimed: ids("claimed")?.into_iter().collect(),
            busy: ids("busy")?,
            transaction_id: row.try_get("transaction_id")?,
            backend: row.try_get("backend")?,
            has_dead_letters: row.try_get("has_dead_letters")?,
            forgotten_before: row.try_get("forgotten_before")?,
        })
    }

    /// Notes where duplicates were last seen.
    pub(super) async fn seen_later(
        &self,
        connection: &mut PgConnection,
        duplicates: &[&Delivery],
    ) -> sqlx::Result<()> {
        if duplicates.is_empty() {
            return Ok(());
        }
        let places = duplicates
            .iter()
            .map(|delivery| (delivery.id(), (delivery.sequence(), delivery.stream)));
        let (ids, sequences, streams) = columns(places);
        sqlx::query(self.seen_later.clone())
            .persistent(self.prepared)
            .bind(self.consumer)
            .bind(&ids)
            .bind(&sequences)
            .bind(&streams)
            .execute(connection)
            .await?;
        Ok(())
    }

    /// Which of these ids are committed. It decides nothing: an id that is not among them is claimed all the same.
    pub(super) async fn handled(&self, store: &Store, ids: &[Uuid]) -> sqlx::Result<Vec<Uuid>> {
        sqlx::query_scalar(self.handled.clone())
            .persistent(self.prepared)
            .bind(self.consumer)
            .bind(ids)
            .fetch_all(store.pool())
            .await
    }

    /// Adds to a lane's counters, and tells which transaction this is and where the staleness fence stands now: the pruner may
    /// have forgotten an id while its claim waited.
    pub(super) async fn count(
        &self,
        connection: &mut PgConnection,
        lane: LaneId,
        counts: Counts,
    ) -> sqlx::Result<(Option<String>, OffsetDateTime)> {
        sqlx::query_as(self.count.clone())
            .persistent(self.prepared)
            .bind(self.consumer)
            .bind(lane.instance)
            .bind(lane.lane)
            .bind(counts.claimed)
            .bind(counts.duplicates)
            .bind(counts.retries)
            .bind(counts.dead)
            .fetch_one(connection)
            .await
    }
}

/// A lane of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneId {
    pub(super) instance: Uuid,
    pub(super) lane: i32,
}

/// What one transaction did.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Counts {
    pub(super) claimed: i64,
    pub(super) duplicates: i64,
    pub(super) retries: i64,
    pub(super) dead: i64,
}

fn columns(places: impl Iterator<Item = (Uuid, (i64, i32))>) -> (Vec<Uuid>, Vec<i64>, Vec<i32>) {
    let (mut ids, mut sequences, mut streams) = (Vec::new(), Vec::new(), Vec::new());
    for (id, (sequence, stream)) in places {
        ids.push(id);
        sequences.push(sequence);
        streams.push(stream);
    }
    (ids, sequences, streams)
}
