//! The cursor: how far the log is settled.
//!
//! A cursor on ids alone loses messages: ids are drawn before the commit, so a lower id can become visible after a
//! higher one was read. Waiting for the oldest running transaction loses nothing, but one long transaction then
//! stops everything. This cursor is a **snapshot**, the method of PgQ's ticks: `settled` sees what is published, and
//! what is to be published next is what a later snapshot, the `target`, sees and `settled` does not, in the order of
//! ids. Two transactions that touch one aggregate are serialised by its row lock, and ids drawn under the lock are in
//! the order of their commits; whatever sees the later one sees the earlier.
//!
//! # The floor
//! So that reading can start at an id instead of walking the log, a snapshot comes with a *floor*. In this order, each
//! in a statement of its own, one after the other has ended:
//! 1. the floor is read: the last id that the sequence gave out;
//! 2. some transaction of the relay's own gets a transaction id `b` and ends;
//! 3. the snapshot is taken.
//!
//! The snapshot's `xmax` is then above `b`, since `b` has ended. A transaction from `xmax` on has begun after `b`, hence
//! after the floor was read, and it drew the ids of its rows later still (a row's `xid` column stands before its
//! `id`): **rows of transactions from `xmax` on have ids above the floor.** Rows of earlier transactions that the
//! snapshot does not see belong to those it lists as running. Without step 2 this is wrong: `xmax` is the highest
//! transaction that has *ended* plus one, so older ones that still run may lie above it, with ids below the floor.
//!
//! Both halves are disjoint and each has an index: see [`super::log`].

use super::snapshot::Snapshot;

/// A snapshot with its floor.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Reach {
    pub(crate) snapshot: Snapshot,
    /// Rows of transactions from the snapshot's `xmax` on have ids above it.
    pub(crate) floor: i64,
}

impl Reach {
    /// Before the first row.
    pub(crate) fn beginning() -> Self {
        Self {
            snapshot: Snapshot::beginning(),
            floor: 0,
        }
    }
}

/// How far a relay has come.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Cursor {
    /// All that it sees is settled: published and acknowledged, or among the dead letters.
    pub(crate) settled: Reach,
    /// What is being published: all that it sees and `settled` does not.
    pub(crate) target: Option<Reach>,
    /// Up to this id, what the target adds is settled too.
    pub(crate) position: i64,
}

impl Cursor {
    /// The same, with all that the target sees settled.
    pub(crate) fn settle_target(&mut self) {
        if let Some(target) = self.target.take() {
            self.settled = target;
        }
        self.position = 0;
    }
}

/// What is to be read: all that the target sees and `settled` does not, above a position.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) settled: Reach,
    pub(crate) target: Snapshot,
    /// Only rows above this id.
    pub(crate) above: i64,
}

impl Span {
    /// The transactions that were running for `settled` and have ended for the target.
    pub(crate) fn late_transactions(&self) -> Vec<String> {
        self.settled
            .snapshot
            .running()
            .iter()
            .filter(|xid| self.target.sees(**xid))
            .map(u64::to_string)
            .collect()
    }
}

/// A snapshot that sees all transactions below `xmax` of this one and none else. With it "from `xmax` on" is written as
/// a function of `xid`, for which the planner has no index: it must walk the ids.
pub(crate) fn horizon(snapshot: &Snapshot) -> String {
    format!("{0}:{0}:", snapshot.xmax())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_transactions_are_those_that_ended_meanwhile() {
        let span = Span {
            settled: Reach {
                snapshot: "10:20:10,14,15".parse().unwrap(),
                floor: 7,
            },
            target: "14:40:14,33".parse().unwrap(),
            above: 0,
        };
        assert_eq!(span.late_transactions(), ["10", "15"]);
        assert_eq!(horizon(&span.settled.snapshot), "20:20:");
    }

    #[test]
    fn a_settled_target_becomes_what_is_settled() {
        let target = Reach {
            snapshot: "5:5:".parse().unwrap(),
            floor: 3,
        };
        let mut cursor = Cursor {
            settled: Reach::beginning(),
            target: Some(target.clone()),
            position: 3,
        };
        cursor.settle_target();
        assert_eq!(cursor.settled, target);
        assert_eq!((cursor.target, cursor.position), (None, 0));
    }
}
