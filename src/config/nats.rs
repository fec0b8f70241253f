//! NATS.

use super::{Check, SecretUrl, secret};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// How NATS is reached.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct NatsSettings {
    /// `nats://host:4222`; several with commas between them. `tls://` asks for TLS.
    pub url: SecretUrl,
    /// A credentials file (JWT and seed).
    pub credentials_file: Option<PathBuf>,
    /// A file with an nkey seed.
    pub nkey_file: Option<PathBuf>,
    /// A token.
    #[serde(serialize_with = "secret::mask")]
    pub token: Option<SecretString>,
    /// A user, with `password`.
    pub user: Option<String>,
    /// The user's password.
    #[serde(serialize_with = "secret::mask")]
    pub password: Option<SecretString>,
    /// Certificates of the authority that signed the server's, as PEM.
    pub tls_ca_file: Option<PathBuf>,
    /// The client's certificate, as PEM, with `tls_key_file`.
    pub tls_cert_file: Option<PathBuf>,
    /// The client's key, as PEM.
    pub tls_key_file: Option<PathBuf>,
    /// The prefix of the subjects that answers come to, for accounts whose permissions name one.
    pub inbox_prefix: Option<String>,
    /// The JetStream domain.
    pub domain: Option<String>,
    /// How long to wait for a receipt before the message is published again.
    #[serde(with = "humantime_serde")]
    pub publish_timeout: Duration,
    /// How long to wait for any other answer.
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
    /// How often the connection is tested, so that one that is half open is noticed after two of them.
    #[serde(with = "humantime_serde")]
    pub ping_interval: Duration,
}

impl Default for NatsSettings {
    fn default() -> Self {
        Self {
            url: "nats://localhost:4222".into(),
            credentials_file: None,
            nkey_file: None,
            token: None,
            user: None,
            password: None,
            tls_ca_file: None,
            tls_cert_file: None,
            tls_key_file: None,
            inbox_prefix: None,
            domain: None,
            publish_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(5),
            ping_interval: Duration::from_secs(10),
        }
    }
}

impl NatsSettings {
    /// The servers of `url`, one by one.
    pub(crate) fn servers(&self) -> impl Iterator<Item = &str> {
        self.url
            .expose_secret()
            .split(',')
            .map(str::trim)
            .filter(|server| !server.is_empty())
    }

    pub(super) fn validate(&self, check: &mut Check) {
        check.require(
            self.servers().next().is_some() && self.servers().all(is_address),
            "url",
            "must look like nats://host:4222, with commas between several",
        );
        check.require(
            !self.publish_timeout.is_zero(),
            "publish_timeout",
            "must be more than 0s",
        );
        check.require(
            !self.request_timeout.is_zero(),
            "request_timeout",
            "must be more than 0s",
        );
        check.require(
            !self.ping_interval.is_zero(),
            "ping_interval",
            "must be more than 0s",
        );
        let ways = [
            self.credentials_file.is_some(),
            self.nkey_file.is_some(),
            self.token.is_some(),
            self.user.is_some(),
        ];
        check.require(
            ways.iter().filter(|given| **given).count() <= 1,
            "user",
            "give one of credentials_file, nkey_file, token, and user with password",
        );
        check.require(
            self.user.is_some() == self.password.is_some(),
            "password",
            "goes with user, and user with it",
        );
        check.require(
            self.tls_cert_file.is_some() == self.tls_key_file.is_some(),
            "tls_key_file",
            "goes with tls_cert_file, and that with it",
        );
    }
}

/// Whether it can be the address of a server. The scheme may be left out.
fn is_address(server: &str) -> bool {
    let parsed = match server.contains("://") {
        true => url::Url::parse(server),
        false => url::Url::parse(&format!("nats://{server}")),
    };
    parsed.is_ok_and(|url| matches!(url.scheme(), "nats" | "tls" | "ws" | "wss") && url.has_host())
}

#[cfg(test)]
mod tests {
    use super::is_address;

    #[test]
    fn addresses_have_a_host_and_a_scheme_of_nats() {
        for good in [
            "localhost",
            "localhost:4222",
            "nats://[::1]:4222",
            "tls://u:p@broker",
            "10.0.0.1:4222",
        ] {
            assert!(is_address(good), "{good}");
        }
        for bad in ["", "http://broker", "nats://", "nats://broker:port", "a b"] {
            assert!(!is_address(bad), "{bad}");
        }
    }
}
