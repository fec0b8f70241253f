//! `twinbox status`

use super::output::Column::{Figures, Words};
use super::output::{print, table, time_text};
use super::{CommandError, Output, SettingsArgs, nats};
use clap::Args;
use serde::Serialize;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use twinbox::broker::Subscription as _;
use twinbox::broker::nats::Nats;
use twinbox::config::ConsumerSettings;
use twinbox::inbox::{self, InboxStatus};
use twinbox::outbox::{self, RelayStatus};
use twinbox::pruner::{self, PrunerStatus};

/// How long to wait for the broker before its figures are left out.
const BROKER_PATIENCE: Duration = Duration::from_secs(3);
const STATUS_EXAMPLES: &str = "\
Examples:
  twinbox status
  twinbox status --json | jq '.relays[].pending.rows'";

/// Show how far relays, consumers and pruners are.
///
/// Per relay: rows pending, the oldest one's age, who holds the lease. Per consumer: lag and messages in flight at the
/// broker; claimed, duplicates skipped, retries, dead letters. Per pruner: its window, the proof, its last run.
#[derive(Args, Debug)]
#[command(after_long_help = STATUS_EXAMPLES)]
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
        let relays = outbox::relay_statuses(&store).await?;
        let (nats, connected) = nats::connect(&settings, "twinbox status").await?;
        let mut consumers = Vec::new();
        for inbox in inbox::status(&store).await? {
            let broker = if connected {
                at_broker(&nats, &inbox).await
            } else {
                None
            };
            consumers.push(ShownConsumer { inbox, broker });
        }
        let shown = Shown {
            relays,
            consumers,
            pruners: pruner::status(&store).await?,
        };
        if self.output.json {
            print(&serde_json::to_string_pretty(&shown)?)?;
        } else {
            print(&words(&shown, connected))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What the broker says of a consumer. `None` if it says nothing, or has no such consumer.
async fn at_broker(nats: &Arc<Nats>, inbox: &InboxStatus) -> Option<AtBroker> {
    let settings = ConsumerSettings {
        name: inbox.name.clone(),
        stream: inbox.stream.clone(),
        ..ConsumerSettings::default()
    };
    let subscription = nats.look_at(&settings);
    let state = tokio::time::timeout(BROKER_PATIENCE, subscription.state()).await;
    let state = state.ok()?.ok()?;
    Some(AtBroker {
        lag: state.pending,
        in_flight: state.ack_pending,
        deliveries: state.deliveries,
    })
}

fn words(shown: &Shown, connected: bool) -> String {
    let mut parts = vec![relays(&shown.relays)];
    if !shown.consumers.is_empty() {
        parts.push(consumers_table(&shown.consumers));
        if !connected {
            parts.push("NATS does not answer, so lag and messages in flight are unknown\n".to_owned());
        }
    }
    if !shown.pruners.is_empty() {
        parts.push(pruners(&shown.pruners));
    }
    parts.join("\n")
}

fn relays(relays: &[RelayStatus]) -> String {
    if relays.is_empty() {
        return "no relay has run yet\n".to_owned();
    }
    let columns = [
        Words("relay"),
        Figures("pending"),
        Figures("oldest"),
        Figures("published"),
        Words("lease"),
        Figures("epoch"),
    ];
    let rows = relays.iter().map(|relay| {
        let pending = relay.pending.as_ref();
        [
            relay.name.clone(),
            pending.map_or("unknown".to_owned(), |pending| {
                format!("{}{}", pending.rows, if pending.or_more { "+" } else { "" })
            }),
            pending
                .and_then(|pending| pending.oldest)
                .map_or("-".to_owned(), duration_text),
            relay.published.to_string(),
            lease_text(relay),
            relay.epoch.to_string(),
        ]
    });
    format!("{}\n", table(&columns, rows))
}

fn consumers_table(consumers: &[ShownConsumer]) -> String {
    let columns = [
        Words("consumer"),
        Words("stream"),
        Figures("lag"),
        Figures("in flight"),
        Figures("claimed"),
        Figures("duplicates"),
        Figures("retries"),
        Figures("unfinished"),
        Figures("dead letters"),
    ];
    let rows = consumers.iter().map(|ShownConsumer { inbox, broker }| {
        let at_broker = |figure: fn(&AtBroker) -> u64| {
            broker
                .as_ref()
                .map_or("unknown".to_owned(), |broker| figure(broker).to_string())
        };
        [
            inbox.name.clone(),
            inbox.stream.clone(),
            at_broker(|broker| broker.lag),
            at_broker(|broker| broker.in_flight),
            inbox.claimed.to_string(),
            inbox.duplicates.to_string(),
            inbox.retries.to_string(),
            inbox.unfinished.to_string(),
            inbox.dead_letters.to_string(),
        ]
    });
    format!("{}\n", table(&columns, rows))
}

fn pruners(pruners: &[PrunerStatus]) -> String {
    let columns = [
        Words("pruner"),
        Words("keeps at least"),
        Words("proof"),
        Words("last run"),
        Figures("removed then"),
        Figures("removed in all"),
    ];
    let rows = pruners.iter().map(|pruner| {
        [
            pruner.name.clone(),
            duration_text(Duration::from_secs(pruner.keep_s.unsigned_abs())),
            pruner.proof.clone(),
            time_text(pruner.last_run_at),
            pruner.last_deleted.to_string(),
            pruner.deleted.to_string(),
        ]
    });
    format!("{}\n", table(&columns, rows))
}

fn lease_text(relay: &RelayStatus) -> String {
    match &relay.holder {
        Some(holder) if relay.leased => format!("{holder}{}", if relay.asleep { " (asleep)" } else { "" }),
        Some(holder) => format!("expired, was {holder}"),
        None => "nobody".to_owned(),
    }
}

/// To the millisecond where that matters, to the second where it does not.
fn duration_text(duration: Duration) -> String {
    let rounded = if duration < Duration::from_secs(10) {
        Duration::from_millis(duration.as_millis() as u64)
    } else {
        Duration::from_secs(duration.as_secs())
    };
    humantime::format_duration(rounded).to_string()
}
