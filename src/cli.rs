//! The command line, one file a command.
//!
//! What a command found goes to standard output, for people or (`--json`) for programs; errors go to standard error, on
//! one line that says what to do.

mod config;
mod dead;
mod demo;
mod enqueue;
mod migrate;
mod nats;
mod output;
mod prune;
mod run;
mod settings;
mod status;

use clap::{Parser, Subcommand};
use output::Output;
use settings::SettingsArgs;
use std::process::ExitCode;
use twinbox::ServiceError;
use twinbox::config::ConfigError;
use twinbox::store::StoreError;
use twinbox::telemetry::TelemetryError;

/// Exit status of a configuration error (sysexits.h, EX_CONFIG).
const EXIT_CONFIGURATION: u8 = 78;

const EXAMPLES: &str = "\
Examples:
  twinbox demo                             see the pair at work, on servers that are gone afterwards
  twinbox dev                              private servers to try things out on
  twinbox run -c /etc/twinbox.toml         the daemon beside a service";

/// Outbox and inbox for PostgreSQL and NATS JetStream.
///
/// A message enqueued in a committed transaction is published at least once; its business effect, as far as it lies in
/// the consumer's database transaction, is applied exactly once. Together: effectively-once processing.
///
/// To see it: `twinbox demo`. Next to a service: `twinbox migrate`, then `twinbox run`.
#[derive(Debug, Parser)]
#[command(name = "twinbox", version, propagate_version = true, max_term_width = 110, after_long_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    settings: SettingsArgs,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Migrate(migrate::Migrate),
    Run(run::Run),
    Dev(run::Dev),
    Demo(demo::Demo),
    Enqueue(enqueue::Enqueue),
    Status(status::Status),
    Prune(prune::Prune),
    Dead(dead::Dead),
    Config(config::Config),
}

/// A command's own errors: their text says what to do.
type CommandError = Box<dyn std::error::Error + Send + Sync>;

/// Runs the command and returns its exit status.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    let ended = runtime.block_on(cli.command.run(&cli.settings));
    // What is to be waited for, the commands have waited for: a read of standard input, for one, may never end.
    runtime.shutdown_background();
    match ended {
        Ok(status) => status,
        Err(error) => fail(error.as_ref()),
    }
}

impl Command {
    async fn run(&self, settings: &SettingsArgs) -> Result<ExitCode, CommandError> {
        match self {
            Self::Migrate(command) => command.run(settings).await,
            Self::Run(command) => command.run(settings).await,
            Self::Dev(command) => command.run(settings).await,
            Self::Demo(command) => command.run().await,
            Self::Enqueue(command) => command.run(settings).await,
            Self::Status(command) => command.run(settings).await,
            Self::Prune(command) => command.run(settings).await,
            Self::Dead(command) => command.run(settings).await,
            Self::Config(command) => command.run(settings),
        }
    }
}

fn fail(error: &(dyn std::error::Error + 'static)) -> ExitCode {
    let hint = if is_table_missing(error) {
        ": run `twinbox migrate`, or name the schema with --schema"
    } else {
        ""
    };
    eprintln!("twinbox: {}{hint}", twinbox::with_causes(error));
    ExitCode::from(if is_configuration(error) {
        EXIT_CONFIGURATION
    } else {
        1
    })
}

/// Whether a statement met a schema, table or function that is not there.
fn is_table_missing(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(sqlx::Error::Database(error)) = error.downcast_ref() {
            return matches!(error.code().as_deref(), Some("3F000" | "42P01" | "42883"));
        }
        cause = error.source();
    }
    false
}

/// Whether starting again without changing a setting is of no use.
fn is_configuration(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let of_store = error
            .downcast_ref::<StoreError>()
            .is_some_and(|error| matches!(error, StoreError::Url(_)));
        let of_service = error.downcast_ref::<ServiceError>().is_some_and(|error| {
            matches!(
                error,
                ServiceError::Settings(_) | ServiceError::Twice(_) | ServiceError::Consumer { .. }
            )
        });
        if of_store || of_service || error.is::<ConfigError>() || error.is::<TelemetryError>() {
            return true;
        }
        cause = error.source();
    }
    false
}
