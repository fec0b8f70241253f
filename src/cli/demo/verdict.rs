//! What the tables say afterwards.

use crate::cli::output::{Column, table};
use serde::Serialize;
use sqlx::{PgPool, Row as _};
use std::time::Duration;

/// The outcome of a demo.
#[derive(Debug, Serialize)]
pub(super) struct Verdict {
    /// Orders that were placed, in committed transactions.
    pub(super) orders: i64,
    /// Messages in the streams, repeated ones that were stored a second time included.
    pub(super) published: u64,
    /// Messages that came to the inboxes: delivered by the broker, again and again, or read from the stream after a crash.
    pub(super) deliveries: u64,
    /// Messages that the inboxes met again and skipped.
    pub(super) duplicates_skipped: u64,
    /// Charges and ledger entries.
    pub(super) effects: i64,
    /// Orders without a charge, and charges without a ledger entry.
    pub(super) lost: i64,
    /// Charges and ledger entries beyond the first.
    pub(super) doubled: i64,
    /// Effects of a customer that came after a later one.
    pub(super) order_violations: i64,
    /// Effects of what was never committed.
    pub(super) orphans: i64,
    /// What the accounts lack or have too much, in cents.
    pub(super) money_off_cents: i64,
    /// Processes killed with SIGKILL.
    pub(super) kills: u32,
    /// From the first order to the last effect, in seconds.
    pub(super) elapsed_s: f64,
    /// From an order's placing to its entry in the ledger.
    pub(super) latency_ms: Latency,
}

/// Percentiles in milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct Latency {
    pub(super) p50: f64,
    pub(super) p99: f64,
}

/// How many effects there are so far.
pub(super) async fn effects(pool: &PgPool) -> sqlx::Result<u64> {
    let effects: i64 = sqlx::query_scalar(
        "SELECT (SELECT count(DISTINCT order_id) FROM demo.charge) + (SELECT count(DISTINCT order_id) FROM demo.ledger_entry)",
    )
    .fetch_one(pool)
    .await?;
    Ok(effects.unsigned_abs())
}

/// What is counted while the demo runs, beside the tables.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    pub(super) published: u64,
    pub(super) deliveries: u64,
    pub(super) duplicates_skipped: u64,
    pub(super) kills: u32,
    pub(super) elapsed: Duration,
}

const COUNTS: &str = "
    WITH effect AS (
        SELECT 'charge' AS kind, id, order_id, customer, number, amount_cents FROM demo.charge
        UNION ALL
        SELECT 'entry', id, order_id, customer, number, amount_cents FROM demo.ledger_entry
    ), step AS (
        SELECT number < max(number) OVER (PARTITION BY kind, customer ORDER BY id) AS overtaken FROM effect
    )
    SELECT (SELECT count(*) FROM demo.placed_order) AS orders,
           (SELECT count(*) FROM effect) AS effects,
           (SELECT count(*) FROM demo.placed_order o CROSS JOIN (VALUES ('charge'), ('entry')) AS k (kind)
             WHERE NOT EXISTS (SELECT FROM effect e WHERE e.order_id = o.id AND e.kind = k.kind)) AS lost,
           (SELECT count(*) - count(DISTINCT (kind, order_id)) FROM effect) AS doubled,
           (SELECT count(*) FROM step WHERE overtaken) AS order_violations,
           (SELECT count(*) FROM effect e
             WHERE NOT EXISTS (SELECT FROM demo.placed_order o WHERE o.id = e.order_id)) AS orphans,
           (SELECT abs(100000000 * count(*) - sum(balance_cents)::bigint
                       - (SELECT coalesce(sum(amount_cents), 0)::bigint FROM demo.placed_order))
              FROM demo.account)::bigint
         + (SELECT abs(coalesce(sum(amount_cents), 0)::bigint
                       - (SELECT coalesce(sum(amount_cents), 0)::bigint FROM demo.placed_order))
              FROM demo.ledger_entry)::bigint AS money_off_cents";

const LATENCY: &str = "
    SELECT coalesce(percentile_cont(0.50) WITHIN GROUP (ORDER BY ms), 0) AS p50,
           coalesce(percentile_cont(0.99) WITHIN GROUP (ORDER BY ms), 0) AS p99
    FROM (SELECT (extract(epoch FROM e.at - o.placed_at) * 1000)::float8 AS ms
          FROM demo.ledger_entry e JOIN demo.placed_order o ON o.id = e.order_id) AS took";

impl Verdict {
    /// Counts in the tables.
    pub(super) async fn of(pool: &PgPool, traffic: Traffic) -> sqlx::Result<Self> {
        let counts = sqlx::query(COUNTS).fetch_one(pool).await?;
        let latency = sqlx::query(LATENCY).fetch_one(pool).await?;
        Ok(Self {
            orders: counts.try_get("orders")?,
            published: traffic.published,
            deliveries: traffic.deliveries,
            duplicates_skipped: traffic.duplicates_skipped,
            effects: counts.try_get("effects")?,
            lost: counts.try_get("lost")?,
            doubled: counts.try_get("doubled")?,
            order_violations: counts.try_get("order_violations")?,
            orphans: counts.try_get("orphans")?,
            money_off_cents: counts.try_get("money_off_cents")?,
            kills: traffic.kills,
            elapsed_s: round(traffic.elapsed.as_secs_f64(), 100.0),
            latency_ms: Latency {
                p50: round(latency.try_get("p50")?, 10.0),
                p99: round(latency.try_get("p99")?, 10.0),
            },
        })
    }

    /// Whether nothing was lost, doubled or out of order, and the money is where it belongs.
    pub(super) fn is_good(&self) -> bool {
        self.lost == 0
            && self.doubled == 0
            && self.order_violations == 0
            && self.orphans == 0
            && self.money_off_cents == 0
    }

    /// For people.
    pub(super) fn table(&self) -> String {
        let money = match self.money_off_cents {
            0 => "conserved to the cent".to_owned(),
            cents => format!("off by {cents} cents"),
        };
        let rows = [
            ("orders placed", grouped(self.orders.unsigned_abs())),
            ("messages stored in the streams", grouped(self.published)),
            ("deliveries to the inboxes", grouped(self.deliveries)),
            (
                "duplicates skipped by the inboxes",
                grouped(self.duplicates_skipped),
            ),
            ("processes killed", self.kills.to_string()),
            (
                "effects (charges and ledger entries)",
                grouped(self.effects.unsigned_abs()),
            ),
            ("lost", self.lost.to_string()),
            ("doubled", self.doubled.to_string()),
            ("out of order", self.order_violations.to_string()),
            ("effects of what was rolled back", self.orphans.to_string()),
            ("money", money),
            ("elapsed", format!("{} s", self.elapsed_s)),
            (
                "order to ledger, p50",
                format!("{} ms", self.latency_ms.p50.round()),
            ),
            (
                "order to ledger, p99",
                format!("{} ms", self.latency_ms.p99.round()),
            ),
        ];
        let rows = table(
            &[Column::Words(""), Column::Figures("")],
            rows.map(|(name, value)| [name.to_owned(), value]),
        );
        let verdict = if self.is_good() {
            "Every order took effect once, in order: effectively-once."
        } else {
            "The guarantee does not hold: please report this, with the figures above."
        };
        format!("{rows}\n\n{verdict}")
    }
}

/// With commas between the thousands.
fn grouped(figure: u64) -> String {
    let digits = figure.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn round(value: f64, per: f64) -> f64 {
    (value * per).round() / per
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn thousands_are_grouped() {
        for (figure, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(figure), text);
        }
    }
}
