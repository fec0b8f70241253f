//! The way to the dead letters: the claim and the letter in one transaction.

use super::batch::{Bench, new_dead_letter};
use super::claim::{Claim, Counts};
use super::delivery::Delivery;
use crate::dead_letter::Reason;
use crate::store::StoreError;

impl Bench {
    /// `false`: another transaction is at the message.
    pub(super) async fn bury(
        &self,
        delivery: &Delivery,
        reason: Reason,
        error: &str,
        runs: u32,
        earlier: Counts,
    ) -> Result<bool, StoreError> {
        let mut transaction = self.begin().await?;
        let mut counts = earlier;
        match delivery.letter {
            Some(letter) => {
                let runs = i32::try_from(runs).unwrap_or(i32::MAX);
                self.letters
                    .put_back(&mut transaction, letter.id, reason, error, runs)
                    .await?;
            }
            None => {
                let claims = self
                    .inbox
                    .claim(&mut transaction, std::slice::from_ref(delivery))
                    .await?;
                match claims.of(delivery.id()) {
                    Claim::Busy => return Ok(false),
                    Claim::Duplicate => return Ok(true),
                    Claim::Claimed => {}
                }
                let letter = new_dead_letter(delivery, reason, error.to_owned(), runs);
                self.letters.insert(&mut transaction, &[letter]).await?;
                counts.claimed += 1;
                counts.dead += 1;
            }
        }
        self.attempts.forget(&mut transaction, delivery.id()).await?;
        self.inbox.count(&mut transaction, self.lane, counts).await?;
        transaction.commit().await?;
        Ok(true)
    }
}
