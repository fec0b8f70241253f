//! `twinbox status`

use super::output::{print, table};
use super::{CommandError, Output, SettingsArgs};
use clap::Args;
use serde::Serialize;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use twinbox::broker::nats::Nats;
use twinbox::broker::{Publisher as _, Subscription as _};
use twinbox::config::ConsumerSettings;
use twinbox::inbox::{self, InboxStatus};
use twinbox::outbox::{self, RelayStatus};
use twinbox::pruner::{self, PrunerStatus};
use twinbox::store::Store;

/// How long to wait for the broker before its figures are left out.
const BROKER_PATIENCE: Duration = Duration::from_secs(3);

/// Show how far relays, consumers and pruners are.
///
/// Per relay: rows pending, the oldest one's age, who holds the lease. Per consumer: lag and messages in flight at the
/// broker; claimed, duplicates skipped, retries, dead letters. Per pruner: its window, the proof, its last run.
#[derive(Args, Debug)]
pub(super) struct Status {
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Shown {
    relays: Vec<RelayStatus>,
    consumers: Vec<ShownConsumer>,
    pruners: Vec<PrunerStatus>,
}

#[derive(Serialize)]
struct ShownConsumer {
    #[serde(flatten)]
    inbox: InboxStatus,
    /// What the broker says; absent if it does not answer.
    broker: Option<AtBroker>,
}

#[derive(Serialize)]
struct AtBroker {
    /// Messages that were not handed out yet.
    lag: u64,
    /// Messages handed out and not acknowledged.
    in_flight: u64,
    /// Deliveries so far, repeated ones included.
    deliveries: u64,
}

impl Status {
    pub(super) async fn run(&self, args: &SettingsArgs) -> Result<ExitCode, CommandError> {
        let (settings, store) = args.store().await?;
        let nats = Nats::connect(&settings.nats, "twinbox status").await?;
        let shown = Shown {
            relays: outbox::status(&store).await?,
            consumers: consumers(&store, &nats).await?,
            pruners: pruner::status(&store).await?,
        };
        if self.output.json {
            print(&serde_json::to_string_pretty(&shown)?)?;
        } else {
            print(&words(&shown, nats.is_connected()))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn consumers(store: &Store, nats: &Arc<Nats>) -> Result<Vec<ShownConsumer>, CommandError> {
    let mut consumers = Vec::new();
    for inbox in inbox::status(store).await? {
        let broker = tokio::time::timeout(BROKER_PATIENCE, at_broker(nats, &inbox)).await.ok().flatten();
        consumers.push(ShownConsumer { inbox, broker });
    }
    Ok(consumers)
}

async fn at_broker(nats: &Arc<Nats>, inbox: &InboxStatus) -> Option<AtBroker> {
    while !nats.is_connected() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let settings =
        ConsumerSettings { name: inbox.name.clone(), stream: inbox.stream.clone(), ..ConsumerSettings::default() };
    let state = nats.look_at(&settings).state().await.ok()?;
    Some(AtBroker { lag: state.pending, in_flight: state.ack_pending, deliveries: state.deliveries })
}
