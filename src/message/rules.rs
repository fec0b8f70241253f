//! What a message must be like so that a broker can carry it.
//!
//! The client panics or is disconnected by some of these (`HeaderMap::insert` on CR and LF, the server on a
//! control line over 4 KiB), so they are checked at enqueue and once more before publishing: a row may also have
//! been inserted with plain SQL. `migrations/` holds the same rules for `enqueue` in SQL.

use super::Headers;

/// The longest subject, in bytes. A server drops a connection whose control line is over 4 KiB.
pub const MAX_SUBJECT_BYTES: usize = 1024;
/// The longest ordering key, in bytes.
pub const MAX_KEY_BYTES: usize = 1024;
/// The most that names and values of all headers may take together, in bytes. nats-server stores at most 64 KiB;
/// the rest is for the headers that twinbox adds.
pub const MAX_HEADERS_BYTES: usize = 60 * 1024;

/// Why a message can't be published. Retrying can't help: the message has to be changed.
#[derive(Debug, thiserror::Error)]
pub enum InvalidMessage {
    /// The subject.
    #[error("subject {subject:?} {fault}")]
    Subject {
        /// The subject, cut after 80 characters.
        subject: String,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// The ordering key.
    #[error("key {key:?} {fault}")]
    Key {
        /// The key, cut after 80 characters.
        key: String,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// A header.
    #[error("header {name:?} {fault}")]
    Header {
        /// The header's name, cut after 80 characters.
        name: String,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// The event can't be written as JSON.
    #[error("the event has no JSON form")]
    Payload(#[source] serde_json::Error),
    /// Message and headers are more than the broker takes.
    #[error(
        "the message has {bytes} bytes with its headers, the broker takes {limit}: send less, or raise max_payload"
    )]
    TooLarge {
        /// Bytes of payload and headers.
        bytes: usize,
        /// What the broker takes.
        limit: usize,
    },
}

fn excerpt(text: &str) -> String {
    text.chars().take(80).collect()
}

pub(super) fn check_subject(subject: &str) -> Result<(), InvalidMessage> {
    let fault = if subject.is_empty() {
        "is empty"
    } else if subject.len() > MAX_SUBJECT_BYTES {
        "is longer than 1024 bytes"
    } else if subject.starts_with('$') {
        "begins with $, which is the server's own"
    } else if subject.chars().any(|c| c.is_whitespace() || c.is_control()) {
        "has white space or control characters"
    } else if subject.contains(['*', '>']) {
        "has a wildcard: a message is published to one subject"
    } else if subject.split('.').any(str::is_empty) {
        "has an empty token: write a.b, with no dot at either end"
    } else {
        return Ok(());
    };
    Err(InvalidMessage::Subject {
        subject: excerpt(subject),
        fault,
    })
}

pub(super) fn check_key(key: &str) -> Result<(), InvalidMessage> {
    let fault = if key.is_empty() {
        "is empty: leave it out for a message without order"
    } else if key.len() > MAX_KEY_BYTES {
        "is longer than 1024 bytes"
    } else if key.chars().any(char::is_control) {
        "has control characters"
    } else if key.trim() != key {
        "begins or ends with white space, which a header does not keep"
    } else {
        return Ok(());
    };
    Err(InvalidMessage::Key {
        key: excerpt(key),
        fault,
    })
}

pub(super) fn check_headers(headers: &Headers) -> Result<(), InvalidMessage> {
    let mut bytes = 0;
    for (name, value) in headers.iter() {
        // name, colon, value, CR, LF
        bytes += name.len() + value.len() + 3;
        let fault = if name.is_empty() || !name.bytes().all(|b| b.is_ascii_graphic() && b != b':') {
            "is no header name: use printable ASCII without a colon"
        } else if starts_with_ignoring_case(name, "nats-") {
            "begins with Nats-, which would change what the server does"
        } else if starts_with_ignoring_case(name, "twinbox-") {
            "begins with Twinbox-, which twinbox sets itself"
        } else if value.chars().any(|c| c.is_control() && c != '\t') {
            "has a value with control characters"
        } else if bytes > MAX_HEADERS_BYTES {
            "is one too many: all headers together may have 60 KiB"
        } else {
            continue;
        };
        return Err(InvalidMessage::Header {
            name: excerpt(name),
            fault,
        });
    }
    Ok(())
}

fn starts_with_ignoring_case(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

#[cfg(test)]
mod tests {
    use crate::{Headers, Message};

    #[test]
    fn what_a_broker_cannot_carry_is_refused() {
        for subject in [
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "a b",
            "a\tb",
            "a.*",
            "a.>",
            "$JS.API.X",
            "a\nb",
        ] {
            assert!(Message::new(subject, "").validate().is_err(), "{subject:?}");
        }
        assert!(Message::new("s".repeat(1025), "").validate().is_err());
        for key in ["", " a", "a ", "a\r\nb", "a\0b"] {
            assert!(Message::new("s", "").key(key).validate().is_err(), "{key:?}");
        }
        for (name, value) in [
            ("", ""),
            ("a b", ""),
            ("a:b", ""),
            ("a", "x\r\ny"),
            ("a", "x\0"),
            ("nats-TTL", "1"),
            ("Twinbox-Id", ""),
        ] {
            assert!(
                Message::new("s", "").header(name, value).validate().is_err(),
                "{name:?}: {value:?}"
            );
        }
        assert!(
            Message::new("s", "")
                .header("a", "x".repeat(70_000))
                .validate()
                .is_err()
        );
    }

    #[test]
    fn ordinary_messages_pass() {
        let message = Message::new("orders.eu-1.placed_v2", "")
            .key("Müller 7")
            .header("traceparent", "00-ab-cd-01");
        message.validate().unwrap();
        Message {
            headers: Headers::new(),
            ..message
        }
        .validate()
        .unwrap();
    }
}
