//! Messages that may have been run before, by a process that died of one of them.
//!
//! Each runs in a transaction of its own, and its run is counted before it begins: so one that kills the process uses up its
//! attempts. Those whose last run did not end run with nothing beside them, so that the others do not use up theirs.

use super::bury::Cause;
use super::delivery::Delivery;
use super::lane::Lane;
use super::ran::Ran;
use crate::dead_letter::Reason;
use crate::error_text::with_causes;
use crate::store::StoreError;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard};
use uuid::Uuid;

/// A place among the others, or the whole stage.
enum Turn {
    Shared(#[expect(dead_code, reason = "held")] OwnedRwLockReadGuard<()>),
    Own(#[expect(dead_code, reason = "held")] OwnedRwLockWriteGuard<()>),
}

/// What the database knows of messages that may have been run before.
struct Past {
    handled: HashSet<Uuid>,
    /// Their last run did not end.
    open: HashSet<Uuid>,
}

impl Lane {
    /// Runs messages one by one; those that were handled are told apart first. Returns what is to be run again later.
    pub(super) async fn run_alone(&mut self, batch: Vec<Delivery>) -> Vec<Delivery> {
        let Some(past) = self.look_back(&batch).await else {
            return Vec::new();
        };
        let is_handled = |one: &Delivery| one.letter.is_none() && past.handled.contains(&one.id());
        let (duplicates, others): (Vec<_>, Vec<_>) = batch.into_iter().partition(is_handled);
        // What was read from the stream needs no acknowledgement: its delivery is still to come, and is met again then.
        let (read, delivered): (Vec<_>, Vec<_>) = duplicates.into_iter().partition(|one| !one.is_delivered());
        self.counts.duplicates += read.len() as i64;
        self.control.settled(read.len());
        drop(read);
        let mut later = Vec::new();
        if !delivered.is_empty() {
            later.extend(self.run_batch(delivered).await);
        }
        let mut waiting: HashSet<String> = later
            .iter()
            .filter_map(|left| left.key().map(str::to_owned))
            .collect();
        for delivery in others {
            if self.control.is_draining() {
                break;
            }
            if delivery.key().is_some_and(|key| waiting.contains(key)) {
                later.push(delivery);
                continue;
            }
            let stage = self.stage.clone();
            let turn = if past.open.contains(&delivery.id()) {
                Turn::Own(stage.write_owned().await)
            } else {
                Turn::Shared(stage.read_owned().await)
            };
            if let Some(left) = self.run_counted(delivery, turn).await {
                waiting.extend(left.key().map(str::to_owned));
                later.push(left);
            }
        }
        later
    }

    /// `None`: the consumer is to end.
    async fn look_back(&mut self, batch: &[Delivery]) -> Option<Past> {
        let ids: Vec<Uuid> = batch.iter().map(Delivery::id).collect();
        while !self.control.is_draining() {
            match self.past(&ids).await {
                Ok(past) => return Some(past),
                Err(error) => self.pause(&error).await,
            }
        }
        None
    }

    async fn past(&mut self, ids: &[Uuid]) -> Result<Past, StoreError> {
        let handled = self.bench.inbox.handled(&self.bench.store, ids).await?;
        let open = self.bench.attempts.open(ids).await?;
        Ok(Past {
            handled: handled.into_iter().collect(),
            open: open.into_iter().collect(),
        })
    }

    /// Runs one message alone, counted before it runs. What it returns is to be run again later.
    async fn run_counted(&mut self, mut delivery: Delivery, turn: Turn) -> Option<Delivery> {
        let id = delivery.id();
        let runs = loop {
            match self.bench.attempts.note(id, None).await {
                Ok(runs) => break runs,
                Err(error) => self.pause(&error).await,
            }
            if self.control.is_draining() {
                return None;
            }
        };
        if runs > u32::from(self.bench.settings.max_attempts) {
            let cause = Cause {
                reason: Reason::Exhausted,
                error: "its handler did not come to an end in any of its runs: the process died".to_owned(),
                runs: runs - 1,
            };
            return self.bury(vec![delivery], cause).await;
        }
        Arc::make_mut(&mut delivery.envelope).run = runs;
        loop {
            let ran = self
                .bench
                .run(&mut self.actors, std::slice::from_ref(&delivery), self.counts)
                .await;
            match ran {
                // Still the run that was counted.
                Ran::Conflict => self.pause_after_conflict().await,
                Ran::Unusable(error) => self.pause(&error).await,
                Ran::Cut { error, .. } => {
                    self.pause(&error).await;
                    if let Some(failure) = delivery.cut(&error) {
                        drop(turn);
                        return self.fail(delivery, failure, Some(runs)).await;
                    }
                }
                // The stage is left first: what is to be done now does not concern the others.
                Ran::Committed { busy } => {
                    drop(turn);
                    if !busy.is_empty() {
                        self.take_back(id).await;
                    }
                    return self.settle(vec![delivery], &busy).await.pop();
                }
                Ran::Failed { failure, .. } => {
                    drop(turn);
                    return self.fail(delivery, failure, Some(runs)).await;
                }
                Ran::Torn { places } => {
                    drop(turn);
                    return self.bury_torn(vec![delivery], &places, runs).await.pop();
                }
            }
            if self.control.is_draining() {
                self.take_back(id).await;
                return None;
            }
        }
    }

    /// A run that was counted did not take place: somebody else is at the message, or there is no time left.
    async fn take_back(&mut self, message: Uuid) {
        if let Err(error) = self.bench.attempts.take_back(message).await {
            let (consumer, error) = (&self.bench.settings.name, with_causes(&error));
            tracing::warn!(consumer, %message, error, "one attempt of this message counts too much");
        }
    }
}
