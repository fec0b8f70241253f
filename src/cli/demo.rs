//! `twinbox demo`

mod duplicates;
mod orders;
mod payments;
mod verdict;
mod worker;

use super::CommandError;
use super::output::{Output, print};
use clap::Args;
use duplicates::Duplicator;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use secrecy::ExposeSecret as _;
use sqlx::PgPool;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use twinbox::broker::Subscription as _;
use twinbox::broker::nats::{Nats, NatsSubscription};
use twinbox::config::Settings;
use twinbox::embedded::{NatsOptions, PostgresOptions, PrivateServers};
use twinbox::store::{self, Store};
use verdict::{Traffic, Verdict};
use worker::{Killer, Worker};

/// How often the progress is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// Without any progress for so long, the demo gives up and counts what is missing as lost.
const PATIENCE: Duration = Duration::from_secs(60);
const DEMO_EXAMPLES: &str = "\
Examples:
  twinbox demo
  twinbox demo --orders 20000 --kill 10
  twinbox demo --orders 500 --json | jq .lost";

/// See the pair at work: orders, billing and a ledger, with duplicates and crashes.
///
/// On private servers that are gone afterwards, an *orders* service places orders, each in a transaction with its
/// message. *billing* charges accounts inside its inbox transaction and tells *ledger* of each payment. Meanwhile
/// messages are published twice more under the same id, some past the stream's duplicate window, and the process that runs
/// relay and consumers is killed with SIGKILL and started again. At the end the tables are counted: exit status 1 if
/// anything is lost, doubled or out of order. It brings settings of its own: those below do not change it.
#[derive(Args, Debug)]
#[command(after_long_help = DEMO_EXAMPLES)]
pub(super) struct Demo {
    /// Orders to place.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    orders: u64,

    /// Per cent of the messages that are published twice more.
    #[arg(long, value_name = "P", default_value_t = 20, value_parser = clap::value_parser!(u8).range(0..=100))]
    duplicates: u8,

    /// How often the process is killed.
    #[arg(long, value_name = "K", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=1000))]
    kill: u32,

    #[command(flatten)]
    output: Output,

    /// Be the process that is killed.
    #[arg(long, hide = true)]
    worker: bool,
}

impl Demo {
    pub(super) async fn run(&self) -> Result<ExitCode, CommandError> {
        if self.worker {
            return worker::run().await;
        }
        let servers = PrivateServers::start(PostgresOptions::new(), NatsOptions::new()).await?;
        let settings = worker::settings(
            &servers.postgres.create_database("demo").await?,
            &servers.nats.url(),
        );
        let verdict = tokio::select! {
            verdict = self.play(&settings) => verdict?,
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::from(130)),
        };
        drop(servers);
        self.output.write(&verdict, || verdict.table())?;
        Ok(ExitCode::from(u8::from(!verdict.is_good())))
    }

    async fn play(&self, settings: &Settings) -> Result<Verdict, CommandError> {
        let store = Store::connect(&settings.database).await?;
        store::migrate(&store).await?;
        orders::create_tables(store.pool()).await?;
        let nats = Nats::connect(&settings.nats, "demo").await?;
        let subscriptions = worker::subscriptions(&nats, settings).await?;
        if !self.output.json {
            print(&format!(
                "PostgreSQL {} and NATS {}, both private and gone afterwards",
                settings.database.url, settings.nats.url
            ))?;
        }

        let begun = Instant::now();
        let killer = Killer::new(Worker::start(settings)?, self.kill, self.orders * 2);
        let duplicator = Duplicator::new(store.clone(), nats.clone(), self.duplicates);
        let (placed, duplicated, kills) = tokio::join!(
            orders::place(&store, self.orders),
            duplicator.run(self.orders * 2),
            self.watch(store.pool(), &subscriptions, killer, &duplicator),
        );
        placed?;
        duplicated?;
        let kills = kills?;
        let elapsed = begun.elapsed();
        let traffic = self.traffic(&store, &subscriptions, kills, elapsed).await?;
        Ok(Verdict::of(store.pool(), traffic).await?)
    }

    /// Shows the progress and kills the worker on the way, until all effects are there and nothing is on its way any more.
    async fn watch(
        &self,
        pool: &PgPool,
        subscriptions: &[NatsSubscription],
        mut killer: Killer,
        duplicator: &Duplicator,
    ) -> Result<u32, CommandError> {
        let bar = self.bar();
        let mut look = tokio::time::interval(LOOK);
        let (mut effects, mut progressed) = (0, Instant::now());
        loop {
            look.tick().await;
            let now = verdict::effects(pool).await?;
            if now != effects {
                (effects, progressed) = (now, Instant::now());
            }
            bar.set_position(effects);
            killer.look(effects).await?;
            bar.set_message(format!(
                "killed {}, duplicates {}",
                killer.kills(),
                duplicator.published()
            ));
            let all_there = effects >= self.orders * 2 && duplicator.is_done() && killer.is_done();
            if (all_there && is_quiet(subscriptions).await?) || progressed.elapsed() > PATIENCE {
                bar.finish_and_clear();
                killer.end().await?;
                return Ok(killer.kills());
            }
        }
    }

    fn bar(&self) -> ProgressBar {
        let target = if self.output.json {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        let bar = ProgressBar::with_draw_target(Some(self.orders * 2), target);
        if let Ok(style) = ProgressStyle::with_template(
            "{spinner} {pos}/{len} effects {bar:32} {percent}% {elapsed} {per_sec}  {msg}",
        ) {
            bar.set_style(style);
        }
        bar
    }

    async fn traffic(
        &self,
        store: &Store,
        subscriptions: &[NatsSubscription],
        kills: u32,
        elapsed: Duration,
    ) -> Result<Traffic, CommandError> {
        let mut traffic = Traffic {
            kills,
            elapsed,
            ..Traffic::default()
        };
        for subscription in subscriptions {
            traffic.published += subscription.state().await?.stream.last_sequence;
        }
        for status in twinbox::inbox::status(store).await? {
            traffic.deliveries += (status.claimed + status.duplicates).unsigned_abs();
            traffic.duplicates_skipped += status.duplicates.unsigned_abs();
        }
        Ok(traffic)
    }
}

/// Whether the broker has nothing left for the consumers, neither new nor unacknowledged.
async fn is_quiet(subscriptions: &[NatsSubscription]) -> Result<bool, CommandError> {
    for subscription in subscriptions {
        let state = subscription.state().await?;
        if state.pending > 0 || state.ack_pending > 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What the worker's process gets, in its environment since it holds passwords.
fn environment(settings: &Settings) -> [(&'static str, String); 2] {
    [
        ("DATABASE_URL", settings.database.url.expose_secret().to_owned()),
        ("NATS_URL", settings.nats.url.expose_secret().to_owned()),
    ]
}
