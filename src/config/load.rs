//! Putting the layers together.

use super::{Impossible, Settings, known};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// The keys whose values, given as a variable or a flag, are lists with commas.
const LISTS: [&str; 1] = ["run.roles"];

/// Why there are no settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("{}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The file is no TOML.
    #[error("{}: {fault}", .path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        fault: String,
    },
    /// A key that there is not.
    #[error("{origin}: there is no setting {key}; {near}")]
    Unknown {
        /// The file, the variable, or the words "flags".
        origin: String,
        /// The key, such as `relay.page_row`.
        key: String,
        /// What there is at this place.
        near: String,
    },
    /// A value can't be understood. The text names the key and where it is from.
    #[error("settings: {0}")]
    Value(#[source] Box<config::ConfigError>),
    /// Values that can't be.
    #[error("impossible settings: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Impossible(Vec<Impossible>),
}

impl From<config::ConfigError> for ConfigError {
    fn from(error: config::ConfigError) -> Self {
        Self::Value(Box::new(error))
    }
}

/// Puts the layers together: defaults, a file, variables, then what the program sets.
///
/// ```
/// use twinbox::config::Loader;
///
/// let settings = Loader::new().set("relay.page_rows", "500").load()?;
/// assert_eq!(settings.relay.page_rows, 500);
/// # Ok::<(), twinbox::config::ConfigError>(())
/// ```
#[derive(Debug, Default)]
pub struct Loader {
    file: Option<PathBuf>,
    required: bool,
    variables: Option<HashMap<String, String>>,
    overrides: Vec<(String, config::Value)>,
}

impl Loader {
    /// With defaults and variables.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads this file, which must be there.
    #[must_use]
    pub fn file(mut self, path: impl AsRef<Path>) -> Self {
        self.file = Some(path.as_ref().to_owned());
        self.required = true;
        self
    }

    /// Reads this file if it is there.
    #[must_use]
    pub fn optional_file(mut self, path: impl AsRef<Path>) -> Self {
        self.file = Some(path.as_ref().to_owned());
        self.required = false;
        self
    }

    /// Reads these variables in place of the process's.
    #[must_use]
    pub fn variables(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        self.variables = Some(variables.into_iter().collect());
        self
    }

    /// Sets a key over all other layers, as a flag does.
    #[must_use]
    pub fn set(mut self, key: impl Into<String>, value: impl Into<config::Value>) -> Self {
        self.overrides.push((key.into(), value.into()));
        self
    }

    /// Reads the layers and checks the whole.
    ///
    /// # Errors
    /// [`ConfigError`] names the key at fault: unknown, not understood, or impossible.
    pub fn load(self) -> Result<Settings, ConfigError> {
        let settings = self.layers()?;
        let faults = settings.validate();
        if faults.is_empty() {
            Ok(settings)
        } else {
            Err(ConfigError::Impossible(faults))
        }
    }

    fn layers(self) -> Result<Settings, ConfigError> {
        let mut builder = config::Config::builder();
        if let Some(path) = &self.file
            && let Some(file) = read(path, self.required)?
        {
            known::check(file.clone(), &path.display().to_string())?;
            builder = builder.add_source(file);
        }
        let variables = self
            .variables
            .map_or_else(process_variables, |given| given.into_iter().collect());
        let given = variables
            .into_iter()
            .filter_map(|(name, value)| Given::variable(&name, value))
            .chain(self.overrides.into_iter().map(Given::flag));
        for Given { key, value, origin } in given {
            let layer = config::Config::builder()
                .set_override(&key, value.clone())?
                .build()?;
            known::check(layer, &origin)?;
            builder = builder.set_override(&key, value)?;
        }
        Ok(builder.build()?.try_deserialize()?)
    }
}

/// The file, or `None` if it is absent and may be.
fn read(path: &Path, required: bool) -> Result<Option<config::Config>, ConfigError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !required => return Ok(None),
        Err(source) => {
            let path = path.to_owned();
            return Err(ConfigError::File { path, source });
        }
    };
    let builder = config::Config::builder();
    let built = if path.is_file() {
        // By its name, so that errors tell it.
        builder.add_source(config::File::from(path).format(config::FileFormat::Toml))
    } else {
        // A pipe or a device is read once only.
        builder.add_source(config::File::from_str(&text, config::FileFormat::Toml))
    }
    .build();
    built.map(Some).map_err(|error| match error {
        config::ConfigError::FileParse { cause, .. } => ConfigError::Syntax {
            path: path.to_owned(),
            fault: on_one_line(&cause.to_string()),
        },
        other => other.into(),
    })
}

