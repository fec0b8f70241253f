//! A lane: runs the messages of its keys in stream order, as many in one transaction as are ready.

use super::batch::Bench;
use super::bury::Cause;
use super::claim::Counts;
use super::control::{ConsumerControl, Side};
use super::delivery::Delivery;
use super::pace::Pace;
use super::ran::{Failure, Ran};
use super::router::Actors;
use super::split::split;
use crate::dead_letter::Reason;
use crate::error_text::with_causes;
use crate::store::{Fault, StoreError};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{RwLock, mpsc};

/// How long a message waits whose twin another transaction is at.
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// The pauses between conflicts, from the third in a row on: the first, doubled up to the last.
const CONFLICT_PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
/// The pauses while the database can't be used: the first, doubled up to the last.
const UNUSABLE_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

pub(super) struct Lane {
    pub(super) bench: Bench,
    pub(super) actors: Actors,
    incoming: mpsc::Receiver<Delivery>,
    pub(super) control: ConsumerControl,
    /// What has come and is not settled, in stream order.
    queue: VecDeque<Delivery>,
    /// Messages run side by side. One that may have killed a process has the stage for itself.
    pub(super) stage: Arc<RwLock<()>>,
    /// What was counted since the last transaction that could carry it.
    pub(super) counts: Counts,
    pace: Pace,
    /// Since when the database can't be used, in pauses.
    unusable: u32,
    /// Conflicts since the last commit.
    conflicts: u32,
}

impl Lane {
    pub(super) fn new(
        bench: Bench,
        actors: Actors,
        incoming: mpsc::Receiver<Delivery>,
        control: ConsumerControl,
        stage: Arc<RwLock<()>>,
    ) -> Self {
        Self {
            bench,
            actors,
            incoming,
            control,
            queue: VecDeque::new(),
            stage,
            counts: Counts::default(),
            pace: Pace::default(),
            unusable: 0,
            conflicts: 0,
        }
    }

    /// Works until it is told to end, or nothing can come any more and all is settled.
    pub(super) async fn run(mut self) {
        loop {
            while let Ok(delivery) = self.incoming.try_recv() {
                self.queue.push_back(delivery);
            }
            if self.control.is_draining() {
                return;
            }
            let batch = self.take_ready();
            if batch.is_empty() {
                if !self.wait().await {
                    return;
                }
                continue;
            }
            self.work(batch).await;
            self.control.beat();
        }
    }

    /// Takes what is ready, up to the batch limit: in order, and nothing of a key of which something earlier waits. What may
    /// have killed a process before comes first and without the others.
    fn take_ready(&mut self) -> Vec<Delivery> {
        let now = Instant::now();
        let limit = self.pace.limit(self.bench.settings.batch);
        let mut waiting: HashSet<String> = HashSet::new();
        let mut batch: Vec<Delivery> = Vec::with_capacity(limit.min(self.queue.len()));
        let mut passed_over = Vec::new();
        while batch.len() < limit
            && let Some(delivery) = self.queue.pop_front()
        {
            let is_held_up = delivery.key().is_some_and(|key| waiting.contains(key));
            let is_other_kind = batch.first().is_some_and(|first| first.alone != delivery.alone);
            if is_held_up || is_other_kind || delivery.due.is_some_and(|due| due > now) {
                if !is_held_up {
                    waiting.extend(delivery.key().map(str::to_owned));
                }
                passed_over.push(delivery);
            } else {
                batch.push(delivery);
            }
        }
        for delivery in passed_over.into_iter().rev() {
            self.queue.push_front(delivery);
        }
        batch
    }

    /// Waits until something comes, or something that waits is due. `false`: there is nothing left to wait for.
    async fn wait(&mut self) -> bool {
        let due = self.queue.iter().filter_map(|delivery| delivery.due).min();
        let due = due.map(|due| due.saturating_duration_since(Instant::now()));
        tokio::select! {
            () = self.control.drain().cancelled() => true,
            () = tokio::time::sleep(due.unwrap_or_default()), if due.is_some() => true,
            // Closed, it is no longer waited for: then only what is due is left.
            Some(delivery) = self.incoming.recv() => {
                self.queue.push_back(delivery);
                true
            }
            else => false,
        }
    }

