//! The process that runs relay and consumers, and its killing.

use super::payments::{Billing, Ledger};
use super::{CommandError, environment};
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};
use twinbox::Service;
use twinbox::broker::nats::{Nats, NatsSubscription};
use twinbox::config::{ConsumerSettings, Loader, Settings, StreamSettings};
use twinbox::inbox::Consumer;

/// The streams' memory for deduplication ids: short, so that some duplicates come past it.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(1);
/// How long the next process waits for the lease of the one that was killed.
const LEASE: Duration = Duration::from_secs(1);
const ACK_WAIT: Duration = Duration::from_secs(4);
const HANDLER_DEADLINE: Duration = Duration::from_secs(2);

/// The settings of the demo, which both processes have.
pub(super) fn settings(database_url: &str, nats_url: &str) -> Settings {
    let mut settings = Settings::default();
    settings.database.url = database_url.into();
    settings.nats.url = nats_url.into();
    settings.relay.lease = LEASE;
    settings.streams = ["orders", "payments"]
        .map(|name| StreamSettings {
            name: name.to_uppercase(),
            subjects: vec![format!("{name}.>")],
            duplicate_window: DUPLICATE_WINDOW,
            ..StreamSettings::default()
        })
        .into();
    settings
}

fn consumer(name: &str, stream: &str) -> ConsumerSettings {
    ConsumerSettings {
        name: name.to_owned(),
        stream: stream.to_owned(),
        // What a killed process held comes again after this: the end of the demo waits for it.
        ack_wait: ACK_WAIT,
        handler_deadline: HANDLER_DEADLINE,
        ..ConsumerSettings::default()
    }
}

fn billing() -> ConsumerSettings {
    consumer("billing", "ORDERS")
}

fn ledger() -> ConsumerSettings {
    consumer("ledger", "PAYMENTS")
}

/// The consumers' ends at the broker, to see what is still on its way.
pub(super) async fn subscriptions(
    nats: &Arc<Nats>,
    settings: &Settings,
) -> Result<Vec<NatsSubscription>, CommandError> {
    for stream in &settings.streams {
        nats.ensure_stream(stream, Duration::ZERO).await?;
    }
    Ok(vec![
        nats.subscribe(&billing()).await?.0,
        nats.subscribe(&ledger()).await?.0,
    ])
}

/// Runs relay and consumers until the parent is gone or says that it is over, by closing standard input.
pub(super) async fn run() -> Result<ExitCode, CommandError> {
    let own = Loader::new().load()?;
    let telemetry = twinbox::telemetry::Telemetry::init(&own.telemetry)?;
    let mut settings = settings("", "");
    settings.database.url = own.database.url;
    settings.nats.url = own.nats.url;
    let service = Service::new(settings)
        .consumer(
            Consumer::builder(billing())
                .actor("orders.placed", || Billing)
                .build()?,
        )
        .consumer(
            Consumer::builder(ledger())
                .actor("payments.captured", || Ledger)
                .build()?,
        )
        .start()
        .await?;
    let parent_is_gone = async {
        let mut end = [0_u8; 1];
        // Nothing is ever written: a byte, an error and the end are all the end.
        let _ = tokio::io::stdin().read(&mut end).await;
    };
    tokio::select! {
        () = parent_is_gone => service.drain(),
        _ = service.wait() => {}
    }
    let outcome = service.wait().await;
    telemetry.shutdown();
    Ok(ExitCode::from(outcome.exit_code()))
}

/// The process.
pub(super) struct Worker {
    child: Child,
    environment: [(&'static str, String); 2],
    /// Without a name, so that nothing is left however this ends.
    log: File,
}

impl Worker {
    pub(super) fn start(settings: &Settings) -> Result<Self, CommandError> {
        let environment = environment(settings);
        let log = tempfile::tempfile()?;
        let child = spawn(&environment, &log)?;
        Ok(Self {
            child,
            environment,
            log,
        })
    }

    /// SIGKILL, and a new one at once.
    async fn kill_and_start_again(&mut self) -> Result<(), CommandError> {
        self.child.kill().await?;
        self.child = spawn(&self.environment, &self.log)?;
        Ok(())
    }

    /// An error with the end of the log, if it has ended by itself.
    fn check(&mut self) -> Result<(), CommandError> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                let mut log = String::new();
                self.log.rewind()?;
                self.log.read_to_string(&mut log)?;
                let lines: Vec<&str> = log.lines().collect();
                let tail = lines[lines.len().saturating_sub(10)..].join(" | ");
                Err(format!("the demo's process ended by itself ({status}): {tail}").into())
            }
        }
    }
}

fn spawn(environment: &[(&'static str, String); 2], log: &File) -> Result<Child, CommandError> {
    let child = Command::new(std::env::current_exe()?)
        .args(["demo", "--worker", "--config", "/dev/null"])
        .envs(environment.iter().map(|(name, value)| (*name, value.as_str())))
        .env(
            "TWINBOX_TELEMETRY__LOG",
            std::env::var("TWINBOX_TELEMETRY__LOG").unwrap_or("warn".to_owned()),
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(log.try_clone()?)
        .kill_on_drop(true)
        .spawn()?;
    Ok(child)
}

/// Kills the worker at moments drawn at random over the whole course.
pub(super) struct Killer {
    worker: Worker,
    /// At how many effects each time, the next one last.
    moments: Vec<u64>,
    kills: u32,
}

impl Killer {
    /// Spreads `kills` over the `effects` that are to come: each somewhere in its own part.
    pub(super) fn new(worker: Worker, kills: u32, effects: u64) -> Self {
        let part = effects as f64 / f64::from(kills.max(1));
        let moments = (0..kills)
            .rev()
            .map(|n| ((f64::from(n) + fastrand::f64()) * part) as u64)
            .collect();
        Self {
            worker,
            moments,
            kills: 0,
        }
    }

    /// Kills if the moment has come.
    pub(super) async fn look(&mut self, effects: u64) -> Result<(), CommandError> {
        self.worker.check()?;
        if self.moments.last().is_some_and(|moment| effects >= *moment) {
            self.moments.pop();
            self.worker.kill_and_start_again().await?;
            self.kills += 1;
        }
        Ok(())
    }

    pub(super) fn kills(&self) -> u32 {
        self.kills
    }

    pub(super) fn is_done(&self) -> bool {
        self.moments.is_empty()
    }

    /// Lets the worker drain and end.
    pub(super) async fn end(&mut self) -> Result<(), CommandError> {
        drop(self.worker.child.stdin.take());
        self.worker.child.wait().await?;
        Ok(())
    }
}
