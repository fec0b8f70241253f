//! A row of the outbox on its way to the broker.

use crate::broker::Outgoing;
use crate::dead_letter::{DeadLetter, NewDeadLetter, Reason};
use crate::message::{Headers, Message, header};
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use std::fmt::Write as _;
use time::{OffsetDateTime, UtcOffset};
use uuid::Uuid;

/// A row of the outbox.
#[derive(Clone, Debug)]
pub(crate) struct LogRow {
    pub(crate) id: i64,
    pub(crate) parcel: Parcel,
    /// Why it can't be published, seen before it is tried.
    pub(crate) fault: Option<String>,
}

/// The headers that the relay adds, and about how long they are.
const OWN_HEADERS: usize = 3;
const OWN_HEADER_BYTES: usize = 128;

/// A message with all that goes out with it.
#[derive(Clone, Debug)]
pub(crate) struct Parcel {
    pub(crate) message_id: Uuid,
    pub(crate) message: Message,
    pub(crate) enqueued_at: Option<OffsetDateTime>,
}

/// What the broker drops a second copy of a message by: its id, and which time it had to be published anew because the
/// broker remembered the id and had lost the message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct DedupId {
    pub(crate) message_id: Uuid,
    pub(crate) renewal: u32,
}

impl DedupId {
    pub(crate) fn first(message_id: Uuid) -> Self {
        Self {
            message_id,
            renewal: 0,
        }
    }

    pub(crate) fn next(self) -> Self {
        Self {
            renewal: self.renewal + 1,
            ..self
        }
    }

    /// As it goes to the broker.
    pub(crate) fn text(self) -> String {
        match self.renewal {
            0 => text_of(self.message_id),
            renewal => format!("{}:r{renewal}", self.message_id),
        }
    }

    /// What a text of [`Self::text`] says. Of any other text, an id that no message has.
    pub(crate) fn of_text(text: &str) -> Self {
        let (id, renewal) = text.split_once(":r").unwrap_or((text, "0"));
        match (Uuid::parse_str(id), renewal.parse()) {
            (Ok(message_id), Ok(renewal)) => Self { message_id, renewal },
            _ => Self::first(Uuid::nil()),
        }
    }
}

/// Faster than formatting: it is done twice a message.
fn text_of(id: Uuid) -> String {
    let mut buffer = Uuid::encode_buffer();
    id.as_hyphenated().encode_lower(&mut buffer).to_owned()
}

impl Parcel {
    /// As it is published.
    pub(crate) fn outgoing(&self, dedup_id: DedupId) -> Outgoing {
        let mut headers = self
            .message
            .headers
            .clone_with_room(OWN_HEADERS, OWN_HEADER_BYTES);
        headers.append(header::ID, text_of(self.message_id));
        if let Some(key) = &self.message.key {
            headers.append(header::KEY, key.as_str());
        }
        if let Some(time) = self.enqueued_at {
            headers.append(header::TIME, rfc3339(time));
        }
        Outgoing {
            subject: self.message.subject.clone(),
            headers,
            dedup_id: dedup_id.text(),
            payload: self.message.payload.clone(),
        }
    }
}

impl LogRow {
    /// Reads the columns `id, message_id, enqueued_at, subject, key, headers, payload`; `None` where it has no payload.
    pub(crate) fn read(row: &PgRow) -> sqlx::Result<Option<Self>> {
        let Some(payload) = row.try_get::<Option<Vec<u8>>, _>("payload")? else {
            return Ok(None);
        };
        let (headers, mut fault) = read_headers(row.try_get("headers")?);
        let message_id: Uuid = row.try_get("message_id")?;
        let message = Message {
            id: Some(message_id),
            subject: row.try_get("subject")?,
            key: row.try_get("key")?,
            headers,
            payload: payload.into(),
        };
        if fault.is_none() {
            fault = message.validate().err().map(|error| error.to_string());
        }
        Ok(Some(Self {
            id: row.try_get("id")?,
            parcel: Parcel {
                message_id,
                message,
                enqueued_at: row.try_get("enqueued_at")?,
            },
            fault,
        }))
    }

