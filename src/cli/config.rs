//! `twinbox config`

use super::{CommandError, Output, SettingsArgs};
use clap::Args;
use std::process::ExitCode;

/// Print the settings that are in force, secrets masked.
///
/// Written as TOML, so that it can be the beginning of a twinbox.toml. Needs no server.
#[derive(Args, Debug)]
pub(super) struct Config {
    #[command(flatten)]
    output: Output,
}

impl Config {
    pub(super) fn run(&self, args: &SettingsArgs) -> Result<ExitCode, CommandError> {
        let settings = args.load()?;
        let toml = toml::to_string_pretty(&settings)?;
        self.output.write(&settings, || toml)?;
        Ok(ExitCode::SUCCESS)
    }
}
