use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use super::error::EmbeddedError;
use super::launch::User;
use super::scratch::Scratch;
use super::server::{Program, Server, blocking};
use super::{find, random};

/// The user of a private nats-server.
const USER: &str = "twinbox";
const CONFIGURATION: &str = "nats.conf";
const STORE: &str = "store";
/// How long one look at whether it answers may take.
const PROBE_LIMIT: Duration = Duration::from_secs(1);
/// An INFO line is a few hundred bytes, more with a cluster's URLs.
const INFO_LIMIT: u64 = 64 * 1024;

/// How a private nats-server is started.
#[derive(Debug, Clone)]
#[must_use]
pub struct NatsOptions {
    server: Option<PathBuf>,
    jetstream: bool,
    anonymous: bool,
    max_payload: Option<u32>,
    extra: String,
    ready_within: Duration,
}

impl Default for NatsOptions {
    fn default() -> Self {
        Self {
            server: None,
            jetstream: true,
            anonymous: false,
            max_payload: None,
            extra: String::new(),
            ready_within: Duration::from_secs(20),
        }
    }
}

impl NatsOptions {
    /// With JetStream, one user with a password, the server's own limits, ready within 20 s.
    pub fn new() -> Self {
        Self::default()
    }

    /// Leaves JetStream off.
    pub fn without_jetstream(mut self) -> Self {
        self.jetstream = false;
        self
    }

    /// Leaves out the user and password: the URL has none, and the configuration may bring `authorization` or
    /// `accounts` of its own. If it doesn't, every user of this machine can connect.
    pub fn anonymous(mut self) -> Self {
        self.anonymous = true;
        self
    }

    /// The largest message that the server takes, in bytes; its own default is 1 MiB.
    pub fn max_payload(mut self, bytes: u32) -> Self {
        self.max_payload = Some(bytes);
        self
    }

    /// Adds text to the server's configuration file, in its own language. Address, port, name and store directory
    /// are given on the command line and can't be changed here.
    pub fn configuration(mut self, text: impl AsRef<str>) -> Self {
        self.extra.push_str(text.as_ref());
        self.extra.push('\n');
        self
    }

    /// Names the nats-server program, instead of having it looked for.
    pub fn server(mut self, program: impl Into<PathBuf>) -> Self {
        self.server = Some(program.into());
        self
    }

    /// How long every start may take, the recovery of the streams included.
    pub fn ready_within(mut self, limit: Duration) -> Self {
        self.ready_within = limit;
        self
    }
}

/// A nats-server of its own, on 127.0.0.1, that ends with this value and with this process.
#[derive(Debug)]
pub struct PrivateNats {
    server: Server<Nats>,
}

impl PrivateNats {
    /// Starts the server and returns when it answers, with JetStream if that is on.
    ///
    /// # Errors
    /// If the program is missing, the server ends or does not answer in time, or the configuration is refused.
    pub async fn start(options: NatsOptions) -> Result<Self, EmbeddedError> {
        let ready_within = options.ready_within;
        let (program, scratch) = blocking(move || prepare(options)).await?;
        Ok(Self {
            server: Server::start(program, scratch, ready_within).await?,
        })
    }

    /// The URL, with user and password unless the options leave them out.
    ///
    /// Most clients take them from there. The Rust client async-nats 0.51 does not: for that,
    /// `ConnectOptions::with_user_and_password` wants them separately.
    pub fn url(&self) -> String {
        let port = self.port();
        match &self.server.program().password {
            Some(password) => format!("nats://{USER}:{password}@127.0.0.1:{port}"),
            None => format!("nats://127.0.0.1:{port}"),
        }
    }

    /// The port on 127.0.0.1, the same for the whole life of this value.
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// The server's pid; none after a kill or a stop.
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// The scratch directory, which goes with this value: store, configuration and log.
    pub fn directory(&self) -> &Path {
        self.server.directory()
    }

    /// Where JetStream stores. While the server is down it may be copied away, and put back later as a backup
    /// that was restored.
    pub fn store_directory(&self) -> PathBuf {
        self.server.directory().join(STORE)
    }

    /// The last lines of the server's log.
    pub fn log_tail(&self, lines: usize) -> String {
        self.server.log_tail(lines)
    }

    /// Kills the server (SIGKILL).
    ///
    /// # Errors
    /// If it is not gone after 10 s.
    pub async fn kill(&mut self) -> Result<(), EmbeddedError> {
        self.server.end(Signal::KILL).await
    }

    /// Stops in order (SIGTERM): what is stored is flushed, clients are disconnected.
    ///
    /// # Errors
    /// If it does not end within 30 s; it is then killed.
    pub async fn stop(&mut self) -> Result<(), EmbeddedError> {
        self.server.end(Nats::STOP).await
    }

