//! Publishing a span of the log: many messages in flight, one of a key, settled in the order of the log.
//!
//! Errors come in three kinds, and only one of them touches the message: [`outage`] holds everything and waits,
//! [`unroutable`] holds a subject for a while, and what can never be published is [`burial`]'s.

mod burial;
mod outage;
mod unroutable;

use super::auditor::{Auditor, Loss};
use super::deliver::{Delivered, deliver};
use super::gate::Gate;
use super::health::RelayControl;
use super::lease::LeaseClock;
use super::pace::Backoff;
use super::reader::{Batch, ReadEnd, Reading};
use super::routes::Routes;
use super::slots::Slots;
use super::term::{Progress, Term, TermError};
use crate::broker::{PublishError, Publisher};
use crate::config::RelaySettings;
use crate::dead_letter::{Reason, Table};
use burial::Condemned;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How often the pipeline looks at what does not report by itself: connection, holds, whether it is time for a break.
const TICK: Duration = Duration::from_millis(20);
/// After so long the pipeline runs dry for a moment, so that requeued letters, comparisons and checkpoints get their turn.
const LEG: Duration = Duration::from_secs(3);
/// Rows in hand at the most, settled ones that wait for one before them among them.
const MOST_SLOTS: usize = 50_000;

/// Why publishing paused or ended.
#[derive(Debug)]
pub(crate) enum LegEnd {
    /// The span is settled.
    Exhausted,
    /// It is time for other things. What was in hand is settled.
    Break,
    /// The relay is to end. What was in flight has come back.
    Drained,
    /// The lease is over: at once.
    LeaseOver,
    /// The broker lost something that it had acknowledged.
    Lost(Vec<Loss>),
}

type InFlight = FuturesUnordered<BoxFuture<'static, (u64, Result<Delivered, PublishError>)>>;

/// What a pipeline works with.
pub(crate) struct Tools<'a> {
    pub(crate) settings: &'a RelaySettings,
    pub(crate) control: &'a RelayControl,
    pub(crate) publisher: &'a Arc<dyn Publisher>,
    pub(crate) letters: &'a Table,
    pub(crate) routes: &'a mut Routes,
    pub(crate) auditor: &'a mut Auditor,
    pub(crate) term: &'a Mutex<Term>,
    pub(crate) clock: &'a Arc<LeaseClock>,
    pub(crate) progress: &'a Progress,
    /// Duplicates among rows up to this id are looked up.
    pub(crate) verify_through: i64,
    /// The last id there was when the span was made.
    pub(crate) last_id: i64,
}

/// A pipeline at work.
pub(crate) struct Pipeline<'a> {
    tools: Tools<'a>,
    begun: Instant,
    slots: Slots,
    gate: Gate,
    /// May leave, in order.
    ready: VecDeque<u64>,
    in_flight: InFlight,
    /// No stream covers their subjects; tried again after a while.
    held: Vec<u64>,
    held_until: Instant,
    /// On their way to the dead letters.
    condemned: Vec<Condemned>,
    /// Keys of dead letters, each with the first row that lies there.
    quarantined: HashMap<String, i64>,
    buried: bool,
    /// During an outage nothing leaves before this.
    hold: Option<Instant>,
    backoff: Backoff,
    /// The broker failed last: one message goes ahead of the others.
    probing: bool,
    audit_failing_since: Option<Instant>,
    /// Nothing that is stored from now on has a sequence up to these.
    sequences: HashMap<String, u64>,
    losses: Vec<Loss>,
    /// What the broker called a duplicate and had lost.
    renewed: u64,
    draining: bool,
    reading_ended: bool,
}

impl<'a> Pipeline<'a> {
    pub(crate) fn new(tools: Tools<'a>) -> Self {
        let backoff = Backoff::new(tools.settings.retry_min, tools.settings.retry_max);
        let sequences = tools.auditor.sequences();
        Self {
            tools,
            begun: Instant::now(),
            slots: Slots::default(),
            gate: Gate::default(),
            ready: VecDeque::new(),
            in_flight: FuturesUnordered::new(),
            held: Vec::new(),
            held_until: Instant::now(),
            condemned: Vec::new(),
            quarantined: HashMap::new(),
            buried: false,
            hold: None,
            backoff,
            probing: false,
            audit_failing_since: None,
            sequences,
            losses: Vec::new(),
            renewed: 0,
            draining: false,
            reading_ended: false,
        }
    }

