//! Publishes messages again under the same id, as a broker's redelivery, a relay that crashed before it saved its cursor, or
//! an impatient producer would.

use crate::cli::CommandError;
use sqlx::Row as _;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use twinbox::broker::nats::Nats;
use twinbox::broker::{Outgoing, Publisher as _};
use twinbox::store::Store;
use twinbox::{Headers, header};
use uuid::Uuid;

/// How often the outbox is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Past the streams' duplicate window, so that the broker stores the copy.
const LATER: Duration = Duration::from_millis(1500);

/// Messages that are in the stream already: a copy ahead of its original would be the first of its key out of order.
const SETTLED: &str = "
    SELECT o.message_id, o.subject, o.key, o.headers::text AS headers, o.payload
    FROM twinbox.outbox o, twinbox.relay r
    WHERE (pg_visible_in_snapshot(o.xid, r.settled)
           OR (r.target IS NOT NULL AND pg_visible_in_snapshot(o.xid, r.target) AND o.id <= r.position))
      AND abs(hashtext(o.message_id::text)) % 100 < $1 AND o.message_id <> ALL ($2)
    LIMIT 500";

pub(super) struct Duplicator {
    store: Store,
    nats: Arc<Nats>,
    per_cent: u8,
    published: AtomicU64,
    done: AtomicBool,
}

impl Duplicator {
    pub(super) fn new(store: Store, nats: Arc<Nats>, per_cent: u8) -> Self {
        Self {
            store,
            nats,
            per_cent,
            published: AtomicU64::new(0),
            done: AtomicBool::new(false),
        }
    }

    /// Copies published so far.
    pub(super) fn published(&self) -> u64 {
        self.published.load(Ordering::Relaxed)
    }

    /// Whether no more will come.
    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    /// Publishes copies until the outbox has `messages` rows and each chosen one was published twice more.
    pub(super) async fn run(&self, messages: u64) -> Result<(), CommandError> {
        let copied = self.copy_all(messages).await;
        // Also where it failed: who waits for the end must see the error, not wait.
        self.done.store(true, Ordering::Relaxed);
        copied
    }

    async fn copy_all(&self, messages: u64) -> Result<(), CommandError> {
        let mut seen: HashSet<Uuid> = HashSet::new();
        let mut later: VecDeque<(Instant, Outgoing)> = VecDeque::new();
        let mut look = tokio::time::interval(LOOK);
        loop {
            look.tick().await;
            // Counted first: what is enqueued after it is looked for in the next round.
            let (enqueued, settled) = self.progress().await?;
            let fresh = self.fresh(&seen).await?;
            let nothing_fresh = fresh.is_empty();
            for message in fresh {
                seen.insert(message.dedup_id.parse()?);
                self.publish(&message).await?;
                later.push_back((Instant::now() + LATER, message));
            }
            while later.front().is_some_and(|(due, _)| *due <= Instant::now()) {
                if let Some((_, message)) = later.pop_front() {
                    self.publish(&message).await?;
                }
            }
            if enqueued >= messages && settled && nothing_fresh && later.is_empty() {
                return Ok(());
            }
        }
    }

    /// Rows enqueued, and whether all of them are in the streams.
    async fn progress(&self) -> Result<(u64, bool), CommandError> {
        let row = sqlx::query(
            "SELECT count(*) AS enqueued,
                    coalesce(bool_and(pg_visible_in_snapshot(o.xid, r.settled)), true) AS settled
             FROM twinbox.outbox o LEFT JOIN twinbox.relay r ON true",
        )
        .fetch_one(self.store.pool())
        .await?;
        Ok((
            u64::try_from(row.try_get::<i64, _>("enqueued")?)?,
            row.try_get("settled")?,
        ))
    }

    async fn fresh(&self, seen: &HashSet<Uuid>) -> Result<Vec<Outgoing>, CommandError> {
        let seen: Vec<Uuid> = seen.iter().copied().collect();
        let rows = sqlx::query(SETTLED)
            .bind(i32::from(self.per_cent))
            .bind(seen)
            .fetch_all(self.store.pool())
            .await?;
        let mut messages = Vec::with_capacity(rows.len());
        for row in rows {
            let id: Uuid = row.try_get("message_id")?;
            let headers: Option<String> = row.try_get("headers")?;
            let mut headers: Headers = headers
                .map(|json| serde_json::from_str(&json))
                .transpose()?
                .unwrap_or_default();
            headers.append(header::ID, id.to_string());
            if let Some(key) = row.try_get::<Option<String>, _>("key")? {
                headers.append(header::KEY, key);
            }
            let payload: Vec<u8> = row.try_get("payload")?;
            messages.push(Outgoing {
                subject: row.try_get("subject")?,
                headers,
                dedup_id: id.to_string(),
                payload: payload.into(),
            });
        }
        Ok(messages)
    }

    async fn publish(&self, message: &Outgoing) -> Result<(), CommandError> {
        self.nats.publish(message.clone()).await?;
        self.published.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
