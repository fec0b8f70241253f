//! Headers to and from the client's form.

use crate::message::Headers;
use async_nats::{HeaderMap, HeaderName, HeaderValue};
use std::str::FromStr as _;

/// The client's form, or what can't be in it. (`HeaderMap::insert` panics on such; parsing first does not.)
pub(super) fn to_nats(headers: &Headers) -> Result<HeaderMap, String> {
    let mut map = HeaderMap::new();
    for (name, value) in headers.iter() {
        let parsed_name = HeaderName::from_str(name).map_err(|error| format!("header {name:?}: {error}"))?;
        let parsed_value =
            HeaderValue::from_str(value).map_err(|error| format!("header {name:?}: {error}"))?;
        map.append(parsed_name, parsed_value);
    }
    Ok(map)
}

/// Our form: names and values in the order the client has them, each name's values in theirs.
pub(super) fn from_nats(map: &HeaderMap) -> Headers {
    let mut pairs: Vec<(&str, &str)> = map
        .iter()
        .flat_map(|(name, values)| {
            values
                .iter()
                .map(move |value| (AsRef::<str>::as_ref(name), value.as_str()))
        })
        .collect();
    // The client keeps them in a hash map. Sorted by name, a message looks the same each time it comes.
    pairs.sort_by_key(|(name, _)| *name);
    let bytes = pairs.iter().map(|(name, value)| name.len() + value.len()).sum();
    let mut headers = Headers::with_capacity(pairs.len(), bytes);
    for (name, value) in pairs {
        headers.append(name, value);
    }
    headers
}