    pub(crate) fn key(&self) -> Option<&str> {
        self.parcel.message.key.as_deref()
    }

    /// About how much memory it holds.
    pub(crate) fn bytes(&self) -> usize {
        let message = &self.parcel.message;
        message.payload.len() + message.headers.bytes() + message.subject.len()
    }

    /// As it lies among the dead letters.
    pub(crate) fn into_letter(self, reason: Reason, error: String) -> NewDeadLetter {
        let Parcel {
            message_id,
            message,
            enqueued_at,
        } = self.parcel;
        NewDeadLetter {
            message_id,
            outbox_id: self.id,
            stream: None,
            sequence: None,
            subject: message.subject,
            key: message.key,
            headers: message.headers,
            payload: message.payload,
            enqueued_at,
            reason,
            error,
            runs: 0,
        }
    }
}

impl From<DeadLetter> for Parcel {
    fn from(letter: DeadLetter) -> Self {
        Self {
            message_id: letter.message_id,
            message: Message {
                id: Some(letter.message_id),
                subject: letter.subject,
                key: letter.key,
                headers: letter.headers,
                payload: letter.payload,
            },
            enqueued_at: letter.enqueued_at,
        }
    }
}

/// The headers, and what is wrong with them. Plain SQL may have put in any object: what is no string is shown as its
/// JSON, so that nothing of it is lost on the way to the dead letters.
fn read_headers(json: Option<&str>) -> (Headers, Option<String>) {
    let Some(json) = json else {
        return (Headers::new(), None);
    };
    let error = match serde_json::from_str::<Headers>(json) {
        Ok(headers) => return (headers, None),
        Err(error) => error,
    };
    let headers = match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(json) {
        Ok(object) => object
            .into_iter()
            .map(|(name, value)| match value {
                serde_json::Value::String(text) => (name, text),
                other => (name, other.to_string()),
            })
            .collect(),
        Err(_) => Headers::from_iter([("headers", json)]),
    };
    let fault = format!("the headers are not strings: {error}");
    (headers, Some(fault))
}

/// RFC 3339 in UTC, with microseconds, which is what PostgreSQL keeps.
fn rfc3339(time: OffsetDateTime) -> String {
    let utc = time.to_offset(UtcOffset::UTC);
    let mut text = String::with_capacity(27);
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z",
        utc.year(),
        u8::from(utc.month()),
        utc.day(),
        utc.hour(),
        utc.minute(),
        utc.second(),
        utc.microsecond()
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::format_description::well_known::Rfc3339;

    #[test]
    fn times_are_utc_with_microseconds() {
        let time = OffsetDateTime::parse("2026-03-01T23:04:05.000070+02:00", &Rfc3339).unwrap();
        assert_eq!(rfc3339(time), "2026-03-01T21:04:05.000070Z");
        assert_eq!(OffsetDateTime::parse(&rfc3339(time), &Rfc3339).unwrap(), time);
    }

    #[test]
    fn headers_of_any_kind_are_kept() {
        let (headers, fault) = read_headers(Some(r#"{"a": "x", "b": ["y", "z"]}"#));
        assert_eq!((headers.iter().count(), fault), (3, None));
        let (headers, fault) = read_headers(Some(r#"{"a": 1, "b": {"c": null}, "d": "x"}"#));
        assert_eq!(headers.get("a"), Some("1"));
        assert_eq!(headers.get("b"), Some(r#"{"c":null}"#));
        assert_eq!(headers.get("d"), Some("x"));
        assert!(fault.is_some());
        assert_eq!(read_headers(None), (Headers::new(), None));
    }

    #[test]
    fn renewed_ids_tell_themselves_apart() {
        let id = DedupId::first(Uuid::nil());
        assert_eq!(id.text(), Uuid::nil().to_string());
        let renewed = DedupId::first(Uuid::max()).next().next();
        assert_eq!(renewed.text(), format!("{}:r2", Uuid::max()));
        assert_eq!(DedupId::of_text(&renewed.text()), renewed);
        assert_eq!(DedupId::of_text("x:r2"), id);
    }
}