    async fn work(&mut self, batch: Vec<Delivery>) {
        let later = if batch[0].alone {
            self.run_alone(batch).await
        } else {
            self.run_batch(batch).await
        };
        // In order, and before all of their keys that has not been taken yet.
        for delivery in later.into_iter().rev() {
            self.queue.push_front(delivery);
        }
    }

    /// Runs messages in one transaction; if a handler fails, in smaller ones, until the one that fails is alone.
    pub(super) async fn run_batch(&mut self, batch: Vec<Delivery>) -> Vec<Delivery> {
        self.run_part(batch, true).await
    }

    /// `is_new`: no handler has said of these that they went well. If they fail nevertheless, what it says is not to be
    /// relied on.
    async fn run_part(&mut self, mut batch: Vec<Delivery>, is_new: bool) -> Vec<Delivery> {
        loop {
            let stage = self.stage.clone().read_owned().await;
            let began = Instant::now();
            let ran = self.bench.run(&mut self.actors, &batch, self.counts).await;
            drop(stage);
            match ran {
                Ran::Committed { busy } => {
                    self.pace.learn(batch.len(), began.elapsed());
                    return self.settle(batch, &busy).await;
                }
                Ran::Failed { failure, .. } if batch.len() == 1 => {
                    return self.fail_one(batch, failure).await;
                }
                Ran::Failed { at, .. } => return self.run_parts(batch, at.filter(|_| is_new)).await,
                Ran::Torn { places } => return self.bury_torn(batch, &places, 1).await,
                Ran::Conflict => self.pause_after_conflict().await,
                Ran::Unusable(error) => self.pause(&error).await,
                Ran::Cut { error, at } => {
                    self.pause(&error).await;
                    if batch.len() > 1 {
                        return self.run_parts(batch, at.filter(|_| is_new)).await;
                    }
                    if let Some(failure) = batch[0].cut(&error) {
                        return self.fail_one(batch, failure).await;
                    }
                }
            }
            if self.control.is_draining() {
                return Vec::new();
            }
        }
    }

    /// Runs parts of a batch, in order, without what has to wait for an earlier one of its key.
    async fn run_parts(&mut self, batch: Vec<Delivery>, failed_at: Option<usize>) -> Vec<Delivery> {
        let mut later: Vec<Delivery> = Vec::new();
        let mut waiting: HashSet<String> = HashSet::new();
        for (number, part) in split(batch, failed_at).into_iter().enumerate() {
            if self.control.is_draining() {
                break;
            }
            let (held_up, ready): (Vec<_>, Vec<_>) = part
                .into_iter()
                .partition(|one| one.key().is_some_and(|key| waiting.contains(key)));
            let left = match ready.is_empty() {
                true => Vec::new(),
                // Shorter each time it comes back here.
                false => {
                    let went_well = number == 0 && failed_at.is_some_and(|at| at > 0);
                    Box::pin(self.run_part(ready, !went_well)).await
                }
            };
            waiting.extend(left.iter().filter_map(|one| one.key().map(str::to_owned)));
            later.extend(left);
            later.extend(held_up);
        }
        later
    }

    /// Acknowledges what was committed. Returns what another transaction is at.
    pub(super) async fn settle(&mut self, batch: Vec<Delivery>, busy: &[usize]) -> Vec<Delivery> {
        self.counts = Counts::default();
        (self.unusable, self.conflicts) = (0, 0);
        self.control.works(Side::Database);
        let mut later = Vec::new();
        let mut settled = Vec::with_capacity(batch.len());
        for (index, mut delivery) in batch.into_iter().enumerate() {
            if busy.contains(&index) {
                delivery.due = Some(Instant::now() + BUSY_PAUSE);
                later.push(delivery);
            } else {
                settled.push(delivery);
            }
        }
        self.control.settled(settled.len());
        for delivery in settled {
            delivery.acknowledge().await;
        }
        later
    }

    async fn fail_one(&mut self, batch: Vec<Delivery>, failure: Failure) -> Vec<Delivery> {
        match batch.into_iter().next() {
            Some(one) => self.fail(one, failure, None).await.into_iter().collect(),
            None => Vec::new(),
        }
    }

