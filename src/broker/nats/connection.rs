//! A connection to NATS that can be given up and made anew.

use crate::broker::BrokerError;
use crate::config::NatsSettings;
use crate::error_text::with_causes;
use async_nats::jetstream;
use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use secrecy::ExposeSecret as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

/// Publishes that may be in flight. Above any relay's window, so that the window is what limits.
const MAX_ACK_IN_FLIGHT: usize = 10_000;

/// A connection to NATS. One for each role, since a relay must be able to give up its own.
///
/// It is made in the background: NATS may be away when a service starts, and comes and goes later.
#[derive(Debug)]
pub struct Nats {
    settings: NatsSettings,
    name: String,
    current: RwLock<Arc<Connection>>,
    /// Connections that clients before the current one have made.
    earlier_connections: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) jetstream: jetstream::Context,
}

impl Nats {
    /// Connects, or begins to try. `name` is shown in the server's list of connections.
    ///
    /// # Errors
    /// [`BrokerError::Refused`] for settings that can't work: an address or a credentials file that can't be read.
    pub async fn connect(settings: &NatsSettings, name: impl Into<String>) -> Result<Arc<Self>, BrokerError> {
        let name = name.into();
        let current = RwLock::new(Arc::new(connect(settings, &name).await?));
        Ok(Arc::new(Self {
            settings: settings.clone(),
            name,
            current,
            earlier_connections: AtomicU64::new(0),
        }))
    }

    /// The client of this moment, for what the seam does not offer.
    pub fn client(&self) -> Client {
        self.connection().client.clone()
    }

    /// The JetStream context of this moment, for what the seam does not offer.
    pub fn jetstream(&self) -> jetstream::Context {
        self.connection().jetstream.clone()
    }

    pub(super) fn settings(&self) -> &NatsSettings {
        &self.settings
    }

    /// Shared, since a client's clone is dear for one message.
    pub(super) fn connection(&self) -> Arc<Connection> {
        self.current
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone()
    }

    pub(super) fn is_up(&self) -> bool {
        self.connection().client.connection_state() == async_nats::connection::State::Connected
    }

    pub(super) fn connections_made(&self) -> u64 {
        let now = self
            .connection()
            .client
            .statistics()
            .connects
            .load(Ordering::Relaxed);
        self.earlier_connections.load(Ordering::Relaxed) + now
    }

    /// Gives up the client, so that what it still has queued is never sent, and makes another.
    pub(super) async fn renew(&self) -> Result<(), BrokerError> {
        let fresh = connect(&self.settings, &self.name).await?;
        let old = {
            let mut current = self
                .current
                .write()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            std::mem::replace(&mut *current, Arc::new(fresh))
        };
        let made = old.client.statistics().connects.load(Ordering::Relaxed);
        self.earlier_connections.fetch_add(made, Ordering::Relaxed);
        Ok(())
    }
}

async fn connect(settings: &NatsSettings, name: &str) -> Result<Connection, BrokerError> {
    let servers: Vec<&str> = settings.servers().collect();
    let client = options(settings, name)
        .await?
        .connect(servers.as_slice())
        .await
        .map_err(|error| BrokerError::Refused(format!("{}: {}", settings.url, with_causes(&error))))?;
    let builder = jetstream::ContextBuilder::new()
        .timeout(settings.publish_timeout)
        .max_ack_inflight(MAX_ACK_IN_FLIGHT);
    let jetstream = match &settings.domain {
        Some(domain) => builder.domain(domain).build(client.clone()),
        None => builder.build(client.clone()),
    };
    Ok(Connection { client, jetstream })
}

async fn options(settings: &NatsSettings, name: &str) -> Result<ConnectOptions, BrokerError> {
    let unreadable = |what: &str, error: std::io::Error| BrokerError::Refused(format!("{what}: {error}"));
    let log_name = name.to_owned();
    let mut options = ConnectOptions::new()
        .name(name)
        .retry_on_initial_connect()
        .ping_interval(settings.ping_interval)
        .request_timeout(Some(settings.request_timeout))
        .event_callback(move |event| {
            let connection = log_name.clone();
            async move { log_event(&connection, &event) }
        });
    if let Some(path) = &settings.credentials_file {
        let what = format!("nats.credentials_file {}", path.display());
        options = options
            .credentials_file(path)
            .await
            .map_err(|error| unreadable(&what, error))?;
    }
    if let Some(path) = &settings.nkey_file {
        let what = format!("nats.nkey_file {}", path.display());
        let seed = std::fs::read_to_string(path).map_err(|error| unreadable(&what, error))?;
        options = options.nkey(seed.trim().to_owned());
    }
    for address in settings.servers() {
        // The client reads an address's user and password, but does not send them.
        let Ok(address) = address.parse::<ServerAddr>() else {
            continue;
        };
        match (address.username(), address.password()) {
            (Some(user), Some(password)) => {
                options = options.user_and_password(decoded(user), decoded(password))
            }
            (Some(token), None) => options = options.token(decoded(token)),
            (None, _) => {}
        }
    }
    if let Some(token) = &settings.token {
        options = options.token(token.expose_secret().to_owned());
    }
    if let (Some(user), Some(password)) = (&settings.user, &settings.password) {
        options = options.user_and_password(user.clone(), password.expose_secret().to_owned());
    }
    if let Some(path) = &settings.tls_ca_file {
        options = options.add_root_certificates(path.clone());
    }
    if let (Some(certificate), Some(key)) = (&settings.tls_cert_file, &settings.tls_key_file) {
        options = options.add_client_certificate(certificate.clone(), key.clone());
    }
    if let Some(prefix) = &settings.inbox_prefix {
        options = options.custom_inbox_prefix(prefix);
    }
    Ok(options)
}

/// A part of a URL as it was meant: with no per cent signs for what can't stand there.
fn decoded(part: &str) -> String {
    percent_encoding::percent_decode_str(part)
        .decode_utf8_lossy()
        .into_owned()
}

fn log_event(connection: &str, event: &Event) {
    match event {
        Event::Connected => tracing::info!(connection, "connected to nats"),
        Event::Disconnected => tracing::warn!(connection, "disconnected from nats"),
        Event::LameDuckMode | Event::Draining | Event::Closed => tracing::info!(connection, %event, "nats"),
        // A missing permission shows here only: the request itself just times out.
        Event::ServerError(_) => {
            tracing::error!(connection, %event, "nats refuses: see the user's permissions")
        }
        _ => tracing::warn!(connection, %event, "nats"),
    }
}
