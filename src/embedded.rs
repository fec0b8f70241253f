//! Private PostgreSQL and nats-server: real servers as child processes of this one, for demonstrations,
//! development and tests.
//!
//! Each server gets a scratch directory of its own, listens on a free port of 127.0.0.1 only, asks for a random
//! password that stands in its URL, and goes, directory included, when it is dropped or when this process ends in
//! whatever way: return, panic, Ctrl-C, SIGKILL. Two things see to that:
//! - the kernel's parent-death signal (`setpriv --pdeathsig`, Linux), which ends the server at once;
//! - a guardian, a small shell process that holds a pipe from this process; when the pipe closes it ends what is
//!   left of the server and removes the directory.
//!
//! Neither server receives a Ctrl-C typed at the terminal, so that a program may drain while its servers still
//! answer. PostgreSQL refuses to run as root; started by root, it runs as the user `postgres`, or `nobody` where
//! there is none.
//!
//! ```no_run
//! # async fn example() -> Result<(), twinbox::embedded::EmbeddedError> {
//! use twinbox::embedded::{NatsOptions, PostgresOptions, PrivateServers};
//!
//! let servers = PrivateServers::start(PostgresOptions::new(), NatsOptions::new()).await?;
//! let database_url = servers.postgres.create_database("orders").await?;
//! let nats_url = servers.nats.url();
//! # let _ = (database_url, nats_url);
//! # Ok(())
//! # }
//! ```
//!
//! The programs are found by the variables `POSTGRES_BIN_DIR` and `NATS_SERVER`, else on `PATH`, else where the
//! distributions put them; where one is missing, the error says what to install.

#[cfg(not(unix))]
compile_error!("the feature `embedded` needs a Unix: it starts servers under process groups and signals");

mod error;
mod find;
mod launch;
mod log;
mod nats;
mod port;
mod postgres;
mod process;
mod random;
mod scratch;
mod server;

pub use error::EmbeddedError;
pub use nats::{NatsOptions, PrivateNats};
pub use postgres::{PostgresOptions, PrivatePostgres};

/// A private PostgreSQL and a private nats-server.
///
/// The fields are public: what needs `&mut` (kill, stop, restart) is there for the owner, and a shared
/// `&PrivateServers` can only be used.
#[derive(Debug)]
pub struct PrivateServers {
    /// The database server.
    pub postgres: PrivatePostgres,
    /// The broker.
    pub nats: PrivateNats,
}

impl PrivateServers {
    /// Starts both at the same time and returns when both answer.
    ///
    /// # Errors
    /// The first error of either; the other server is then ended and removed.
    pub async fn start(postgres: PostgresOptions, nats: NatsOptions) -> Result<Self, EmbeddedError> {
        let (postgres, nats) = tokio::try_join!(PrivatePostgres::start(postgres), PrivateNats::start(nats))?;
        Ok(Self { postgres, nats })
    }
}
