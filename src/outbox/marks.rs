//! Marks: the last message that was acknowledged in each stream.
//!
//! They go into the database with every move of the cursor. So whoever holds the lease next knows what the broker has to
//! have, also where no checkpoint was taken since.

use super::deliver::Delivered;
use super::row::DedupId;
use crate::store::Store;
use sqlx::{PgConnection, Row as _};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use time::OffsetDateTime;

/// The last message that was acknowledged in a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) sequence: u64,
    pub(crate) dedup_id: DedupId,
    /// When the stream was created, once it was asked.
    pub(crate) created: Option<OffsetDateTime>,
    is_saved: bool,
}

impl Mark {
    pub(crate) fn new(sequence: u64, dedup_id: DedupId, created: Option<OffsetDateTime>) -> Self {
        Self {
            sequence,
            dedup_id,
            created,
            is_saved: false,
        }
    }
}

/// The marks of a relay, shared by those who publish and those who save.
#[derive(Debug, Default)]
pub(crate) struct Marks(Mutex<HashMap<String, Mark>>);

impl Marks {
    /// As they were saved.
    pub(crate) async fn load(
        connection: &mut PgConnection,
        store: &Store,
        relay: &str,
    ) -> sqlx::Result<Self> {
        let rows =
            sqlx::query(store.sql(
                "SELECT stream, sequence, dedup_id, stream_created FROM {s}.relay_mark WHERE relay = $1",
            ))
            .persistent(false)
            .bind(relay)
            .fetch_all(connection)
            .await?;
        let mut marks = HashMap::new();
        for row in rows {
            let sequence: i64 = row.try_get("sequence")?;
            let mark = Mark {
                sequence: u64::try_from(sequence).unwrap_or(0),
                dedup_id: DedupId::of_text(row.try_get("dedup_id")?),
                created: row.try_get("stream_created")?,
                is_saved: true,
            };
            marks.insert(row.try_get("stream")?, mark);
        }
        Ok(Self(Mutex::new(marks)))
    }

    fn marks(&self) -> MutexGuard<'_, HashMap<String, Mark>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message was acknowledged. To be said before the cursor moves past it.
    pub(crate) fn note(&self, delivered: &Delivered) {
        let mut marks = self.marks();
        match marks.get_mut(&delivered.stream) {
            Some(mark) if mark.sequence >= delivered.sequence => {}
            Some(mark) => *mark = Mark::new(delivered.sequence, delivered.dedup_id, mark.created),
            None => {
                let mark = Mark::new(delivered.sequence, delivered.dedup_id, None);
                marks.insert(delivered.stream.clone(), mark);
            }
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> HashMap<String, Mark> {
        self.marks().clone()
    }

    /// The stream was found to have been created then.
    pub(crate) fn is_created(&self, stream: &str, created: OffsetDateTime) {
        if let Some(mark) = self.marks().get_mut(stream)
            && mark.created != Some(created)
        {
            mark.created = Some(created);
            mark.is_saved = false;
        }
    }

    /// Sets a stream's mark, or forgets it. The database is the caller's.
    pub(crate) fn set(&self, stream: &str, mark: Option<Mark>) {
        match mark {
            Some(mark) => self.marks().insert(stream.to_owned(), mark),
            None => self.marks().remove(stream),
        };
    }

    /// Those that are not saved.
    fn unsaved(&self) -> Vec<(String, Mark)> {
        let marks = self.marks();
        let unsaved = marks.iter().filter(|(_, mark)| !mark.is_saved);
        unsaved.map(|(stream, mark)| (stream.clone(), *mark)).collect()
    }

    /// Writes what is not saved. Returns what was written, for [`Self::are_saved`] once it is committed.
    pub(crate) async fn save(
        &self,
        connection: &mut PgConnection,
        store: &Store,
        relay: &str,
    ) -> sqlx::Result<Vec<(String, Mark)>> {
        let unsaved = self.unsaved();
        if !unsaved.is_empty() {
            upsert(connection, store, relay, &unsaved).await?;
        }
        Ok(unsaved)
    }

    /// The transaction in which these were written is committed.
    pub(crate) fn are_saved(&self, written: &[(String, Mark)]) {
        let mut marks = self.marks();
        for (stream, written) in written {
            if let Some(mark) = marks.get_mut(stream)
                && (mark.sequence, mark.dedup_id, mark.created)
                    == (written.sequence, written.dedup_id, written.created)
            {
                mark.is_saved = true;
            }
        }
    }
}

async fn upsert(
    connection: &mut PgConnection,
    store: &Store,
    relay: &str,
    marks: &[(String, Mark)],
) -> sqlx::Result<()> {
    let streams: Vec<&str> = marks.iter().map(|(stream, _)| stream.as_str()).collect();
    let marks: Vec<&Mark> = marks.iter().map(|(_, mark)| mark).collect();
    let sequences: Vec<i64> = marks
        .iter()
        .map(|mark| i64::try_from(mark.sequence).unwrap_or(i64::MAX))
        .collect();
    let dedup_ids: Vec<String> = marks.iter().map(|mark| mark.dedup_id.text()).collect();
    let created: Vec<Option<OffsetDateTime>> = marks.iter().map(|mark| mark.created).collect();
    sqlx::query(store.sql(
        "INSERT INTO {s}.relay_mark (relay, stream, sequence, dedup_id, stream_created)
         SELECT $1, * FROM unnest($2::text[], $3::bigint[], $4::text[], $5::timestamptz[])
         ON CONFLICT (relay, stream) DO UPDATE SET
             sequence = excluded.sequence, dedup_id = excluded.dedup_id, stream_created = excluded.stream_created",
    ))
    .persistent(store.prepared())
    .bind(relay)
    .bind(streams)
    .bind(sequences)
    .bind(dedup_ids)
    .bind(created)
    .execute(connection)
    .await?;
    Ok(())
}

/// Sets streams' marks, or removes them.
pub(crate) async fn replace(
    connection: &mut PgConnection,
    store: &Store,
    relay: &str,
    marks: &[(String, Option<Mark>)],
) -> sqlx::Result<()> {
    let streams: Vec<&str> = marks.iter().map(|(stream, _)| stream.as_str()).collect();
    sqlx::query(store.sql("DELETE FROM {s}.relay_mark WHERE relay = $1 AND stream = ANY ($2)"))
        .persistent(false)
        .bind(relay)
        .bind(streams)
        .execute(&mut *connection)
        .await?;
    let present: Vec<(String, Mark)> = marks
        .iter()
        .filter_map(|(stream, mark)| Some((stream.clone(), (*mark)?)))
        .collect();
    upsert(connection, store, relay, &present).await
}
