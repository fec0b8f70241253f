//! One run of the pruner: pure, so that the actor only schedules it.

use super::report::Report;
use super::window::{CLOCK_SKEW, Proof, Window};
use crate::broker::{BrokerError, Publisher, StreamState};
use crate::config::{ConsumerSettings, PrunerSettings};
use crate::inbox::{Claims, Forgettable};
use crate::outbox;
use crate::store::{Store, StoreError};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Claims that are looked up at the broker in one run: what is left is looked up in the next.
const LOOK_UPS: i64 = 2000;
/// Look-ups at a time.
const LOOK_UPS_AT_ONCE: usize = 64;

/// Why a run did not come to its end. What it removed stays removed.
#[derive(Debug, thiserror::Error)]
pub enum PrunerError {
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The broker: without it nothing is proved, so no id is forgotten.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

impl From<sqlx::Error> for PrunerError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

/// Removes what can no longer come again, from both boxes.
pub struct Pruner {
    store: Store,
    broker: Arc<dyn Publisher>,
    settings: PrunerSettings,
    inboxes: Vec<ConsumerSettings>,
}

impl Pruner {
    /// Over the outbox, and the inboxes of these consumers.
    pub fn new(
        store: Store,
        broker: Arc<dyn Publisher>,
        settings: PrunerSettings,
        inboxes: Vec<ConsumerSettings>,
    ) -> Self {
        Self {
            store,
            broker,
            settings,
            inboxes,
        }
    }

    /// Removes, in small batches, until nothing is left to remove or `drain` is cancelled.
    ///
    /// # Errors
    /// [`PrunerError`]; the rest is for the next run.
    pub async fn run_once(&self, drain: &CancellationToken) -> Result<Vec<Report>, PrunerError> {
        let rows =
            outbox::prune_settled(&self.store, self.settings.outbox_retention, self.settings.batch).await?;
        let mut reports = vec![self.outbox_report(rows)];
        for consumer in &self.inboxes {
            if drain.is_cancelled() {
                break;
            }
            reports.extend(self.prune_inbox(consumer, drain).await?);
        }
        for report in &reports {
            report.save(&self.store).await?;
        }
        Ok(reports)
    }

    /// Counts what a run would remove.
    ///
    /// # Errors
    /// [`PrunerError`].
    pub async fn dry_run(&self) -> Result<Vec<Report>, PrunerError> {
        let rows = outbox::count_settled(&self.store, self.settings.outbox_retention).await?;
        let mut reports = vec![self.outbox_report(rows)];
        for consumer in &self.inboxes {
            let (window, stream) = self.window(consumer).await?;
            let Some(claims) = Claims::of(&self.store, &consumer.name, window.keep, CLOCK_SKEW).await? else {
                continue;
            };
            let mut rows = 0;
            for which in self.forgettable(&claims, &window, stream.as_ref()).await? {
                rows += claims.count(&which).await?;
            }
            reports.push(inbox_report(consumer, &window, rows));
        }
        Ok(reports)
    }

    async fn prune_inbox(
        &self,
        consumer: &ConsumerSettings,
        drain: &CancellationToken,
    ) -> Result<Option<Report>, PrunerError> {
        let (window, stream) = self.window(consumer).await?;
        let Some(claims) = Claims::of(&self.store, &consumer.name, window.keep, CLOCK_SKEW).await? else {
            return Ok(None);
        };
        let mut rows = 0;
        for which in self.forgettable(&claims, &window, stream.as_ref()).await? {
            while !drain.is_cancelled() {
                let gone = claims.forget(&which, self.settings.batch).await?;
                rows += gone;
                if gone < u64::from(self.settings.batch) {
                    break;
                }
            }
        }
        Ok(Some(inbox_report(consumer, &window, rows)))
    }

    async fn window(
        &self,
        consumer: &ConsumerSettings,
    ) -> Result<(Window, Option<StreamState>), PrunerError> {
        let stream = self.broker.stream_state(&consumer.stream).await?;
        Ok((Window::of(&self.settings, consumer, stream.as_ref()), stream))
    }

    /// What the window's proof lets go.
    async fn forgettable(
        &self,
        claims: &Claims<'_>,
        window: &Window,
        stream: Option<&StreamState>,
    ) -> Result<Vec<Forgettable>, PrunerError> {
        let (Some(stream), Some(first)) = (stream, window.proof.first_sequence()) else {
            return Ok(vec![Forgettable::All]);
        };
        let row = claims.stream(&stream.id).await?;
        let mut forgettable = vec![Forgettable::Before {
            stream: row,
            sequence: first,
        }];
        if let (Proof::LookUp { .. }, Some(row)) = (&window.proof, row) {
            forgettable.push(Forgettable::Ids(
                self.look_up(claims, &stream.id.name, row, first).await?,
            ));
        }
        Ok(forgettable)
    }

    /// Claims whose message the stream has let go.
    async fn look_up(
        &self,
        claims: &Claims<'_>,
        stream: &str,
        row: i32,
        first: u64,
    ) -> Result<Vec<Uuid>, PrunerError> {
        let candidates = claims.at_or_after(row, first, LOOK_UPS).await?;
        let looked_up = stream::iter(candidates)
            .map(|(id, sequence)| async move {
                let found = self.broker.dedup_id_at(stream, sequence.unsigned_abs()).await?;
                Ok::<_, BrokerError>(found.is_none().then_some(id))
            })
            .buffer_unordered(LOOK_UPS_AT_ONCE);
        let gone: Vec<Option<Uuid>> = looked_up.try_collect().await?;
        Ok(gone.into_iter().flatten().collect())
    }

    fn outbox_report(&self, rows: u64) -> Report {
        Report {
            name: "outbox".to_owned(),
            rows,
            keep: self.settings.outbox_retention,
            proof: "settled by every relay".to_owned(),
        }
    }
}

fn inbox_report(consumer: &ConsumerSettings, window: &Window, rows: u64) -> Report {
    Report {
        name: format!("inbox {}", consumer.name),
        rows,
        keep: window.keep,
        proof: window.proof.to_string(),
    }
}
