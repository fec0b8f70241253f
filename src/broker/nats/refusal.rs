//! What JetStream's errors call for. Codes are matched, never texts.
//!
//! Source: nats-server, server/errors.json.

use crate::broker::BrokerError;
use async_nats::jetstream::context::{RequestError, RequestErrorKind};
use async_nats::jetstream::{Error as ApiError, ErrorCode};
use std::error::Error;

/// An error with its causes, on one line.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some errors repeat their cause in their own text.
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

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

/// An error of a request to the API, in the seam's terms.
pub(super) fn of_request(error: &RequestError) -> BrokerError {
    match error.kind() {
        RequestErrorKind::NoResponders => BrokerError::Unavailable(
            "no JetStream answers: it is not enabled (nats-server -js), or has no leader at this moment".to_owned(),
        ),
        RequestErrorKind::TimedOut => BrokerError::Unavailable(
            "no answer in time: the server is away, or the user lacks the permission for $JS.API (see the log)".to_owned(),
        ),
        RequestErrorKind::InvalidSubject | RequestErrorKind::Other => of_error(error),
    }
}

/// Any other error, in the seam's terms: what the API answered with is a refusal, the rest may pass.
pub(super) fn of_error(error: &(dyn Error + 'static)) -> BrokerError {
    match api_error(error) {
        Some(api) if is_jetstream_off(api) => BrokerError::Refused(
            "JetStream is not enabled: start nats-server with -js, or enable it for the account".to_owned(),
        ),
        Some(api) if api.code() < 500 => BrokerError::Refused(chain(error)),
        _ => BrokerError::Unavailable(chain(error)),
    }
}
