//! A term: what one holder of the lease may do under one epoch. Every durable step of the relay's cursor is a function here.

#[cfg(test)]
mod fence;

use super::checkpoint::{self, Checkpoint};
use super::cursor::{Cursor, Reach};
use super::lease::{LeaseClock, renewal};
use super::look::Look;
use super::marks::{self, Mark, Marks};
use super::relay_table::{RelayTable, Saving, Taken};
use crate::store::{Store, StoreError};
use sqlx::{Postgres, Transaction};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A position that gets lost is taken again: what comes after it is published once more. So its save need not wait for
/// the disk.
const BEGIN_LAZY: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit = off";

/// First a transaction that gets an id and ends (see [`super::cursor`]), then the one that takes the snapshot. It waits
/// for the disk whatever the server's default is: that makes every commit durable that the snapshot sees, and so no
/// message goes out whose transaction a crash undoes.
const BEGIN_AIM: &str = "BEGIN; SELECT pg_current_xact_id(); COMMIT; BEGIN ISOLATION LEVEL READ COMMITTED; \
     SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'";

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// Why a term is over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TermError {
    /// The database: the state of the row is unknown, so it has to be read anew.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Somebody else has the lease, or may have it by now.
    #[error("the lease is over")]
    Over,
    /// The row is not what its holder wrote: the database was restored, or another one answers.
    #[error("the database is not the one of before")]
    Replaced,
}

impl From<sqlx::Error> for TermError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

/// How far publishing has come within the target. Written by the pipeline, saved by the term.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    position: AtomicI64,
    /// Since the last save.
    published: AtomicI64,
    /// Since the term began.
    published_in_all: AtomicU64,
}

impl Progress {
    /// All rows up to this id are settled; so many of them were published.
    pub(crate) fn advance(&self, position: i64, published: i64) {
        // After the marks of what it covers, for whoever reads it and then them.
        self.position.store(position, Ordering::Release);
        self.published_beside(published);
    }

    /// So many were published beside the log: dead letters that were requeued.
    pub(crate) fn published_beside(&self, published: i64) {
        self.published.fetch_add(published, Ordering::Relaxed);
        let published = u64::try_from(published).unwrap_or(0);
        self.published_in_all.fetch_add(published, Ordering::Relaxed);
    }

    pub(crate) fn published_in_all(&self) -> u64 {
        self.published_in_all.load(Ordering::Relaxed)
    }

    pub(crate) fn position(&self) -> i64 {
        self.position.load(Ordering::Acquire)
    }
}

/// What a poll found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// There are rows to publish.
    pub(crate) rows: bool,
    /// There are dead letters.
    pub(crate) letters: bool,
    /// Some of them were requeued.
    pub(crate) requeued: bool,
    /// The floor of a target that is taken next.
    pub(crate) floor: i64,
}

/// A holder's hold on its relay's row. Behind a lock: the tasks of a term save one after the other.
#[derive(Debug)]
pub(crate) struct Term {
    store: Store,
    table: RelayTable,
    look: Look,
    epoch: i64,
    lease: Duration,
    clock: Arc<LeaseClock>,
    progress: Arc<Progress>,
    marks: Arc<Marks>,
    cursor: Cursor,
    verify_through: i64,
    /// As the row has it.
    saved: Cursor,
    /// A save failed, which may have come through all the same.
    is_unsure: bool,
    renewed: Instant,
    asleep: bool,
}

impl Term {
    /// Takes the lease. `None`: somebody else has it.
    pub(crate) async fn take(
        store: &Store,
        table: &RelayTable,
        holder: &str,
        lease: Duration,
    ) -> Result<Option<Self>, StoreError> {
        let asked = Instant::now();
        let mut transaction = store.begin_with(BEGIN).await?;
        table.create(&mut transaction).await?;
        let taken = table.take(&mut transaction, holder, lease).await?;
        let Some(taken) = taken else {
            transaction.commit().await?;
            return Ok(None);
        };
        table.wake(&mut transaction).await?;
        let marks = Marks::load(&mut transaction, store, table.name()).await?;
        transaction.commit().await?;
        Ok(Some(Self::new(store, table, lease, asked, taken, marks)))
    }

