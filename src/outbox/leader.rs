//! What the holder of the lease does: look, aim, publish, and see to what else there is.

use super::auditor::{Auditor, Verdict};
use super::cursor::Span;
use super::ear::Ear;
use super::health::RelayControl;
use super::lease::LeaseClock;
use super::log::Log;
use super::pace::{Backoff, Pace};
use super::pipeline::{LegEnd, Pipeline, Tools};
use super::reader::Reader;
use super::requeue::{Requeue, Round};
use super::routes::Routes;
use super::task::Task;
use super::term::{Found, Progress, Term, TermError};
use crate::broker::Publisher;
use crate::config::RelaySettings;
use crate::dead_letter::Table;
use crate::store::Store;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

/// How often the position is saved while it moves.
const SAVE_PAUSE: Duration = Duration::from_millis(500);
/// How often it is asked whether parked messages have a stream by now.
const RELEASE_PAUSE: Duration = Duration::from_secs(2);
/// The pause between polls of a relay that would sleep and has no LISTEN that works.
const DEAF_PAUSE: Duration = Duration::from_millis(250);
/// A poll in vain that takes longer walks over rows of a large transaction that is not committed yet.
const SLOW_LOOK: Duration = Duration::from_millis(100);
/// How often a slow poll moves the floor past them.
const FLOOR_PAUSE: Duration = Duration::from_secs(2);
/// How long a comparison that can't be made holds up publishing at the beginning of a term.
const AUDIT_PATIENCE: Duration = Duration::from_secs(15);

/// The holder of the lease at work.
pub(crate) struct Leader<'a> {
    store: &'a Store,
    settings: &'a RelaySettings,
    control: &'a RelayControl,
    publisher: &'a Arc<dyn Publisher>,
    letters: &'a Table,
    log: Log,
    term: Arc<Mutex<Term>>,
    clock: Arc<LeaseClock>,
    progress: Arc<Progress>,
    auditor: Auditor,
    routes: Routes,
    pace: Pace,
    backoff: Backoff,
    ear: Option<Ear>,
    asleep: bool,
    any_letters: bool,
    any_requeued: bool,
    last_id: i64,
    released_through: String,
    released: Option<Instant>,
    floor_moved: Instant,
}

impl<'a> Leader<'a> {
    pub(crate) fn new(
        store: &'a Store,
        settings: &'a RelaySettings,
        control: &'a RelayControl,
        publisher: &'a Arc<dyn Publisher>,
        letters: &'a Table,
        term: Term,
    ) -> Self {
        let auditor = Auditor::new(
            store,
            publisher.clone(),
            &settings.name,
            settings.checkpoint_interval,
            term.marks(),
        );
        let last_id = term.cursor().target.as_ref().map_or(0, |target| target.floor);
        Self {
            store,
            settings,
            control,
            publisher,
            letters,
            log: Log::new(store),
            clock: term.clock(),
            progress: term.progress(),
            term: Arc::new(Mutex::new(term)),
            auditor,
            routes: Routes::new(settings.unroutable_grace),
            pace: Pace::new(settings.poll_min, settings.poll_max, settings.sleep_after),
            backoff: Backoff::new(settings.retry_min, settings.retry_max),
            ear: None,
            asleep: false,
            // Not known yet.
            any_letters: true,
            any_requeued: true,
            last_id,
            released_through: String::new(),
            released: None,
            floor_moved: Instant::now(),
        }
    }

    /// Leads until the relay is to end; then the cursor is saved and the lease given back.
    ///
    /// # Errors
    /// Why the term is over. Nothing is in flight any more that a later term could meet.
    pub(crate) async fn lead(&mut self) -> Result<(), TermError> {
        let ends = CancellationToken::new();
        let saver = Task::start(save_from_time_to_time(
            self.term.clone(),
            self.clock.clone(),
            ends.clone(),
        ));
        let led = self.work().await;
        ends.cancel();
        // It ends after the save in hand, which is never cut off. A database that does not answer must not keep a holder
        // whose lease is over from giving up its connection to the broker.
        if self.clock.holds() || led.is_ok() {
            saver.joined().await;
        }
        if let Some(ear) = self.ear.take() {
            ear.close().await;
        }
        if led.is_ok() {
            self.term.lock().await.release().await?;
        }
        led
    }

