//! The relay: publishes what was enqueued.

use super::health::{RelayControl, RelayRole};
use super::leader::Leader;
use super::lease::standby_pause;
use super::pace::Backoff;
use super::rebase::rebase_if_restored;
use super::relay_table::RelayTable;
use super::task::Task;
use super::term::{Term, TermError};
use crate::broker::Publisher;
use crate::config::RelaySettings;
use crate::dead_letter::{Origin, Table};
use crate::store::{Fault, Store, StoreError};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Why a relay can't run. An outage is no such reason: it waits for its end.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The schema is missing or of another version.
    #[error(transparent)]
    NotMigrated(StoreError),
}

/// Publishes the outbox: one relay of a name at a time, in the order of the log.
///
/// Any number of relays of one name may run, on any number of machines. One of them holds the lease and publishes; the
/// others take over when it ends, at once, or when it is gone, after about the time of the lease.
///
/// ```no_run
/// use std::sync::Arc;
/// use tokio_util::sync::CancellationToken;
/// use twinbox::broker::nats::Nats;
/// use twinbox::config::Settings;
/// use twinbox::outbox::{Relay, RelayControl};
/// use twinbox::store::Store;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let settings = Settings::default();
/// let store = Store::connect(&settings.database).await?;
/// // A connection of its own: a relay whose lease is over gives it up.
/// let nats = Nats::connect(&settings.nats, "twinbox relay").await?;
/// let relay = Relay::new(store, nats, settings.relay);
/// let shutdown = CancellationToken::new();
/// relay.run(RelayControl::new(shutdown)).await?;
/// # Ok(())
/// # }
/// ```
pub struct Relay {
    store: Store,
    publisher: Arc<dyn Publisher>,
    settings: RelaySettings,
    table: RelayTable,
    letters: Table,
    holder: String,
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay")
            .field("name", &self.settings.name)
            .field("holder", &self.holder)
            .finish_non_exhaustive()
    }
}

impl Relay {
    /// A relay that publishes by `publisher`, which it has for itself: when its lease is over, it makes the connection
    /// anew, so that nothing leaves that is still queued in it.
    pub fn new(store: Store, publisher: Arc<dyn Publisher>, settings: RelaySettings) -> Self {
        let table = RelayTable::new(&store, &settings.name);
        let letters = Table::new(
            store.schema(),
            store.prepared(),
            Origin::Outbox,
            settings.name.as_str(),
        );
        let holder = format!("{}:{}:{}", host_name(), std::process::id(), Uuid::now_v7());
        Self {
            store,
            publisher,
            settings,
            table,
            letters,
            holder,
        }
    }

    /// Gives the holder's name, which is shown in the status while this relay leads: host, process and a number.
    pub fn holder(&self) -> &str {
        &self.holder
    }

    /// Runs until it is told to drain. Where this future is dropped, the relay drains in the background.
    ///
    /// # Errors
    /// [`RelayError::NotMigrated`]. Everything else it waits out.
    ///
    /// # Panics
    /// If one of its tasks did.
    pub async fn run(self, control: RelayControl) -> Result<(), RelayError> {
        // Its work is on a task that nobody aborts: a future that is dropped inside a transaction would poison the pool.
        let (control, _drains_when_dropped) = control.into_guarded();
        Task::start(self.work(control)).joined().await.unwrap_or(Ok(()))
    }

    async fn work(self, control: RelayControl) -> Result<(), RelayError> {
        let mut backoff = Backoff::new(self.settings.retry_min, self.settings.retry_max);
        let mut complained = false;
        while !control.is_draining() {
            let failed = match self.stand_by(&control).await {
                Ok(None) => return Ok(()),
                Ok(Some(term)) => {
                    complained = false;
                    backoff.reset();
                    self.lead(&control, term).await
                }
                Err(error) => Err(error),
            };
            let Err(error) = failed else { continue };
            if let Some(not_migrated) = self.not_migrated(&error) {
                return Err(RelayError::NotMigrated(not_migrated));
            }
            if !std::mem::replace(&mut complained, true) {
                match error.fault() {
                    Fault::Conflict | Fault::Infrastructure => {
                        tracing::warn!(%error, "the database does not serve the relay: waiting until it does");
                    }
                    _ => tracing::error!(%error, "the database refuses the relay: waiting until it does not"),
                }
            }
            control.is_held_up(&error.to_string());
            pause(&control, backoff.next()).await;
        }
        Ok(())
    }

