//! A `twinbox` that runs as a child process.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use twinbox::testing::wait_until;

/// A child that is killed when this value goes, with its log in a file.
pub(crate) struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts it. Standard output goes where the command says, standard error to the file.
    pub(crate) fn start(mut command: Command, log: PathBuf) -> Self {
        let child = command
            .stdin(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { child, log }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until the log holds all of these words.
    pub(crate) async fn logs(&mut self, words: &[&str], deadline: Duration) {
        let what = format!("the log says {words:?}");
        wait_until(&what, deadline, || {
            let log = self.log();
            let all = words.iter().all(|word| log.contains(word));
            async move { all.then_some(()).ok_or(log) }
        })
        .await;
    }

    /// Waits for its end.
    pub(crate) async fn end(&mut self, deadline: Duration) -> ExitStatus {
        wait_until("the child has ended", deadline, || {
            let ended = self.child.try_wait().unwrap();
            let log = self.log();
            async move { ended.ok_or(log) }
        })
        .await
    }

    /// Asks for the end and waits for it.
    pub(crate) async fn terminate(&mut self, deadline: Duration) -> ExitStatus {
        self.signal(Signal::TERM);
        self.end(deadline).await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
