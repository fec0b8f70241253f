//! A command's connection to NATS, which may be away.

use super::CommandError;
use std::sync::Arc;
use std::time::Duration;
use twinbox::broker::Publisher as _;
use twinbox::broker::nats::Nats;
use twinbox::config::Settings;

/// How long to wait for a connection.
const PATIENCE: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(20);

/// A connection, and whether it stands.
pub(super) async fn connect(settings: &Settings, name: &str) -> Result<(Arc<Nats>, bool), CommandError> {
    let nats = Nats::connect(&settings.nats, name).await?;
    let connected = async {
        while !nats.is_connected() {
            tokio::time::sleep(LOOK).await;
        }
    };
    let stands = tokio::time::timeout(PATIENCE, connected).await.is_ok();
    Ok((nats, stands))
}

/// The same for what can do nothing without.
pub(super) async fn connected(settings: &Settings, name: &str) -> Result<Arc<Nats>, CommandError> {
    match connect(settings, name).await? {
        (nats, true) => Ok(nats),
        (_, false) => Err(NoNats(settings.nats.url.to_string()).into()),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("no NATS at {0}, or it refuses the user: give another with --nats-url or NATS_URL")]
struct NoNats(String);
