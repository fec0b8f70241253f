//! How a server's process is made, so that it has the right user and ends with this process.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, mpsc};

use rustix::process::Signal;

use super::error::EmbeddedError;
use super::find;
use super::process::Process;

/// Runs between `setpriv` and the program. A parent that died before the death signal was set would never be
/// noticed, so look whether it still is the parent (`prctl(2)`, PR_SET_PDEATHSIG).
const IF_THE_PARENT_LIVES: &str = r#"[ "$PPID" = "$1" ] || exit 75; shift; exec "$@""#;

/// A user and its primary group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl User {
    /// The user for a program that refuses root: nobody in particular if this process is not root.
    pub(super) fn unprivileged() -> Result<Option<Self>, EmbeddedError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let user = Self::named("postgres").or_else(|| Self::named("nobody"));
        user.map(Some).ok_or_else(|| EmbeddedError::Invalid {
            what: "user",
            value: "root".to_owned(),
            advice: "PostgreSQL does not run as root, and there is neither a user `postgres` nor `nobody` to run it as",
        })
    }

    fn named(name: &str) -> Option<Self> {
        let number = |flag| {
            let output = Command::new("id")
                .args([flag, name])
                .stderr(Stdio::null())
                .output()
                .ok()?;
            String::from_utf8(output.stdout).ok()?.trim().parse::<u32>().ok()
        };
        Some(Self {
            uid: number("-u")?,
            gid: number("-g")?,
        })
        .filter(|user| user.uid != 0)
    }
}

/// What to start.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
    /// Also the working directory, since that of this process may be closed to the user.
    pub(super) directory: PathBuf,
    pub(super) user: Option<User>,
    pub(super) death_signal: Signal,
    pub(super) log: File,
}

impl Launch {
    /// Starts it.
    pub(super) fn start(self) -> io::Result<Process> {
        let death_signal = self.death_signal;
        let command = self.command()?;
        let (answer, answered) = mpsc::sync_channel(1);
        let spawner = SPAWNER
            .as_ref()
            .ok_or_else(|| io::Error::other("no thread to start it from"))?;
        let gone = |_| io::Error::other("the thread that starts processes is gone");
        spawner
            .send((command, answer))
            .map_err(|_| gone(mpsc::RecvError))?;
        let child = answered.recv().map_err(gone)??;
        Ok(Process::new(child, death_signal))
    }

    fn command(&self) -> io::Result<Command> {
        let mut command = match SETPRIV.as_deref() {
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                command
                    .arg("--pdeathsig")
                    .arg(signal_name(self.death_signal))
                    .args(["--", "/bin/sh", "-c", IF_THE_PARENT_LIVES, "sh"])
                    .arg(std::process::id().to_string())
                    .arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        command
            .args(&self.arguments)
            .current_dir(&self.directory)
            // Ctrl-C is for this process alone: it may need its servers while it drains.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(self.log.try_clone()?)
            .stderr(self.log.try_clone()?)
            // Messages are matched and shown, so they are in one language.
            .env("LC_ALL", "C")
            // Only this process talks to its service manager.
            .env_remove("NOTIFY_SOCKET");
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("PG") {
                command.env_remove(name);
            }
        }
        if let Some(user) = self.user {
            // The standard library also gives up the supplementary groups.
            command.uid(user.uid).gid(user.gid);
        }
        Ok(command)
    }
}

/// A signal as `setpriv` and the shell's `kill` take it. Only these are used as death signals.
pub(super) fn signal_name(signal: Signal) -> &'static str {
    match signal {
        Signal::TERM => "TERM",
        Signal::QUIT => "QUIT",
        _ => "KILL",
    }
}

type Job = (Command, mpsc::SyncSender<io::Result<Child>>);

/// The death signal follows the *thread* that started the process, not the parent process. A thread of a runtime
/// ends with its runtime, or earlier; this one ends only with the process.
static SPAWNER: LazyLock<Option<mpsc::Sender<Job>>> = LazyLock::new(|| {
    let (sender, jobs) = mpsc::channel::<Job>();
    let spawn = move || {
        for (mut command, answer) in jobs {
            if let Err(mpsc::SendError(Ok(mut orphan))) = answer.send(command.spawn()) {
                let _killed = orphan.kill();
                let _reaped = orphan.wait();
            }
        }
    };
    std::thread::Builder::new()
        .name("twinbox-spawner".to_owned())
        .spawn(spawn)
        .ok()?;
    Some(sender)
});

/// util-linux's `setpriv`, where there is one that knows the death signal (busybox has another).
static SETPRIV: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let setpriv = find_setpriv();
    if setpriv.is_none() {
        tracing::warn!(
            "no util-linux setpriv on this system: if this process is killed, private servers end a moment later, by \
             their guardian, and stay if that is killed too"
        );
    }
    setpriv
});

fn find_setpriv() -> Option<PathBuf> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let path = find::on_path("setpriv").or_else(|| find::executable(Path::new("/usr/bin/setpriv")))?;
    let help = Command::new(&path).arg("--help").output().ok()?;
    String::from_utf8_lossy(&help.stdout)
        .contains("--pdeathsig")
        .then_some(path)
}
