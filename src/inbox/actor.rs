//! Business actors: what a service does with messages.

use super::envelope::{Envelope, Event};
use super::handler_error::HandlerError;
use super::sort::Handed;
use super::transaction::InboxTransaction;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use tracing::Instrument as _;

/// What a service does with the messages of one kind, inside the transaction that claims them.
///
/// An actor owns its state and handles one message, or one batch, at a time; each lane has one of its own, made by a factory.
/// Its memory is not transactional: one that took part in a transaction that was rolled back is made anew.
///
/// ```
/// use serde::Deserialize;
/// use twinbox::inbox::{BusinessActor, Event, HandlerError, InboxTransaction};
///
/// #[derive(Deserialize)]
/// struct OrderPlaced {
///     customer: i64,
///     amount_cents: i64,
/// }
///
/// struct Billing;
///
/// impl BusinessActor for Billing {
///     type Event = OrderPlaced;
///
///     async fn handle(
///         &mut self,
///         order: Event<OrderPlaced>,
///         transaction: &mut InboxTransaction<'_>,
///     ) -> Result<(), HandlerError> {
///         if order.amount_cents < 0 {
///             return Err(HandlerError::reject("a negative amount"));
///         }
///         sqlx::query("UPDATE account SET balance = balance - $2 WHERE customer = $1")
///             .bind(order.customer)
///             .bind(order.amount_cents)
///             .execute(&mut **transaction)
///             .await?;
///         Ok(())
///     }
/// }
/// ```
pub trait BusinessActor: Send + 'static {
    /// What a message's payload is decoded to.
    type Event: DeserializeOwned + Send;

    /// Handles one message.
    fn handle(
        &mut self,
        event: Event<Self::Event>,
        transaction: &mut InboxTransaction<'_>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Handles several messages, in order, in one transaction. Override it with statements over sets (`unnest`), which are
    /// several times faster. If it fails, the messages are run again in smaller batches, so that only the failing one fails.
    ///
    /// Call [`InboxTransaction::caused_by`] before enqueueing for an event, so that the next hop's id is derived from it.
    fn handle_batch(
        &mut self,
        events: Vec<Event<Self::Event>>,
        transaction: &mut InboxTransaction<'_>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send {
        async move {
            for event in events {
                transaction.caused_by(event.envelope.id);
                let span = event.envelope.span();
                self.handle(event, transaction).instrument(span).await?;
            }
            Ok(())
        }
    }

    /// Decodes a payload: JSON, unless overridden.
    ///
    /// # Errors
    /// Any error sends the message to the dead letters as undecodable.
    fn decode(envelope: &Envelope) -> Result<Self::Event, HandlerError> {
        Ok(serde_json::from_slice(&envelope.payload)?)
    }
}

/// A message whose payload could be decoded, on its way to an actor.
pub(super) type Decoded = Box<dyn std::any::Any + Send>;

/// A business actor of any event type.
pub(super) trait AnyActor: Send {
    fn decode(&self, envelope: &Envelope) -> Result<Decoded, HandlerError>;

    fn handle<'a>(
        &'a mut self,
        events: Vec<Handed>,
        transaction: &'a mut InboxTransaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>>;
}

pub(super) struct Typed<A>(pub(super) A);

impl<A: BusinessActor> AnyActor for Typed<A> {
    fn decode(&self, envelope: &Envelope) -> Result<Decoded, HandlerError> {
        A::decode(envelope).map(|event| Box::new(event) as Decoded)
    }

    fn handle<'a>(
        &'a mut self,
        events: Vec<Handed>,
        transaction: &'a mut InboxTransaction<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        let mut events: Vec<Event<A::Event>> = events
            .into_iter()
            .filter_map(|(envelope, decoded)| {
                // What an actor decodes comes back to it: the router sends both by one route.
                decoded.downcast().ok().map(|payload| Event {
                    envelope,
                    payload: *payload,
                })
            })
            .collect();
        async move {
            match events.len() {
                1 => match events.pop() {
                    Some(event) => {
                        transaction.caused_by(event.envelope.id);
                        let span = event.envelope.span();
                        self.0.handle(event, transaction).instrument(span).await
                    }
                    None => Ok(()),
                },
                _ => {
                    if let Some(first) = events.first() {
                        transaction.begins_with(first.envelope.id);
                    }
                    self.0.handle_batch(events, transaction).await
                }
            }
        }
        .boxed()
    }
}
