//! What surrounds a `twinbox`: a folder with its settings, a database and a broker.

use std::cell::Cell;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use sqlx::{Connection as _, PgConnection};
use tempfile::TempDir;
use twinbox::embedded::PrivateServers;
use twinbox::testing;

use crate::child::Running;

/// What a child gets from the environment of the tests: nothing that would change settings.
const PASSED_ON: [&str; 5] = ["PATH", "HOME", "TMPDIR", "POSTGRES_BIN_DIR", "NATS_SERVER"];

/// A `twinbox` of the folder `folder`, with no variables but those that find programs.
pub(crate) fn twinbox(folder: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_twinbox"));
    command.env_clear().current_dir(folder.path());
    for name in PASSED_ON {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ended {
    /// Standard output of a command that went well and complained of nothing.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert!(self.code == Some(0) && self.stderr.is_empty(), "{self:?}");
        self.stdout
    }

    /// The same, as JSON.
    #[track_caller]
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// The one line on standard error of a command that failed like this.
    #[track_caller]
    pub(crate) fn error(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(self.stdout.is_empty(), "{self:?}");
        assert!(
            self.stderr.starts_with("twinbox: ") && self.stderr.lines().count() == 1,
            "{self:?}"
        );
        self.stderr
    }
}

/// A command without servers.
pub(crate) fn alone(args: &[&str]) -> Ended {
    twinbox(&TempDir::new().unwrap())
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
        .into()
}

/// A folder, a database and a broker.
pub(crate) struct World {
    pub(crate) folder: TempDir,
    pub(crate) database_url: String,
    pub(crate) nats_url: String,
    logs: Cell<u32>,
}

impl World {
    /// With a database of its own on the servers that all tests share.
    pub(crate) async fn new() -> Self {
        let nats_url = testing::servers().await.nats.url();
        Self::with(testing::fresh_database().await, nats_url)
    }

    /// On servers of its own.
    pub(crate) async fn on(servers: &PrivateServers) -> Self {
        let database_url = servers.postgres.create_database("test").await.unwrap();
        Self::with(database_url, servers.nats.url())
    }

    pub(crate) fn with(database_url: String, nats_url: String) -> Self {
        Self {
            folder: TempDir::new().unwrap(),
            database_url,
            nats_url,
            logs: Cell::new(0),
        }
    }

    /// Writes the folder's twinbox.toml.
    pub(crate) fn settings(&self, toml: &str) {
        std::fs::write(self.folder.path().join("twinbox.toml"), toml).unwrap();
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = twinbox(&self.folder);
        command
            .args(args)
            .env("DATABASE_URL", &self.database_url)
            .env("NATS_URL", &self.nats_url);
        command
    }

    /// Runs a command to its end.
    pub(crate) async fn run(&self, args: &[&str]) -> Ended {
        self.run_with(args, "").await
    }

    /// Runs a command with this on its standard input.
    pub(crate) async fn run_with(&self, args: &[&str], input: &str) -> Ended {
        ended(self.command(args), input).await
    }

    /// Starts what stays up.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        self.start_with(args, &[])
    }

    /// The same with more variables.
    pub(crate) fn start_with(&self, args: &[&str], variables: &[(&str, &str)]) -> Running {
        let mut command = self.command(args);
        command.envs(variables.iter().copied()).stdout(Stdio::null());
        Running::start(command, self.log_file())
    }

    pub(crate) fn log_file(&self) -> PathBuf {
        self.logs.set(self.logs.get() + 1);
        self.folder.path().join(format!("log-{}", self.logs.get()))
    }

    pub(crate) async fn database(&self) -> PgConnection {
        PgConnection::connect(&self.database_url).await.unwrap()
    }

    pub(crate) async fn execute(&self, sql: &'static str) {
        sqlx::raw_sql(sql)
            .execute(&mut self.database().await)
            .await
            .unwrap();
    }

    pub(crate) async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql)
            .fetch_one(&mut self.database().await)
            .await
            .unwrap()
    }

    /// Runs a script with `psql`, as a service in any language might.
    pub(crate) async fn psql(&self, script: &str) -> String {
        let mut command = Command::new("psql");
        command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]);
        command.args(["--set", "ON_ERROR_STOP=1", &self.database_url]);
        ended(command, script).await.ok()
    }

    pub(crate) async fn jetstream(&self) -> async_nats::jetstream::Context {
        async_nats::jetstream::new(async_nats::connect(&self.nats_url).await.unwrap())
    }
}

/// Runs a command to its end, without holding up the other futures of the test.
async fn ended(mut command: Command, input: &str) -> Ended {
    let input = input.to_owned();
    let run = move || {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that does not read it may have ended already.
        child.stdin.take().unwrap().write_all(input.as_bytes()).ok();
        child.wait_with_output().unwrap().into()
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}
