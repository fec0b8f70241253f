//! The window: which ids of an inbox may be forgotten, and what proves it.
//!
//! An id may go when its message can no longer come again:
//! - the broker can't deliver it any more: it stood in an incarnation of the stream that is gone, or before the stream's
//!   first message, or (where a stream lets go of what is acknowledged) a look-up finds nothing at its number; **and**
//! - the producer can't publish it again: it is older than what the producer's outbox keeps. A claim is never earlier
//!   than the enqueue, so a claim's age is enough.
//!
//! The consumer's ack floor proves nothing: it can stand ahead of a message that was handed back, and a consumer that is
//! created anew starts over.

use crate::broker::StreamState;
use crate::config::{ConsumerSettings, PrunerSettings};
use humantime_serde::re::humantime::format_duration;
use serde::Serialize;
use std::time::Duration;

/// How far the clocks of the producer's and the consumer's database may be apart.
pub(crate) const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// What proves that a message can't be delivered again.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Proof {
    /// All before this number is gone from the stream, and so are earlier incarnations of it.
    Sequence {
        /// The stream's first message.
        first_sequence: u64,
    },
    /// As [`Proof::Sequence`]; what stands after it is looked up, since the stream lets go of what is acknowledged.
    LookUp {
        /// The stream's first message.
        first_sequence: u64,
    },
    /// The stream is gone.
    StreamGone,
    /// Nothing: the stream keeps messages without limit, so ids go by age. A message that old is dead-lettered if it
    /// comes again.
    AgeOnly,
}

impl Proof {
    /// The stream's first message, where it is part of the proof.
    pub(super) fn first_sequence(&self) -> Option<u64> {
        match self {
            Self::Sequence { first_sequence } | Self::LookUp { first_sequence } => Some(*first_sequence),
            Self::StreamGone | Self::AgeOnly => None,
        }
    }
}

impl std::fmt::Display for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sequence { first_sequence } => write!(f, "the stream begins at {first_sequence}"),
            Self::LookUp { first_sequence } => {
                write!(
                    f,
                    "the stream begins at {first_sequence}, and what was acknowledged is looked up"
                )
            }
            Self::StreamGone => f.write_str("the stream is gone"),
            Self::AgeOnly => {
                f.write_str("none: the stream keeps messages without limit of age, so ids go by age alone")
            }
        }
    }
}

/// Which claims may be forgotten.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Window {
    /// Claims younger than this are kept, whatever is proved, in seconds.
    #[serde(serialize_with = "seconds")]
    pub keep: Duration,
    /// What proves that the older ones can't come again.
    pub proof: Proof,
}

fn seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(duration.as_secs())
}

impl Window {
    /// The window by the stream's state: `None` where the broker says that there is no such stream.
    pub fn of(pruner: &PrunerSettings, consumer: &ConsumerSettings, stream: Option<&StreamState>) -> Self {
        let least =
            (consumer.producer_retention + CLOCK_SKEW).max(pruner.inbox_retention.unwrap_or_default());
        match stream {
            None => Self {
                keep: least,
                proof: Proof::StreamGone,
            },
            Some(StreamState {
                first_sequence,
                removes_acknowledged: true,
                ..
            }) => Self {
                keep: least,
                proof: Proof::LookUp {
                    first_sequence: *first_sequence,
                },
            },
            Some(StreamState {
                first_sequence,
                max_age: Some(_),
                ..
            }) => Self {
                keep: least,
                proof: Proof::Sequence {
                    first_sequence: *first_sequence,
                },
            },
            Some(_) => Self {
                keep: least.max(pruner.fallback_age),
                proof: Proof::AgeOnly,
            },
        }
    }
}

/// A retention that forgets ids whose messages can still come.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "pruner.inbox_retention is {}, but a message of consumer {consumer} can come again for {}: the producer may publish \
     it again for {}, and stream {stream} keeps it for {}. Raise pruner.inbox_retention to that, leave it out, or lower \
     the stream's max_age or the consumer's producer_retention",
    format_duration(*.configured), format_duration(*.needed), format_duration(*.producer_retention),
    format_duration(*.max_age)
)]
pub struct RetentionTooShort {
    consumer: String,
    stream: String,
    configured: Duration,
    needed: Duration,
    producer_retention: Duration,
    max_age: Duration,
}

/// Refuses a configured retention that is shorter than the provable window.
///
/// # Errors
/// [`RetentionTooShort`] with the figures.
pub fn check_retention(
    pruner: &PrunerSettings,
    consumer: &ConsumerSettings,
    stream: &StreamState,
) -> Result<(), RetentionTooShort> {
    let Some(configured) = pruner.inbox_retention else {
        return Ok(());
    };
    let max_age = stream.max_age.unwrap_or_default();
    let needed = consumer.producer_retention + max_age;
    if configured >= needed {
        return Ok(());
    }
    Err(RetentionTooShort {
        consumer: consumer.name.clone(),
        stream: stream.id.name.clone(),
        configured,
        needed,
        producer_retention: consumer.producer_retention,
        max_age,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::StreamId;
    use time::OffsetDateTime;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn stream(max_age: Option<Duration>, removes_acknowledged: bool) -> StreamState {
        StreamState {
            id: StreamId {
                name: "S".into(),
                created: OffsetDateTime::UNIX_EPOCH,
            },
            first_sequence: 7,
            last_sequence: 9,
            max_age,
            removes_acknowledged,
        }
    }

    #[test]
    fn a_proof_is_asked_of_the_stream() {
        let (pruner, consumer) = (PrunerSettings::default(), ConsumerSettings::default());
        let keep = consumer.producer_retention + CLOCK_SKEW;
        let of = |state: Option<&StreamState>| Window::of(&pruner, &consumer, state);
        assert_eq!(
            of(None),
            Window {
                keep,
                proof: Proof::StreamGone
            }
        );
        assert_eq!(
            of(Some(&stream(Some(DAY), false))),
            Window {
                keep,
                proof: Proof::Sequence { first_sequence: 7 }
            }
        );
        assert_eq!(
            of(Some(&stream(None, true))),
            Window {
                keep,
                proof: Proof::LookUp { first_sequence: 7 }
            }
        );
        let by_age = of(Some(&stream(None, false)));
        assert_eq!(
            by_age,
            Window {
                keep: pruner.fallback_age,
                proof: Proof::AgeOnly
            }
        );
    }

    #[test]
    fn a_retention_below_the_window_is_refused_with_the_figures() {
        let consumer = ConsumerSettings {
            producer_retention: 3 * DAY,
            ..ConsumerSettings::default()
        };
        let with = |days: u32| PrunerSettings {
            inbox_retention: Some(days * DAY),
            ..PrunerSettings::default()
        };
        let stream = stream(Some(7 * DAY), false);
        check_retention(&with(10), &consumer, &stream).unwrap();
        let refused = check_retention(&with(9), &consumer, &stream)
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains("10days") && refused.contains("9days"),
            "{refused}"
        );
    }
}
