//! `twinbox run` and `twinbox dev`

use super::output::print;
use super::{CommandError, SettingsArgs};
use clap::{Args, ValueEnum};
use secrecy::ExposeSecret as _;
use std::process::ExitCode;
use twinbox::Service;
use twinbox::config::{Role, Settings};
use twinbox::embedded::{NatsOptions, PostgresOptions, PrivateServers};
use twinbox::supervisor::{OnBlocked, drain_on_signals};
use twinbox::telemetry::Telemetry;
const RUN_EXAMPLES: &str = "\
Examples:
  twinbox run                              all parts, by twinbox.toml and DATABASE_URL, NATS_URL
  twinbox run --roles relay                only publish; another process consumes

A twinbox.toml with a handler in SQL:
  [[streams]]
  name = \"ORDERS\"
  subjects = [\"orders.>\"]

  [[consumers]]
  name = \"billing\"
  stream = \"ORDERS\"

  [[consumers.handlers]]
  subject = \"orders.placed\"
  sql = \"INSERT INTO charge (order_id, cents) VALUES (:payload->>'id', (:payload->>'cents')::int)\"

A handler may use :id (uuid), :subject, :key, :kind (text), :headers, :payload (jsonb) and :payload_bytes
(bytea). `twinbox config` prints all settings.";

/// Run relay, consumers and pruner, until SIGTERM or SIGINT.
///
/// The first signal begins an orderly end: nothing new is taken up, what is in hand is finished and acknowledged. A second
/// one ends at once; nothing is lost, but what was in hand is done again. Consumers are those of the settings, whose
/// handlers are SQL.
///
/// Exit status: 0 drained; 70 a part failed too often; 71 the actors' thread was blocked; 75 the end took longer than
/// run.drain_deadline; 78 settings that can't work.
#[derive(Args, Debug)]
#[command(after_long_help = RUN_EXAMPLES)]
pub(super) struct Run {
    /// Only these parts [default: run.roles, which is all].
    #[arg(long, value_delimiter = ',', value_name = "ROLE,…")]
    roles: Vec<RoleName>,
}
const DEV_EXAMPLES: &str = "\
Examples:
  twinbox dev                              in one terminal, then in another with what it printed:
  export DATABASE_URL=postgres://… NATS_URL=nats://…
  twinbox enqueue orders.placed '{\"id\": 7}' --key customer-7
  psql \"$DATABASE_URL\" -c \"SELECT twinbox.enqueue('orders.placed', '{}')\"";

/// The same as `run` on a private PostgreSQL and NATS, which are gone afterwards.
///
/// Prints their addresses and stays up until SIGINT: for trying things out, and for developing a service.
#[derive(Args, Debug)]
#[command(after_long_help = DEV_EXAMPLES)]
pub(super) struct Dev {
    /// Only these parts [default: run.roles, which is all].
    #[arg(long, value_delimiter = ',', value_name = "ROLE,…")]
    roles: Vec<RoleName>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleName {
    /// Publishes the outbox.
    Relay,
    /// Runs the consumers.
    Consumer,
    /// Removes what can no longer come again.
    Pruner,
}

fn with_roles(mut settings: Settings, roles: &[RoleName]) -> Settings {
    if !roles.is_empty() {
        settings.run.roles = roles
            .iter()
            .map(|role| match role {
                RoleName::Relay => Role::Relay,
                RoleName::Consumer => Role::Consumer,
                RoleName::Pruner => Role::Pruner,
            })
            .collect();
    }
    settings
}

impl Run {
    pub(super) async fn run(&self, args: &SettingsArgs) -> Result<ExitCode, CommandError> {
        run(with_roles(args.load()?, &self.roles)).await
    }
}

impl Dev {
    pub(super) async fn run(&self, args: &SettingsArgs) -> Result<ExitCode, CommandError> {
        let mut settings = with_roles(args.load()?, &self.roles);
        let servers = PrivateServers::start(PostgresOptions::new(), NatsOptions::new()).await?;
        settings.database.url = servers.postgres.create_database("dev").await?.into();
        settings.database.direct_url = None;
        settings.nats.url = servers.nats.url().into();
        print(&format!(
            "DATABASE_URL={}\nNATS_URL={}",
            settings.database.url.expose_secret(),
            settings.nats.url.expose_secret()
        ))?;
        run(settings).await
    }
}

async fn run(settings: Settings) -> Result<ExitCode, CommandError> {
    let telemetry = Telemetry::init(&settings.telemetry)?;
    let (database, nats, roles) = (
        settings.database.url.to_string(),
        settings.nats.url.to_string(),
        settings.run.roles.clone(),
    );
    let service = Service::new(settings)
        .on_blocked(OnBlocked::ExitProcess)
        .start()
        .await?;
    let signals = drain_on_signals(service.tree())?;
    tracing::info!(
        database,
        nats,
        ?roles,
        version = env!("CARGO_PKG_VERSION"),
        "twinbox runs"
    );
    let ((), outcome) = tokio::join!(signals, service.wait());
    if outcome.is_clean() {
        tracing::info!("drained");
    } else {
        tracing::error!(%outcome, exit_code = outcome.exit_code(), "ended");
    }
    // The exporter blocks while it flushes.
    tokio::task::spawn_blocking(|| telemetry.shutdown()).await?;
    Ok(ExitCode::from(outcome.exit_code()))
}
