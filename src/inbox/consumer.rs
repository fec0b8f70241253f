//! The consumer: takes messages from the broker, in order, to the lanes.

use super::actor::BusinessActor;
use super::attempts::Attempts;
use super::batch::Bench;
use super::brake::Brake;
use super::claim::{Inbox, LaneId};
use super::control::{ConsumerControl, Side};
use super::delivery::InHand;
use super::lane::Lane;
use super::lanes::Lanes;
use super::letters::Letters;
use super::registry;
use super::router::{Actors, Route};
use super::session::{Ended, Session};
use super::sql_handler::{SqlHandler, SqlHandlerError};
use crate::broker::Subscription;
use crate::config::{ConsumerSettings, Impossible};
use crate::dead_letter::{Origin, Table};
use crate::error_text::with_causes;
use crate::store::{Fault, OutboxInsert, Store, StoreError};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{RwLock, Semaphore, mpsc};
use tokio::task::{JoinError, JoinSet};
use uuid::Uuid;

/// The pauses while database or broker can't be used: the first, doubled up to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// What is wrong with a consumer.
#[derive(Debug, thiserror::Error)]
pub enum ConsumerConfigError {
    /// Its settings.
    #[error("impossible settings: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Settings(Vec<Impossible>),
    /// It has no handler.
    #[error("consumer {0} has no handler: register an actor, or give handlers with SQL")]
    NoHandler(String),
    /// A handler in SQL.
    #[error("handlers[{index}].sql: {source}")]
    Sql {
        /// Its place in the settings.
        index: usize,
        /// What is wrong.
        #[source]
        source: SqlHandlerError,
    },
}

/// Why a consumer ended.
#[derive(Debug, thiserror::Error)]
pub enum ConsumerError {
    /// The database, where waiting does not help.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A lane ended by itself, which is an error of twinbox.
    #[error("a lane ended by itself")]
    Lane,
}

/// A consumer with its handlers. Clones are the same consumer.
#[derive(Clone, Debug)]
pub struct Consumer {
    settings: Arc<ConsumerSettings>,
    routes: Arc<[Route]>,
}

/// Collects the handlers of a consumer.
#[derive(Debug)]
pub struct ConsumerBuilder {
    settings: ConsumerSettings,
    routes: Vec<Route>,
}

impl ConsumerBuilder {
    /// Messages of these subjects (wildcards allowed) go to an actor, which the factory makes: one for each lane. Of several
    /// that fit, the first registered takes a message.
    #[must_use]
    pub fn actor<A: BusinessActor>(
        mut self,
        subject: impl Into<String>,
        factory: impl Fn() -> A + Send + Sync + 'static,
    ) -> Self {
        self.routes.push(Route::new(subject.into(), None, factory));
        self
    }

    /// The same for messages of one kind, by the `Event-Type` or `ce-type` header.
    #[must_use]
    pub fn actor_of_kind<A: BusinessActor>(
        mut self,
        subject: impl Into<String>,
        kind: impl Into<String>,
        factory: impl Fn() -> A + Send + Sync + 'static,
    ) -> Self {
        self.routes
            .push(Route::new(subject.into(), Some(kind.into()), factory));
        self
    }

    /// The consumer.
    ///
    /// # Errors
    /// [`ConsumerConfigError`] for what can't work.
    pub fn build(mut self) -> Result<Consumer, ConsumerConfigError> {
        let faults = self.settings.faults();
        if !faults.is_empty() {
            return Err(ConsumerConfigError::Settings(faults));
        }
        for (index, handler) in self.settings.handlers.iter().enumerate() {
            let sql =
                SqlHandler::new(&handler.sql).map_err(|source| ConsumerConfigError::Sql { index, source })?;
            self.routes.push(Route::new(
                handler.subject.clone(),
                handler.kind.clone(),
                move || sql.clone(),
            ));
        }
        if self.routes.is_empty() {
            return Err(ConsumerConfigError::NoHandler(self.settings.name));
        }
        Ok(Consumer {
            settings: Arc::new(self.settings),
            routes: self.routes.into(),
        })
    }
}

impl Consumer {
    /// A consumer whose handlers are Rust; those in SQL of the settings come after them.
    ///
    /// ```
    /// use twinbox::config::ConsumerSettings;
    /// # use twinbox::inbox::{BusinessActor, Consumer, Event, HandlerError, InboxTransaction};
    /// # struct Billing;
    /// # impl BusinessActor for Billing {
    /// #     type Event = serde_json::Value;
    /// #     async fn handle(&mut self, _: Event<Self::Event>, _: &mut InboxTransaction<'_>) -> Result<(), HandlerError> {
    /// #         Ok(())
    /// #     }
    /// # }
    /// let settings = ConsumerSettings { name: "billing".into(), stream: "ORDERS".into(), ..Default::default() };
    /// let consumer = Consumer::builder(settings).actor("orders.placed", || Billing).build()?;
    /// # Ok::<(), twinbox::inbox::ConsumerConfigError>(())
    /// ```
    pub fn builder(settings: ConsumerSettings) -> ConsumerBuilder {
        ConsumerBuilder {
            settings,
            routes: Vec::new(),
        }
    }

    /// A consumer whose handlers are all in SQL.
    ///
    /// # Errors
    /// [`ConsumerConfigError`] for what can't work.
    pub fn from_settings(settings: ConsumerSettings) -> Result<Self, ConsumerConfigError> {
        Self::builder(settings).build()
    }

    /// Its settings.
    pub fn settings(&self) -> &ConsumerSettings {
        &self.settings
    }

