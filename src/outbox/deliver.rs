//! One message to the broker, so that it is there afterwards.

use super::lease::LeaseClock;
use super::row::{DedupId, Parcel};
use crate::broker::{PublishError, Publisher};

/// Where a message is.
#[derive(Debug)]
pub(crate) struct Delivered {
    pub(crate) stream: String,
    pub(crate) sequence: u64,
    pub(crate) dedup_id: DedupId,
    /// It was there before.
    pub(crate) duplicate: bool,
}

/// So often a message is published under a fresh id before that counts as an outage.
const MOST_RENEWALS: u32 = 100;

/// Publishes a message. With `verify`, the broker's word that it is a duplicate is not enough: the first copy is looked
/// up, and if it is gone, the message is published under a fresh deduplication id.
///
/// Nothing leaves once the lease is over, also where time has passed between the making of this future and its first
/// poll: a process may be stopped anywhere.
pub(crate) async fn deliver(
    publisher: &dyn Publisher,
    clock: &LeaseClock,
    parcel: &Parcel,
    verify: bool,
) -> Result<Delivered, PublishError> {
    let mut dedup_id = DedupId::first(parcel.message_id);
    loop {
        if !clock.holds() {
            return Err(PublishError::Outage("the lease is over".to_owned()));
        }
        let receipt = publisher.publish(parcel.outgoing(dedup_id)).await?;
        let delivered = Delivered {
            stream: receipt.stream,
            sequence: receipt.sequence,
            dedup_id,
            duplicate: receipt.duplicate,
        };
        // Apart: what is rare must not make the future of every message larger.
        if !verify || !delivered.duplicate || Box::pin(is_there(publisher, &delivered)).await? {
            return Ok(delivered);
        }
        if dedup_id.renewal == MOST_RENEWALS {
            return Err(PublishError::Outage(format!(
                "stream {} calls {} a duplicate and does not have it",
                delivered.stream,
                dedup_id.text()
            )));
        }
        dedup_id = dedup_id.next();
    }
}

/// Where it can't be told although there is a connection (a missing permission looks like no answer), the message
/// counts as gone: a copy too many is met by the inbox.
async fn is_there(publisher: &dyn Publisher, delivered: &Delivered) -> Result<bool, PublishError> {
    match publisher.dedup_id_at(&delivered.stream, delivered.sequence).await {
        Ok(found) => Ok(found.is_some_and(|id| id == delivered.dedup_id.text())),
        Err(_) if publisher.is_connected() => Ok(false),
        Err(error) => Err(PublishError::Outage(error.to_string())),
    }
}
