//! What JetStream's errors call for. Codes are matched, never texts.
//!
//! Source: nats-server, server/errors.json.

use crate::broker::BrokerError;
use crate::error_text::with_causes;
use async_nats::jetstream::context::{
    CreateStreamError, CreateStreamErrorKind, RequestError, RequestErrorKind,
};
use async_nats::jetstream::stream::{ConsumerError, ConsumerErrorKind, RawMessageError, RawMessageErrorKind};
use async_nats::jetstream::{Error as ApiError, ErrorCode};
use std::error::Error;

/// The API's own error among the causes, if it answered with one.
pub(super) fn api_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a ApiError> {
    let mut cause = Some(error);
    while let Some(this) = cause {
        if let Some(api) = this.downcast_ref::<ApiError>() {
            return Some(api);
        }
        cause = this.source();
    }
    None
}

/// Whether the server will say the same to this very message each time.
pub(super) fn is_permanent(error: &ApiError) -> bool {
    matches!(
        error.error_code(),
        ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM
            | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM
            | ErrorCode(10165 | 10166)
    )
}

/// Whether JetStream is off, for the server or the account.
pub(super) fn is_jetstream_off(error: &ApiError) -> bool {
    matches!(
        error.error_code(),
        ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT
    )
}

/// What the API answered, in the seam's terms.
pub(super) fn of_api(error: &ApiError) -> BrokerError {
    if is_jetstream_off(error) {
        BrokerError::Refused(
            "JetStream is not enabled: start nats-server with -js, or enable it for the account".to_owned(),
        )
    } else if error.code() < 500 {
        BrokerError::Refused(error.to_string())
    } else {
        BrokerError::Unavailable(error.to_string())
    }
}

fn no_answer() -> BrokerError {
    BrokerError::Unavailable(
        "no answer in time: the server is away, or the user has no permission for it (then the log names the subject)"
            .to_owned(),
    )
}

fn nobody_answers() -> BrokerError {
    BrokerError::Unavailable(
        "JetStream does not answer: it is not enabled (nats-server -js), or has no leader at this moment"
            .to_owned(),
    )
}

/// Any error, in the seam's terms, by the request or the API's answer among its causes.
pub(super) fn of_error(error: &(dyn Error + 'static)) -> BrokerError {
    let mut cause = Some(error);
    while let Some(this) = cause {
        if let Some(api) = this.downcast_ref::<ApiError>() {
            return of_api(api);
        }
        match this.downcast_ref::<RequestError>().map(RequestError::kind) {
            Some(RequestErrorKind::NoResponders) => return nobody_answers(),
            Some(RequestErrorKind::TimedOut) => return no_answer(),
            Some(RequestErrorKind::InvalidSubject | RequestErrorKind::Other) | None => {}
        }
        cause = this.source();
    }
    BrokerError::Unavailable(with_causes(error))
}

// The client keeps the API's answer in the kind of some errors, where `source()` does not lead.

pub(super) fn of_consumer(error: &ConsumerError) -> BrokerError {
    match error.kind() {
        ConsumerErrorKind::JetStream(api) => of_api(&api),
        ConsumerErrorKind::TimedOut => no_answer(),
        _ => of_error(error),
    }
}

pub(super) fn is_consumer_absent(error: &ConsumerError) -> bool {
    matches!(error.kind(), ConsumerErrorKind::JetStream(api) if api.error_code() == ErrorCode::CONSUMER_NOT_FOUND)
}

pub(super) fn of_read(error: &RawMessageError) -> BrokerError {
    match error.kind() {
        RawMessageErrorKind::JetStream(api) => of_api(&api),
        _ => of_error(error),
    }
}

pub(super) fn of_create_stream(error: &CreateStreamError) -> BrokerError {
    match error.kind() {
        CreateStreamErrorKind::JetStream(api) => of_api(&api),
        CreateStreamErrorKind::TimedOut => no_answer(),
        CreateStreamErrorKind::JetStreamUnavailable => nobody_answers(),
        _ => of_error(error),
    }
}
