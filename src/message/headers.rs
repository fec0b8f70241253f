//! Headers, in the order they were given, names compared without regard to case.

use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// The headers of a message. A name may stand more than once.
///
/// As JSON (and so in the outbox's `headers` column) they are an object, whose values are strings, or arrays of
/// strings where a name is repeated:
///
/// ```
/// use twinbox::Headers;
///
/// let headers: Headers = serde_json::from_str(r#"{"tenant": "a", "tag": ["x", "y"]}"#)?;
/// assert_eq!(headers.get("Tenant"), Some("a"));
/// assert_eq!(headers.iter().count(), 3);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// No headers.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// A copy that has room for some more.
    pub(crate) fn clone_with_room(&self, more: usize) -> Self {
        let mut copy = Vec::with_capacity(self.0.len() + more);
        copy.extend_from_slice(&self.0);
        Self(copy)
    }

    /// Adds a value, beside those the name may already have.
    pub fn append(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }

    /// Sets the one value of a name.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let name = name.into();
        self.0.retain(|(other, _)| !other.eq_ignore_ascii_case(&name));
        self.0.push((name, value.into()));
    }

    /// The first value of a name, whatever the name's case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// All names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Self(
            pairs
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }
}

impl Serialize for Headers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (index, (name, value)) in self.0.iter().enumerate() {
            if self.0[..index].iter().any(|(earlier, _)| earlier == name) {
                continue;
            }
            let values: Vec<&String> = self.0[index..]
                .iter()
                .filter(|(other, _)| other == name)
                .map(|(_, value)| value)
                .collect();
            if values.len() == 1 {
                map.serialize_entry(name, value)?;
            } else {
                map.serialize_entry(name, &values)?;
            }
        }
        map.end()
    }
}

enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

// By hand: what serde derives for an untagged enum copies each value once more, and the relay reads many.
impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Value;
        impl<'de> Visitor<'de> for Value {
            type Value = OneOrMany;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a header's value: a string or an array of strings")
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<OneOrMany, E> {
                Ok(OneOrMany::One(value.to_owned()))
            }

            fn visit_string<E: de::Error>(self, value: String) -> Result<OneOrMany, E> {
                Ok(OneOrMany::One(value))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<OneOrMany, A::Error> {
                let mut many = Vec::new();
                while let Some(value) = values.next_element()? {
                    many.push(value);
                }
                Ok(OneOrMany::Many(many))
            }
        }
        deserializer.deserialize_any(Value)
    }
}

impl<'de> Deserialize<'de> for Headers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Headers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of headers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Headers, A::Error> {
                let mut headers = Headers::new();
                while let Some((name, value)) = map.next_entry::<String, OneOrMany>()? {
                    match value {
                        OneOrMany::One(value) => headers.append(name, value),
                        OneOrMany::Many(values) => {
                            values
                                .into_iter()
                                .for_each(|value| headers.append(name.clone(), value));
                        }
                    }
                }
                Ok(headers)
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_round_trip_keeps_repeated_names() {
        let headers = Headers::from_iter([("b", "1"), ("a", "2"), ("b", "3")]);
        let json = serde_json::to_string(&headers).unwrap();
        assert_eq!(json, r#"{"b":["1","3"],"a":"2"}"#);
        let back: Headers = serde_json::from_str(&json).unwrap();
        assert_eq!(
            back.iter().collect::<Vec<_>>(),
            [("b", "1"), ("b", "3"), ("a", "2")]
        );
    }

    #[test]
    fn set_replaces_whatever_the_case() {
        let mut headers = Headers::from_iter([("Trace", "1"), ("trace", "2")]);
        headers.set("TRACE", "3");
        assert_eq!(headers.iter().collect::<Vec<_>>(), [("TRACE", "3")]);
    }
}
