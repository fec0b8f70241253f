//! What is in hand, in the order of the log, and how far all of it is settled.

use super::gate::KeyHash;
use super::row::LogRow;
use std::collections::VecDeque;
use std::sync::Arc;

/// Rows in hand, numbered in the order of the log.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: VecDeque<Slot>,
    /// The number of the first slot.
    first: u64,
    open: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Slot {
    id: i64,
    key: Option<KeyHash>,
    bytes: usize,
    /// `None` once it is settled: its memory is wanted for others.
    row: Option<Arc<LogRow>>,
    published: bool,
}

/// How far everything is settled now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Advance {
    /// All rows up to this id are.
    pub(crate) position: i64,
    /// So many of those that came in between were published.
    pub(crate) published: i64,
}

impl Slots {
    /// Takes a row, which comes after all others. Returns its number.
    pub(crate) fn push(&mut self, row: LogRow, key: Option<KeyHash>) -> u64 {
        let bytes = row.bytes();
        self.open += 1;
        self.bytes += bytes;
        self.slots.push_back(Slot {
            id: row.id,
            key,
            bytes,
            row: Some(Arc::new(row)),
            published: false,
        });
        self.first + self.slots.len() as u64 - 1
    }

    /// The row of a number, unless it is settled.
    pub(crate) fn row(&self, number: u64) -> Option<&Arc<LogRow>> {
        self.slot(number)?.row.as_ref()
    }

    /// The key of a number's row.
    pub(crate) fn key(&self, number: u64) -> Option<KeyHash> {
        self.slot(number)?.key
    }

    /// A row is settled. Returns how far all are, if that has changed.
    pub(crate) fn settle(&mut self, number: u64, published: bool) -> Option<Advance> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let slot = self.slots.get_mut(index)?;
        if slot.row.take().is_some() {
            slot.published = published;
            self.open -= 1;
            self.bytes -= slot.bytes;
        }
        let mut advance = None;
        while let Some(slot) = self.slots.front().filter(|slot| slot.row.is_none()) {
            let advance = advance.get_or_insert(Advance {
                position: slot.id,
                published: 0,
            });
            advance.position = slot.id;
            advance.published += i64::from(slot.published);
            self.slots.pop_front();
            self.first += 1;
        }
        advance
    }

    /// How many are not settled.
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    /// About how many bytes they hold.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many there are, with those that are settled and come after one that is not.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn slot(&self, number: u64) -> Option<&Slot> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.slots.get(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;
    use crate::outbox::row::Parcel;
    use uuid::Uuid;

    fn row(id: i64) -> LogRow {
        LogRow {
            id,
            parcel: Parcel {
                message_id: Uuid::nil(),
                message: Message::new("s", "1234"),
                enqueued_at: None,
            },
            fault: None,
        }
    }

    #[test]
    fn the_position_is_the_highest_below_which_all_is_settled() {
        let mut slots = Slots::default();
        let numbers: Vec<u64> = [10, 12, 13, 20].map(|id| slots.push(row(id), None)).to_vec();
        assert_eq!(slots.settle(numbers[1], true), None);
        assert_eq!(slots.settle(numbers[2], false), None);
        assert_eq!((slots.open(), slots.len(), slots.bytes()), (2, 4, 10));
        let advance = slots.settle(numbers[0], true).unwrap();
        assert_eq!((advance.position, advance.published), (13, 2));
        assert_eq!(slots.settle(numbers[0], true), None);
        let advance = slots.settle(numbers[3], true).unwrap();
        assert_eq!((advance.position, advance.published), (20, 1));
        assert!(slots.is_empty());
        assert_eq!(slots.push(row(21), None), 4);
        assert!(slots.row(4).is_some());
    }
}
