//! Streams and consumers: created if absent; if present, checked and never changed.

use super::{Nats, NatsSubscription, publisher, refusal};
use crate::broker::{BrokerError, Finding, Severity};
use crate::config::{ConsumerSettings, Retention, StreamSettings};
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::context::CreateStreamErrorKind;
use async_nats::jetstream::stream::{self, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::jetstream::{ErrorCode, consumer};
use std::sync::Arc;
use std::time::Duration;

/// The server holds back new messages of a consumer when so many times `max_in_flight` are unacknowledged: what a
/// crash leaves behind must not hold up what comes next.
const ACK_PENDING_FACTOR: i64 = 4;

impl Nats {
    /// Creates a stream if it is absent, and says what is wrong with one that is present.
    ///
    /// `relay_retry` is how long after its first copy a relay may publish a message again in ordinary operation: a
    /// shorter duplicate window leaves more to the inbox.
    ///
    /// # Errors
    /// [`BrokerError`] where the server does not answer or refuses.
    pub async fn ensure_stream(
        &self,
        settings: &StreamSettings,
        relay_retry: Duration,
    ) -> Result<Vec<Finding>, BrokerError> {
        let jetstream = self.jetstream();
        if let Some(info) = publisher::stream_info(&jetstream, &settings.name).await? {
            return Ok(check_stream(settings, &info.config, relay_retry));
        }
        match jetstream.create_stream(stream_config(settings)).await {
            Ok(created) => {
                tracing::info!(stream = settings.name, subjects = ?settings.subjects, "stream created");
                Ok(check_stream(settings, &created.cached_info().config, relay_retry))
            }
            // Somebody else was faster, or it was made otherwise: look again.
            Err(error) => match (
                error.kind(),
                publisher::stream_info(&jetstream, &settings.name).await,
            ) {
                (_, Ok(Some(info))) => Ok(check_stream(settings, &info.config, relay_retry)),
                (CreateStreamErrorKind::JetStream(api), _)
                    if api.error_code() == ErrorCode::STREAM_SUBJECT_OVERLAP =>
                {
                    Err(BrokerError::Refused(format!(
                        "stream {}: another stream covers some of {:?}: use that one, or other subjects",
                        settings.name, settings.subjects
                    )))
                }
                _ => Err(refusal::of_create_stream(&error)),
            },
        }
    }

    /// Creates a consumer if it is absent, and says what is wrong with one that is present.
    ///
    /// # Errors
    /// [`BrokerError`] where the server does not answer or refuses, or the stream is absent.
    pub async fn subscribe(
        self: &Arc<Self>,
        settings: &ConsumerSettings,
    ) -> Result<(NatsSubscription, Vec<Finding>), BrokerError> {
        let jetstream = self.jetstream();
        let filters_many = self.connection().client.is_server_compatible(2, 10, 0);
        let wanted = consumer_config(settings, filters_many);
        let present = jetstream
            .get_consumer_from_stream::<pull::Config, _, _>(&settings.name, &settings.stream)
            .await;
        let findings = match present {
            Ok(consumer) => check_consumer(settings, &wanted, &consumer.cached_info().config),
            Err(error) if refusal::is_consumer_absent(&error) => {
                jetstream
                    .create_consumer_on_stream(wanted.clone(), &settings.stream)
                    .await
                    .map_err(|error| refusal::of_consumer(&error))?;
                tracing::info!(
                    consumer = settings.name,
                    stream = settings.stream,
                    "consumer created"
                );
                Vec::new()
            }
            Err(error) => return Err(refusal::of_consumer(&error)),
        };
        Ok((self.subscription(settings, wanted), findings))
    }

    /// A consumer that is only looked at: nothing is created or checked.
    pub fn look_at(self: &Arc<Self>, settings: &ConsumerSettings) -> NatsSubscription {
        self.subscription(settings, consumer_config(settings, true))
    }

    fn subscription(self: &Arc<Self>, settings: &ConsumerSettings, config: pull::Config) -> NatsSubscription {
        NatsSubscription {
            nats: self.clone(),
            stream: settings.stream.clone(),
            config,
            subjects: settings.subjects.clone(),
            // Half of what may be in flight: the rest is what the lanes hold.
            prefetch: usize::try_from(settings.max_in_flight).unwrap_or(usize::MAX) / 2 + 1,
        }
    }
}

fn stream_config(settings: &StreamSettings) -> stream::Config {
    stream::Config {
        name: settings.name.clone(),
        subjects: settings.subjects.clone(),
        retention: match settings.retention {
            Retention::Limits => RetentionPolicy::Limits,
            Retention::Interest => RetentionPolicy::Interest,
            Retention::WorkQueue => RetentionPolicy::WorkQueue,
        },
        max_age: settings.max_age,
        max_bytes: settings
            .max_bytes
            .and_then(|bytes| i64::try_from(bytes).ok())
            .unwrap_or(-1),
        // Full, it refuses what comes and the relay waits: the other way it would drop what nobody has read.
        discard: DiscardPolicy::New,
        duplicate_window: settings.duplicate_window,
        num_replicas: usize::from(settings.replicas),
        storage: StorageType::File,
        allow_direct: true,
        ..stream::Config::default()
    }
}

fn consumer_config(settings: &ConsumerSettings, filters_many: bool) -> pull::Config {
    let mut config = pull::Config {
        durable_name: Some(settings.name.clone()),
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::Explicit,
        ack_wait: settings.ack_wait,
        // The inbox counts handler runs and gives up itself. A server that does loses the message silently.
        max_deliver: -1,
        max_ack_pending: i64::from(settings.max_in_flight) * ACK_PENDING_FACTOR,
        ..pull::Config::default()
    };
    match settings.subjects.as_slice() {
        [] => {}
        [subject] => config.filter_subject.clone_from(subject),
        subjects if filters_many => config.filter_subjects = subjects.to_vec(),
        // Before 2.10 a consumer has one filter at most: all come, and what is not wanted is passed over.
        _ => {}
    }
    config
}

fn check_stream(settings: &StreamSettings, found: &stream::Config, relay_retry: Duration) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut note = |severity, found: String, remedy: &str| {
        findings.push(Finding {
            severity,
            about: format!("stream {}", settings.name),
            found,
            remedy: remedy.to_owned(),
        });
    };
    let wanted = stream_config(settings);
    if found.no_ack {
        note(
            Severity::Error,
            "it does not acknowledge (no_ack)".to_owned(),
            "set no_ack to false: nothing can be settled without",
        );
    }
    if found.sealed {
        note(
            Severity::Error,
            "it is sealed".to_owned(),
            "use another stream: this one takes nothing",
        );
    }
    if found.duplicate_window < relay_retry {
        note(
            Severity::Warning,
            format!(
                "its duplicate window is {:?}, a relay may publish again after {relay_retry:?}",
                found.duplicate_window
            ),
            "raise duplicate_window to at least that: what comes later is stored twice, and left to the inbox",
        );
    }
    if found.retention != wanted.retention {
        note(
            Severity::Warning,
            format!(
                "its retention is {:?}, the settings say {:?}",
                found.retention, wanted.retention
            ),
            "change the settings, or make the stream anew: retention can't be changed",
        );
    }
    let uncovered: Vec<&String> = wanted
        .subjects
        .iter()
        .filter(|subject| {
            !found
                .subjects
                .iter()
                .any(|covered| covered == *subject || crate::broker::subject_matches(covered, subject))
        })
        .collect();
    if !uncovered.is_empty() {
        note(
            Severity::Warning,
            format!("it does not cover {uncovered:?}"),
            "add them to the stream: until then their messages are parked among the dead letters",
        );
    }
    if found.discard == DiscardPolicy::Old && (found.max_bytes > 0 || found.max_messages > 0) {
        note(
            Severity::Warning,
            "full, it drops the oldest messages, read or not (discard old)".to_owned(),
            "set discard to new, so that the relay waits instead",
        );
    }
    if found.max_messages_per_subject > 0 {
        note(
            Severity::Error,
            format!(
                "it keeps only the last {} messages of a subject",
                found.max_messages_per_subject
            ),
            "set max_msgs_per_subject to -1: messages that nobody has read are dropped",
        );
    }
    if found.max_age != wanted.max_age {
        note(
            Severity::Note,
            format!(
                "it keeps messages for {:?}, the settings say {:?}",
                found.max_age, wanted.max_age
            ),
            "the stream's own value counts: change the settings to it, or the stream",
        );
    }
    if found.num_replicas != wanted.num_replicas {
        note(
            Severity::Note,
            format!(
                "it has {} replicas, the settings say {}",
                found.num_replicas, wanted.num_replicas
            ),
            "change the settings, or the stream",
        );
    }
    findings
}

