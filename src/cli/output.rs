//! How results and errors look.

use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use std::io::{IsTerminal as _, Write as _};

/// How a command's result is written.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct Output {
    /// Write the result as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

impl Output {
    /// Writes the result: as JSON, or in words.
    pub(super) fn write(
        self,
        result: &impl Serialize,
        words: impl FnOnce() -> String,
    ) -> std::io::Result<()> {
        let text = if self.json {
            serde_json::to_string_pretty(result)?
        } else {
            words()
        };
        print(&text)
    }
}

/// Writes a line or more to standard output. A reader that went away (`| head`) is no error.
pub(super) fn print(text: &str) -> std::io::Result<()> {
    match writeln!(std::io::stdout(), "{}", text.trim_end()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// A table with a head, as wide as the terminal.
pub(super) fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY)
        .set_header(head.iter().copied());
    if std::io::stdout().is_terminal() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    table
}

/// A point in time, in UTC to the second.
pub(super) fn time_text(time: time::OffsetDateTime) -> String {
    let seconds = time.replace_nanosecond(0).unwrap_or(time);
    seconds
        .format(&time::format_description::well_known::Rfc3339)
        .unwrap_or_else(|_| seconds.to_string())
}