/// TOML's errors have the place in the first line and the fault in the last; between them the text is drawn.
fn on_one_line(fault: &str) -> String {
    let mut lines = fault.lines().map(str::trim).filter(|line| !line.is_empty());
    match (lines.next(), lines.next_back()) {
        (Some(place), Some(last)) => format!("{place}: {}", last.trim_start_matches(['|', '^', ' '])),
        (Some(whole), None) => whole.to_owned(),
        (None, _) => "can't be read".to_owned(),
    }
}

/// Sorted, so that of two faults the same is always told. One that is no Unicode is none of ours.
fn process_variables() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// A single value from outside of the file.
struct Given {
    key: String,
    value: config::Value,
    origin: String,
}

impl Given {
    fn variable(name: &str, value: String) -> Option<Self> {
        let key = match name {
            // Set and empty is how some tools say "not set".
            "DATABASE_URL" | "NATS_URL" if value.is_empty() => return None,
            "DATABASE_URL" => "database.url".to_owned(),
            "NATS_URL" => "nats.url".to_owned(),
            _ => name
                .strip_prefix("TWINBOX_")?
                .to_ascii_lowercase()
                .replace("__", "."),
        };
        Some(Self::new(key, value.into(), format!("variable {name}")))
    }

    fn flag((key, value): (String, config::Value)) -> Self {
        Self::new(key, value.kind, "flags".to_owned())
    }

