//! A figure: what two sides did in each round, and what their ratio has to reach.

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use serde::Serialize;

/// Which way is better.
#[derive(Clone, Copy)]
pub enum Better {
    /// A rate: the ratio is ours by the other's.
    More,
    /// A time, or another cost: the ratio is the other's by ours.
    Less,
}

/// One figure of a row of the table in BENCHMARKS.md. A higher ratio is always the better one.
#[derive(Serialize)]
pub struct Figure {
    pub n: u8,
    pub name: String,
    pub ratio: f64,
    pub floor: f64,
    /// Ours and the other side's, of each round.
    pub rounds: Vec<[f64; 2]>,
    pub unit: &'static str,
}

impl Figure {
    pub fn new(
        (n, name): (u8, &str),
        unit: &'static str,
        better: Better,
        floor: f64,
        rounds: Vec<[f64; 2]>,
    ) -> Self {
        let ratios = rounds.iter().map(|[ours, other]| match better {
            Better::More => ours / other,
            Better::Less => other / ours,
        });
        Self {
            n,
            name: name.to_owned(),
            ratio: median(ratios),
            floor,
            unit,
            rounds,
        }
    }

    pub fn holds(&self) -> bool {
        self.ratio >= self.floor
    }
}

pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    quantile(values, 0.5)
}

/// The value at a part of the sorted values: `0.99` for the 99th percentile.
pub fn quantile(values: impl Iterator<Item = f64>, part: f64) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a place in a list, of few thousands"
    )]
    let place = (values.len() as f64 * part) as usize;
    values[place.min(values.len() - 1)]
}

/// Measures both sides in turns, beginning with another one each round, since a machine drifts.
pub async fn in_turns(
    rounds: u32,
    mut ours: impl AsyncFnMut() -> f64,
    mut other: impl AsyncFnMut() -> f64,
) -> Vec<[f64; 2]> {
    let mut measured = Vec::new();
    for round in 0..rounds {
        let pair = if round % 2 == 0 {
            let ours = ours().await;
            [ours, other().await]
        } else {
            let other = other().await;
            [ours().await, other]
        };
        measured.push(pair);
    }
    measured
}

pub fn table(figures: &[Figure]) -> Table {
    let mut table = Table::new();
    table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─')));
    table.set_header(["#", "measured", "ours", "other", "unit", "ratio", "floor", ""]);
    for figure in figures {
        let side = |side: usize| readable(median(figure.rounds.iter().map(|round| round[side])));
        table.add_row([
            figure.n.to_string(),
            figure.name.clone(),
            side(0),
            side(1),
            figure.unit.to_owned(),
            format!("{:.2}", figure.ratio),
            format!("{:.2}", figure.floor),
            if figure.holds() { "" } else { "below" }.to_owned(),
        ]);
    }
    for column in [0, 2, 3, 5, 6] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn readable(value: f64) -> String {
    if value < 100.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.0}")
    }
}
