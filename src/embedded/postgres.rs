mod options;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use sqlx::{Connection, PgConnection};
use url::Url;

use super::error::EmbeddedError;
use super::launch::{Launch, User};
use super::scratch::Scratch;
use super::server::{Program, Server, blocking};
use super::{find, log, random};
pub use options::PostgresOptions;

/// The superuser of a private PostgreSQL.
/// Not the name of the schema: PostgreSQL would then create what names no schema in it.
const USER: &str = "app";
/// The data directory's name. The guardian knows it too.
const DATA: &str = "data";
/// How long one look at whether it answers may take.
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// A PostgreSQL of its own, on 127.0.0.1, that ends with this value and with this process.
#[derive(Debug)]
pub struct PrivatePostgres {
    server: Server<Postgres>,
}

impl PrivatePostgres {
    /// Makes a data directory, starts the server, and returns when it answers a query.
    ///
    /// # Errors
    /// If the programs are missing, the server ends or does not answer in time, or an option is not usable.
    pub async fn start(options: PostgresOptions) -> Result<Self, EmbeddedError> {
        let ready_within = options.ready_within;
        let (program, scratch) = blocking(move || prepare(&options)).await?;
        Ok(Self {
            server: Server::start(program, scratch, ready_within).await?,
        })
    }

    /// The URL of the database `postgres`, with the superuser's name and password.
    pub fn url(&self) -> String {
        self.database_url("postgres")
    }

    /// The URL of a database, which may or may not exist.
    pub fn database_url(&self, name: &str) -> String {
        self.server.program().url(self.server.port(), name)
    }

    /// Creates a database and returns its URL.
    ///
    /// # Errors
    /// If the name is not a plain identifier (lower-case letters, digits and `_`, at most 63), or PostgreSQL
    /// refuses: the database exists, or the server does not run.
    pub async fn create_database(&self, name: &str) -> Result<String, EmbeddedError> {
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if name.is_empty() || name.len() > 63 || !name.chars().all(legal) {
            return Err(EmbeddedError::Invalid {
                what: "database name",
                value: name.to_owned(),
                advice: "use 1 to 63 lower-case letters, digits and _",
            });
        }
        let failed = |source| EmbeddedError::Database {
            action: format!("create the database {name}"),
            source,
        };
        let mut connection = PgConnection::connect(&self.url()).await.map_err(failed)?;
        // A name can't be a bound parameter; the check above leaves nothing in it to escape from the quotes.
        let statement = sqlx::AssertSqlSafe(format!("CREATE DATABASE \"{name}\""));
        sqlx::raw_sql(statement)
            .execute(&mut connection)
            .await
            .map_err(failed)?;
        connection.close().await.map_err(failed)?;
        Ok(self.database_url(name))
    }

    /// The port on 127.0.0.1, the same for the whole life of this value.
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// The postmaster's pid; none after a kill or a stop.
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// The scratch directory, which goes with this value: data, configuration and log.
    pub fn directory(&self) -> &Path {
        self.server.directory()
    }

    /// The data directory.
    pub fn data_directory(&self) -> PathBuf {
        self.server.directory().join(DATA)
    }

    /// The last lines of the server's log.
    pub fn log_tail(&self, lines: usize) -> String {
        self.server.log_tail(lines)
    }

    /// Kills the postmaster (SIGKILL). Its children notice and end by themselves, a moment later.
    ///
    /// # Errors
    /// If it is not gone after 10 s.
    pub async fn kill(&mut self) -> Result<(), EmbeddedError> {
        self.server.end(Signal::KILL).await
    }

    /// Stops without ending anything properly (SIGQUIT, "immediate"): the next start recovers, as after a crash.
    ///
    /// # Errors
    /// If it does not end within 30 s; it is then killed.
    pub async fn stop_immediately(&mut self) -> Result<(), EmbeddedError> {
        self.server.end(Signal::QUIT).await
    }

    /// Stops in order (SIGINT, "fast"): sessions are ended, transactions rolled back, everything written.
    ///
    /// # Errors
    /// If it does not end within 30 s; it is then killed.
    pub async fn stop(&mut self) -> Result<(), EmbeddedError> {
        self.server.end(Postgres::STOP).await
    }

    /// Starts again on the same port and data, after a kill, a stop, or (stopping it in order first) while it
    /// runs.
    ///
    /// # Errors
    /// As for [`PrivatePostgres::start`].
    pub async fn restart(&mut self) -> Result<(), EmbeddedError> {
        self.server.restart().await
    }
}

/// What is known before the first start and stays the same.
#[derive(Debug)]
struct Postgres {
    path: PathBuf,
    user: Option<User>,
    data: PathBuf,
    base_url: Url,
}