    /// Consumes until it is drained. Outages are waited out.
    ///
    /// # Errors
    /// [`ConsumerError`] where starting anew may help.
    pub async fn run(
        &self,
        store: &Store,
        subscription: Arc<dyn Subscription>,
        control: ConsumerControl,
    ) -> Result<(), ConsumerError> {
        let Some(consumer) = self.register(store, &control).await? else {
            return Ok(());
        };
        let (mut tasks, lanes) = self.start_lanes(store, consumer, &control);
        let letters = Letters {
            store: store.clone(),
            table: self.letters(store),
            lanes: lanes.clone(),
            control: control.clone(),
        };
        tasks.spawn(letters.run());
        let session = Session {
            store: store.clone(),
            subscription: subscription.clone(),
            settings: self.settings.clone(),
            lanes,
            control: control.clone(),
        };
        let mut ended_early = false;
        let mut panic: Option<JoinError> = None;
        {
            // It may be inside a transaction too, so it is not dropped half-way either.
            let consuming = self.consume(&session);
            tokio::pin!(consuming);
            loop {
                tokio::select! {
                    () = &mut consuming => break,
                    Some(task) = tasks.join_next() => {
                        ended_early |= !control.is_draining();
                        control.drain().cancel();
                        panic = panic.or(task.err());
                    }
                }
            }
        }
        // No more can come: the lanes finish the transactions they are in. None is aborted, whatever has happened.
        control.drain().cancel();
        drop(session);
        while let Some(task) = tasks.join_next().await {
            panic = panic.or(task.err());
        }
        control.holds(0);
        if let Err(error) = subscription.flush().await {
            tracing::warn!(consumer = self.settings.name, %error, "the last acknowledgements may not be out");
        }
        match panic.map(JoinError::try_into_panic) {
            // The supervisor sees it as this consumer's.
            Some(Ok(panic)) => std::panic::resume_unwind(panic),
            _ if ended_early => Err(ConsumerError::Lane),
            _ => Ok(()),
        }
    }

    /// The row that stands for it, once the database answers. `None`: it is to end.
    async fn register(&self, store: &Store, control: &ConsumerControl) -> Result<Option<i32>, StoreError> {
        let ConsumerSettings { name, stream, .. } = &*self.settings;
        let mut pause = PAUSES.0;
        while !control.is_draining() {
            let registered = async {
                let consumer = registry::consumer_id(store, name, stream).await?;
                registry::fold_counters(store, consumer).await?;
                Ok::<_, StoreError>(consumer)
            };
            match registered.await {
                Ok(consumer) => return Ok(Some(consumer)),
                Err(error) if matches!(error.fault(), Fault::Infrastructure | Fault::Conflict) => {
                    let reason = with_causes(&error);
                    tracing::warn!(consumer = name, reason, "waiting for the database");
                    control.is_held_up(Side::Database, reason);
                }
                Err(error) => return Err(error),
            }
            pause = rest(control, pause).await;
        }
        Ok(None)
    }

    /// One session with the broker after the other, until the consumer is to end.
    async fn consume(&self, session: &Session) {
        let mut pause = PAUSES.0;
        while !session.control.is_draining() {
            match session.run().await {
                Ended::Drained => return,
                Ended::LostTrack => pause = PAUSES.0,
                Ended::Failed(side, reason) => {
                    tracing::warn!(consumer = self.settings.name, reason, "consuming is held up");
                    session.control.is_held_up(side, reason);
                    pause = rest(&session.control, pause).await;
                }
            }
        }
    }

    fn letters(&self, store: &Store) -> Table {
        Table::new(
            store.schema(),
            store.prepared(),
            Origin::Inbox,
            &self.settings.name,
        )
    }

    fn start_lanes(&self, store: &Store, consumer: i32, control: &ConsumerControl) -> (JoinSet<()>, Lanes) {
        let brake = Brake::new(usize::from(self.settings.lanes), self.settings.lock_timeout);
        let stage = Arc::new(RwLock::new(()));
        let instance = Uuid::now_v7();
        let mut tasks = JoinSet::new();
        let mut senders = Vec::new();
        // The permits bound what is in hand; a lane may hold all of it.
        let capacity = usize::try_from(self.settings.max_in_flight).unwrap_or(Semaphore::MAX_PERMITS);
        for lane in 0..self.settings.lanes {
            let (sender, receiver) = mpsc::channel(capacity);
            let bench = Bench {
                store: store.clone(),
                inbox: Inbox::new(store, consumer, &self.settings.name),
                attempts: Attempts::new(store, consumer),
                letters: self.letters(store),
                outbox: OutboxInsert::new(store.schema(), store.prepared()),
                brake: brake.clone(),
                settings: self.settings.clone(),
                lane: LaneId {
                    instance,
                    lane: i32::from(lane),
                },
            };
            // A task that is joined and never aborted: it may be inside a transaction.
            let actors = Actors::new(self.routes.clone());
            let lane = Lane::new(bench, actors, receiver, control.clone(), stage.clone());
            tasks.spawn(lane.run());
            senders.push(sender);
        }
        // Dropping a JoinSet aborts; this one is emptied first, see `run`.
        let lanes = Lanes {
            senders: senders.into(),
            permits: Arc::new(Semaphore::new(capacity)),
            in_hand: InHand::default(),
        };
        (tasks, lanes)
    }
}

/// A pause, cut short if the consumer is to end. Returns the next, longer one.
async fn rest(control: &ConsumerControl, pause: Duration) -> Duration {
    tokio::select! {
        () = control.drain().cancelled() => {}
        () = tokio::time::sleep(pause) => {}
    }
    (pause * 2).min(PAUSES.1)
}
