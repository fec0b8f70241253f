//! `twinbox prune`

use super::output::Column::{Figures, Words};
use super::output::table;
use super::{CommandError, Output, SettingsArgs, nats};
use clap::Args;
use std::process::ExitCode;
use tokio_util::sync::CancellationToken;
use twinbox::pruner::{Pruner, Report};
const PRUNE_EXAMPLES: &str = "\
Examples:
  twinbox prune --dry-run                  what would go, and the proof that it may
  twinbox prune --json";

/// Remove what can no longer come again, once. `run` does it from time to time.
///
/// The outbox's rows go by age once they are settled. An inbox's ids go when the broker can't deliver their message any
/// more and the producer can't publish it again; the proof is printed.
#[derive(Args, Debug)]
#[command(after_long_help = PRUNE_EXAMPLES)]
pub(super) struct Prune {
    /// Only count.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    output: Output,
}

impl Prune {
    pub(super) async fn run(&self, args: &SettingsArgs) -> Result<ExitCode, CommandError> {
        let (settings, store) = args.store().await?;
        let nats = nats::connected(&settings, "twinbox prune").await?;
        let pruner = Pruner::new(store, nats, settings.pruner, settings.consumers);
        let reports = if self.dry_run {
            pruner.dry_run().await?
        } else {
            pruner.run_once(&CancellationToken::new()).await?
        };
        self.output.write(&reports, || words(&reports, self.dry_run))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn words(reports: &[Report], dry_run: bool) -> String {
    let columns = [
        Words("box"),
        Figures(if dry_run { "would remove" } else { "removed" }),
        Words("kept at least"),
        Words("proof"),
    ];
    let rows = reports.iter().map(|report| {
        [
            report.name.clone(),
            report.rows.to_string(),
            report.keep_text(),
            report.proof.clone(),
        ]
    });
    table(&columns, rows).to_string()
}
