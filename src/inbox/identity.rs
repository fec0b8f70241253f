//! What a message is known by, and what else its headers say.

use crate::broker::Position;
use crate::message::{Headers, header};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::{Builder, Uuid};

/// The namespace of ids that are no UUIDs. Never changed: an inbox would take every such message for a new one.
const NAMESPACE: Uuid = Uuid::from_u128(0x0d4e_6b2f_6a1c_5c7e_9b61_74a0_8f3b_52d9);

/// CloudEvents' attributes, as the NATS protocol binding writes them into headers.
mod cloud_events {
    pub(super) const ID: &str = "ce-id";
    pub(super) const SOURCE: &str = "ce-source";
    pub(super) const TYPE: &str = "ce-type";
    pub(super) const PARTITION_KEY: &str = "ce-partitionkey";
}

/// The message's id: twinbox's own, else CloudEvents' id and source, else JetStream's deduplication id, else its place in
/// the stream. An empty one counts as absent.
///
/// The place is stream, number and the server's time of storing: numbers alone come again once a stream is made anew or
/// restored.
pub(super) fn id_of(headers: &Headers, position: &Position) -> Uuid {
    let given = |name| headers.get(name).map(str::trim).filter(|id| !id.is_empty());
    if let Some(id) = given(header::ID) {
        return uuid_of(id);
    }
    match (given(cloud_events::ID), given(cloud_events::SOURCE)) {
        // Only the two together are unique. No id holds a line feed.
        (Some(id), Some(source)) => return Uuid::new_v5(&NAMESPACE, format!("{source}\n{id}").as_bytes()),
        (Some(id), None) => return uuid_of(id),
        (None, _) => {}
    }
    if let Some(id) = given(header::NATS_MSG_ID) {
        return uuid_of(id);
    }
    let place = format!(
        "{}\n{}\n{}",
        position.stream.name,
        position.sequence,
        position.stored_at.unix_timestamp_nanos()
    );
    Uuid::new_v5(&NAMESPACE, place.as_bytes())
}

/// A UUID as it is, whatever its case; any other text by its hash.
fn uuid_of(id: &str) -> Uuid {
    // Only the usual form: 32 hexadecimal digits without hyphens may be somebody's own kind of id.
    match Uuid::parse_str(id) {
        Ok(uuid) if id.len() == 36 => uuid,
        _ => Uuid::new_v5(&NAMESPACE, id.as_bytes()),
    }
}

/// The ordering key.
pub(super) fn key_of(headers: &Headers) -> Option<&str> {
    let given = |name| headers.get(name).filter(|key: &&str| !key.is_empty());
    given(header::KEY).or_else(|| given(cloud_events::PARTITION_KEY))
}

/// The kind of event.
pub(super) fn kind_of(headers: &Headers) -> Option<&str> {
    headers
        .get(header::KIND)
        .or_else(|| headers.get(cloud_events::TYPE))
}

/// When it was enqueued, if a twinbox did it. (Another producer's time says nothing about how long it may repeat itself.)
pub(super) fn time_of(headers: &Headers) -> Option<OffsetDateTime> {
    headers
        .get(header::TIME)
        .and_then(|time| OffsetDateTime::parse(time, &Rfc3339).ok())
}

/// The id of the `ordinal`-th message that a handler of `consumer` enqueues for the message `cause`: derived, so that a
/// second run makes the same one and whoever comes next recognises it. UUIDv8, in time order like the cause's if that is a
/// UUIDv7 or such an id itself.
pub(super) fn derived_id(consumer: &str, cause: Uuid, ordinal: u32) -> Uuid {
    let mut name = cause.as_bytes().to_vec();
    name.extend_from_slice(&ordinal.to_be_bytes());
    name.extend_from_slice(consumer.as_bytes());
    let mut bytes = *Uuid::new_v5(&NAMESPACE, &name).as_bytes();
    if matches!(cause.get_version_num(), 7 | 8) {
        bytes[..6].copy_from_slice(&cause.as_bytes()[..6]);
    }
    Builder::from_custom_bytes(bytes).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::StreamId;

    fn place(sequence: u64) -> Position {
        Position {
            stream: std::sync::Arc::new(StreamId {
                name: "S".into(),
                created: OffsetDateTime::UNIX_EPOCH,
            }),
            sequence,
            stored_at: OffsetDateTime::UNIX_EPOCH,
        }
    }

    fn id(headers: &[(&str, &str)]) -> Uuid {
        id_of(&headers.iter().copied().collect(), &place(1))
    }

    const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

    #[test]
    fn a_uuid_stays_itself_in_any_header_and_case() {
        let uuid: Uuid = ID.parse().unwrap();
        for name in ["Twinbox-Id", "twinbox-id", "ce-id", "Nats-Msg-Id"] {
            assert_eq!(id(&[(name, ID)]), uuid);
            assert_eq!(id(&[(name, &ID.to_uppercase())]), uuid);
        }
        // Its own header goes before the deduplication id, which may be a fresh one.
        assert_eq!(
            id(&[("Nats-Msg-Id", &format!("{ID}:r1")), ("Twinbox-Id", ID)]),
            uuid
        );
    }

    #[test]
    fn other_texts_are_told_apart() {
        let long = "x".repeat(300);
        let texts = [
            "01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "01890a5dac96774bbcceb302099a8057",
            "order 7",
            &long,
            "é",
        ];
        let mut ids: Vec<Uuid> = texts.iter().map(|text| id(&[("Nats-Msg-Id", text)])).collect();
        ids.push(id(&[("ce-id", "order 7"), ("ce-source", "/a")]));
        ids.push(id(&[("ce-id", "order 7"), ("ce-source", "/b")]));
        ids.push(id(&[]));
        ids.push(id_of(&Headers::new(), &place(2)));
        let distinct: std::collections::HashSet<&Uuid> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len());
        assert_eq!(id(&[("Nats-Msg-Id", "")]), id(&[]), "an empty id is none");
    }

    #[test]
    fn derived_ids_are_the_same_each_time_and_in_order_of_time() {
        let cause: Uuid = ID.parse().unwrap();
        let derived = derived_id("billing", cause, 0);
        assert_eq!(derived, derived_id("billing", cause, 0));
        assert_ne!(derived, derived_id("billing", cause, 1));
        assert_ne!(derived, derived_id("ledger", cause, 0));
        assert_eq!(derived.get_version_num(), 8);
        assert_eq!(derived.as_bytes()[..6], cause.as_bytes()[..6]);
    }
}
