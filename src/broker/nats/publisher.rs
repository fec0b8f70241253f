//! Publishing to JetStream.

use super::connection::Connection;
use super::{Nats, headers, refusal};
use crate::broker::{BrokerError, Outgoing, PublishError, Publisher, Receipt, StreamId, StreamState};
use crate::error_text::with_causes;
use crate::message::{InvalidMessage, header};
use async_nats::jetstream::context::{GetStreamByNameErrorKind, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{self, RawMessageErrorKind, RetentionPolicy};
use async_nats::jetstream::{ErrorCode, context};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;

/// What a server takes that has not said otherwise yet: its default.
const DEFAULT_MAX_PAYLOAD: usize = 1024 * 1024;

impl Publisher for Nats {
    fn publish(&self, message: Outgoing) -> BoxFuture<'static, Result<Receipt, PublishError>> {
        let connection = self.connection();
        let limit = self.max_payload();
        // Sent while there is no connection, it would wait in the client and go out long after it was given up.
        if !self.is_up() {
            return async { Err(PublishError::Outage("no connection".to_owned())) }.boxed();
        }
        publish(connection, message, limit).boxed()
    }

    fn is_connected(&self) -> bool {
        self.is_up()
    }

    fn connections(&self) -> u64 {
        self.connections_made()
    }

    fn reconnect(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        self.renew().boxed()
    }

    fn max_payload(&self) -> usize {
        match self.connection().client.max_payload() {
            0 => DEFAULT_MAX_PAYLOAD,
            bytes => bytes,
        }
    }

    fn stream_of(&self, subject: &str) -> BoxFuture<'_, Result<Option<String>, BrokerError>> {
        let subject = subject.to_owned();
        async move { stream_of(&self.connection().jetstream, &subject).await }.boxed()
    }

    fn stream_state(&self, stream: &str) -> BoxFuture<'_, Result<Option<StreamState>, BrokerError>> {
        let stream = stream.to_owned();
        async move { stream_state(&self.connection().jetstream, &stream).await }.boxed()
    }

    fn dedup_id_at(&self, stream: &str, sequence: u64) -> BoxFuture<'_, Result<Option<String>, BrokerError>> {
        let stream = stream.to_owned();
        async move {
            let stream = self
                .connection()
                .jetstream
                .get_stream_no_info(&stream)
                .await
                .map_err(|error| refusal::of_error(&error))?;
            match stream.get_raw_message(sequence).await {
                Ok(message) => {
                    let id = message
                        .headers
                        .get(header::NATS_MSG_ID)
                        .map(|id| id.as_str().to_owned());
                    Ok(Some(id.unwrap_or_default()))
                }
                Err(error) if matches!(error.kind(), RawMessageErrorKind::NoMessageFound) => Ok(None),
                Err(error) => Err(refusal::of_read(&error)),
            }
        }
        .boxed()
    }
}

async fn publish(
    connection: Arc<Connection>,
    message: Outgoing,
    limit: usize,
) -> Result<Receipt, PublishError> {
    let bytes = wire_size(&message);
    if bytes > limit {
        return Err(PublishError::Unpublishable(
            InvalidMessage::TooLarge { bytes, limit }.to_string(),
        ));
    }
    let mut headers = headers::to_nats(&message.headers).map_err(PublishError::Unpublishable)?;
    headers.insert(header::NATS_MSG_ID, message.dedup_id.as_str());
    let publish = PublishMessage::build().payload(message.payload).headers(headers);
    let sent = connection
        .jetstream
        .send_publish(message.subject.clone(), publish)
        .await;
    let answered = match sent {
        Ok(receipt) => receipt.await,
        Err(error) => Err(error),
    };
    match answered {
        Ok(ack) => Ok(Receipt {
            stream: ack.stream,
            sequence: ack.sequence,
            duplicate: ack.duplicate,
        }),
        // Apart: what is rare must not make the future of every message larger.
        Err(error) => Err(Box::pin(classify(&connection.jetstream, message.subject, &error)).await),
    }
}

/// What the server counts against its `max_payload`: the header block and the payload.
fn wire_size(message: &Outgoing) -> usize {
    const VERSION_LINE_AND_END: usize = "NATS/1.0\r\n\r\n".len();
    let line = |name: &str, value: &str| name.len() + ": \r\n".len() + value.len();
    let headers: usize = message
        .headers
        .iter()
        .map(|(name, value)| line(name, value))
        .sum();
    VERSION_LINE_AND_END + headers + line(header::NATS_MSG_ID, &message.dedup_id) + message.payload.len()
}

async fn classify(
    jetstream: &context::Context,
    subject: String,
    error: &context::PublishError,
) -> PublishError {
    match error.kind() {
        // No stream took it, or its stream has no leader at this moment: the answer is the same.
        PublishErrorKind::StreamNotFound => match stream_of(jetstream, &subject).await {
            Ok(None) => PublishError::Unroutable { subject },
            Ok(Some(stream)) => {
                PublishError::Outage(format!("stream {stream} does not answer: it may have no leader"))
            }
            Err(error) => PublishError::Outage(error.to_string()),
        },
        PublishErrorKind::MaxPayloadExceeded => PublishError::Unpublishable(with_causes(error)),
        _ => match refusal::api_error(error) {
            Some(api) if refusal::is_permanent(api) => PublishError::Unpublishable(with_causes(error)),
            _ => PublishError::Outage(with_causes(error)),
        },
    }
}

async fn stream_of(jetstream: &context::Context, subject: &str) -> Result<Option<String>, BrokerError> {
    match jetstream.stream_by_subject(subject).await {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if error.kind() == GetStreamByNameErrorKind::NotFound => Ok(None),
        Err(error) => Err(refusal::of_error(&error)),
    }
}

pub(super) async fn stream_state(
    jetstream: &context::Context,
    name: &str,
) -> Result<Option<StreamState>, BrokerError> {
    Ok(stream_info(jetstream, name).await?.map(|info| state_of(&info)))
}

pub(super) async fn stream_info(
    jetstream: &context::Context,
    name: &str,
) -> Result<Option<stream::Info>, BrokerError> {
    use async_nats::jetstream::response::Response;
    let answer = jetstream
        .request::<_, _, Response<stream::Info>>(format!("STREAM.INFO.{name}"), &())
        .await;
    match answer {
        Ok(Response::Ok(info)) => Ok(Some(info)),
        Ok(Response::Err { error }) if error.error_code() == ErrorCode::STREAM_NOT_FOUND => Ok(None),
        Ok(Response::Err { error }) => Err(refusal::of_api(&error)),
        Err(error) => Err(refusal::of_error(&error)),
    }
}

pub(super) fn state_of(info: &stream::Info) -> StreamState {
    StreamState {
        id: StreamId {
            name: info.config.name.clone(),
            created: info.created,
        },
        // Of a stream that never had a message the server says 0.
        first_sequence: info.state.first_sequence.max(1),
        last_sequence: info.state.last_sequence,
        max_age: Some(info.config.max_age).filter(|age| *age > Duration::ZERO),
        removes_acknowledged: info.config.retention != RetentionPolicy::Limits,
    }
}
