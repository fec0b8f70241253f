//! The way to the dead letters: the claim and the letter in one transaction.

use super::batch::{Bench, new_dead_letter};
use super::claim::{Claim, Counts};
use super::delivery::Delivery;
use crate::dead_letter::Reason;
use crate::store::StoreError;

/// Why messages go to the dead letters.
pub(super) struct Cause {
    pub(super) reason: Reason,
    pub(super) error: String,
    /// How often their handler has run.
    pub(super) runs: u32,
}

impl Bench {
    /// All of them that were not handled meanwhile. Returns how many, or `None`: another transaction is at one of them.
    pub(super) async fn bury(
        &self,
        deliveries: &[Delivery],
        cause: &Cause,
        earlier: Counts,
    ) -> Result<Option<usize>, StoreError> {
        let mut transaction = self.begin().await?;
        let mut counts = earlier;
        let claims = self.inbox.claim(&mut transaction, deliveries).await?;
        let mut buried = 0;
        let mut letters = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            let letter = new_dead_letter(delivery, cause.reason, cause.error.clone(), cause.runs);
            match (&delivery.letter, claims.of(delivery.id())) {
                (Some(known), _) => {
                    buried += 1;
                    let is_there = self
                        .letters
                        .put_back(
                            &mut transaction,
                            known.id,
                            letter.reason,
                            &letter.error,
                            letter.runs,
                        )
                        .await?;
                    // The torn transaction had taken it out. Otherwise it was discarded meanwhile.
                    if !is_there && cause.reason == Reason::Torn {
                        self.letters
                            .insert_again(&mut transaction, known.id, &letter)
                            .await?;
                    }
                }
                (None, Claim::Busy) => {
                    transaction.rollback().await?;
                    return Ok(None);
                }
                // Of a torn transaction the claim may be written and the effect not.
                (None, Claim::Duplicate) if cause.reason != Reason::Torn => {}
                (None, claim) => {
                    counts.claimed += i64::from(claim == Claim::Claimed);
                    counts.dead += 1;
                    buried += 1;
                    letters.push(letter);
                }
            }
            self.attempts.forget(&mut transaction, delivery.id()).await?;
        }
        self.letters.insert(&mut transaction, &letters).await?;
        self.inbox.count(&mut transaction, self.lane, counts).await?;
        transaction.commit().await?;
        Ok(Some(buried))
    }
}
