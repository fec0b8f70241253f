//! `twinbox migrate`

use super::{CommandError, Output, SettingsArgs};
use clap::Args;
use std::process::ExitCode;
use twinbox::store;
const MIGRATE_EXAMPLES: &str = "\
Examples:
  twinbox migrate --database-url postgres://app@db/orders
  twinbox migrate --check                  in a deployment's readiness check";

/// Create the tables, or bring them up to date.
///
/// Safe to run from several machines at once, and again. `run` does it too, unless run.migrate is false.
#[derive(Args, Debug)]
#[command(after_long_help = MIGRATE_EXAMPLES)]
pub(super) struct Migrate {
    /// Only say what is applied: exit status 1 if something is missing.
    #[arg(long)]
    check: bool,

    #[command(flatten)]
    output: Output,
}

impl Migrate {
    pub(super) async fn run(&self, args: &SettingsArgs) -> Result<ExitCode, CommandError> {
        let (settings, store) = args.store().await?;
        let state = if self.check {
            store::migration_state(&store).await?
        } else {
            store::migrate(&store).await?
        };
        self.output.write(&state, || {
            let schema = settings.database.schema.name();
            match state.known - state.applied {
                0 if state.newer > 0 => {
                    format!("schema {schema} is up to date; a newer twinbox has been here")
                }
                0 => format!("schema {schema} is up to date ({} migrations)", state.applied),
                missing => format!(
                    "schema {schema} lacks {missing} of {} migrations: run `twinbox migrate`",
                    state.known
                ),
            }
        })?;
        Ok(ExitCode::from(u8::from(!state.is_current())))
    }
}
