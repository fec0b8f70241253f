//! A message in the hands of this process, from its arrival until it is acknowledged.

use super::envelope::Envelope;
use super::ran::Failure;
use crate::broker::{BrokerError, Incoming, ReceiptHandle, StreamId};
use crate::dead_letter::DeadLetter;
use crate::error_text::with_causes;
use crate::store::StoreError;
use futures_util::future::join_all;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;
use uuid::Uuid;

/// The broker's ends of all deliveries of one message that came while it was in hand.
#[derive(Default)]
pub(super) struct Handles(Mutex<Vec<Arc<dyn ReceiptHandle>>>);

impl Handles {
    fn all(&self) -> Vec<Arc<dyn ReceiptHandle>> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<dyn ReceiptHandle>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// So many times in a row a handler may lose its connection before that counts as one failed run.
const CUTS_PER_RUN: u32 = 3;

/// A dead letter that was requeued.
#[derive(Clone, Debug)]
pub(super) struct Letter {
    pub(super) id: i64,
    /// The stream it once came from.
    stream: Option<String>,
}

/// A message in the hands of this process.
pub(super) struct Delivery {
    pub(super) envelope: Arc<Envelope>,
    /// The stream's row.
    pub(super) stream: i32,
    /// Where it stands, unless it is a letter.
    stream_id: Option<Arc<StreamId>>,
    /// It may have been run before, by a process that died of it: it runs alone, and its run is recorded first.
    pub(super) alone: bool,
    /// Not before this moment: it failed and waits.
    pub(super) due: Option<Instant>,
    pub(super) letter: Option<Letter>,
    /// How often in a row the connection was lost while its handler ran, with nothing beside it.
    pub(super) cuts: u32,
    handles: Arc<Handles>,
    /// Bounds what is in hand.
    _permit: OwnedSemaphorePermit,
}

impl Delivery {
    pub(super) fn id(&self) -> Uuid {
        self.envelope.id
    }

    pub(super) fn key(&self) -> Option<&str> {
        self.envelope.key.as_deref()
    }

    /// The name of the stream that it is from.
    pub(super) fn stream_name(&self) -> Option<&str> {
        match (&self.stream_id, &self.letter) {
            (Some(stream), _) => Some(&stream.name),
            (None, letter) => letter.as_ref()?.stream.as_deref(),
        }
    }

    pub(super) fn sequence(&self) -> i64 {
        i64::try_from(self.envelope.sequence).unwrap_or(i64::MAX)
    }

    /// Its handler lost the connection. Once, that is an outage; when it does each time, it is the handler's failure.
    pub(super) fn cut(&mut self, error: &StoreError) -> Option<Failure> {
        self.cuts += 1;
        if self.cuts < CUTS_PER_RUN {
            return None;
        }
        self.cuts = 0;
        Some(Failure::retry(format!(
            "the connection to the database was lost {CUTS_PER_RUN} times in a row while its handler ran: {}",
            with_causes(error)
        )))
    }

    /// Whether the broker has handed it out to this process, and not only the stream.
    pub(super) fn is_delivered(&self) -> bool {
        !self.handles.lock().is_empty()
    }

    /// What routes it to a lane: its key, so that a key stays in one; without one, its id.
    pub(super) fn lane_of(&self, lanes: usize) -> usize {
        let hash = match self.key() {
            Some(key) => fnv1a(key.as_bytes()),
            None => fnv1a(self.envelope.id.as_bytes()),
        };
        usize::try_from(hash % lanes as u64).unwrap_or_default()
    }

    /// Tells the broker that it is done. What gets lost leads to another delivery, which the inbox meets.
    pub(super) async fn acknowledge(self) {
        for handle in self.handles.all() {
            if let Err(error) = handle.acknowledge().await {
                tracing::warn!(message = %self.envelope.id, %error, "not acknowledged; it will come again and be skipped");
            }
        }
    }
}

/// FNV-1a, 64 bits: a key must go to the same lane whatever process it is in, so std's hasher, which is seeded, won't do.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A message's place: the stream's row and its number there.
type Place = (i32, u64);

/// What this process has in hand, so that nothing is run twice at once and the broker can be told that work goes on.
#[derive(Clone, Default)]
pub(super) struct InHand {
    messages: Arc<Mutex<HashMap<Place, Weak<Handles>>>>,
    letters: Arc<Mutex<HashMap<i64, Weak<Handles>>>>,
}

impl InHand {
    /// Takes a message up; `None` if it is in hand already: then its new delivery is acknowledged with the first.
    pub(super) fn take(
        &self,
        mut incoming: Incoming,
        stream: i32,
        permit: OwnedSemaphorePermit,
    ) -> Option<Delivery> {
        let place = (stream, incoming.position.sequence);
        let handle: Option<Arc<dyn ReceiptHandle>> = incoming.receipt_handle.take().map(Arc::from);
        let envelope_of = |handle: Option<Arc<dyn ReceiptHandle>>, handles: &Handles| {
            handles.lock().extend(handle);
        };
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = messages.get(&place).and_then(Weak::upgrade) {
            envelope_of(handle, &held);
            return None;
        }
        let handles = Arc::new(Handles::default());
        envelope_of(handle, &handles);
        messages.insert(place, Arc::downgrade(&handles));
        drop(messages);
        Some(Delivery {
            stream,
            stream_id: Some(incoming.position.stream.clone()),
            alone: incoming.redelivered,
            envelope: Arc::new(Envelope::of_incoming(incoming)),
            due: None,
            letter: None,
            cuts: 0,
            handles,
            _permit: permit,
        })
    }

    /// Takes up a dead letter; `None` if it is in hand already.
    pub(super) fn take_letter(&self, letter: &DeadLetter, permit: OwnedSemaphorePermit) -> Option<Delivery> {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        if letters.get(&letter.id).and_then(Weak::upgrade).is_some() {
            return None;
        }
        let handles = Arc::new(Handles::default());
        letters.insert(letter.id, Arc::downgrade(&handles));
        drop(letters);
        Some(Delivery {
            envelope: Arc::new(Envelope::of_letter(letter)),
            stream: 0,
            stream_id: None,
            alone: true,
            due: None,
            letter: Some(Letter {
                id: letter.id,
                stream: letter.stream.clone(),
            }),
            cuts: 0,
            handles,
            _permit: permit,
        })
    }

    /// How much is in hand.
    pub(super) fn len(&self) -> usize {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.retain(|_, handles| handles.strong_count() > 0);
        self.letters
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|_, handles| handles.strong_count() > 0);
        messages.len()
    }

    /// Tells the broker that all of it is being worked on.
    pub(super) async fn in_progress(&self) -> Result<(), BrokerError> {
        let held: Vec<Arc<Handles>> = {
            let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
            messages.values().filter_map(Weak::upgrade).collect()
        };
        // Only the last delivery counts to the broker; the earlier ones cost a few bytes.
        let told = join_all(
            held.iter()
                .filter_map(|handles| handles.all().pop())
                .map(|handle| async move { handle.in_progress().await }),
        );
        told.await.into_iter().collect()
    }
}
