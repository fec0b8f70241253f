//! One transaction: claim, handlers, the next hops, the guard, the commit.

use super::actor::Decoded;
use super::attempts::Attempts;
use super::brake::Brake;
use super::claim::{Claim, Claims, Counts, Inbox, LaneId};
use super::delivery::Delivery;
use super::envelope::Envelope;
use super::handler_error::HandlerError;
use super::router::Actors;
use super::transaction::InboxTransaction;
use crate::config::{ConsumerSettings, Unhandled};
use crate::dead_letter::{NewDeadLetter, Reason, Table};
use crate::error_text::with_causes;
use crate::store::{Fault, OutboxInsert, Store, StoreError, fault_of};
use futures_util::FutureExt as _;
use sqlx::{AssertSqlSafe, PgConnection, Postgres, SqlSafeStr as _, Transaction};
use std::collections::{BTreeSet, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;

/// How much longer than a handler's deadline PostgreSQL lets a transaction be idle: the deadline is the one that counts.
const IDLE_MARGIN: Duration = Duration::from_secs(5);

/// What a transaction over some messages came to.
pub(super) enum Ran {
    /// It is committed. The messages at these places are another transaction's at this moment, and were left alone.
    Committed { busy: Vec<usize> },
    /// It met another transaction. Nobody's failure: run it again.
    Conflict,
    /// The database is away, or can't be used until a person acts, or the commit's outcome is unknown. Nobody's failure:
    /// run it again after a pause; the claim tells what was committed.
    Unusable(StoreError),
    /// A handler failed. With more than one message it may be any of them.
    Failed(Failure),
}

/// How a handler failed.
#[derive(Debug)]
pub(super) struct Failure {
    /// Whether running it again can't help, and what that makes it.
    pub(super) hopeless: Option<Reason>,
    /// In words.
    pub(super) error: String,
}

impl Failure {
    fn retry(error: impl Into<String>) -> Self {
        Self {
            hopeless: None,
            error: error.into(),
        }
    }
}

/// What stops a transaction before its commit.
enum Stop {
    /// A statement of twinbox's own.
    Sql(sqlx::Error),
    /// The commit: deferred constraints speak here.
    Commit(sqlx::Error),
    Handler(HandlerError),
    Failure(Failure),
    /// Ids that old were forgotten meanwhile: the messages have to be looked at again.
    FenceMoved,
}

impl From<sqlx::Error> for Stop {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

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
        let mut used = BTreeSet::new();
        let stop = match self
            .work(&mut transaction, actors, &mut used, deliveries, earlier)
            .await
        {
            Ok(busy) => match transaction.commit().await {
                Ok(()) => {
                    self.brake.calm();
                    return Ran::Committed { busy };
                }
                Err(error) => Stop::Commit(error),
            },
            Err(stop) => {
                // What could not be rolled back is rolled back by the server when the connection ends.
                transaction.rollback().await.ok();
                stop
            }
        };
        used.into_iter().for_each(|route| actors.rebuild(route));
        let ran = ran_of(stop);
        if matches!(ran, Ran::Conflict) {
            self.brake.conflict(permit);
        }
        ran
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

    async fn work(
        &self,
        transaction: &mut Transaction<'static, Postgres>,
        actors: &mut Actors,
        used: &mut BTreeSet<usize>,
        deliveries: &[Delivery],
        earlier: Counts,
    ) -> Result<Vec<usize>, Stop> {
        let mut counts = earlier;
        let mut busy = Vec::new();
        let claims = self.claim(transaction, deliveries).await?;
        let mut sorted = Sorted::default();
        let mut seen = HashSet::with_capacity(deliveries.len());
        for (index, delivery) in deliveries.iter().enumerate() {
            match (delivery.letter, claims.of(delivery.id())) {
                (Some(letter), _) => {
                    // Somebody took the letter back, or dealt with it.
                    if self.letters.remove(&mut *transaction, letter.id).await? {
                        sorted.fresh.push(index);
                    }
                }
                (None, Claim::Claimed) if seen.insert(delivery.id()) => sorted.fresh.push(index),
                (None, Claim::Claimed | Claim::Duplicate) => sorted.duplicates.push(index),
                (None, Claim::Busy) => busy.push(index),
            }
        }
        counts.duplicates += sorted.duplicates.len() as i64;
        let duplicates: Vec<&Delivery> = sorted
            .duplicates
            .iter()
            .map(|index| &deliveries[*index])
            .collect();
        self.inbox.seen_later(&mut *transaction, &duplicates).await?;

        let (tasks, dead) = self
            .sort(transaction, actors, &claims, deliveries, &sorted.fresh)
            .await?;
        counts.dead += dead.len() as i64;
        counts.claimed += sorted
            .fresh
            .iter()
            .filter(|index| deliveries[**index].letter.is_none())
            .count() as i64;
        self.letters.insert(&mut *transaction, &dead).await?;
        if !tasks.is_empty() {
            self.handle(transaction, actors, used, tasks, &claims).await?;
        }
        for index in &sorted.fresh {
            let delivery = &deliveries[*index];
            if delivery.alone || delivery.envelope.run > 1 {
                self.attempts.forget(&mut *transaction, delivery.id()).await?;
            }
        }
        let oldest = sorted
            .fresh
            .iter()
            .filter_map(|index| deliveries[*index].envelope.enqueued_at)
            .min();
        self.count_and_guard(transaction, counts, &claims, oldest).await?;
        Ok(busy)
    }

    async fn claim(
        &self,
        transaction: &mut Transaction<'static, Postgres>,
        deliveries: &[Delivery],
    ) -> Result<Claims, Stop> {
        let mut claims = self.inbox.claim(&mut *transaction, deliveries).await?;
        if claims.transaction_id.is_empty() {
            // Only letters, which are claimed already.
            let (id, backend): (String, i32) =
                sqlx::query_as("SELECT pg_current_xact_id()::text, pg_backend_pid()")
                    .persistent(self.store.prepared())
                    .fetch_one(&mut **transaction)
                    .await?;
            (claims.transaction_id, claims.backend) = (id, backend);
        }
        Ok(claims)
    }

    /// Tells what is to be handled by whom from what goes to the dead letters at once.
    async fn sort(
        &self,
        transaction: &mut Transaction<'static, Postgres>,
        actors: &mut Actors,
        claims: &Claims,
        deliveries: &[Delivery],
        fresh: &[usize],
    ) -> Result<(Vec<Task>, Vec<NewDeadLetter>), Stop> {
        let mut quarantined = HashSet::new();
        if claims.has_dead_letters {
            let keys: Vec<&str> = fresh
                .iter()
                .filter_map(|index| deliveries[*index].key())
                .collect();
            quarantined = self.letters.quarantined(&mut *transaction, &keys).await?;
        }
        let (mut tasks, mut dead) = (Vec::new(), Vec::new());
        for index in fresh {
            let delivery = &deliveries[*index];
            let envelope = &delivery.envelope;
            let is_letter = delivery.letter.is_some();
            let follows = !is_letter && envelope.key.as_ref().is_some_and(|key| quarantined.contains(key));
            let too_old = !is_letter
                && envelope
                    .enqueued_at
                    .is_some_and(|time| time < claims.forgotten_before);
            let route = actors.route(envelope);
            let verdict = match route {
                _ if follows => Err((
                    Reason::Follows,
                    "an earlier message of its key is among the dead letters".to_owned(),
                )),
                _ if too_old => Err((
                    Reason::TooOld,
                    format!(
                        "enqueued before {}, and ids that old have been forgotten",
                        claims.forgotten_before
                    ),
                )),
                None if self.settings.unhandled == Unhandled::Skip => continue,
                None => {
                    let kind = envelope.kind.as_deref().unwrap_or("none");
                    Err((
                        Reason::Unhandled,
                        format!("no handler for subject {} and kind {kind}", envelope.subject),
                    ))
                }
                Some(route) => match actors.actor(route).decode(envelope) {
                    Ok(decoded) => Ok(Task {
                        route,
                        envelope: envelope.clone(),
                        decoded,
                    }),
                    Err(error) => Err((Reason::Undecodable, error.to_string())),
                },
            };
            match verdict {
                Ok(task) => tasks.push(task),
                // A letter was taken out in this transaction: it is put back by whoever sees this.
                Err((reason, error)) if is_letter => {
                    return Err(Stop::Failure(Failure {
                        hopeless: Some(reason),
                        error,
                    }));
                }
                Err((reason, error)) => {
                    quarantined.extend(envelope.key.clone());
                    dead.push(new_dead_letter(delivery, reason, error, 0));
                }
            }
        }
        Ok((tasks, dead))
    }

    /// Runs the handlers, in order, neighbours of one actor together, and writes what they enqueue.
    async fn handle(
        &self,
        transaction: &mut Transaction<'static, Postgres>,
        actors: &mut Actors,
        used: &mut BTreeSet<usize>,
        tasks: Vec<Task>,
        claims: &Claims,
    ) -> Result<(), Stop> {
        let mut inbox_transaction = InboxTransaction::new(transaction, &self.settings.name);
        for (route, events) in neighbours(tasks) {
            used.insert(route);
            let limit = self.settings.handler_deadline * u32::try_from(events.len()).unwrap_or(u32::MAX);
            let handled = actors.actor(route).handle(events, &mut inbox_transaction);
            match tokio::time::timeout(limit, AssertUnwindSafe(handled).catch_unwind()).await {
                Ok(Ok(Ok(()))) => {}
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
                    return Err(Stop::Failure(Failure::retry(text)));
                }
            }
        }
        let enqueued = inbox_transaction.into_enqueued();
        if !enqueued.is_empty() {
            // Outside of the claim's transaction it would be written whatever becomes of the claim.
            guard(&mut *transaction, claims).await?;
            self.outbox.insert(&mut *transaction, &enqueued).await?;
        }
        Ok(())
    }

    async fn count_and_guard(
        &self,
        transaction: &mut Transaction<'static, Postgres>,
        counts: Counts,
        claims: &Claims,
        oldest: Option<OffsetDateTime>,
    ) -> Result<(), Stop> {
        match self.inbox.count(&mut *transaction, self.lane, counts).await {
            Ok((id, forgotten_before)) => {
                of_claim(id.as_deref(), claims)?;
                let fence_moved = forgotten_before > claims.forgotten_before;
                if fence_moved && oldest.is_some_and(|oldest| oldest < forgotten_before) {
                    return Err(Stop::FenceMoved);
                }
                Ok(())
            }
            Err(error) => Err(swallowed(error)),
        }
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

#[derive(Default)]
struct Sorted {
    fresh: Vec<usize>,
    duplicates: Vec<usize>,
}

struct Task {
    route: usize,
    envelope: Envelope,
    decoded: Decoded,
}

fn neighbours(tasks: Vec<Task>) -> Vec<(usize, Vec<(Envelope, Decoded)>)> {
    let mut groups: Vec<(usize, Vec<(Envelope, Decoded)>)> = Vec::new();
    for Task {
        route,
        envelope,
        decoded,
    } in tasks
    {
        match groups.last_mut() {
            Some((last, events)) if *last == route => events.push((envelope, decoded)),
            _ => groups.push((route, vec![(envelope, decoded)])),
        }
    }
    groups
}

/// Whether this still is the transaction that made the claim. In an aborted one it fails.
async fn guard(connection: &mut PgConnection, claims: &Claims) -> Result<(), Stop> {
    let id: Result<Option<String>, sqlx::Error> =
        sqlx::query_scalar("SELECT pg_current_xact_id_if_assigned()::text")
            .fetch_one(connection)
            .await;
    match id {
        Ok(id) => of_claim(id.as_deref(), claims),
        Err(error) => Err(swallowed(error)),
    }
}

fn of_claim(id: Option<&str>, claims: &Claims) -> Result<(), Stop> {
    if id == Some(claims.transaction_id.as_str()) {
        return Ok(());
    }
    let text =
        "the handler ended the transaction itself (COMMIT or ROLLBACK): it is not the handler's to end";
    Err(Stop::Failure(Failure {
        hopeless: Some(Reason::Rejected),
        error: text.to_owned(),
    }))
}

/// `in_failed_sql_transaction` says that a handler went on after an error.
fn swallowed(error: sqlx::Error) -> Stop {
    let code = error
        .as_database_error()
        .and_then(|database| database.code().map(|code| code.into_owned()));
    if code.as_deref() == Some("25P02") {
        let text = "the handler returned Ok after an SQL error, which had aborted its transaction: return the error, or use a \
                    savepoint";
        return Stop::Failure(Failure::retry(text));
    }
    Stop::Sql(error)
}

fn ran_of(stop: Stop) -> Ran {
    match stop {
        Stop::Failure(failure) => Ran::Failed(failure),
        Stop::FenceMoved => Ran::Conflict,
        // No message is to blame for what twinbox itself asks.
        Stop::Sql(error) => match fault_of(&error) {
            Fault::Conflict => Ran::Conflict,
            _ => Ran::Unusable(error.into()),
        },
        Stop::Commit(error) => ran_of_handler(fault_of(&error), with_causes(&error), error.into()),
        Stop::Handler(error) => {
            let (fault, text) = (error.fault(), error.to_string());
            match error {
                HandlerError::Database(error) => ran_of_handler(fault, text, error.into()),
                HandlerError::Reject(_) => Ran::Failed(Failure {
                    hopeless: Some(Reason::Rejected),
                    error: text,
                }),
                HandlerError::Retry(_) => Ran::Failed(Failure::retry(text)),
            }
        }
    }
}

fn ran_of_handler(fault: Fault, text: String, error: StoreError) -> Ran {
    match fault {
        Fault::Conflict => Ran::Conflict,
        Fault::Infrastructure | Fault::Systemic => Ran::Unusable(error),
        Fault::Data => Ran::Failed(Failure {
            hopeless: Some(Reason::Rejected),
            error: text,
        }),
        Fault::Timeout | Fault::Constraint | Fault::Other => Ran::Failed(Failure::retry(text)),
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
        stream: Some(delivery.stream_name.clone()),
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

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("something that is no text")
}