    /// Starts again on the same port and store, after a kill, a stop, or (stopping it in order first) while it
    /// runs.
    ///
    /// # Errors
    /// As for [`PrivateNats::start`].
    pub async fn restart(&mut self) -> Result<(), EmbeddedError> {
        self.server.restart().await
    }
}

/// What is known before the first start and stays the same.
#[derive(Debug)]
struct Nats {
    path: PathBuf,
    scratch: PathBuf,
    /// Random: an answer by this name is this server's, whoever else may have its port.
    name: String,
    password: Option<String>,
    jetstream: bool,
}

impl Program for Nats {
    const NAME: &'static str = "nats-server";
    const STOP: Signal = Signal::TERM;
    const DEATH: Signal = Signal::KILL;

    fn path(&self) -> &Path {
        &self.path
    }

    /// nats-server has nothing against root, and another user might not reach a program that `NATS_SERVER` names.
    fn user(&self) -> Option<User> {
        None
    }

    fn arguments(&self, port: u16) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec![
            "--config".into(),
            self.scratch.join(CONFIGURATION).into(),
            "--addr".into(),
            Ipv4Addr::LOCALHOST.to_string().into(),
            "--port".into(),
            port.to_string().into(),
            "--name".into(),
            self.name.clone().into(),
        ];
        if self.jetstream {
            arguments.extend([
                "--jetstream".into(),
                "--store_dir".into(),
                self.scratch.join(STORE).into(),
            ]);
        }
        arguments
    }

    fn may_start_later(_log: &str) -> bool {
        false
    }

    async fn probe(&self, port: u16) -> Result<(), String> {
        let (name, jetstream) = (self.name.clone(), self.jetstream);
        // The look itself is synchronous, with limits: nothing of a client is needed to read the greeting.
        tokio::task::spawn_blocking(move || {
            let info = greeting(port).map_err(|error| error.to_string())?;
            check(&info, &name, jetstream)
        })
        .await
        .unwrap_or_else(|error| Err(error.to_string()))
    }
}

/// The INFO line that a nats-server sends first, whoever connects.
fn greeting(port: u16) -> std::io::Result<String> {
    let stream = TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), PROBE_LIMIT)?;
    stream.set_read_timeout(Some(PROBE_LIMIT))?;
    let mut line = String::new();
    BufReader::new(stream.take(INFO_LIMIT)).read_line(&mut line)?;
    Ok(line)
}

fn check(greeting: &str, name: &str, jetstream: bool) -> Result<(), String> {
    let info = greeting
        .strip_prefix("INFO ")
        .and_then(|json| serde_json::from_str::<serde_json::Value>(json).ok())
        .ok_or_else(|| format!("greeted with {greeting:?} instead of INFO"))?;
    if info["server_name"] != name {
        return Err(format!(
            "the server on this port is {}, not {name}",
            info["server_name"]
        ));
    }
    // Absent where JetStream is off.
    if jetstream && info["jetstream"] != true {
        return Err("answers, but JetStream is not there yet".to_owned());
    }
    Ok(())
}

/// Finds the program and writes the configuration.
fn prepare(options: NatsOptions) -> Result<(Nats, Scratch), EmbeddedError> {
    let path = find::nats_server(options.server.as_deref())?;
    let scratch = Scratch::create("nats", None)?;
    let token = || random::token().map_err(EmbeddedError::io("draw a password"));
    let name = format!("twinbox-{}", token()?);
    let password = if options.anonymous { None } else { Some(token()?) };

    let mut text = String::new();
    if let Some(password) = &password {
        text += &format!("authorization {{ user: {USER}, password: \"{password}\" }}\n");
    }
    if let Some(bytes) = options.max_payload {
        text += &format!("max_payload: {bytes}\n");
    }
    scratch.write(CONFIGURATION, &(text + &options.extra))?;
    scratch.directory(STORE)?;
    let program = Nats {
        path,
        scratch: scratch.path().to_owned(),
        name,
        password,
        jetstream: options.jetstream,
    };
    Ok((program, scratch))
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn only_the_servers_own_greeting_counts() {
        let info = r#"INFO {"server_name":"a","jetstream":true}"#;
        assert_eq!(check(info, "a", true), Ok(()));
        assert_eq!(check(r#"INFO {"server_name":"a"}"#, "a", false), Ok(()));
        assert!(
            check(r#"INFO {"server_name":"a"}"#, "a", true)
                .unwrap_err()
                .contains("JetStream")
        );
        assert!(check(info, "b", true).unwrap_err().contains("not b"));
        assert!(check("", "a", true).is_err());
        assert!(check("SSH-2.0-OpenSSH", "a", true).is_err());
    }
}