    /// Publishes what is read, until it is done or something else comes first. `stop` tells the reader to stop. Returns,
    /// too, whether there are dead letters of its making.
    ///
    /// # Errors
    /// The database failed, or the lease was found to be over: what is in flight is given up and will be published
    /// again.
    pub(crate) async fn run(
        mut self,
        mut reading: Reading,
        stop: &AtomicBool,
    ) -> Result<(LegEnd, bool), TermError> {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            if !self.tools.clock.holds() {
                return Ok((LegEnd::LeaseOver, self.buried));
            }
            if !self.condemned.is_empty() {
                self.bury().await?;
                continue;
            }
            if self.is_closing() && self.in_flight.is_empty() {
                drop(reading.batches);
                reading.ended.joined().await.transpose()?;
                let end = if self.losses.is_empty() {
                    LegEnd::Drained
                } else {
                    LegEnd::Lost(self.losses)
                };
                return Ok((end, self.buried));
            }
            if self.reading_ended && self.slots.is_empty() {
                self.report();
                let end = match reading.ended.joined().await.transpose()? {
                    Some(ReadEnd::Exhausted) => LegEnd::Exhausted,
                    Some(ReadEnd::Stopped) | None => LegEnd::Break,
                };
                return Ok((end, self.buried));
            }
            self.send();
            tokio::select! {
                biased;
                // First: results may come without a pause.
                _ = tick.tick() => {
                    self.draining = self.tools.control.is_draining();
                    self.look_after_outage().await;
                    self.look_after_subjects().await;
                    if self.begun.elapsed() >= LEG && self.hold.is_none() && self.held.is_empty() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    self.report();
                }
                Some((number, result)) = self.in_flight.next(), if !self.in_flight.is_empty() => {
                    self.on_result(number, result);
                }
                batch = reading.batches.recv(), if self.takes_more() => match batch {
                    Some(batch) => self.on_batch(batch),
                    None => self.reading_ended = true,
                },
            }
        }
    }

    fn is_closing(&self) -> bool {
        self.draining || !self.losses.is_empty()
    }

    fn window(&self) -> usize {
        if self.probing {
            1
        } else {
            usize::try_from(self.tools.settings.window).unwrap_or(usize::MAX)
        }
    }

    fn takes_more(&self) -> bool {
        let most_bytes = usize::try_from(self.tools.settings.page_bytes).unwrap_or(usize::MAX);
        !self.reading_ended
            && !self.is_closing()
            && self.hold.is_none()
            && self.slots.open() < self.window()
            && self.slots.len() < MOST_SLOTS
            && self.slots.bytes() < most_bytes
    }

    fn on_batch(&mut self, batch: Batch) {
        for (key, from) in batch.quarantined {
            let known = self.quarantined.entry(key).or_insert(from);
            *known = from.min(*known);
        }
        for row in batch.rows {
            let key = row.key().map(|key| self.gate.hash(key));
            let number = self.slots.push(row, key);
            if key.is_none_or(|key| self.gate.enter(key, number)) {
                self.take_turn(number);
            }
        }
    }

    /// A row has no row of its key before it any more: it is published, or takes another way.
    fn take_turn(&mut self, number: u64) {
        let Some(row) = self.slots.row(number) else { return };
        let quarantined_from = match row.key() {
            Some(key) if !self.quarantined.is_empty() => self.quarantined.get(key).copied(),
            _ => None,
        };
        let subject = &row.parcel.message.subject;
        match quarantined_from {
            // It lies there itself: the relay met it before.
            Some(from) if from == row.id => self.settle_and_release(number, false),
            Some(from) if from < row.id => {
                self.condemn(number, Reason::Follows, burial::FOLLOWS.to_owned());
            }
            _ => {
                if let Some(fault) = row.fault.clone() {
                    self.condemn(number, Reason::Unpublishable, fault);
                } else if self.tools.routes.parks(subject) {
                    let error = unroutable::uncovered(subject);
                    self.condemn(number, Reason::Unroutable, error);
                } else {
                    self.ready.push_back(number);
                }
            }
        }
    }

    fn send(&mut self) {
        if self.is_closing() || self.hold.is_some() || self.ready.is_empty() {
            return;
        }
        if !self.tools.publisher.is_connected() {
            return self.begin_hold(outage::NO_CONNECTION);
        }
        while self.in_flight.len() < self.window() && self.tools.clock.holds() {
            let Some(number) = self.ready.pop_front() else {
                return;
            };
            let Some(row) = self.slots.row(number).cloned() else {
                continue;
            };
            let (publisher, clock) = (self.tools.publisher.clone(), self.tools.clock.clone());
            let verify = row.id <= self.tools.verify_through;
            self.in_flight.push(Box::pin(async move {
                (number, deliver(&*publisher, &clock, &row.parcel, verify).await)
            }));
        }
    }

    fn on_result(&mut self, number: u64, result: Result<Delivered, PublishError>) {
        match result {
            Ok(delivered) => self.on_delivered(number, &delivered),
            Err(PublishError::Outage(why)) => {
                self.ready.push_back(number);
                self.begin_hold(&why);
            }
            Err(PublishError::Unroutable { subject }) => {
                self.works();
                self.hold_subject(number, &subject);
            }
            Err(PublishError::Unpublishable(why)) => {
                self.works();
                self.condemn(number, Reason::Unpublishable, why);
            }
        }
    }

    fn on_delivered(&mut self, number: u64, delivered: &Delivered) {
        self.works();
        let last = self.sequences.get(&delivered.stream);
        match last {
            Some(last) if !delivered.duplicate && delivered.sequence <= *last => {
                let why = format!(
                    "a new message got {}, and {last} was acknowledged",
                    delivered.sequence
                );
                if self.losses.is_empty() {
                    self.losses.push(Loss {
                        stream: delivered.stream.clone(),
                        why,
                    });
                }
            }
            _ => self.tools.auditor.note(delivered),
        }
        if delivered.dedup_id.renewal > 0 && !delivered.duplicate {
            self.renewed += 1;
        }
        self.settle_and_release(number, true);
    }

    fn report(&mut self) {
        if self.renewed > 0 {
            let messages = std::mem::take(&mut self.renewed);
            tracing::info!(
                messages,
                "published under fresh ids what the broker remembered and had lost"
            );
        }
        let position = self.tools.progress.position();
        let total = self.tools.progress.published_in_all();
        let pending = u64::try_from(self.tools.last_id - position).unwrap_or(0);
        self.tools.control.update(|health| {
            health.position = position;
            health.published = total;
            health.pending = pending;
        });
    }

    /// A row that was out is settled, and the next of its key has its turn.
    fn settle_and_release(&mut self, number: u64, published: bool) {
        let key = self.slots.key(number);
        self.settle(number, published);
        if let Some(next) = key.and_then(|key| self.gate.leave(key)) {
            self.take_turn(next);
        }
    }

    fn settle(&mut self, number: u64, published: bool) {
        if let Some(advance) = self.slots.settle(number, published) {
            self.tools.progress.advance(advance.position, advance.published);
        }
    }
}
