use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::OnceCell;
use uuid::Uuid;

use crate::embedded::{NatsOptions, PostgresOptions, PrivateServers};

/// Holds processes and URLs, no connections: every test has a runtime of its own, and a connection dies with the
/// runtime that opened it. A static is never dropped, so what ends the servers is the end of this process.
static SERVERS: OnceCell<PrivateServers> = OnceCell::const_new();

/// The servers that the tests of this process share, started by the first call. The PostgreSQL is a fast one, and
/// the nats-server asks for no password: `async_nats::connect(url)` does.
///
/// They are shared by reference, so that no test can stop them for the others.
///
/// # Panics
/// If they can't be started.
pub async fn servers() -> &'static PrivateServers {
    // Anonymous, since async-nats takes no password from a URL, and a test wants to connect with one line.
    let start = || PrivateServers::start(PostgresOptions::new().fast(), NatsOptions::new().anonymous());
    match SERVERS.get_or_try_init(start).await {
        Ok(servers) => servers,
        Err(error) => panic!("the servers for the tests did not start: {error}"),
    }
}

/// The URL of a new and empty database on the shared PostgreSQL.
///
/// # Panics
/// If the server can't be started or the database not be created.
pub async fn fresh_database() -> String {
    match servers().await.postgres.create_database(&unique("test")).await {
        Ok(url) => url,
        Err(error) => panic!("no database for the test: {error}"),
    }
}

/// A name that nothing else has: `orders` becomes for example `orders_4c0a9d31e27b_7`.
///
/// With a prefix of lower-case letters, digits and `_` it can be a stream, a consumer, a token of a subject, a
/// database, a schema or a table.
#[must_use]
pub fn unique(prefix: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // Processes of one test run may share a server that outlives them all.
    static PROCESS: std::sync::LazyLock<u64> = std::sync::LazyLock::new(|| Uuid::now_v7().as_u64_pair().1);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}_{:012x}_{count}", *PROCESS & 0xffff_ffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::unique;

    #[test]
    fn unique_names_are_short_identifiers() {
        let (one, other) = (unique("orders"), unique("orders"));
        assert_ne!(one, other);
        assert!(one.starts_with("orders_") && one.len() < 40, "{one}");
        assert!(
            one.chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'),
            "{one}"
        );
    }
}
