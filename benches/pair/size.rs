//! How much each row of the table measures.

/// Of a whole run, or of a quick one, whose figures are for a first look.
#[derive(Clone)]
pub struct Size {
    pub rounds: u32,
    /// Rows that a relay drains.
    pub rows: u32,
    /// Rows that are settled and still in the outbox.
    pub retained: u32,
    /// Messages that a consumer handles.
    pub backlog: u32,
    /// Messages that a loop by hand handles in the same round; its rate does not depend on how many wait.
    pub by_hand: u32,
    /// Ids that are in the inbox already.
    pub ids: u32,
    /// Ids that a pruner removes.
    pub expired: u32,
    /// For what is measured by the clock: seconds of a round.
    pub enqueueing: u32,
    pub latency: u32,
    pub idle: u32,
    pub whole: u32,
}

impl Size {
    pub fn whole() -> Self {
        Self {
            rounds: 5,
            rows: 200_000,
            retained: 10_000_000,
            backlog: 100_000,
            by_hand: 25_000,
            ids: 20_000_000,
            expired: 5_000_000,
            enqueueing: 10,
            latency: 20,
            idle: 30,
            whole: 60,
        }
    }

    pub fn quick() -> Self {
        Self {
            rounds: 3,
            rows: 30_000,
            retained: 300_000,
            backlog: 20_000,
            by_hand: 4_000,
            ids: 400_000,
            expired: 200_000,
            enqueueing: 2,
            latency: 2,
            idle: 5,
            whole: 3,
        }
    }
}