    fn new(
        store: &Store,
        table: &RelayTable,
        lease: Duration,
        asked: Instant,
        taken: Taken,
        marks: Marks,
    ) -> Self {
        let progress = Progress::default();
        progress.advance(taken.cursor.position, 0);
        Self {
            store: store.clone(),
            table: table.clone(),
            look: Look::new(store),
            epoch: taken.epoch,
            lease,
            clock: Arc::new(LeaseClock::new(asked, lease)),
            progress: Arc::new(progress),
            marks: Arc::new(marks),
            saved: taken.cursor.clone(),
            cursor: taken.cursor,
            verify_through: taken.verify_through,
            is_unsure: false,
            renewed: asked,
            asleep: false,
        }
    }

    pub(crate) fn epoch(&self) -> i64 {
        self.epoch
    }

    pub(crate) fn clock(&self) -> Arc<LeaseClock> {
        self.clock.clone()
    }

    pub(crate) fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    pub(crate) fn marks(&self) -> Arc<Marks> {
        self.marks.clone()
    }

    pub(crate) fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// Duplicates among rows up to this id are looked up, since the broker may have lost what it remembers.
    pub(crate) fn verify_through(&self) -> i64 {
        self.verify_through
    }

    /// Polls. Writes nothing, and sees whether the row is still what this holder wrote.
    pub(crate) async fn look(&mut self) -> Result<Found, TermError> {
        if self.is_unsure {
            self.save().await?;
        }
        let mut connection = self.store.pool().acquire().await?;
        let seen = self
            .look
            .look(&mut connection, self.table.name(), &self.cursor.settled)
            .await?
            .ok_or(TermError::Over)?;
        if seen.standby {
            return Err(StoreError::Standby.into());
        }
        if seen.epoch != self.epoch {
            return Err(self.over());
        }
        let same = seen.same_cluster
            && seen.settled == self.saved.settled.snapshot.to_string()
            && seen.target
                == self
                    .saved
                    .target
                    .as_ref()
                    .map(|target| target.snapshot.to_string());
        if !same {
            self.clock.end();
            return Err(TermError::Replaced);
        }
        Ok(Found {
            rows: seen.found,
            letters: seen.letters,
            requeued: seen.requeued,
            floor: seen.last_id,
        })
    }

    /// Sets the target: what is visible by now. It is durable before anything of it is published, so that a crash
    /// publishes the same rows again and no others.
    pub(crate) async fn aim(&mut self, floor: i64) -> Result<(), TermError> {
        debug_assert!(self.cursor.target.is_none(), "the target before is settled");
        let asked = Instant::now();
        let saving = self.saving();
        let mut transaction = self.store.begin_with(BEGIN_AIM).await?;
        let snapshot = self
            .table
            .aim(&mut transaction, self.epoch, &self.cursor.settled, floor, saving)
            .await?;
        let Some(snapshot) = snapshot else {
            return Err(self.over());
        };
        let marks = self
            .marks
            .save(&mut transaction, &self.store, self.table.name())
            .await?;
        if self.asleep {
            self.table.wake(&mut transaction).await?;
        }
        transaction.commit().await?;
        self.asleep = false;
        self.cursor.target = Some(Reach { snapshot, floor });
        self.cursor.position = 0;
        self.progress.advance(0, 0);
        self.marks.are_saved(&marks);
        self.is_saved(asked, saving);
        Ok(())
    }

    /// All of the target is settled. Saved with whatever is saved next.
    pub(crate) fn settle_target(&mut self) {
        self.cursor.settle_target();
        self.progress.advance(0, 0);
    }

    /// Saves how far the cursor has come and prolongs the lease.
    pub(crate) async fn save(&mut self) -> Result<(), TermError> {
        let asked = Instant::now();
        let saving = self.saving();
        self.note_position();
        self.is_unsure = true;
        let mut transaction = self.store.begin_with(BEGIN_LAZY).await?;
        let marks = self.write(&mut transaction, saving).await?;
        transaction.commit().await?;
        self.marks.are_saved(&marks);
        self.is_saved(asked, saving);
        Ok(())
    }

    /// Writes cursor and marks, and prolongs the lease.
    async fn write(
        &self,
        transaction: &mut Transaction<'static, Postgres>,
        saving: Saving,
    ) -> Result<Vec<(String, Mark)>, TermError> {
        let held = self
            .table
            .save(&mut *transaction, self.epoch, &self.cursor, saving)
            .await?;
        if !held {
            return Err(self.over());
        }
        let marks = self.marks.save(transaction, &self.store, self.table.name());
        Ok(marks.await?)
    }

    /// The same where there is something to save, or the lease is due.
    pub(crate) async fn save_if_due(&mut self) -> Result<(), TermError> {
        self.note_position();
        if self.is_unsure || self.cursor != self.saved || self.renewed.elapsed() >= renewal(self.lease) {
            self.save().await
        } else {
            Ok(())
        }
    }

