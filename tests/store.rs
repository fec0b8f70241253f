//! The database below both boxes: migrations, where transactions begin, and the rules that SQL and Rust share.

#![allow(
    clippy::unwrap_used,
    reason = "a panic is how a test fails, in its helpers too"
)]

#[path = "store/begin.rs"]
mod begin;
#[path = "store/migrate.rs"]
mod migrate;
#[path = "store/rules.rs"]
mod rules;

use twinbox::config::DatabaseSettings;
use twinbox::store::{Schema, Store};
use twinbox::testing;

/// A store on a fresh database, with nothing in it yet.
async fn store_in(schema: &str) -> Store {
    let settings = DatabaseSettings {
        url: testing::fresh_database().await.into(),
        schema: Schema::new(schema).unwrap(),
        ..DatabaseSettings::default()
    };
    Store::connect(&settings).await.unwrap()
}
