//! How the relays of an outbox are, as the database shows it.

use super::cursor::Span;
use super::log::Log;
use super::relay_table::{self, RelayRow};
use crate::store::{Store, StoreError};
use serde::Serialize;
use std::time::Duration;
use time::OffsetDateTime;

/// Pending rows are counted up to here.
const COUNTED: i64 = 100_000;

/// Rows that wait to be published.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub struct Pending {
    /// How many.
    pub rows: u64,
    /// Whether there are more than that: counting stops after 100,000.
    pub or_more: bool,
    /// The age of the oldest of those that were counted, in milliseconds.
    #[serde(rename = "oldest_ms", serialize_with = "milliseconds")]
    pub oldest: Option<Duration>,
}

/// A relay, as the database shows it.
#[derive(Clone, Debug, Serialize)]
pub struct RelayStatus {
    /// Its name.
    pub name: String,
    /// What waits to be published. `None` after a restore into another cluster, until a relay has set its cursor anew.
    pub pending: Option<Pending>,
    /// Who holds the lease, or held it last: host, process and a number. `None` where it was given back.
    pub holder: Option<String>,
    /// How often the lease was taken.
    pub epoch: i64,
    /// Whether the lease still runs: somebody publishes.
    pub leased: bool,
    /// Until when it runs.
    #[serde(with = "time::serde::rfc3339::option")]
    pub lease_until: Option<OffsetDateTime>,
    /// Rows published since the relay was created.
    pub published: i64,
    /// Whether it sleeps until an enqueue wakes it.
    pub asleep: bool,
}

/// All relays of an outbox, by name. Reads only.
///
/// # Errors
/// What the database said.
///
/// ```no_run
/// # async fn example(store: twinbox::store::Store) -> Result<(), twinbox::store::StoreError> {
/// for relay in twinbox::outbox::relay_statuses(&store).await? {
///     println!("{}: {:?}", relay.name, relay.pending);
/// }
/// # Ok(())
/// # }
/// ```
pub async fn relay_statuses(store: &Store) -> Result<Vec<RelayStatus>, StoreError> {
    let mut connection = store.pool().acquire().await?;
    let rows = relay_table::all(&mut connection, store).await?;
    drop(connection);
    let log = Log::new(store);
    let mut statuses = Vec::with_capacity(rows.len());
    for row in rows {
        let pending = if row.same_cluster {
            Some(pending(&log, &row).await?)
        } else {
            None
        };
        statuses.push(RelayStatus {
            name: row.name,
            pending,
            holder: row.holder,
            epoch: row.epoch,
            leased: row.leased,
            lease_until: row.lease_until,
            published: row.published,
            asleep: row.asleep,
        });
    }
    Ok(statuses)
}

/// What is visible now and neither settled nor, of what is being published, done.
async fn pending(log: &Log, row: &RelayRow) -> Result<Pending, StoreError> {
    let mut spans = Vec::with_capacity(2);
    let settled = row.cursor.settled.clone();
    match &row.cursor.target {
        Some(target) => {
            spans.push(Span {
                settled,
                target: target.snapshot.clone(),
                above: row.cursor.position,
            });
            spans.push(Span {
                settled: target.clone(),
                target: row.now.clone(),
                above: 0,
            });
        }
        None => spans.push(Span {
            settled,
            target: row.now.clone(),
            above: 0,
        }),
    }
    let (mut rows, mut oldest) = (0, None);
    for span in &spans {
        let (counted, age) = log.count(span, COUNTED + 1).await?;
        rows += counted;
        oldest = oldest.max(age);
    }
    Ok(Pending {
        rows: u64::try_from(rows.min(COUNTED)).unwrap_or(0),
        or_more: rows > COUNTED,
        oldest,
    })
}

fn milliseconds<S: serde::Serializer>(age: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
        .serialize(serializer)
}
