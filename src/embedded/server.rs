//! What the two servers have in common: a program in a scratch directory, on one port, that is started until it
//! answers and ended in several ways.

use std::ffi::OsString;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::error::EmbeddedError;
use super::launch::{Launch, User};
use super::log;
use super::port::ReservedPort;
use super::process::{Looks, Process};
use super::scratch::Scratch;

/// With how many ports a start is tried, where others are faster in binding them.
const PORTS_TRIED: usize = 10;
/// How long an orderly stop may take.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// How long a killed process may take to be gone.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// How much of a log an error shows.
const LINES_IN_ERRORS: usize = 25;
/// What both servers log (in whatever case) when somebody else has the port.
const PORT_TAKEN: &str = "ddress already in use";

/// A kind of server.
pub(super) trait Program: Send + Sync {
    /// The program's name, for errors and for its log file.
    const NAME: &'static str;
    /// Asks for an orderly end.
    const STOP: Signal;
    /// Ends it at once, and leaves nothing behind outside the directory if that can be had.
    const DEATH: Signal;

    /// The program's file.
    fn path(&self) -> &Path;
    /// Who runs it, if not the user of this process.
    fn user(&self) -> Option<User>;
    /// Its arguments, with which it listens on this port. One of them names the scratch directory, by which the
    /// guardian knows the process as its own.
    fn arguments(&self, port: u16) -> Vec<OsString>;
    /// Whether the log of a start that failed says that it may succeed a little later.
    fn may_start_later(log: &str) -> bool;
    /// Asks it whether it is ready. An error says what is not, for the case that it never will be.
    fn probe(&self, port: u16) -> impl Future<Output = Result<(), String>> + Send;
}

/// A server, running or not.
#[derive(Debug)]
pub(super) struct Server<P> {
    program: P,
    // The process before the directory: they are dropped in this order.
    process: Option<Process>,
    scratch: Scratch,
    port: ReservedPort,
    ready_within: Duration,
}

impl<P: Program> Server<P> {
    /// Starts the program on a free port and waits until it answers.
    pub(super) async fn start(
        program: P,
        scratch: Scratch,
        ready_within: Duration,
    ) -> Result<Self, EmbeddedError> {
        let mut server = Self {
            program,
            process: None,
            scratch,
            port: pick_port()?,
            ready_within,
        };
        for _ in 1..PORTS_TRIED {
            match server.launch().await {
                Err(EmbeddedError::Ended { log, .. }) if log.contains(PORT_TAKEN) => {
                    server.port = pick_port()?
                }
                Err(error) => return Err(error),
                Ok(()) => return Ok(server),
            }
        }
        server.launch().await?;
        Ok(server)
    }

    /// Starts the program again, on the same port and with the same data, and waits until it answers. A server
    /// that still runs is stopped first.
    pub(super) async fn restart(&mut self) -> Result<(), EmbeddedError> {
        self.end(P::STOP).await?;
        let mut looks = Looks::within(self.ready_within);
        loop {
            match self.launch().await {
                Err(EmbeddedError::Ended { log, .. })
                    if log.contains(PORT_TAKEN) || P::may_start_later(&log) =>
                {
                    let Some(pause) = looks.next() else {
                        return self.launch().await;
                    };
                    tokio::time::sleep(pause).await;
                }
                other => return other,
            }
        }
    }

    /// Sends a signal that ends it, and waits until it has ended.
    pub(super) async fn end(&mut self, signal: Signal) -> Result<(), EmbeddedError> {
        let Some(process) = self.process.as_mut() else {
            return Ok(());
        };
        let limit = if signal == Signal::KILL {
            KILL_LIMIT
        } else {
            STOP_LIMIT
        };
        process.signal(signal);
        let ended = process.wait(limit).await;
        if ended.is_none() && signal != Signal::KILL {
            process.signal(Signal::KILL);
            process.wait(KILL_LIMIT).await;
        }
        self.process = None;
        match ended {
            Some(_) => Ok(()),
            None => Err(EmbeddedError::DidNotStop {
                program: P::NAME,
                waited: limit,
                log: self.log_tail(LINES_IN_ERRORS),
            }),
        }
    }

    pub(super) fn port(&self) -> u16 {
        self.port.number()
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    pub(super) fn directory(&self) -> &Path {
        self.scratch.path()
    }

    pub(super) fn program(&self) -> &P {
        &self.program
    }

    pub(super) fn log_tail(&self, lines: usize) -> String {
        log::tail(&self.log_path(), lines)
    }

    fn log_path(&self) -> PathBuf {
        self.scratch.path().join(format!("{}.log", P::NAME))
    }

    async fn launch(&mut self) -> Result<(), EmbeddedError> {
        let log = self.scratch.open_log(self.log_path())?;
        let logged_before = log.metadata().map_or(0, |metadata| metadata.len());
        let process = Launch {
            program: self.program.path().to_owned(),
            arguments: self.program.arguments(self.port()),
            directory: self.scratch.path().to_owned(),
            user: self.program.user(),
            death_signal: P::DEATH,
            log,
        };
        let process = process
            .start()
            .map_err(EmbeddedError::io(format!("start {}", P::NAME)))?;
        self.scratch.watch(process.pid(), P::DEATH)?;
        let process = self.process.insert(process);

        let started = Instant::now();
        let mut looks = Looks::within(self.ready_within);
        loop {
            let answer = self.program.probe(self.port.number()).await;
            // Looked at after the answer: only a server that lives has given it.
            if let Some(status) = process.ended() {
                self.process = None;
                let log = log::since(&self.log_path(), logged_before, LINES_IN_ERRORS);
                return Err(EmbeddedError::Ended {
                    program: P::NAME,
                    status,
                    log,
                });
            }
            let Err(last) = answer else { break };
            let Some(pause) = looks.next() else {
                self.process = None;
                return Err(EmbeddedError::NotReady {
                    program: P::NAME,
                    waited: started.elapsed(),
                    last,
                    log: self.log_tail(LINES_IN_ERRORS),
                });
            };
            tokio::time::sleep(pause).await;
        }
        tracing::debug!(
            program = P::NAME,
            port = self.port(),
            pid = self.pid(),
            took_ms = started.elapsed().as_millis(),
            "private server ready"
        );
        Ok(())
    }
}

fn pick_port() -> Result<ReservedPort, EmbeddedError> {
    ReservedPort::pick().map_err(EmbeddedError::io("find a free port"))
}

/// Runs what blocks (looks for programs, makes directories) away from the runtime's workers.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, EmbeddedError> + Send + 'static,
) -> Result<T, EmbeddedError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(EmbeddedError::Io {
                action: "prepare a private server".to_owned(),
                source: std::io::Error::other(error),
            }),
        },
    }
}
