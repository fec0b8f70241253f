//! A session with the broker: from the recovery of what is outstanding until the connection, or the track, is lost.

use super::control::{ConsumerControl, Side};
use super::lanes::Lanes;
use super::registry;
use crate::broker::{BrokerError, Incoming, StreamId, Subscription};
use crate::config::ConsumerSettings;
use crate::error_text::with_causes;
use crate::store::{Store, StoreError};
use futures_util::stream::BoxStream;
use futures_util::{FutureExt as _, StreamExt as _};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Interval, MissedTickBehavior};

/// How often the consumer is compared with its stream, beside at each reconnect.
const STATE_LOOK: Duration = Duration::from_secs(30);
/// How often the connection is looked at.
const CONNECTION_LOOK: Duration = Duration::from_millis(250);

/// So many messages are taken in a row before the clocks are looked at.
const LOOK_UP_AFTER: u32 = 64;

/// How a session ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// The consumer is to end.
    Drained,
    /// The connection was made anew, or the consumer: what is outstanding has to be read again.
    LostTrack,
    /// Broker or database: to be tried again after a pause.
    Failed(Side, String),
}

impl From<BrokerError> for Ended {
    fn from(error: BrokerError) -> Self {
        Self::Failed(Side::Broker, error.to_string())
    }
}

impl From<StoreError> for Ended {
    fn from(error: StoreError) -> Self {
        Self::Failed(Side::Database, with_causes(&error))
    }
}

pub(super) struct Session {
    pub(super) store: Store,
    pub(super) subscription: Arc<dyn Subscription>,
    pub(super) settings: Arc<ConsumerSettings>,
    pub(super) lanes: Lanes,
    pub(super) control: ConsumerControl,
}

impl Session {
    pub(super) async fn run(&self) -> Ended {
        match self.consume().await {
            Ok(()) => Ended::Drained,
            Err(ended) => ended,
        }
    }

    async fn consume(&self) -> Result<(), Ended> {
        let connections = self.subscription.connections();
        let mut streams = Streams {
            store: self.store.clone(),
            known: HashMap::new(),
            last: None,
        };
        let keep_alive = every(self.subscription.ack_wait() / 3);
        let mut ticks = Ticks {
            keep_alive,
            look: every(CONNECTION_LOOK),
            state: every(STATE_LOOK),
        };
        ticks.state.tick().await;

        self.check_place().await?;
        let outstanding = self.subscription.state().await?.outstanding();
        if !outstanding.is_empty() {
            tracing::info!(
                consumer = self.settings.name,
                ?outstanding,
                "recovering what was handed out"
            );
        }
        // What a process before this one held comes again only after the ack wait, and what is new would overtake it: so it
        // is read from the stream, first and in order.
        let recovered = self.subscription.read(outstanding);
        self.take(recovered, &mut streams, &mut ticks, connections)
            .await?;
        if self.control.is_draining() {
            return Ok(());
        }
        let fresh = self.subscription.messages().await?;
        self.control.works(Side::Broker);
        self.take(fresh, &mut streams, &mut ticks, connections).await?;
        if self.control.is_draining() {
            return Ok(());
        }
        Err(Ended::Failed(
            Side::Broker,
            "the broker ended the stream of messages".to_owned(),
        ))
    }

    /// Takes messages to the lanes until there are no more.
    async fn take(
        &self,
        mut messages: BoxStream<'static, Result<Incoming, BrokerError>>,
        streams: &mut Streams,
        ticks: &mut Ticks,
        connections: u64,
    ) -> Result<(), Ended> {
        let mut in_a_row = 0;
        loop {
            // What is there is taken without more ado, but not for ever.
            in_a_row = (in_a_row + 1) % LOOK_UP_AFTER;
            if in_a_row == 0
                && let Some(tick) = ticks.next().now_or_never()
            {
                self.tick(tick, connections).await?;
            }
            // First a place for it, so that no more is fetched than can be held.
            let Some(permit) = self.permit(ticks, connections).await? else {
                return Ok(());
            };
            let message = loop {
                if !self.control.is_draining()
                    && let Some(message) = messages.next().now_or_never()
                {
                    break message;
                }
                tokio::select! {
                    biased;
                    () = self.control.drain().cancelled() => return Ok(()),
                    message = messages.next() => break message,
                    tick = ticks.next() => self.tick(tick, connections).await?,
                }
            };
            let Some(message) = message.transpose()? else {
                return Ok(());
            };
            let stream = streams.id(&message.position.stream).await?;
            if let Some(delivery) = self.lanes.in_hand.take(message, stream, permit) {
                self.lanes.send(delivery).await;
            }
        }
    }

