//! Subjects that no stream covers, and how long they have been so.
//!
//! A producer deployed before its stream is ordinary. So such a message holds up its key for a grace time; then it is
//! parked among the dead letters, and so are, at once, those of its subject that come later. Once a stream covers the
//! subject, all of them are released.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// More subjects are not remembered: forgetting one only means that its next message is tried again.
const MOST_SUBJECTS: usize = 10_000;

/// Subjects that no stream covers.
#[derive(Debug)]
pub(crate) struct Routes {
    grace: Duration,
    uncovered: HashMap<String, Uncovered>,
}

#[derive(Debug)]
struct Uncovered {
    since: Instant,
    parked: bool,
}

impl Routes {
    pub(crate) fn new(grace: Duration) -> Self {
        Self {
            grace,
            uncovered: HashMap::new(),
        }
    }

    /// Nothing covers a subject. `true` if that is news.
    pub(crate) fn is_uncovered(&mut self, subject: &str) -> bool {
        if self.uncovered.contains_key(subject) {
            return false;
        }
        if self.uncovered.len() >= MOST_SUBJECTS {
            self.uncovered.clear();
        }
        let uncovered = Uncovered {
            since: Instant::now(),
            parked: false,
        };
        self.uncovered.insert(subject.to_owned(), uncovered);
        true
    }

    /// Whether the subject's grace time is over; if so, its messages are parked from now on.
    pub(crate) fn park_if_grace_is_over(&mut self, subject: &str) -> bool {
        match self.uncovered.get_mut(subject) {
            Some(uncovered) => {
                uncovered.parked |= uncovered.since.elapsed() >= self.grace;
                uncovered.parked
            }
            None => false,
        }
    }

    /// The subject's messages lie among the dead letters: those that come are parked too.
    pub(crate) fn is_parked_already(&mut self, subject: &str) {
        self.is_uncovered(subject);
        if let Some(uncovered) = self.uncovered.get_mut(subject) {
            uncovered.parked = true;
        }
    }

    /// Whether a message of the subject is parked without being tried.
    pub(crate) fn parks(&self, subject: &str) -> bool {
        !self.uncovered.is_empty()
            && self
                .uncovered
                .get(subject)
                .is_some_and(|uncovered| uncovered.parked)
    }

    /// A stream covers the subject.
    pub(crate) fn is_covered(&mut self, subject: &str) {
        self.uncovered.remove(subject);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_parked_once_its_grace_is_over() {
        let mut routes = Routes::new(Duration::from_secs(3600));
        assert!(routes.is_uncovered("a"));
        assert!(!routes.is_uncovered("a"));
        assert!(!routes.park_if_grace_is_over("a") && !routes.parks("a"));
        routes.is_parked_already("b");
        assert!(routes.parks("b"));
        routes.is_covered("b");
        assert!(!routes.parks("b"));
        let mut at_once = Routes::new(Duration::ZERO);
        at_once.is_uncovered("a");
        assert!(at_once.park_if_grace_is_over("a") && at_once.parks("a"));
    }
}
