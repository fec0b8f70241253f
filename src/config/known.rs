//! Which keys there are: asked before values are read, so that an unknown one is told with the place it comes from.

use super::{ConfigError, ConsumerSettings, Settings, SqlHandlerSettings, StreamSettings};
use config::{Source as _, Value, ValueKind};
use serde_json::Value as Json;
use std::sync::LazyLock;

/// Settings with one of each list, as JSON: its keys are all there are.
static KNOWN: LazyLock<Json> = LazyLock::new(|| {
    let handler = SqlHandlerSettings {
        subject: String::new(),
        kind: None,
        sql: String::new(),
    };
    let settings = Settings {
        streams: vec![StreamSettings::default()],
        consumers: vec![ConsumerSettings {
            handlers: vec![handler],
            ..ConsumerSettings::default()
        }],
        ..Settings::default()
    };
    serde_json::to_value(settings).unwrap_or_default()
});

/// Refuses a layer with a key that there is not.
pub(super) fn check(layer: config::Config, origin: &str) -> Result<(), ConfigError> {
    let root = Value::new(None, ValueKind::Table(layer.collect()?));
    match unknown(&root, &KNOWN, String::new()) {
        None => Ok(()),
        Some((key, near)) => Err(ConfigError::Unknown {
            origin: origin.to_owned(),
            key,
            near,
        }),
    }
}

fn unknown(given: &Value, known: &Json, path: String) -> Option<(String, String)> {
    match (&given.kind, known) {
        (ValueKind::Table(table), Json::Object(names)) => {
            let mut keys: Vec<_> = table.iter().collect();
            keys.sort_by_key(|(key, _)| *key);
            keys.into_iter().find_map(|(key, value)| {
                let place = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                match names.get(key) {
                    Some(known) => unknown(value, known, place),
                    None => Some((place, near(&path, names.keys()))),
                }
            })
        }
        (ValueKind::Array(items), Json::Array(known)) => items
            .iter()
            .enumerate()
            .find_map(|(index, item)| unknown(item, known.first()?, format!("{path}[{index}]"))),
        // A value in a place of another kind: reading it says so.
        _ => None,
    }
}

fn near<'a>(path: &str, names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<&str> = names.map(String::as_str).collect();
    let section = if path.is_empty() {
        "there are"
    } else {
        &format!("{path} has")
    };
    format!("{section} {}", names.join(", "))
}
