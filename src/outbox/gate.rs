//! One unacknowledged message a key.
//!
//! When a connection breaks, what was in flight may have arrived in part. A later message of a key stored before an
//! earlier one can't be put right any more, so a key's next message leaves only after the previous one is acknowledged.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};

/// A key, hashed: two that collide wait for each other, which does no harm.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct KeyHash(u64);

/// Which messages may leave, by their number in the order of the log.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    hasher: RandomState,
    /// A key is here while one of its messages is out; with it those that wait.
    keys: HashMap<KeyHash, VecDeque<u64>>,
}

impl Gate {
    pub(crate) fn hash(&self, key: &str) -> KeyHash {
        KeyHash(self.hasher.hash_one(key))
    }

    /// Whether the message may leave at once. If not, it waits for its turn.
    pub(crate) fn enter(&mut self, key: KeyHash, number: u64) -> bool {
        match self.keys.entry(key) {
            std::collections::hash_map::Entry::Occupied(mut waiting) => {
                waiting.get_mut().push_back(number);
                false
            }
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(VecDeque::new());
                true
            }
        }
    }

    /// The key's message that was out is done with: the next one that may leave, if one waits.
    pub(crate) fn leave(&mut self, key: KeyHash) -> Option<u64> {
        let waiting = self.keys.get_mut(&key)?;
        let next = waiting.pop_front();
        if next.is_none() {
            self.keys.remove(&key);
        }
        next
    }

    /// Takes those out of the queue that `leaves` says go another way, in their order.
    pub(crate) fn take_waiting(&mut self, key: KeyHash, mut leaves: impl FnMut(u64) -> bool) -> Vec<u64> {
        let Some(waiting) = self.keys.get_mut(&key) else {
            return Vec::new();
        };
        let (taken, stay): (Vec<u64>, Vec<u64>) = waiting.drain(..).partition(|number| leaves(*number));
        waiting.extend(stay);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_message_out_and_the_others_follow_in_order() {
        let mut gate = Gate::default();
        let (a, b) = (gate.hash("a"), gate.hash("b"));
        assert!(gate.enter(a, 1));
        assert!(!gate.enter(a, 2));
        assert!(gate.enter(b, 3));
        assert!(!gate.enter(a, 4));
        assert_eq!(gate.leave(a), Some(2));
        assert_eq!(gate.leave(b), None);
        assert!(gate.enter(b, 5));
        assert_eq!(gate.leave(a), Some(4));
        assert_eq!(gate.leave(a), None);
        assert!(gate.enter(a, 6));
    }

    #[test]
    fn those_that_wait_can_be_sent_another_way() {
        let mut gate = Gate::default();
        let a = gate.hash("a");
        assert!(gate.enter(a, 1));
        for number in 2..6 {
            gate.enter(a, number);
        }
        assert_eq!(gate.take_waiting(a, |number| number != 4), [2, 3, 5]);
        assert_eq!(gate.leave(a), Some(4));
        assert_eq!(gate.leave(a), None);
    }
}