impl Postgres {
    fn url(&self, port: u16, database: &str) -> String {
        let mut url = self.base_url.clone();
        url.set_path(database);
        // Fails only for URLs without a host.
        let _ = url.set_port(Some(port));
        url.into()
    }
}

impl Program for Postgres {
    const NAME: &'static str = "postgres";
    const STOP: Signal = Signal::INT;
    const DEATH: Signal = Signal::QUIT;

    fn path(&self) -> &Path {
        &self.path
    }

    fn user(&self) -> Option<User> {
        self.user
    }

    fn arguments(&self, port: u16) -> Vec<OsString> {
        vec![
            "-D".into(),
            self.data.clone().into(),
            "-p".into(),
            port.to_string().into(),
        ]
    }

    /// After a kill, children of the old server may live for another moment.
    fn may_start_later(log: &str) -> bool {
        log.contains("pre-existing shared memory block")
            || log.contains("lock file \"postmaster.pid\" already exists")
    }

    async fn probe(&self, port: u16) -> Result<(), String> {
        let ask = async {
            let mut connection = PgConnection::connect(&self.url(port, "postgres")).await?;
            sqlx::query("SELECT 1").execute(&mut connection).await?;
            connection.close().await
        };
        match tokio::time::timeout(PROBE_LIMIT, ask).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer to SELECT 1 within {PROBE_LIMIT:?}")),
        }
    }
}

/// Finds the programs and makes the data directory. Blocks for as long as `initdb` takes.
fn prepare(options: &PostgresOptions) -> Result<(Postgres, Scratch), EmbeddedError> {
    let configuration = options.configuration()?;
    let programs = find::postgres_directory(options.bin_dir.as_deref())?;
    let user = User::unprivileged()?;
    let scratch = Scratch::create("postgres", user)?;
    let password = random::token().map_err(EmbeddedError::io("draw a password"))?;
    let data = scratch.directory(DATA)?;
    initdb(&programs, user, &scratch, &data, &password, options.ready_within)?;

    let file = data.join("postgresql.conf");
    fs::read_to_string(&file)
        .and_then(|defaults| fs::write(&file, defaults + &configuration))
        .map_err(EmbeddedError::io(format!("write {}", file.display())))?;

    // No TLS on a loopback connection, and no PGSSLMODE of the environment that asks for it.
    let base_url = format!("postgres://{USER}:{password}@127.0.0.1/postgres?sslmode=disable");
    let base_url = Url::parse(&base_url).map_err(|error| EmbeddedError::Io {
        action: "make the server's URL".to_owned(),
        source: std::io::Error::other(error),
    })?;
    Ok((
        Postgres {
            path: programs.join("postgres"),
            user,
            data,
            base_url,
        },
        scratch,
    ))
}

fn initdb(
    programs: &Path,
    user: Option<User>,
    scratch: &Scratch,
    data: &Path,
    password: &str,
    limit: Duration,
) -> Result<(), EmbeddedError> {
    const PROGRAM: &str = "initdb";
    let password_file = scratch.write("password", password)?;
    let log_path = scratch.path().join("initdb.log");
    // The password is stored hashed but sent as it is: whoever could listen on the loopback interface could read the
    // server's files too, and SCRAM costs an unoptimised client 50 ms a connection.
    let arguments = [
        "--pgdata".into(),
        data.into(),
        "--username".into(),
        USER.into(),
        "--pwfile".into(),
        password_file.clone().into(),
        "--auth=password".into(),
        "--encoding=UTF8".into(),
        "--locale=C".into(),
        "--no-sync".into(),
        "--no-instructions".into(),
    ];
    let launch = Launch {
        program: programs.join(PROGRAM),
        arguments: arguments.into(),
        directory: scratch.path().to_owned(),
        user,
        death_signal: Signal::TERM,
        log: scratch.open_log(&log_path)?,
    };
    let mut process = launch.start().map_err(EmbeddedError::io("start initdb"))?;
    scratch.watch(process.pid(), Signal::TERM)?;
    let status = process
        .wait_blocking(limit)
        .ok_or_else(|| EmbeddedError::NotReady {
            program: PROGRAM,
            waited: limit,
            last: "still making the data directory".to_owned(),
            log: log::tail(&log_path, 25),
        })?;
    if !status.success() {
        return Err(EmbeddedError::Ended {
            program: PROGRAM,
            status,
            log: log::tail(&log_path, 25),
        });
    }
    fs::remove_file(&password_file).map_err(EmbeddedError::io(format!("remove {}", password_file.display())))
}