    fn new(key: String, kind: config::ValueKind, origin: String) -> Self {
        // Text stays text, since a password may look like a number; where a number is wanted, it is read as one.
        let kind = match kind {
            config::ValueKind::String(list) if LISTS.contains(&key.as_str()) => list
                .split(',')
                .map(|item| config::Value::new(Some(&origin), item.trim()))
                .collect::<Vec<_>>()
                .into(),
            other => other,
        };
        Self {
            key,
            value: config::Value::new(Some(&origin), kind),
            origin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConsumerSettings, Role, StreamSettings};

    fn variables(pairs: &[(&str, &str)]) -> Loader {
        Loader::new().variables(
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        )
    }

    fn file(toml: &str) -> (tempfile::NamedTempFile, Loader) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), toml).unwrap();
        let loader = variables(&[]).file(file.path());
        (file, loader)
    }

    #[test]
    fn each_layer_goes_over_the_one_before() {
        let (_file, loader) =
            file("[relay]\npage_rows = 1\nwindow = 2\nname = \"a\"\n[database]\nurl = \"postgres://file/d\"");
        let settings = loader
            .variables([
                ("DATABASE_URL".to_owned(), "postgres://variable/d".to_owned()),
                ("TWINBOX_RELAY__WINDOW".to_owned(), "3".to_owned()),
                ("TWINBOX_RELAY__LEASE".to_owned(), "3s".to_owned()),
                ("TWINBOX_RUN__ROLES".to_owned(), "relay,pruner".to_owned()),
            ])
            .set("relay.name", "flag")
            .load()
            .unwrap();
        assert_eq!(settings.relay.page_rows, 1);
        assert_eq!(settings.relay.window, 3);
        assert_eq!(settings.relay.lease, std::time::Duration::from_secs(3));
        assert_eq!(settings.relay.name, "flag");
        assert_eq!(settings.database.url.to_string(), "postgres://variable/d");
        assert_eq!(settings.run.roles, [Role::Relay, Role::Pruner]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (toml, named) in [
            ("[relay]\npage_row = 1", vec!["relay", "page_row", "page_rows"]),
            ("[relais]\npage_rows = 1", vec!["relais"]),
            ("[relay]\nlease = \"soon\"", vec!["relay.lease"]),
            ("[relay]\npage_rows = \"many\"", vec!["relay.page_rows", "many"]),
            (
                "[relay]\npage_rows = 0\nwindow = 0",
                vec!["relay.page_rows", "relay.window", "between"],
            ),
            (
                "[database]\nschema = \"Robert'); DROP\"",
                vec!["database.schema", "lower-case"],
            ),
            (
                "[[consumers]]\nname = \"a\"\nack_wait = \"5s\"",
                vec!["consumers[0].stream", "consumers[0].ack_wait"],
            ),
            (
                "[[streams]]\nname = \"a.b\"",
                vec!["streams[0].name", "streams[0].subjects"],
            ),
            ("relay", vec!["twinbox.toml: TOML parse error at line 1"]),
        ] {
            let (file, loader) = file(toml);
            let error = loader.load().unwrap_err();
            let message = error
                .to_string()
                .replace(&file.path().display().to_string(), "twinbox.toml");
            for name in named {
                assert!(message.contains(name), "{toml:?} should name {name:?}: {message}");
            }
        }
        for (name, value, told) in [
            (
                "TWINBOX_RELAY__PAGE_ROW",
                "1",
                "variable TWINBOX_RELAY__PAGE_ROW: there is no setting relay.page_row",
            ),
            (
                "TWINBOX_RELAY_PAGE_ROWS",
                "1",
                "there is no setting relay_page_rows",
            ),
            (
                "TWINBOX_RELAY__PAGE_ROWS",
                "x",
                "relay.page_rows` in variable TWINBOX_RELAY__PAGE_ROWS",
            ),
            ("TWINBOX_RELAY__LEASE", "soon", "for key `relay.lease`"),
        ] {
            let error = variables(&[(name, value)]).load().unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
        for (key, value, told) in [
            ("relay.page_row", "1", "flags: there is no setting relay.page_row"),
            ("relay.page_rows", "x", "relay.page_rows` in flags"),
        ] {
            let error = variables(&[]).set(key, value).load().unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn text_that_looks_like_a_number_stays_text() {
        use secrecy::ExposeSecret as _;
        let settings = variables(&[("TWINBOX_NATS__TOKEN", "0123"), ("TWINBOX_RELAY__NAME", "1e3")])
            .set("telemetry.service_name", "true")
            .load()
            .unwrap();
        assert_eq!(settings.nats.token.unwrap().expose_secret(), "0123");
        assert_eq!(settings.relay.name, "1e3");
        assert_eq!(settings.telemetry.service_name, "true");
    }

    #[test]
    fn lists_have_commas_in_flags_too() {
        let settings = variables(&[("TWINBOX_RUN__ROLES", "relay")])
            .set("run.roles", "consumer, pruner")
            .load()
            .unwrap();
        assert_eq!(settings.run.roles, [Role::Consumer, Role::Pruner]);
    }

    #[test]
    fn an_element_of_a_list_can_be_set() {
        let (_file, loader) = file(
            "[[streams]]\nname = \"A\"\nsubjects = [\"a\"]\n[[streams]]\nname = \"B\"\nsubjects = [\"b\"]",
        );
        let settings = loader.set("streams[1].replicas", "3").load().unwrap();
        assert_eq!(settings.streams[1].replicas, 3);
        assert_eq!(settings.streams[0].replicas, 1);
    }

    #[test]
    fn a_file_that_is_there_and_can_not_be_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = variables(&[]).optional_file(folder.path()).load().unwrap_err();
        assert!(matches!(error, ConfigError::File { .. }), "{error}");
        variables(&[])
            .optional_file(folder.path().join("none"))
            .load()
            .unwrap();
        variables(&[]).file("/dev/null").load().unwrap();
    }

    #[test]
    fn the_example_file_shows_the_defaults() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/twinbox.toml");
        let shown = variables(&[]).file(path).load().unwrap();
        let defaults = Settings {
            streams: vec![StreamSettings {
                name: "ORDERS".into(),
                subjects: vec!["orders.>".into()],
                ..StreamSettings::default()
            }],
            consumers: vec![ConsumerSettings {
                name: "billing".into(),
                stream: "ORDERS".into(),
                handlers: shown.consumers[0].handlers.clone(),
                ..ConsumerSettings::default()
            }],
            ..Settings::default()
        };
        let json = |settings: &Settings| serde_json::to_value(settings).unwrap();
        assert_eq!(json(&shown), json(&defaults));
    }
}
