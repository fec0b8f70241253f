//! One transaction: claim, handlers, the next hops, the guard, the commit.

use super::attempts::Attempts;
use super::brake::{Brake, LONGEST_LOCK_TIMEOUT};
use super::claim::{Claim, Claims, Counts, Inbox, LaneId};
use super::delivery::Delivery;
use super::guard::Standing;
use super::ran::{Failure, Ran, Stop, panic_text};
use super::router::Actors;
use super::sort::{Task, neighbours};
use super::transaction::InboxTransaction;
use crate::config::ConsumerSettings;
use crate::dead_letter::{NewDeadLetter, Reason, Table};
use crate::store::{OutboxInsert, Store, StoreError};
use futures_util::FutureExt as _;
use sqlx::{AssertSqlSafe, Postgres, SqlSafeStr as _, Transaction};
use std::collections::{BTreeSet, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// How much longer than a handler's deadline PostgreSQL lets a transaction be idle: the deadline is the one that counts.
const IDLE_MARGIN: Duration = Duration::from_secs(5);

/// All that a lane's transactions need.
pub(super) struct Bench {
    pub(super) store: Store,
    pub(super) inbox: Inbox,
    pub(super) attempts: Attempts,
    pub(super) letters: Table,
    pub(super) outbox: OutboxInsert,
    pub(super) brake: Brake,
    pub(super) settings: Arc<ConsumerSettings>,
    pub(super) lane: LaneId,
}

/// What a run has touched, as far as it came.
#[derive(Default)]
struct Touched {
    /// The transaction that holds the claims.
    transaction_id: String,
    /// The places of the messages that are new, or letters that are to run again.
    fresh: Vec<usize>,
    actors: Seen,
}

/// What the actors have seen of a run.
#[derive(Default)]
struct Seen {
    /// The routes of those that have seen some of it.
    used: BTreeSet<usize>,
    /// The message that was being handled when a handler failed, if it is known.
    failed_at: Option<Uuid>,
}

impl Bench {
    /// Runs messages in one transaction. `earlier` is what the lane has counted since its last.
    pub(super) async fn run(&self, actors: &mut Actors, deliveries: &[Delivery], earlier: Counts) -> Ran {
        let Some(permit) = self.brake.acquire().await else {
            return Ran::Unusable(sqlx::Error::PoolClosed.into());
        };
        let mut transaction = match self.begin().await {
            Ok(transaction) => transaction,
            Err(error) => return Ran::Unusable(error),
        };
        if self.brake.is_tight()
            && let Err(error) = self.wait_for_siblings(&mut transaction).await
        {
            transaction.rollback().await.ok();
            return Stop::Sql(error).came_to(Vec::new(), None);
        }
        let mut touched = Touched::default();
        let stop = match self
            .work(&mut transaction, actors, &mut touched, deliveries, earlier)
            .await
        {
            Ok(busy) => match transaction.commit().await {
                Ok(()) => {
                    self.brake.calm();
                    return Ran::Committed { busy };
                }
                Err(error) => Stop::Commit(error),
            },
            Err(stop) => self.give_up(transaction, stop, &touched).await,
        };
        let Seen { used, failed_at } = touched.actors;
        used.iter().for_each(|route| actors.rebuild(*route));
        let failed_at = failed_at.and_then(|id| deliveries.iter().position(|one| one.id() == id));
        let ran = stop.came_to(touched.fresh, failed_at);
        if matches!(ran, Ran::Conflict) {
            self.brake.conflict(permit);
        }
        ran
    }

    async fn give_up(
        &self,
        mut transaction: Transaction<'static, Postgres>,
        stop: Stop,
        touched: &Touched,
    ) -> Stop {
        let (claim, handlers_ran) = (&touched.transaction_id, !touched.actors.used.is_empty());
        let standing = match stop {
            Stop::Handler(_) | Stop::Failure(_) if handlers_ran => {
                self.standing(&mut transaction, claim).await
            }
            _ => Standing::Claims,
        };
        // What could not be rolled back is rolled back by the server when the connection ends.
        transaction.rollback().await.ok();
        match (standing, stop) {
            (Standing::Torn, _) => Stop::Torn,
            (Standing::Gone(error), _) => Stop::Cut(error),
            (Standing::Claims, Stop::Overdue(_)) if self.is_committed(claim).await => Stop::Torn,
            (Standing::Claims, stop) => stop,
        }
    }

    pub(super) async fn begin(&self) -> Result<Transaction<'static, Postgres>, StoreError> {
        let statement = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {}; SET LOCAL statement_timeout = {}; \
             SET LOCAL idle_in_transaction_session_timeout = {}",
            self.brake.lock_timeout().as_millis(),
            self.settings.handler_deadline.as_millis(),
            (self.settings.handler_deadline + IDLE_MARGIN).as_millis(),
        );
        self.store
            .begin_with(AssertSqlSafe(statement).into_sql_str())
            .await
    }

    /// One transaction of the consumer at a time, whatever process it is in.
    async fn wait_for_siblings(&self, transaction: &mut Transaction<'static, Postgres>) -> sqlx::Result<()> {
        // The lock is waited for under the longer timeout, and the rest goes on under the one of the moment.
        sqlx::raw_sql(AssertSqlSafe(format!(
            "SET LOCAL lock_timeout = {}; SELECT pg_advisory_xact_lock(hashtext('twinbox.brake'), {}); SET LOCAL lock_timeout = {}",
            LONGEST_LOCK_TIMEOUT.as_millis(),
            self.inbox.consumer,
            self.brake.lock_timeout().as_millis(),
        )))
        .execute(&mut **transaction)
        .await?;
        Ok(())
    }

    async fn work(
        &self,
        transaction: &mut Transaction<'static, Postgres>,
        actors: &mut Actors,
        touched: &mut Touched,
        deliveries: &[Delivery],
        earlier: Counts,
    ) -> Result<Vec<usize>, Stop> {
        let mut counts = earlier;
        let (mut busy, mut duplicates) = (Vec::new(), Vec::new());
        let claims = self.inbox.claim(&mut *transaction, deliveries).await?;
        touched.transaction_id.clone_from(&claims.transaction_id);
        let mut seen = HashSet::with_capacity(deliveries.len());
        for (index, delivery) in deliveries.iter().enumerate() {
            match (&delivery.letter, claims.of(delivery.id())) {
                (Some(letter), _) => {
                    // Somebody took the letter back, or dealt with it.
                    if self.letters.remove(&mut *transaction, letter.id).await? {
                        touched.fresh.push(index);
                    }
                }
                (None, Claim::Claimed) if seen.insert(delivery.id()) => touched.fresh.push(index),
                (None, Claim::Claimed | Claim::Duplicate) => duplicates.push(delivery),
                (None, Claim::Busy) => busy.push(index),
            }
        }
        counts.duplicates += duplicates.len() as i64;
        self.inbox.seen_later(&mut *transaction, &duplicates).await?;

        let fresh = touched.fresh.iter().map(|index| &deliveries[*index]);
        let (tasks, dead) = self.sort(transaction, actors, &claims, fresh.clone()).await?;
        counts.dead += dead.len() as i64;
        counts.claimed += fresh.clone().filter(|delivery| delivery.letter.is_none()).count() as i64;
        self.letters.insert(&mut *transaction, &dead).await?;
        if !tasks.is_empty() {
            self.handle(transaction, actors, &mut touched.actors, tasks, &claims)
                .await?;
        }
        for delivery in fresh.clone().chain(duplicates) {
            if delivery.alone || delivery.envelope.run > 1 {
                self.attempts.forget(&mut *transaction, delivery.id()).await?;
            }
        }
        let oldest = fresh.filter_map(|delivery| delivery.envelope.enqueued_at).min();
        self.count_and_guard(transaction, counts, &claims, oldest).await?;
        Ok(busy)
    }

    /// Runs the handlers, in order, neighbours of one actor together, and writes what they enqueue.
    async fn handle(
        &self,
        transaction: &mut Transaction<'static, Postgres>,
        actors: &mut Actors,
        seen: &mut Seen,
        tasks: Vec<Task>,
        claims: &Claims,
    ) -> Result<(), Stop> {
        let mut inbox_transaction = InboxTransaction::new(transaction, &self.settings.name);
        for (route, events) in neighbours(tasks) {
            seen.used.insert(route);
            let limit = self.settings.handler_deadline * u32::try_from(events.len()).unwrap_or(u32::MAX);
            let handled = actors.actor(route).handle(events, &mut inbox_transaction);
            let handled = tokio::time::timeout(limit, AssertUnwindSafe(handled).catch_unwind()).await;
            seen.failed_at = inbox_transaction.handling();
            match handled {
                Ok(Ok(Ok(()))) => seen.failed_at = None,
                Ok(Ok(Err(error))) => return Err(Stop::Handler(error)),
                Ok(Err(panic)) => {
                    let text = panic_text(panic.as_ref());
                    return Err(Stop::Failure(Failure::retry(format!(
                        "the handler panicked: {text}"
                    ))));
                }
                Err(_) => {
                    // Whatever it was in the middle of: this connection is not to be used again.
                    self.end_backend(claims.backend).await;
                    let text = format!("the handler took longer than {limit:?}");
                    return Err(Stop::Overdue(Failure::retry(text)));
                }
            }
        }
        let enqueued = inbox_transaction.into_enqueued();
        if !enqueued.is_empty() {
            self.guard(&mut *transaction, claims).await?;
            self.outbox.insert(&mut *transaction, &enqueued).await?;
        }
        Ok(())
    }

    async fn end_backend(&self, backend: i32) {
        let ended = sqlx::query("SELECT pg_terminate_backend($1)")
            .persistent(self.store.prepared())
            .bind(backend)
            .execute(self.store.pool())
            .await;
        if let Err(error) = ended {
            tracing::warn!(%error, "could not end the connection of a handler past its deadline");
        }
    }
}

pub(super) fn new_dead_letter(
    delivery: &Delivery,
    reason: Reason,
    error: String,
    runs: u32,
) -> NewDeadLetter {
    let envelope = &delivery.envelope;
    NewDeadLetter {
        message_id: envelope.id,
        outbox_id: 0,
        stream: delivery.stream_name().map(str::to_owned),
        sequence: Some(delivery.sequence()),
        subject: envelope.subject.clone(),
        key: envelope.key.clone(),
        headers: envelope.headers.clone(),
        payload: envelope.payload.clone(),
        enqueued_at: envelope.enqueued_at,
        reason,
        error,
        runs: i32::try_from(runs).unwrap_or(i32::MAX),
    }
}
