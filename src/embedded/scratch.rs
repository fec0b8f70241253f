use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use super::error::EmbeddedError;
use super::launch::{User, signal_name};
use super::process::Process;

const GUARDIAN: &str = include_str!("guardian.sh");
/// How long a drop waits for the guardian. Its own waits are shorter.
const GUARDIAN_LIMIT: Duration = Duration::from_secs(20);

/// A directory that goes when this value is dropped, or when the process ends in whatever way.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
    owner: Option<User>,
    guardian: Process,
    /// Open for as long as the directory is wanted. The standard library opens pipes close-on-exec, so that no
    /// other child can hold it open.
    pipe: Option<ChildStdin>,
}

impl Scratch {
    /// Makes the directory below the system's temporary directory, for the owner's eyes only.
    pub(super) fn create(name: &str, owner: Option<User>) -> Result<Self, EmbeddedError> {
        let parent = std::env::temp_dir();
        let failed =
            |action| EmbeddedError::io(format!("{action} a scratch directory in {}", parent.display()));
        let directory = tempfile::Builder::new()
            .prefix(&format!("twinbox-{name}-"))
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(&parent)
            .map_err(failed("make"))?;
        if let Some(user) = owner {
            chown(directory.path(), Some(user.uid), Some(user.gid)).map_err(failed("hand over"))?;
        }
        let mut guardian = start_guardian(directory.path()).map_err(failed("guard"))?;
        let pipe = guardian.stdin.take();
        // From here on removing it is the guardian's.
        Ok(Self {
            path: directory.keep(),
            owner,
            guardian: Process::new(guardian, Signal::KILL),
            pipe,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a subdirectory for the owner.
    pub(super) fn directory(&self, name: impl AsRef<OsStr>) -> Result<PathBuf, EmbeddedError> {
        let path = self.path.join(name.as_ref());
        fs::create_dir(&path)
            .and_then(|()| self.hand_over(&path))
            .map_err(EmbeddedError::io(format!("make {}", path.display())))?;
        Ok(path)
    }

    /// Writes a file that only the owner may read.
    pub(super) fn write(&self, name: impl AsRef<Path>, contents: &str) -> Result<PathBuf, EmbeddedError> {
        let path = self.path.join(name);
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(contents.as_bytes()))
            .and_then(|()| self.hand_over(&path))
            .map_err(EmbeddedError::io(format!("write {}", path.display())))?;
        Ok(path)
    }

    /// Opens a file to which a program may log.
    pub(super) fn open_log(&self, name: impl AsRef<Path>) -> Result<File, EmbeddedError> {
        let path = self.path.join(name);
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&path)
            .and_then(|file| self.hand_over(&path).map(|()| file))
            .map_err(EmbeddedError::io(format!("open {}", path.display())))
    }

    /// Tells the guardian of a process that works in the directory, and of the signal that ends it at once.
    pub(super) fn watch(&self, pid: u32, signal: Signal) -> Result<(), EmbeddedError> {
        let Some(mut pipe) = self.pipe.as_ref() else {
            return Ok(());
        };
        // One write: a line is never half told.
        pipe.write_all(format!("{pid} {}\n", signal_name(signal)).as_bytes())
            .map_err(EmbeddedError::io(format!(
                "tell the guardian of {}",
                self.path.display()
            )))
    }

    fn hand_over(&self, path: &Path) -> io::Result<()> {
        match self.owner {
            Some(user) => chown(path, Some(user.uid), Some(user.gid)),
            None => Ok(()),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(self.pipe.take());
        let _ended = self.guardian.wait_blocking(GUARDIAN_LIMIT);
        // For the case that somebody killed the guardian.
        if self.path.exists()
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            tracing::warn!(directory = %self.path.display(), %error, "scratch directory left behind");
        }
    }
}

/// A process group of its own keeps a Ctrl-C away from it; the script ignores it besides. It holds nothing open but
/// its pipe: a test runner that waits for the end of its tests' output must not wait for it.
fn start_guardian(directory: &Path) -> io::Result<Child> {
    Command::new("/bin/sh")
        .args(["-c", GUARDIAN, "twinbox-guardian"])
        .arg(directory)
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}
