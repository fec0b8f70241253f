//! Hearing the enqueues while the relay sleeps: LISTEN, past any pooler, on a task of its own.
//!
//! A notification is a hint, never the only signal. A LISTEN can go deaf without an error (a proxy in between, a connection
//! that only looks alive), so the relay notifies itself from time to time and expects to hear it.

use super::pace::Backoff;
use super::task::Task;
use crate::store::Store;
use sqlx::postgres::{PgListener, PgPoolOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// How often the relay notifies itself while it sleeps.
const PROBE_PAUSE: Duration = Duration::from_secs(30);
/// How long that may take to be heard.
const PROBE_PATIENCE: Duration = Duration::from_secs(5);

/// A LISTEN in the background.
pub(crate) struct Ear {
    store: Store,
    shared: Arc<Shared>,
    probe: String,
    sent: u64,
    sent_at: Option<Instant>,
    complained: bool,
    ends: CancellationToken,
    task: Task<()>,
}

#[derive(Default)]
struct Shared {
    heard: Notify,
    listening: AtomicBool,
    /// How many of the relay's own notifications were heard.
    probes: AtomicU64,
    /// The connection is to be made anew.
    renew: Notify,
}

impl Ear {
    /// Begins to listen.
    pub(crate) fn open(store: &Store) -> Self {
        let shared = Arc::new(Shared::default());
        let ends = CancellationToken::new();
        let probe = format!("probe {}", Uuid::now_v7());
        let task = Task::start(listen(store.clone(), shared.clone(), probe.clone(), ends.clone()));
        Self {
            store: store.clone(),
            shared,
            probe,
            sent: 0,
            sent_at: None,
            complained: false,
            ends,
            task,
        }
    }

    /// Ends it.
    pub(crate) async fn close(self) {
        self.ends.cancel();
        self.task.joined().await;
    }

    /// Whether there is a connection that listens.
    pub(crate) fn is_listening(&self) -> bool {
        self.shared.listening.load(Ordering::Relaxed)
    }

    /// Waits for the next notification.
    pub(crate) async fn heard(&self) {
        self.shared.heard.notified().await;
    }

    /// Notifies itself if it is time to; makes the connection anew if the last one was not heard.
    pub(crate) async fn check(&mut self) {
        let Some(sent_at) = self.sent_at else {
            return self.send_probe().await;
        };
        let heard = self.shared.probes.load(Ordering::Relaxed) >= self.sent;
        if heard {
            self.complained = false;
            if sent_at.elapsed() >= PROBE_PAUSE {
                self.send_probe().await;
            }
        } else if sent_at.elapsed() >= PROBE_PATIENCE {
            if !std::mem::replace(&mut self.complained, true) {
                tracing::warn!(
                    "LISTEN hears nothing: polling instead. Behind a pooler in transaction mode, give database.direct_url"
                );
            }
            self.shared.listening.store(false, Ordering::Relaxed);
            self.shared.renew.notify_one();
            self.sent_at = None;
        }
    }

    /// When there is something to check.
    pub(crate) fn next_check(&self) -> Duration {
        let heard = self.shared.probes.load(Ordering::Relaxed) >= self.sent;
        let pause = if heard { PROBE_PAUSE } else { PROBE_PATIENCE };
        self.sent_at
            .map_or(Duration::ZERO, |sent_at| pause.saturating_sub(sent_at.elapsed()))
    }

    async fn send_probe(&mut self) {
        if !self.is_listening() {
            return;
        }
        self.sent = self.shared.probes.load(Ordering::Relaxed) + 1;
        self.sent_at = Some(Instant::now());
        let sent = sqlx::query("SELECT pg_notify($1, $2)")
            .persistent(self.store.prepared())
            .bind(self.store.schema().wake_channel())
            .bind(&self.probe)
            .execute(self.store.pool())
            .await;
        if let Err(error) = sent {
            tracing::debug!(%error, "can't notify");
        }
    }
}

async fn listen(store: Store, shared: Arc<Shared>, probe: String, ends: CancellationToken) {
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
    loop {
        // Nothing is at stake in this connection, so that what waits on it may be dropped.
        tokio::select! {
            () = listen_once(&store, &shared, &probe, &mut backoff) => {}
            () = shared.renew.notified() => {}
            () = ends.cancelled() => return,
        }
        shared.listening.store(false, Ordering::Relaxed);
        tokio::select! {
            () = tokio::time::sleep(backoff.next()) => {}
            () = ends.cancelled() => return,
        }
    }
}

/// Until the connection is lost.
async fn listen_once(store: &Store, shared: &Shared, probe: &str, backoff: &mut Backoff) {
    match connect(store).await {
        Ok(mut listener) => {
            backoff.reset();
            shared.listening.store(true, Ordering::Relaxed);
            // What was notified before is lost: look at once.
            shared.heard.notify_one();
            hear(&mut listener, shared, probe).await;
        }
        Err(error) => tracing::debug!(%error, "can't listen"),
    }
}

async fn connect(store: &Store) -> sqlx::Result<PgListener> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .connect_lazy_with(store.direct().clone());
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.eager_reconnect(false);
    listener.listen(&store.schema().wake_channel()).await?;
    Ok(listener)
}

async fn hear(listener: &mut PgListener, shared: &Shared, probe: &str) {
    loop {
        match listener.try_recv().await {
            Ok(Some(notification)) if notification.payload() == probe => {
                shared.probes.fetch_add(1, Ordering::Relaxed);
            }
            // The probes of other relays.
            Ok(Some(notification)) if notification.payload().starts_with("probe ") => {}
            Ok(Some(_)) => shared.heard.notify_one(),
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(%error, "the connection that listens failed");
                return;
            }
        }
    }
}