    /// A run that failed: another one later (then the message is returned), or the dead letters. `counted`: how many runs there were, if it was counted
    /// before it ran.
    pub(super) async fn fail(
        &mut self,
        mut delivery: Delivery,
        failure: Failure,
        counted: Option<u32>,
    ) -> Option<Delivery> {
        let Failure { hopeless, error } = failure;
        let id = delivery.id();
        let runs = loop {
            let noted = match counted {
                Some(runs) => self.bench.attempts.describe(id, &error).await.map(|()| runs),
                None => self.bench.attempts.note(id, Some(&error)).await,
            };
            match noted {
                Ok(runs) => break runs,
                Err(error) => self.pause(&error).await,
            }
            if self.control.is_draining() {
                return None;
            }
        };
        let settings = self.bench.settings.clone();
        tracing::warn!(consumer = settings.name, message = %id, subject = delivery.envelope.subject, runs, error, "handler failed");
        let exhausted = runs >= u32::from(settings.max_attempts);
        if let Some(reason) = hopeless.or(exhausted.then_some(Reason::Exhausted)) {
            return self.bury(vec![delivery], Cause { reason, error, runs }).await;
        }
        self.counts.retries += 1;
        let pause = doubled((settings.retry_min, settings.retry_max), runs.saturating_sub(1));
        Arc::make_mut(&mut delivery.envelope).run = runs + 1;
        delivery.due = Some(Instant::now() + pause);
        Some(delivery)
    }

    /// A handler ended the transaction itself. What may have been written in part goes to the dead letters, for a person to look
    /// at; the others are returned.
    pub(super) async fn bury_torn(
        &mut self,
        batch: Vec<Delivery>,
        places: &[usize],
        runs: u32,
    ) -> Vec<Delivery> {
        let (mut torn, mut others) = (Vec::new(), Vec::new());
        for (index, delivery) in batch.into_iter().enumerate() {
            if places.contains(&index) {
                torn.push(delivery);
            } else {
                others.push(delivery);
            }
        }
        let error = format!(
            "a handler ended the transaction itself (COMMIT or ROLLBACK), which is not the handler's to end: of {} whether and how \
             far it took effect is not known",
            match torn.len() {
                1 => "this message".to_owned(),
                several => format!("the {several} messages in it"),
            }
        );
        let cause = Cause {
            reason: Reason::Torn,
            error,
            runs,
        };
        self.bury(torn, cause).await;
        others
    }

    /// Moves messages to the dead letters: their claims and the letters in one transaction.
    pub(super) async fn bury(&mut self, messages: Vec<Delivery>, cause: Cause) -> Option<Delivery> {
        let buried = loop {
            match self.bench.bury(&messages, &cause, self.counts).await {
                Ok(Some(buried)) => break buried,
                Ok(None) => tokio::time::sleep(BUSY_PAUSE).await,
                Err(error) => self.pause(&error).await,
            }
            if self.control.is_draining() {
                return None;
            }
        };
        self.counts = Counts::default();
        self.control.settled(messages.len());
        let Cause { reason, error, .. } = cause;
        if buried > 0 {
            let ids: Vec<String> = messages.iter().map(|message| message.id().to_string()).collect();
            let (consumer, subject) = (&self.bench.settings.name, &messages[0].envelope.subject);
            tracing::error!(
                consumer, messages = ids.join(" "), subject, %reason, error,
                "among the dead letters: see `twinbox dead list`"
            );
        }
        for message in messages {
            message.acknowledge().await;
        }
        None
    }

    /// The database can't be used: a pause, longer each time.
    pub(super) async fn pause(&mut self, error: &StoreError) {
        let reason = with_causes(error);
        let consumer = &self.bench.settings.name;
        match error.fault() {
            Fault::Systemic => tracing::error!(consumer, reason, "waiting until a person puts this right"),
            _ => tracing::warn!(consumer, reason, "waiting for the database"),
        }
        self.control.is_held_up(Side::Database, reason);
        let pause = doubled(UNUSABLE_PAUSES, self.unusable);
        self.unusable += 1;
        self.sleep(pause).await;
    }

    /// The brake and the lock timeout set the pace; this is for conflicts that come at once and again.
    pub(super) async fn pause_after_conflict(&mut self) {
        self.conflicts += 1;
        if self.conflicts > 2 {
            self.sleep(doubled(CONFLICT_PAUSES, self.conflicts - 3)).await;
        }
    }

    async fn sleep(&mut self, pause: Duration) {
        self.control.beat();
        tokio::select! {
            () = self.control.drain().cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// The first pause, doubled so many times, up to the last.
fn doubled((first, last): (Duration, Duration), times: u32) -> Duration {
    first.saturating_mul(1 << times.min(20)).min(last)
}
