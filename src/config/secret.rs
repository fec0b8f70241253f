//! Addresses that hold a password.

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};

/// An address that is shown with its password masked.
///
/// ```
/// use twinbox::config::SecretUrl;
///
/// let url = SecretUrl::from("postgres://app:hush@db/orders");
/// assert_eq!(url.to_string(), "postgres://app:***@db/orders");
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub struct SecretUrl(SecretString);

impl From<&str> for SecretUrl {
    fn from(url: &str) -> Self {
        Self(SecretString::from(url))
    }
}

impl From<String> for SecretUrl {
    fn from(url: String) -> Self {
        Self(SecretString::from(url))
    }
}

impl ExposeSecret<str> for SecretUrl {
    fn expose_secret(&self) -> &str {
        self.0.expose_secret()
    }
}

impl std::fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Several servers may stand in one value, with commas between them.
        for (index, part) in self.0.expose_secret().split(',').enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            match url::Url::parse(part) {
                Ok(url) if url.has_host() => f.write_str(&masked(url))?,
                // What can't be read may hold a secret anywhere.
                _ if part.contains('@') || part.contains("password") => f.write_str("***")?,
                _ => f.write_str(part)?,
            }
        }
        Ok(())
    }
}

fn masked(mut url: url::Url) -> String {
    if url.password().is_some() {
        url.set_password(Some("***")).ok();
    } else if url.scheme() == "nats" && !url.username().is_empty() {
        // nats://token@host
        url.set_username("***").ok();
    }
    let secret = |name: &str| matches!(name, "password" | "sslpassword" | "token");
    if url.query_pairs().any(|(name, _)| secret(&name)) {
        let pairs: Vec<(String, String)> = url
            .query_pairs()
            .map(|(name, value)| {
                let value = if secret(&name) {
                    "***".into()
                } else {
                    value.into_owned()
                };
                (name.into_owned(), value)
            })
            .collect();
        url.query_pairs_mut().clear().extend_pairs(pairs);
    }
    url.to_string()
}

impl Serialize for SecretUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Writes `***` where a secret is set, for [`super::Settings`] that are shown.
pub(super) fn mask<S: Serializer>(secret: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    match secret {
        Some(_) => serializer.serialize_some("***"),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_shown() {
        for (url, shown) in [
            (
                "postgres://a:b@h/d?sslmode=require",
                "postgres://a:***@h/d?sslmode=require",
            ),
            (
                "postgres://h/d?user=a&password=b",
                "postgres://h/d?user=a&password=***",
            ),
            ("nats://t0ken@h:4222", "nats://***@h:4222"),
            (
                "nats://a:4222,nats://u:p@b:4222",
                "nats://a:4222,nats://u:***@b:4222",
            ),
            ("u:p@h", "***"),
            ("localhost:4222", "localhost:4222"),
        ] {
            assert_eq!(SecretUrl::from(url).to_string(), shown);
            assert!(!format!("{:?}", SecretUrl::from(url)).contains("t0ken"));
        }
    }
}