    async fn work(&mut self) -> Result<(), TermError> {
        self.compare_at_first().await?;
        loop {
            if self.control.is_draining() {
                return Ok(());
            }
            if !self.clock.holds() {
                return Err(TermError::Over);
            }
            self.see_to_the_rest().await?;
            if self.term.lock().await.cursor().target.is_none() && !self.find().await? {
                self.rest().await?;
                continue;
            }
            self.publish().await?;
        }
    }

    /// Looks for rows and takes a target if there are some.
    async fn find(&mut self) -> Result<bool, TermError> {
        let begun = Instant::now();
        let mut term = self.term.lock().await;
        let found: Found = term.look().await?;
        self.any_letters = found.letters;
        self.any_requeued = found.requeued;
        self.last_id = found.floor;
        let move_floor = begun.elapsed() >= SLOW_LOOK && self.floor_moved.elapsed() >= FLOOR_PAUSE;
        if !found.rows && !move_floor {
            return Ok(false);
        }
        term.aim(found.floor).await?;
        drop(term);
        self.floor_moved = Instant::now();
        if found.rows {
            self.pace.found_work();
        }
        if std::mem::take(&mut self.asleep) {
            self.control.update(|health| health.asleep = false);
        }
        Ok(true)
    }

    /// Publishes what the target adds, for a while.
    async fn publish(&mut self) -> Result<(), TermError> {
        let (span, verify_through) = {
            let term = self.term.lock().await;
            let cursor = term.cursor();
            let Some(target) = &cursor.target else {
                return Ok(());
            };
            let span = Span {
                settled: cursor.settled.clone(),
                target: target.snapshot.clone(),
                above: self.progress.position(),
            };
            (span, term.verify_through())
        };
        let mut reader = Reader::new(self.store, &self.log, self.letters, self.settings);
        reader.any_letters = self.any_letters;
        let stop = reader.stop.clone();
        let tools = Tools {
            settings: self.settings,
            control: self.control,
            publisher: self.publisher,
            letters: self.letters,
            routes: &mut self.routes,
            auditor: &mut self.auditor,
            term: &self.term,
            clock: &self.clock,
            progress: &self.progress,
            verify_through,
            last_id: self.last_id,
        };
        let (end, buried) = Pipeline::new(tools).run(reader.start(span), &stop).await?;
        self.any_letters |= buried;
        match end {
            LegEnd::Exhausted => {
                let mut term = self.term.lock().await;
                term.settle_target();
                let (position, published) = (term.cursor().settled.floor, self.progress.published_in_all());
                drop(term);
                self.control.update(|health| {
                    health.position = position;
                    health.published = published;
                    health.pending = 0;
                });
            }
            LegEnd::Break | LegEnd::Drained => {
                // Nothing was looked for: ask the table.
                self.any_requeued = self.any_letters;
            }
            LegEnd::LeaseOver => return Err(TermError::Over),
            LegEnd::Lost(losses) => {
                let mut term = self.term.lock().await;
                if !self.auditor.recover(&losses, &mut term).await? {
                    drop(term);
                    self.pause(self.settings.retry_min).await;
                }
            }
        }
        Ok(())
    }

