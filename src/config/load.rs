//! Putting the layers together.

use super::{Impossible, Settings};
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
        source: config::ConfigError,
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
            .map_err(|source| ConfigError::Unreadable { origin, source })?;
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
            builder = builder.add_source(
                config::File::from(path)
                    .format(config::FileFormat::Toml)
                    .required(self.required),
            );
        }
        for (variable, key) in [("DATABASE_URL", "database.url"), ("NATS_URL", "nats.url")] {
            if let Ok(value) = std::env::var(variable) {
                builder = builder.add_source(config::Config::builder().set_override(key, value)?.build()?);
            }
        }
        builder = builder.add_source(
            config::Environment::with_prefix("TWINBOX")
                .prefix_separator("_")
                .separator("__")
                .try_parsing(true)
                .list_separator(",")
                .with_list_parse_key("run.roles"),
        );
        for (key, value) in self.overrides {
            builder = builder.set_override(key, value)?;
        }
        builder.build()?.try_deserialize()
    }
}