    /// Waits until the lease is free and takes it. `None`: the relay is to end.
    async fn stand_by(&self, control: &RelayControl) -> Result<Option<Term>, StoreError> {
        let mut known_holder = None;
        while !control.is_draining() {
            let mut connection = self.store.pool().acquire().await?;
            let standing = self.table.standing(&mut connection).await?;
            drop(connection);
            if standing.in_recovery {
                return Err(StoreError::Standby);
            }
            let free = standing.free || standing.holder.as_deref() == Some(self.holder.as_str());
            if free {
                rebase_if_restored(&self.store).await?;
                let taken = Term::take(&self.store, &self.table, &self.holder, self.settings.lease).await?;
                if let Some(term) = taken {
                    return Ok(Some(term));
                }
            }
            if standing.holder.is_some() && standing.holder != known_holder {
                tracing::info!(
                    relay = self.settings.name,
                    holder = standing.holder,
                    "standing by"
                );
                known_holder = standing.holder;
            }
            control.update(|health| {
                health.role = RelayRole::Standby;
                health.ready = true;
                health.reason = None;
                health.asleep = false;
            });
            pause(control, standby_pause(self.settings.lease)).await;
        }
        Ok(None)
    }

    /// Leads for a term. An error is the database's; that the lease is over is none.
    async fn lead(&self, control: &RelayControl, term: Term) -> Result<(), StoreError> {
        let epoch = term.epoch();
        let clock = term.clock();
        tracing::info!(relay = self.settings.name, epoch, holder = self.holder, "leading");
        control.update(|health| {
            health.role = RelayRole::Leader;
            health.epoch = epoch;
        });
        let mut leader = Leader::new(
            &self.store,
            &self.settings,
            control,
            &self.publisher,
            &self.letters,
            term,
        );
        let led = leader.lead().await;
        control.update(|health| {
            health.role = RelayRole::Standby;
            health.asleep = false;
        });
        let is_over = !clock.holds();
        // Whatever this term still has queued in the client must not go out under another's.
        if led.is_err()
            && is_over
            && let Err(error) = self.publisher.reconnect().await
        {
            tracing::warn!(%error, "can't make a new connection to the broker");
        }
        match led {
            Ok(()) => {
                tracing::info!(relay = self.settings.name, epoch, "drained, lease given back");
                Ok(())
            }
            Err(TermError::Over) => {
                tracing::warn!(relay = self.settings.name, epoch, "the lease is over");
                Ok(())
            }
            Err(TermError::Replaced) => {
                tracing::warn!(
                    relay = self.settings.name,
                    epoch,
                    "{}: beginning anew",
                    TermError::Replaced
                );
                Ok(())
            }
            Err(TermError::Store(error)) => Err(error),
        }
    }

    fn not_migrated(&self, error: &StoreError) -> Option<StoreError> {
        let StoreError::Database(sqlx::Error::Database(database)) = error else {
            return None;
        };
        // undefined_table, undefined_column, invalid_schema_name, undefined_function
        let missing = matches!(
            database.code().as_deref(),
            Some("42P01" | "42703" | "3F000" | "42883")
        );
        missing.then(|| StoreError::NotMigrated {
            schema: self.store.schema().name().to_owned(),
        })
    }
}

async fn pause(control: &RelayControl, pause: Duration) {
    tokio::select! {
        () = tokio::time::sleep(pause) => {}
        () = control.draining().cancelled() => {}
    }
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "host".to_owned())
}
