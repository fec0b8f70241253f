//! Putting the layers together.

use super::{Impossible, Settings};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Why there are no settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read, or a value can't be understood.
    #[error("{origin}: {source}")]
    Unreadable {
        /// The file, or the words "the settings".
        origin: String,
        /// What `config` said, the key in it.
        #[source]
        source: Box<config::ConfigError>,
    },
    /// Values that can't be.
    #[error("impossible settings: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Impossible(Vec<Impossible>),
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
        let origin = self
            .file
            .as_ref()
            .map_or("the settings".to_owned(), |path| path.display().to_string());
        let settings = self
            .layers()
            .map_err(|source| ConfigError::Unreadable {
                origin,
                source: Box::new(source),
            })?;
        let faults = settings.validate();
        if faults.is_empty() {
            Ok(settings)
        } else {
            Err(ConfigError::Impossible(faults))
        }
    }

    fn layers(self) -> Result<Settings, config::ConfigError> {
        let mut builder = config::Config::builder();
        if let Some(path) = self.file {
            let file = config::File::from(path)
                .format(config::FileFormat::Toml)
                .required(self.required);
            builder = builder.add_source(file);
        }
        let variables = self.variables.unwrap_or_else(|| std::env::vars().collect());
        for (variable, key) in [("DATABASE_URL", "database.url"), ("NATS_URL", "nats.url")] {
            if let Some(value) = variables.get(variable) {
                let layer = config::Config::builder()
                    .set_override(key, value.as_str())?
                    .build()?;
                builder = builder.add_source(layer);
            }
        }
        let twinbox = config::Environment::with_prefix("TWINBOX")
            .prefix_separator("_")
            .separator("__")
            .try_parsing(true)
            .list_separator(",")
            .with_list_parse_key("run.roles")
            .source(Some(variables));
        builder = builder.add_source(twinbox);
        for (key, value) in self.overrides {
            builder = builder.set_override(key, value)?;
        }
        builder.build()?.try_deserialize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Role;

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

    fn message(error: &ConfigError) -> String {
        let source = std::error::Error::source(error).map(|source| format!(": {source}"));
        format!("{error}{}", source.unwrap_or_default())
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
            ("relay", vec!["twinbox", "line 1"]),
        ] {
            let (file, loader) = file(toml);
            let error = loader.load().unwrap_err();
            let message = message(&error).replace(&file.path().display().to_string(), "twinbox.toml");
            for name in named {
                assert!(message.contains(name), "{toml:?} should name {name:?}: {message}");
            }
        }
        let error = variables(&[("TWINBOX_RELAY__PAGE_ROW", "1")]).load().unwrap_err();
        assert!(message(&error).contains("page_row"), "{}", message(&error));
    }
}
