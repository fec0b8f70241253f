//! Headers, in the order they were given, names compared without regard to case.

use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
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
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Headers {
    /// Names and values, one after the other: a message costs two allocations here, however many headers it has.
    text: String,
    /// Where each name and each value ends in it.
    ends: Vec<Ends>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Ends {
    name: usize,
    value: usize,
}

impl Headers {
    /// No headers.
    pub const fn new() -> Self {
        Self {
            text: String::new(),
            ends: Vec::new(),
        }
    }

    /// No headers, and room for so many bytes of so many.
    pub(crate) fn with_capacity(headers: usize, bytes: usize) -> Self {
        Self {
            text: String::with_capacity(bytes),
            ends: Vec::with_capacity(headers),
        }
    }

    /// A copy that has room for some more.
    pub(crate) fn clone_with_room(&self, headers: usize, bytes: usize) -> Self {
        let mut copy = Self::with_capacity(self.ends.len() + headers, self.text.len() + bytes);
        copy.text.push_str(&self.text);
        copy.ends.extend_from_slice(&self.ends);
        copy
    }

    /// Adds a value, beside those the name may already have.
    pub fn append(&mut self, name: impl AsRef<str>, value: impl AsRef<str>) {
        self.text.push_str(name.as_ref());
        self.end_value(self.text.len(), value.as_ref());
    }

    fn end_value(&mut self, name: usize, value: &str) {
        self.text.push_str(value);
        self.ends.push(Ends {
            name,
            value: self.text.len(),
        });
    }

    /// Sets the one value of a name.
    pub fn set(&mut self, name: impl AsRef<str>, value: impl AsRef<str>) {
        let name = name.as_ref();
        if self.get(name).is_some() {
            let others = self.iter().filter(|(other, _)| !other.eq_ignore_ascii_case(name));
            *self = others.collect();
        }
        self.append(name, value);
    }

    /// The first value of a name, whatever the name's case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter()
            .find(|(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// All names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> + Clone {
        let mut begin = 0;
        self.ends.iter().map(move |ends| {
            let pair = (&self.text[begin..ends.name], &self.text[ends.name..ends.value]);
            begin = ends.value;
            pair
        })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of all names and values.
    pub(crate) fn bytes(&self) -> usize {
        self.text.len()
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<N: AsRef<str>, V: AsRef<str>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let mut headers = Self::new();
        for (name, value) in pairs {
            headers.append(name, value);
        }
        headers
    }
}

impl Serialize for Headers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (index, (name, value)) in self.iter().enumerate() {
            if self.iter().take(index).any(|(earlier, _)| earlier == name) {
                continue;
            }
            let more = self.iter().skip(index + 1);
            let more = more.filter(|(other, _)| *other == name).map(|(_, value)| value);
            let values: Vec<&str> = std::iter::once(value).chain(more).collect();
            match values.as_slice() {
                [one] => map.serialize_entry(name, one)?,
                several => map.serialize_entry(name, several)?,
            }
        }
        map.end()
    }
}

/// Takes a name up. By hand, as all of this, so that nothing is copied more than once: the relay reads many.
struct Name<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a header's name")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<(), E> {
        self.0.push_str(name);
        Ok(())
    }
}

/// Takes up a value, or several, of the name that stands at the end from `begin` on.
struct Value<'a> {
    headers: &'a mut Headers,
    begin: usize,
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a header's value: a string or an array of strings")
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<(), E> {
        self.headers.end_value(self.headers.text.len(), value);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<(), A::Error> {
        let name = self.headers.text.split_off(self.begin);
        while let Some(value) = values.next_element::<Cow<'_, str>>()? {
            self.headers.append(&name, value);
        }
        Ok(())
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
                loop {
                    let begin = headers.text.len();
                    if map.next_key_seed(Name(&mut headers.text))?.is_none() {
                        return Ok(headers);
                    }
                    map.next_value_seed(Value {
                        headers: &mut headers,
                        begin,
                    })?;
                }
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
    fn any_object_of_strings_is_read_and_nothing_else() {
        let read = |json| serde_json::from_str::<Headers>(json).map(|headers| format!("{headers:?}"));
        assert_eq!(
            read(r#"{"": "", "a\u0041": "x\ny", "b": [], "c": ["", "z\"", "\u00fc"]}"#).unwrap(),
            r#"{"": "", "aA": "x\ny", "c": "", "c": "z\"", "c": "ü"}"#
        );
        for wrong in [r#"{"a": 1}"#, r#"{"a": null}"#, r#"{"a": [1]}"#, r#"["a"]"#, "1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn set_replaces_whatever_the_case() {
        let mut headers = Headers::from_iter([("Trace", "1"), ("trace", "2")]);
        headers.set("TRACE", "3");
        assert_eq!(headers.iter().collect::<Vec<_>>(), [("TRACE", "3")]);
    }
}
