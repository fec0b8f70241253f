//! Consuming from a durable pull consumer.

use super::{Nats, headers, publisher, refusal};
use crate::broker::{
    BrokerError, ConsumerState, Incoming, Position, ReceiptHandle, StreamId, Subscription, subject_matches,
};
use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::message::{Acker, StreamMessage};
use async_nats::jetstream::stream::RawMessageErrorKind;
use async_nats::jetstream::{self, AckKind};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt as _, StreamExt as _, TryFutureExt as _, TryStreamExt as _};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// How long a pull request stands. (With a heartbeat, so that a silent end is noticed.)
const PULL_EXPIRES: Duration = Duration::from_secs(30);
/// How often the server says that a pull request still stands.
const PULL_HEARTBEAT: Duration = Duration::from_secs(5);
/// Messages that are read straight from a stream at a time.
const READS_AT_ONCE: usize = 128;

/// A durable pull consumer. [`Nats::subscribe`] makes one.
#[derive(Clone, Debug)]
pub struct NatsSubscription {
    pub(super) nats: Arc<Nats>,
    pub(super) stream: String,
    pub(super) config: pull::Config,
    /// What is taken: where the server can't filter by several subjects (before 2.10), it is done here.
    pub(super) subjects: Vec<String>,
    /// Messages asked for at once.
    pub(super) prefetch: usize,
}

impl NatsSubscription {
    fn name(&self) -> &str {
        self.config.durable_name.as_deref().unwrap_or_default()
    }

    fn takes(&self, subject: &str) -> bool {
        self.subjects.is_empty()
            || self
                .subjects
                .iter()
                .any(|pattern| subject_matches(pattern, subject))
    }

    async fn consumer(&self) -> Result<jetstream::consumer::PullConsumer, BrokerError> {
        self.nats
            .connection()
            .jetstream
            .get_consumer_from_stream(self.name(), &self.stream)
            .await
            .map_err(|error| {
                if refusal::is_consumer_absent(&error) {
                    BrokerError::NoConsumer {
                        consumer: self.name().to_owned(),
                        stream: self.stream.clone(),
                    }
                } else {
                    refusal::of_consumer(&error)
                }
            })
    }

    async fn stream_id(&self) -> Result<Arc<StreamId>, BrokerError> {
        match publisher::stream_state(&self.nats.connection().jetstream, &self.stream).await? {
            Some(state) => Ok(Arc::new(state.id)),
            None => Err(BrokerError::Refused(format!(
                "there is no stream {}: create it",
                self.stream
            ))),
        }
    }
}

impl Subscription for NatsSubscription {
    fn messages(
        &self,
    ) -> BoxFuture<'_, Result<BoxStream<'static, Result<Incoming, BrokerError>>, BrokerError>> {
        async move {
            let stream_id = self.stream_id().await?;
            // `stream()`, not `fetch()`: the latter loses wake-ups with a heartbeat. No limit on bytes: below the
            // largest message, it asks for ever in vain.
            let messages = self
                .consumer()
                .await?
                .stream()
                .max_messages_per_batch(self.prefetch)
                .expires(PULL_EXPIRES)
                .heartbeat(PULL_HEARTBEAT)
                .messages()
                .await
                .map_err(|error| refusal::of_error(&error))?;
            let this = self.clone();
            let messages = messages
                .map_err(|error| refusal::of_error(&error))
                .try_filter_map(move |message| {
                    let taken = this.takes(&message.subject).then(|| stream_id.clone());
                    async move {
                        if let Some(stream_id) = taken {
                            return incoming(message, stream_id).map(Some);
                        }
                        message
                            .ack()
                            .await
                            .map_err(|error| BrokerError::Unavailable(error.to_string()))?;
                        Ok(None)
                    }
                });
            Ok(messages.boxed())
        }
        .boxed()
    }

