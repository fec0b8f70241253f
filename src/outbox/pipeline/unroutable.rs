//! No stream covers a subject: its messages wait for the grace time, then they are parked among the dead letters.

use super::Pipeline;
use crate::dead_letter::Reason;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How often it is asked whether a stream covers a subject by now.
const PAUSE: Duration = Duration::from_millis(500);
/// About so many subjects at a time.
const SUBJECTS: usize = 50;

/// Why a message is parked.
pub(super) fn uncovered(subject: &str) -> String {
    format!("no stream covers subject {subject}")
}

impl Pipeline<'_> {
    /// A message came back since no stream covers its subject.
    pub(super) fn hold_subject(&mut self, number: u64, subject: &str) {
        let grace = self.tools.settings.unroutable_grace;
        if self.tools.routes.is_uncovered(subject) {
            tracing::error!(
                subject,
                ?grace,
                "no stream covers a subject: after the grace time its messages are parked among the dead letters"
            );
            let reason = uncovered(subject);
            self.tools.control.update(|health| health.reason = Some(reason));
        }
        if self.held.is_empty() {
            self.held_until = Instant::now() + PAUSE.min(grace);
        }
        self.held.push(number);
    }

    /// Asks anew what covers the subjects, and parks those whose time is over.
    pub(super) async fn look_after_subjects(&mut self) {
        if self.held.is_empty() || self.hold.is_some() || Instant::now() < self.held_until {
            return;
        }
        self.held.sort_unstable();
        let subjects: BTreeSet<String> = self
            .held
            .iter()
            .filter_map(|number| self.slots.row(*number))
            .map(|row| row.parcel.message.subject.clone())
            .take(SUBJECTS)
            .collect();
        for subject in subjects {
            match self.tools.publisher.stream_of(&subject).await {
                Ok(Some(_)) => {
                    self.tools.routes.is_covered(&subject);
                    let released = self.take_held(&subject);
                    self.ready.extend(released);
                }
                Ok(None) if self.tools.routes.park_if_grace_is_over(&subject) => {
                    for number in self.take_held(&subject) {
                        self.condemn(number, Reason::Unroutable, uncovered(&subject));
                    }
                }
                // Not yet, or nobody knows.
                Ok(None) | Err(_) => {}
            }
        }
        self.held_until = Instant::now() + PAUSE;
        if self.held.is_empty() {
            self.tools.control.works();
        }
    }

    fn take_held(&mut self, subject: &str) -> Vec<u64> {
        let slots = &self.slots;
        let is_of_subject = |number: &u64| {
            slots
                .row(*number)
                .is_some_and(|row| row.parcel.message.subject == subject)
        };
        let (taken, stay) = self.held.iter().copied().partition(is_of_subject);
        self.held = stay;
        taken
    }
}
