//! The flags that every command has: where the settings come from.

use clap::Args;
use std::path::PathBuf;
use twinbox::config::{ConfigError, Loader, Settings};
use twinbox::store::{Store, StoreError};

/// The file that is read if it is there and no other is named.
const DEFAULT_FILE: &str = "twinbox.toml";

#[derive(Args, Debug)]
#[command(next_help_heading = "Settings (defaults < twinbox.toml < TWINBOX_… variables < these)")]
pub(super) struct SettingsArgs {
    /// The settings file [default: twinbox.toml if it is there].
    #[arg(long, short, global = true, value_name = "FILE")]
    config: Option<PathBuf>,

    /// PostgreSQL, such as postgres://user:password@host/database (also DATABASE_URL).
    #[arg(long, global = true, value_name = "URL")]
    database_url: Option<String>,

    /// NATS, such as nats://host:4222 (also NATS_URL).
    #[arg(long, global = true, value_name = "URL")]
    nats_url: Option<String>,

    /// The database schema that holds twinbox's tables [default: twinbox].
    #[arg(long, global = true, value_name = "NAME")]
    schema: Option<String>,

    /// Any setting, such as relay.page_rows=500. May stand more than once.
    #[arg(long, global = true, value_name = "KEY=VALUE", value_parser = key_and_value)]
    set: Vec<(String, String)>,
}

fn key_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE, such as relay.page_rows=500".to_owned()),
    }
}

impl SettingsArgs {
    /// The settings, all layers together.
    pub(super) fn load(&self) -> Result<Settings, ConfigError> {
        let mut loader = match &self.config {
            Some(path) => Loader::new().file(path),
            None => Loader::new().optional_file(DEFAULT_FILE),
        };
        let flags = [
            ("database.url", &self.database_url),
            ("nats.url", &self.nats_url),
            ("database.schema", &self.schema),
        ];
        for (key, value) in flags {
            if let Some(value) = value {
                loader = loader.set(key, value.as_str());
            }
        }
        for (key, value) in &self.set {
            loader = loader.set(key, value.as_str());
        }
        loader.load()
    }

    /// The database of the settings, seen to answer.
    pub(super) async fn store(&self) -> Result<(Settings, Store), super::CommandError> {
        let settings = self.load()?;
        let store = Store::connect(&settings.database)
            .await
            .map_err(|source| NoDatabase {
                url: settings.database.url.to_string(),
                source,
            })?;
        Ok((settings, store))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("no database at {url}: give another with --database-url or DATABASE_URL")]
struct NoDatabase {
    url: String,
    source: StoreError,
}