    /// Nothing is in flight: dead letters, comparisons and checkpoints get their turn.
    async fn see_to_the_rest(&mut self) -> Result<(), TermError> {
        if !self.publisher.is_connected() {
            if self.control.health().borrow().ready {
                self.control.is_held_up("no connection to the broker");
            }
            return Ok(());
        }
        if self.auditor.is_due() {
            match self.auditor.audit().await {
                Verdict::Holds => {
                    let mut term = self.term.lock().await;
                    if term.cursor().target.is_none() {
                        self.auditor.checkpoint(&mut term).await?;
                    }
                }
                Verdict::Lost(losses) => {
                    let mut term = self.term.lock().await;
                    self.auditor.recover(&losses, &mut term).await?;
                }
                Verdict::Unknown(error) => self.auditor.put_off(&error),
            }
        }
        let requeue = Requeue {
            control: self.control,
            publisher: self.publisher,
            letters: self.letters,
            term: &self.term,
            clock: &self.clock,
            progress: &self.progress,
        };
        let release_is_due = self
            .released
            .is_none_or(|released| released.elapsed() >= RELEASE_PAUSE);
        if self.any_letters && release_is_due {
            self.released_through = requeue.release(&mut self.routes, &self.released_through).await?;
            self.released = Some(Instant::now());
            self.any_requeued = true;
        }
        if self.any_letters && self.any_requeued {
            match requeue.publish(&mut self.auditor).await? {
                Round::Done => {
                    self.any_requeued = false;
                    self.backoff.reset();
                }
                Round::Stopped => {}
                Round::Outage(why) => {
                    self.control.is_held_up(&why);
                    let pause = self.backoff.next();
                    self.pause(pause).await;
                    return Ok(());
                }
            }
        }
        if !self.control.health().borrow().ready {
            self.control.works();
        }
        Ok(())
    }

    /// Compares the log with the streams before anything is published in this term.
    async fn compare_at_first(&mut self) -> Result<(), TermError> {
        let begun = Instant::now();
        let mut backoff = Backoff::new(self.settings.retry_min, self.settings.retry_max);
        loop {
            if self.control.is_draining() {
                return Ok(());
            }
            if !self.clock.holds() {
                return Err(TermError::Over);
            }
            if !self.publisher.is_connected() {
                self.control.is_held_up("no connection to the broker");
                self.pause(backoff.next()).await;
                continue;
            }
            match self.auditor.audit().await {
                Verdict::Holds => return Ok(()),
                Verdict::Lost(losses) => {
                    let mut term = self.term.lock().await;
                    if self.auditor.recover(&losses, &mut term).await? {
                        return Ok(());
                    }
                }
                Verdict::Unknown(error) if begun.elapsed() >= AUDIT_PATIENCE => {
                    self.auditor.put_off(&error);
                    return Ok(());
                }
                Verdict::Unknown(error) => self.control.is_held_up(&error.to_string()),
            }
            self.pause(backoff.next()).await;
        }
    }

    /// There is nothing to do: waits for the next poll, and sleeps after a while.
    async fn rest(&mut self) -> Result<(), TermError> {
        let mut pause = self.pace.found_nothing();
        if self.pace.is_sleepy() {
            let ear = self.ear.get_or_insert_with(|| Ear::open(self.store));
            if ear.is_listening() && !self.asleep {
                self.term.lock().await.fall_asleep().await?;
                self.asleep = true;
                self.control.update(|health| health.asleep = true);
                // What was enqueued before the mark was seen did not notify.
                return Ok(());
            }
            if self.asleep {
                ear.check().await;
            }
            pause = if ear.is_listening() {
                self.settings.poll_max.min(ear.next_check())
            } else {
                self.settings.poll_max.min(DEAF_PAUSE)
            };
        }
        self.control.update(|health| health.pending = 0);
        let nudge = self.control.nudged();
        let heard = async {
            match &self.ear {
                Some(ear) if self.asleep => ear.heard().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = heard => {}
            () = nudge.notified() => {}
            () = self.control.draining().cancelled() => {}
        }
        Ok(())
    }

    async fn pause(&self, pause: Duration) {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.control.draining().cancelled() => {}
        }
    }
}

/// Saves the cursor while it moves, and renews the lease. Ends when the lease is over.
async fn save_from_time_to_time(term: Arc<Mutex<Term>>, clock: Arc<LeaseClock>, ends: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(SAVE_PAUSE) => {}
            () = ends.cancelled() => return,
        }
        match term.lock().await.save_if_due().await {
            Ok(()) => {}
            Err(TermError::Over | TermError::Replaced) => return,
            Err(TermError::Store(error)) => tracing::warn!(%error, "can't save the relay's cursor"),
        }
        if !clock.holds() {
            return;
        }
    }
}