fn check_consumer(
    settings: &ConsumerSettings,
    wanted: &pull::Config,
    found: &consumer::Config,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut note = |severity, found: String, remedy: &str| {
        let about = format!("consumer {} of stream {}", settings.name, settings.stream);
        findings.push(Finding {
            severity,
            about,
            found,
            remedy: remedy.to_owned(),
        });
    };
    if found.deliver_subject.is_some() {
        note(
            Severity::Error,
            "it is a push consumer".to_owned(),
            "delete it, or choose another name: a pull consumer is needed",
        );
    }
    if found.ack_policy != AckPolicy::Explicit {
        note(
            Severity::Error,
            format!("its ack policy is {:?}", found.ack_policy),
            "make it anew with explicit acknowledgement: messages are lost otherwise",
        );
    }
    if found.max_deliver > 0 {
        note(
            Severity::Error,
            format!(
                "the server gives up on a message after {} deliveries",
                found.max_deliver
            ),
            "set max_deliver to -1: deliveries are no attempts, and what the server gives up on is lost silently",
        );
    }
    let ack_wait = found.backoff.first().copied().unwrap_or(found.ack_wait);
    if ack_wait <= settings.handler_deadline {
        note(
            Severity::Error,
            format!(
                "it waits {ack_wait:?} for an acknowledgement, a handler may take {:?}",
                settings.handler_deadline
            ),
            "raise ack_wait, or lower handler_deadline: messages are handed out again while they run",
        );
    }
    if !found.backoff.is_empty() {
        note(
            Severity::Warning,
            "it has a backoff of the server's".to_owned(),
            "remove backoff: the inbox makes the pauses",
        );
    }
    if found.deliver_policy != DeliverPolicy::All {
        note(
            Severity::Warning,
            format!(
                "it does not begin at the stream's start: {:?}",
                found.deliver_policy
            ),
            "make it anew with deliver policy all, unless what came before is none of its business",
        );
    }
    let filters = |one: &str, many: &[String]| {
        let mut filters: Vec<String> = many.to_vec();
        filters.extend(Some(one.to_owned()).filter(|one| !one.is_empty()));
        filters.sort();
        filters
    };
    let (has, wants) = (
        filters(&found.filter_subject, &found.filter_subjects),
        filters(&wanted.filter_subject, &wanted.filter_subjects),
    );
    if has != wants {
        note(
            Severity::Warning,
            format!("the server hands out {has:?}, the settings say {wants:?}"),
            "change the consumer's filter (nats consumer edit), or the settings",
        );
    }
    if found.max_ack_pending > 0 && found.max_ack_pending < i64::from(settings.max_in_flight) {
        note(
            Severity::Warning,
            format!(
                "the server stops at {} unacknowledged messages",
                found.max_ack_pending
            ),
            "raise max_ack_pending to four times max_in_flight, or lower max_in_flight",
        );
    }
    findings
}
