//! How results and errors look.

use clap::Args;
use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
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

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(super) enum Column {
    /// Words stand at the left.
    Words(&'static str),
    /// Figures stand at the right, so that they compare.
    Figures(&'static str),
}

impl Column {
    fn name(self) -> &'static str {
        let (Self::Words(name) | Self::Figures(name)) = self;
        name
    }
}

/// A table, as wide as the terminal; piped, as wide as its contents, a line a row. Without names it has no head.
pub(super) fn table<R>(columns: &[Column], rows: impl IntoIterator<Item = R>) -> Table
where
    R: IntoIterator<Item = String>,
{
    let mut table = Table::new();
    table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─')));
    if columns.iter().any(|column| !column.name().is_empty()) {
        table.set_header(columns.iter().map(|column| column.name()));
    }
    for row in rows {
        table.add_row(row);
    }
    for (column, kind) in table.column_iter_mut().zip(columns) {
        column.set_padding((0, 2));
        if matches!(kind, Column::Figures(_)) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    if let Some(last) = table.column_iter_mut().last() {
        last.set_padding((0, 0));
    }
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
