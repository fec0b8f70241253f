//! The way to the lanes: what bounds it, and what is on it.

use super::delivery::{Delivery, InHand};
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};

/// The lanes, as those see them who bring messages.
#[derive(Clone)]
pub(super) struct Lanes {
    pub(super) senders: Arc<[mpsc::Sender<Delivery>]>,
    /// Bounds what is in hand.
    pub(super) permits: Arc<Semaphore>,
    pub(super) in_hand: InHand,
}

impl Lanes {
    /// A lane's channel holds as many as there are permits, so this does not wait. A lane that has ended panicked, and then the
    /// consumer ends: the message comes again.
    pub(super) async fn send(&self, delivery: Delivery) {
        let lane = delivery.lane_of(self.senders.len());
        self.senders[lane].send(delivery).await.ok();
    }
}