    /// Waits for a place. `None`: the consumer is to end.
    async fn permit(
        &self,
        ticks: &mut Ticks,
        connections: u64,
    ) -> Result<Option<OwnedSemaphorePermit>, Ended> {
        if let Ok(permit) = self.lanes.permits.clone().try_acquire_owned() {
            return Ok(Some(permit));
        }
        let place = self.lanes.permits.clone().acquire_owned();
        tokio::pin!(place);
        loop {
            tokio::select! {
                biased;
                () = self.control.drain().cancelled() => return Ok(None),
                permit = &mut place => return Ok(permit.ok()),
                tick = ticks.next() => self.tick(tick, connections).await?,
            }
        }
    }

    async fn tick(&self, tick: Tick, connections: u64) -> Result<(), Ended> {
        self.control.holds(self.lanes.in_hand.len());
        match tick {
            Tick::KeepAlive => {
                if let Err(error) = self.lanes.in_hand.in_progress().await {
                    tracing::debug!(consumer = self.settings.name, %error, "could not say that work goes on");
                }
                Ok(())
            }
            Tick::Look if self.subscription.connections() != connections => Err(Ended::LostTrack),
            Tick::Look => Ok(()),
            Tick::State if self.subscription.is_connected() => self.check_place().await,
            Tick::State => Ok(()),
        }
    }

    /// A consumer that stands after the end of its stream gets nothing, without a word, and one that somebody deleted neither: it is
    /// made anew, behind the inbox.
    async fn check_place(&self) -> Result<(), Ended> {
        let fault = match self.subscription.state().await {
            Ok(state) if state.is_ahead_of_stream() => format!(
                "the stream has lost messages that were handed out: it ends at {}, and the consumer stands at {}",
                state.stream.last_sequence, state.delivered
            ),
            Ok(_) => return Ok(()),
            Err(error @ BrokerError::NoConsumer { .. }) => error.to_string(),
            Err(error) => return Err(error.into()),
        };
        tracing::error!(
            consumer = self.settings.name,
            fault,
            "the consumer is made anew; the inbox skips what was done"
        );
        self.subscription.recreate().await?;
        Err(Ended::LostTrack)
    }
}

/// The rows of the stream's incarnations.
struct Streams {
    store: Store,
    known: HashMap<StreamId, i32>,
    /// The one that was asked for last, nearly always the next one, too.
    last: Option<(Arc<StreamId>, i32)>,
}

impl Streams {
    async fn id(&mut self, stream: &Arc<StreamId>) -> Result<i32, StoreError> {
        if let Some((last, id)) = &self.last
            && Arc::ptr_eq(last, stream)
        {
            return Ok(*id);
        }
        let id = match self.known.get(&**stream) {
            Some(id) => *id,
            None => registry::stream_id(&self.store, stream).await?,
        };
        self.known.insert((**stream).clone(), id);
        self.last = Some((stream.clone(), id));
        Ok(id)
    }
}

enum Tick {
    KeepAlive,
    Look,
    State,
}

struct Ticks {
    keep_alive: Interval,
    look: Interval,
    state: Interval,
}

impl Ticks {
    async fn next(&mut self) -> Tick {
        tokio::select! {
            _ = self.keep_alive.tick() => Tick::KeepAlive,
            _ = self.look.tick() => Tick::Look,
            _ = self.state.tick() => Tick::State,
        }
    }
}

fn every(period: Duration) -> Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}