    fn read(&self, sequences: RangeInclusive<u64>) -> BoxStream<'static, Result<Incoming, BrokerError>> {
        let this = self.clone();
        let opened = async move {
            let stream_id = this.stream_id().await?;
            let stream = this
                .nats
                .connection()
                .jetstream
                .get_stream_no_info(&this.stream)
                .await
                .map_err(|error| refusal::of_error(&error))?;
            let stream = Arc::new(stream);
            let read = stream::iter(sequences)
                .map(move |sequence| {
                    let stream = stream.clone();
                    async move { stream.get_raw_message(sequence).await }
                })
                .buffered(READS_AT_ONCE)
                .filter_map(move |read| {
                    let message = match read {
                        Ok(message) if this.takes(&message.subject) => {
                            Some(Ok(stored(message, stream_id.clone())))
                        }
                        Ok(_) => None,
                        Err(error) if matches!(error.kind(), RawMessageErrorKind::NoMessageFound) => None,
                        Err(error) => Some(Err(refusal::of_read(&error))),
                    };
                    std::future::ready(message)
                });
            Ok::<_, BrokerError>(read)
        };
        opened.try_flatten_stream().boxed()
    }

    fn state(&self) -> BoxFuture<'_, Result<ConsumerState, BrokerError>> {
        async move {
            let consumer = self.consumer().await?;
            let info = consumer.cached_info();
            let (ack_floor, delivered) = (info.ack_floor.stream_sequence, info.delivered.stream_sequence);
            let state = publisher::stream_state(&self.nats.connection().jetstream, &self.stream).await?;
            let stream = state.ok_or_else(|| {
                BrokerError::Refused(format!("there is no stream {}: create it", self.stream))
            })?;
            Ok(ConsumerState {
                ack_floor,
                delivered,
                ack_pending: info.num_ack_pending as u64,
                pending: info.num_pending,
                deliveries: info.delivered.consumer_sequence,
                stream,
            })
        }
        .boxed()
    }

    fn recreate(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        async move {
            let jetstream = self.nats.jetstream();
            match jetstream
                .delete_consumer_from_stream(self.name(), &self.stream)
                .await
            {
                Err(error) if !refusal::is_consumer_absent(&error) => {
                    return Err(refusal::of_consumer(&error));
                }
                _ => {}
            }
            jetstream
                .create_consumer_on_stream(self.config.clone(), &self.stream)
                .await
                .map_err(|error| refusal::of_consumer(&error))?;
            Ok(())
        }
        .boxed()
    }

    fn is_connected(&self) -> bool {
        self.nats.is_up()
    }

    fn connections(&self) -> u64 {
        self.nats.connections_made()
    }

    fn ack_wait(&self) -> Duration {
        self.config.ack_wait
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        async move {
            let client = self.nats.client();
            let flushed = tokio::time::timeout(self.nats.settings().request_timeout, client.flush()).await;
            match flushed {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(BrokerError::Unavailable(error.to_string())),
                Err(_) => Err(BrokerError::Unavailable("no connection to flush".to_owned())),
            }
        }
        .boxed()
    }
}

fn incoming(message: jetstream::Message, stream: Arc<StreamId>) -> Result<Incoming, BrokerError> {
    let info = message
        .info()
        .map_err(|error| BrokerError::Refused(format!("not a JetStream message: {error}")))?;
    let position = Position {
        stream,
        sequence: info.stream_sequence,
        stored_at: info.published,
    };
    let redelivered = info.delivered > 1;
    let (message, acker) = message.split();
    Ok(Incoming {
        subject: message.subject.to_string(),
        headers: message
            .headers
            .as_ref()
            .map(headers::from_nats)
            .unwrap_or_default(),
        payload: message.payload,
        position,
        redelivered,
        receipt_handle: Some(Box::new(Handle(acker))),
    })
}

/// A message that was read from the stream: it may have been handed out, and may have killed who ran it.
fn stored(message: StreamMessage, stream: Arc<StreamId>) -> Incoming {
    Incoming {
        subject: message.subject.to_string(),
        headers: headers::from_nats(&message.headers),
        payload: message.payload,
        position: Position {
            stream,
            sequence: message.sequence,
            stored_at: message.time,
        },
        redelivered: true,
        receipt_handle: None,
    }
}

struct Handle(Acker);

impl Handle {
    /// The client has no limit of its own: with no connection and a full queue it would wait for ever.
    async fn send(&self, kind: AckKind) -> Result<(), BrokerError> {
        match tokio::time::timeout(ACK_TIMEOUT, self.0.ack_with(kind)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(BrokerError::Unavailable(error.to_string())),
            Err(_) => Err(BrokerError::Unavailable(
                "an acknowledgement could not be sent in time".to_owned(),
            )),
        }
    }
}

/// How long to try to hand an acknowledgement to the client.
const ACK_TIMEOUT: Duration = Duration::from_secs(5);

impl ReceiptHandle for Handle {
    fn acknowledge(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        self.send(AckKind::Ack).boxed()
    }

    fn in_progress(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        self.send(AckKind::Progress).boxed()
    }
}
