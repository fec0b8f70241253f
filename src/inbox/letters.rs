//! Brings dead letters that were requeued back to the lanes.

use super::control::{ConsumerControl, Side};
use super::lanes::Lanes;
use crate::dead_letter::{DeadLetter, Table};
use crate::error_text::with_causes;
use crate::store::{Store, StoreError};
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// How often requeued letters are looked for.
const LOOK: Duration = Duration::from_secs(2);
/// How long a connection to the database may be waited for before that counts as trouble, unless something is settled
/// meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);
/// Letters taken up at once.
const AT_ONCE: i64 = 100;

/// Looks for letters until the consumer drains. While no messages come, this is also what notices that the database is away.
pub(super) struct Letters {
    pub(super) store: Store,
    pub(super) table: Table,
    pub(super) lanes: Lanes,
    pub(super) control: ConsumerControl,
}

impl Letters {
    pub(super) async fn run(self) {
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.control.drain().cancelled() => return,
                _ = looks.tick() => {}
            }
            match self.released().await {
                Ok(letters) => {
                    self.control.works(Side::Database);
                    self.bring(letters).await;
                }
                Err(error) => self.control.is_held_up(Side::Database, with_causes(&error)),
            }
        }
    }

    async fn bring(&self, letters: Vec<DeadLetter>) {
        for letter in letters {
            // No waiting for a place here: what does not fit is found the next time.
            let Ok(permit) = self.lanes.permits.clone().try_acquire_owned() else {
                return;
            };
            if let Some(delivery) = self.lanes.in_hand.take_letter(&letter, permit) {
                self.lanes.send(delivery).await;
            }
        }
    }

    async fn released(&self) -> Result<Vec<DeadLetter>, StoreError> {
        if !self.may_release().await? {
            return Ok(Vec::new());
        }
        let mut transaction = self.store.begin().await?;
        self.table.release_followers(&mut transaction).await?;
        let letters = self.table.requeued(&mut transaction, AT_ONCE).await?;
        transaction.commit().await?;
        Ok(letters)
    }

    async fn may_release(&self) -> Result<bool, StoreError> {
        let settled = self.control.settled_so_far();
        let connection = self.store.pool().acquire();
        tokio::pin!(connection);
        let mut connection = match tokio::time::timeout(PATIENCE, &mut connection).await {
            Ok(connection) => connection?,
            Err(_) => {
                if self.control.settled_so_far() == settled {
                    let reason = format!("no connection to the database within {PATIENCE:?}");
                    self.control.is_held_up(Side::Database, reason);
                }
                connection.await?
            }
        };
        Ok(self.table.may_release(&mut connection).await?)
    }
}
