//! What every part of the service stands on: the database with its tables, and the streams.

use crate::broker::nats::Nats;
use crate::broker::{BrokerError, Publisher as _};
use crate::config::{Settings, StreamSettings};
use crate::store::{self, Fault, Store, StoreError};
use crate::supervisor::{WorkContext, WorkError};
use backon::BackoffBuilder as _;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// The pauses while a server is away: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How often a stream is asked for while there is a connection. Then it is taken for a missing permission, and what can run
/// without runs.
const STREAM_TRIES: usize = 3;
/// How often the relay looks whether the streams of the settings are there. Much shorter than its grace time for subjects that
/// no stream covers.
const STREAM_LOOK: Duration = Duration::from_secs(5);

pub(super) struct Foundation {
    pub(super) settings: Settings,
    pub(super) store: Store,
    migrated: Mutex<bool>,
}

impl Foundation {
    pub(super) fn new(settings: Settings, store: Store) -> Self {
        Self {
            settings,
            store,
            migrated: Mutex::new(false),
        }
    }

    /// Waits until the schema is there and up to date. `false`: the service drains.
    pub(super) async fn database(&self, context: &WorkContext) -> Result<bool, WorkError> {
        let mut pauses = pauses();
        while !context.is_draining() {
            let error = match self.migrate().await {
                Ok(()) => return Ok(true),
                Err(error @ StoreError::Url(_)) => return Err(WorkError::configuration(error)),
                Err(error) => error,
            };
            let reason = crate::error_text::with_causes(&error);
            match error.fault() {
                Fault::Infrastructure | Fault::Conflict => tracing::warn!(reason, "waiting for the database"),
                // A person has to act: a missing right, a password. Until then it is asked again.
                _ => tracing::error!(reason, "waiting for the database"),
            }
            context.not_ready(reason);
            pause(context, &mut pauses).await;
        }
        Ok(false)
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        // One part of this process does it; the lock among processes is the database's.
        let mut migrated = self.migrated.lock().await;
        if *migrated {
            return Ok(());
        }
        let state = if self.settings.run.migrate {
            store::migrate(&self.store).await?
        } else {
            store::migration_state(&self.store).await?
        };
        if !state.is_current() {
            return Err(StoreError::NotMigrated {
                schema: self.store.schema().name().to_owned(),
            });
        }
        *migrated = true;
        Ok(())
    }

    /// A connection of this part's own, and the streams of the settings: created if absent, checked if present. `None`: the
    /// service drains.
    pub(super) async fn broker(&self, context: &WorkContext) -> Result<Option<Arc<Nats>>, WorkError> {
        let name = format!("twinbox {}", context.name());
        let nats = Nats::connect(&self.settings.nats, name)
            .await
            .map_err(WorkError::configuration)?;
        let mut pauses = pauses();
        while !nats.is_connected() {
            context.not_ready(format!("no connection to NATS at {}", self.settings.nats.url));
            pause(context, &mut pauses).await;
            if context.is_draining() {
                return Ok(None);
            }
        }
        for stream in &self.settings.streams {
            for attempt in 1..=STREAM_TRIES {
                match self.ensure_stream(&nats, stream).await {
                    Err(BrokerError::Unavailable(_)) if attempt < STREAM_TRIES && !context.is_draining() => {
                        pause(context, &mut pauses).await;
                        continue;
                    }
                    Err(error) => {
                        tracing::error!(stream = stream.name, %error, "the stream could not be checked")
                    }
                    Ok(()) => {}
                }
                break;
            }
        }
        Ok(Some(nats))
    }

    async fn ensure_stream(&self, nats: &Nats, stream: &StreamSettings) -> Result<(), BrokerError> {
        let findings = nats.ensure_stream(stream, self.relay_retry()).await?;
        findings.iter().for_each(|finding| finding.log());
        Ok(())
    }

    /// Makes streams of the settings anew that somebody deleted, for ever. What they held is published again by the relay.
    pub(super) async fn keep_streams(&self, nats: &Nats) -> Infallible {
        loop {
            tokio::time::sleep(STREAM_LOOK).await;
            for stream in &self.settings.streams {
                // What can't be asked now is asked again.
                if let Ok(None) = nats.stream_state(&stream.name).await {
                    tracing::error!(stream = stream.name, "the stream is gone: creating it anew");
                    if let Err(error) = self.ensure_stream(nats, stream).await {
                        tracing::error!(stream = stream.name, %error, "the stream could not be created");
                    }
                }
            }
        }
    }

    /// How long after its first copy the relay may publish a message again in ordinary operation: a takeover, then one
    /// publish that is not answered, then a pause.
    fn relay_retry(&self) -> Duration {
        self.settings.relay.lease + self.settings.nats.publish_timeout + self.settings.relay.retry_max
    }
}

/// The pauses of a wait, doubling, with a part by chance.
pub(super) fn pauses() -> backon::ExponentialBackoff {
    backon::ExponentialBuilder::default()
        .with_min_delay(PAUSES.0)
        .with_max_delay(PAUSES.1)
        .with_jitter()
        .without_max_times()
        .build()
}

/// The next of the pauses, or less if the service drains.
pub(super) async fn pause(context: &WorkContext, pauses: &mut backon::ExponentialBackoff) {
    let pause = pauses.next().unwrap_or(PAUSES.1);
    tokio::select! {
        () = context.drain().cancelled() => {}
        () = tokio::time::sleep(pause) => {}
    }
}