    /// Goes back in the log to where a checkpoint was taken, or to the beginning. The checkpoints after it go. `marks`: what the
    /// streams that lost something still have, as far as it is known.
    pub(crate) async fn rewind(
        &mut self,
        to: Option<&Checkpoint>,
        marks: &[(String, Option<Mark>)],
    ) -> Result<(), TermError> {
        let asked = Instant::now();
        let saving = self.saving();
        let reach = to.map_or_else(Reach::beginning, |checkpoint| checkpoint.reach.clone());
        let mut transaction = self.store.begin_with(BEGIN).await?;
        let last_id = super::log::last_id(&mut transaction, &self.store).await?;
        let verify_through = self
            .table
            .rewind(&mut transaction, self.epoch, &reach, last_id, saving)
            .await?;
        let Some(verify_through) = verify_through else {
            return Err(self.over());
        };
        let last_kept = to.map_or(0, |checkpoint| checkpoint.id);
        checkpoint::delete_after(&mut transaction, &self.store, self.table.name(), last_kept).await?;
        marks::replace(&mut transaction, &self.store, self.table.name(), marks).await?;
        transaction.commit().await?;
        for (stream, mark) in marks {
            self.marks.set(stream, *mark);
        }
        self.verify_through = verify_through;
        self.cursor = Cursor {
            settled: reach,
            target: None,
            position: 0,
        };
        self.progress.advance(0, 0);
        self.is_saved(asked, saving);
        Ok(())
    }

    /// Takes checkpoints: one for each stream, all at what is settled now.
    pub(crate) async fn take_checkpoints(&mut self, met: &[checkpoint::Met]) -> Result<(), TermError> {
        debug_assert!(self.cursor.target.is_none(), "nothing is being published");
        let asked = Instant::now();
        let saving = self.saving();
        let mut transaction = self.store.begin_with(BEGIN_LAZY).await?;
        // The cursor goes with it, so that no checkpoint is ever ahead of it.
        let marks = self.write(&mut transaction, saving).await?;
        let relay = self.table.name();
        checkpoint::insert(&mut transaction, &self.store, relay, &self.cursor.settled, met).await?;
        checkpoint::trim(&mut transaction, &self.store, relay).await?;
        transaction.commit().await?;
        self.marks.are_saved(&marks);
        self.is_saved(asked, saving);
        Ok(())
    }

    /// From now on every enqueue notifies.
    pub(crate) async fn fall_asleep(&mut self) -> Result<(), TermError> {
        let mut transaction = self.begin_fenced().await?;
        self.table.fall_asleep(&mut transaction).await?;
        transaction.commit().await?;
        self.asleep = true;
        Ok(())
    }

    /// Saves the cursor and gives the lease back, so that a standby need not wait for its end.
    pub(crate) async fn release(&mut self) -> Result<(), TermError> {
        let asked = Instant::now();
        let saving = self.saving();
        self.note_position();
        let mut transaction = self.store.begin_with(BEGIN).await?;
        self.write(&mut transaction, saving).await?;
        if !self.table.release(&mut transaction, self.epoch).await? {
            return Err(self.over());
        }
        self.table.wake(&mut transaction).await?;
        transaction.commit().await?;
        self.is_saved(asked, saving);
        self.clock.end();
        Ok(())
    }

    /// A transaction during which nobody else can take the lease.
    pub(crate) async fn begin_fenced(&self) -> Result<Transaction<'static, Postgres>, TermError> {
        let mut transaction = self.store.begin_with(BEGIN).await?;
        if self.table.fence(&mut transaction, self.epoch).await? {
            Ok(transaction)
        } else {
            Err(self.over())
        }
    }

    fn over(&self) -> TermError {
        self.clock.end();
        TermError::Over
    }

    fn note_position(&mut self) {
        if self.cursor.target.is_some() {
            self.cursor.position = self.progress.position();
        }
    }

    fn saving(&self) -> Saving {
        Saving {
            published: self.progress.published.load(Ordering::Relaxed),
            lease: self.lease,
        }
    }

    fn is_saved(&mut self, asked: Instant, saving: Saving) {
        self.progress
            .published
            .fetch_sub(saving.published, Ordering::Relaxed);
        self.saved = self.cursor.clone();
        self.is_unsure = false;
        self.renewed = asked;
        self.clock.renewed(asked);
    }
}
