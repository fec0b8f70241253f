//! A lane: runs the messages of its keys in stream order, as many in one transaction as are ready.

use super::batch::{Bench, Failure, Ran};
use super::claim::Counts;
use super::control::ConsumerControl;
use super::delivery::Delivery;
use super::router::Actors;
use crate::dead_letter::Reason;
use crate::error_text::with_causes;
use crate::store::{Fault, StoreError};
use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// How long a message waits whose twin another transaction is at.
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// The pauses while the database can't be used: the first, doubled up to the last.
const UNUSABLE_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

pub(super) struct Lane {
    bench: Bench,
    actors: Actors,
    incoming: mpsc::Receiver<Delivery>,
    control: ConsumerControl,
    /// What has come and is not settled, in stream order.
    queue: VecDeque<Delivery>,
    /// What was counted since the last transaction that could carry it.
    counts: Counts,
    /// Since when the database can't be used, in pauses.
    unusable: u32,
}

impl Lane {
    pub(super) fn new(
        bench: Bench,
        actors: Actors,
        incoming: mpsc::Receiver<Delivery>,
        control: ConsumerControl,
    ) -> Self {
        Self {
            bench,
            actors,
            incoming,
            control,
            queue: VecDeque::new(),
            counts: Counts::default(),
            unusable: 0,
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
        let limit = usize::from(self.bench.settings.batch);
        let mut waiting: HashSet<String> = HashSet::new();
        let mut taken: Vec<usize> = Vec::new();
        let mut alone = None;
        for (index, delivery) in self.queue.iter().enumerate() {
            if taken.len() == limit {
                break;
            }
            if delivery.key().is_some_and(|key| waiting.contains(key)) {
                continue;
            }
            let other_kind = alone.is_some_and(|alone| alone != delivery.alone);
            if other_kind || delivery.due.is_some_and(|due| due > now) {
                waiting.extend(delivery.key().map(str::to_owned));
                continue;
            }
            alone = Some(delivery.alone);
            taken.push(index);
        }
        let mut batch: Vec<Delivery> = taken
            .iter()
            .rev()
            .filter_map(|index| self.queue.remove(*index))
            .collect();
        batch.reverse();
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

    /// Runs messages in one transaction; if a handler fails, one by one.
    async fn run_batch(&mut self, batch: Vec<Delivery>) -> Vec<Delivery> {
        loop {
            match self.bench.run(&mut self.actors, &batch, self.counts).await {
                Ran::Committed { busy } => return self.settle(batch, &busy).await,
                Ran::Failed(failure) if batch.len() == 1 => {
                    let failed = batch.into_iter().next();
                    let Some(failed) = failed else { return Vec::new() };
                    return self.fail(failed, failure, None).await.into_iter().collect();
                }
                Ran::Failed(_) => return self.run_one_by_one(batch).await,
                Ran::Conflict => {}
                Ran::Unusable(error) => self.pause(&error).await,
            }
            if self.control.is_draining() {
                return Vec::new();
            }
        }
    }

    async fn run_one_by_one(&mut self, batch: Vec<Delivery>) -> Vec<Delivery> {
        let mut later: Vec<Delivery> = Vec::new();
        let mut waiting: HashSet<String> = HashSet::new();
        for delivery in batch {
            if self.control.is_draining() {
                break;
            }
            if delivery.key().is_some_and(|key| waiting.contains(key)) {
                later.push(delivery);
                continue;
            }
            // One message: it does not come back here.
            for left in Box::pin(self.run_batch(vec![delivery])).await {
                waiting.extend(left.key().map(str::to_owned));
                later.push(left);
            }
        }
        later
    }

    /// Runs messages that may have been run before: first those are told apart that were handled, then each of the others
    /// runs alone, counted before it runs, so that one that kills the process is the only one to use up its attempts.
    async fn run_alone(&mut self, batch: Vec<Delivery>) -> Vec<Delivery> {
        let ids: Vec<_> = batch
            .iter()
            .filter(|one| one.letter.is_none())
            .map(Delivery::id)
            .collect();
        let handled: HashSet<_> = loop {
            match self.bench.inbox.handled(&self.bench.store, &ids).await {
                Ok(handled) => break handled.into_iter().collect(),
                Err(error) => self.pause(&error.into()).await,
            }
            if self.control.is_draining() {
                return Vec::new();
            }
        };
        let is_handled = |one: &Delivery| one.letter.is_none() && handled.contains(&one.id());
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
            if let Some(left) = self.run_counted(delivery).await {
                waiting.extend(left.key().map(str::to_owned));
                later.push(left);
            }
        }
        later
    }

    /// Runs one message alone, counted before it runs. What it returns is to be run again later.
    async fn run_counted(&mut self, mut delivery: Delivery) -> Option<Delivery> {
        // Counted once for each run that is the message's own: not for one that a conflict or an outage cut short.
        let runs = loop {
            match self.bench.attempts.note(delivery.id(), None).await {
                Ok(runs) => break runs,
                Err(error) => self.pause(&error).await,
            }
            if self.control.is_draining() {
                return None;
            }
        };
        if runs > u32::from(self.bench.settings.max_attempts) {
            let error = "its handler did not come to an end in any of its runs: the process died".to_owned();
            return self.bury(delivery, Reason::Exhausted, error, runs - 1).await;
        }
        delivery.envelope.run = runs;
        loop {
            match self
                .bench
                .run(&mut self.actors, std::slice::from_ref(&delivery), self.counts)
                .await
            {
                Ran::Committed { busy } => return self.settle(vec![delivery], &busy).await.pop(),
                Ran::Failed(failure) => return self.fail(delivery, failure, Some(runs)).await,
                Ran::Conflict => {}
                Ran::Unusable(error) => self.pause(&error).await,
            }
            if self.control.is_draining() {
                return None;
            }
        }
    }

    /// Acknowledges what was committed. Returns what another transaction is at.
    async fn settle(&mut self, batch: Vec<Delivery>, busy: &[usize]) -> Vec<Delivery> {
        self.counts = Counts::default();
        self.unusable = 0;
        self.control.works();
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

    /// A run that failed: another one later (then the message is returned), or the dead letters. `counted`: how many runs there were, if it was counted
    /// before it ran.
    async fn fail(
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
            return self.bury(delivery, reason, error, runs).await;
        }
        self.counts.retries += 1;
        let doublings = runs.saturating_sub(1).min(20);
        let pause = settings
            .retry_min
            .saturating_mul(1 << doublings)
            .min(settings.retry_max);
        delivery.envelope.run = runs + 1;
        delivery.due = Some(Instant::now() + pause);
        Some(delivery)
    }

    /// Moves a message to the dead letters: its claim and the letter in one transaction.
    async fn bury(
        &mut self,
        delivery: Delivery,
        reason: Reason,
        error: String,
        runs: u32,
    ) -> Option<Delivery> {
        loop {
            match self
                .bench
                .bury(&delivery, reason, &error, runs, self.counts)
                .await
            {
                Ok(true) => break,
                Ok(false) => tokio::time::sleep(BUSY_PAUSE).await,
                Err(error) => self.pause(&error).await,
            }
            if self.control.is_draining() {
                return None;
            }
        }
        let settings = &self.bench.settings;
        tracing::error!(
            consumer = settings.name, message = %delivery.id(), subject = delivery.envelope.subject, %reason, error,
            "message is among the dead letters: see `twinbox dead list`"
        );
        self.counts = Counts::default();
        self.control.settled(1);
        delivery.acknowledge().await;
        None
    }

    /// The database can't be used: a pause, longer each time.
    async fn pause(&mut self, error: &StoreError) {
        let reason = with_causes(error);
        let consumer = &self.bench.settings.name;
        match error.fault() {
            Fault::Systemic => tracing::error!(consumer, reason, "waiting until a person puts this right"),
            _ => tracing::warn!(consumer, reason, "waiting for the database"),
        }
        self.control.is_held_up(reason);
        let pause = UNUSABLE_PAUSES
            .0
            .saturating_mul(1 << self.unusable.min(16))
            .min(UNUSABLE_PAUSES.1);
        self.unusable += 1;
        tokio::select! {
            () = self.control.drain().cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}
