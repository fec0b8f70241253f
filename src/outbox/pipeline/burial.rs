//! What can't be published goes to the dead letters, and later messages of its key follow.

use super::Pipeline;
use crate::dead_letter::{NewDeadLetter, Reason};
use crate::outbox::gate::KeyHash;
use crate::outbox::term::TermError;

/// Why a message lies among the dead letters that has no fault of its own.
pub(super) const FOLLOWS: &str = "an earlier message of its key is here";

/// A message on its way to the dead letters.
pub(super) struct Condemned {
    number: u64,
    letter: NewDeadLetter,
    /// It is the one of its key that was out; the others were waiting behind it.
    was_out: bool,
}

impl Pipeline<'_> {
    /// A row whose turn it is goes to the dead letters, and those of its key that wait follow it, in order.
    pub(super) fn condemn(&mut self, number: u64, reason: Reason, error: String) {
        let Some(row) = self.slots.row(number).cloned() else {
            return;
        };
        if reason == Reason::Unpublishable {
            tracing::error!(
                message_id = %row.parcel.message_id,
                outbox_id = row.id,
                subject = row.parcel.message.subject,
                error,
                "a message can't be published and goes to the dead letters"
            );
        }
        let key = self.slots.key(number);
        self.condemned.push(Condemned {
            number,
            letter: (*row).clone().into_letter(reason, error),
            was_out: true,
        });
        if let (Some(key), Some(name)) = (key, row.key()) {
            self.quarantined.entry(name.to_owned()).or_insert(row.id);
            self.condemn_followers(key, name);
        }
    }

    fn condemn_followers(&mut self, key: KeyHash, name: &str) {
        let slots = &self.slots;
        // Another key may have the same hash.
        let is_same = |number| slots.row(number).is_some_and(|row| row.key() == Some(name));
        for number in self.gate.take_waiting(key, is_same) {
            if let Some(row) = slots.row(number) {
                self.condemned.push(Condemned {
                    number,
                    letter: (**row).clone().into_letter(Reason::Follows, FOLLOWS.to_owned()),
                    was_out: false,
                });
            }
        }
    }

    /// Puts the condemned among the dead letters, in order; then they are settled.
    pub(super) async fn bury(&mut self) -> Result<(), TermError> {
        let mut transaction = self.tools.term.lock().await.begin_fenced().await?;
        let condemned = std::mem::take(&mut self.condemned);
        let places: Vec<(u64, bool)> = condemned.iter().map(|one| (one.number, one.was_out)).collect();
        let letters: Vec<NewDeadLetter> = condemned.into_iter().map(|one| one.letter).collect();
        self.tools.letters.insert(&mut transaction, &letters).await?;
        transaction.commit().await?;
        self.buried = true;
        let count = |reason| letters.iter().filter(|letter| letter.reason == reason).count();
        tracing::warn!(
            unpublishable = count(Reason::Unpublishable),
            unroutable = count(Reason::Unroutable),
            follow = count(Reason::Follows),
            "messages were put among the dead letters"
        );
        for (number, was_out) in places {
            if was_out {
                self.settle_and_release(number, false);
            } else {
                self.settle(number, false);
            }
        }
        Ok(())
    }
}
