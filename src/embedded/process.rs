use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long a process has that is ended because it was dropped, before it is killed. PostgreSQL gives its own
/// children 5 s.
const GRACE_ON_DROP: Duration = Duration::from_secs(7);

/// A child process that is ended when it is dropped.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    /// What ends it at once, and as cleanly as that allows.
    death_signal: Signal,
    status: Option<ExitStatus>,
}

impl Process {
    pub(super) fn new(child: Child, death_signal: Signal) -> Self {
        Self {
            child,
            death_signal,
            status: None,
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            // The only error is that it is no child of ours any more, which can't be while nobody else waits.
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Sends a signal, unless it has ended: its pid is its own for as long as nobody has waited for it.
    pub(super) fn signal(&mut self, signal: Signal) {
        if self.ended().is_none() {
            let _gone_meanwhile = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    /// Waits for its end, up to a limit.
    pub(super) async fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let mut looks = Looks::within(limit);
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            tokio::time::sleep(looks.next()?).await;
        }
    }

    /// The same for where there is nothing to await with: a drop.
    pub(super) fn wait_blocking(&mut self, limit: Duration) -> Option<ExitStatus> {
        let mut looks = Looks::within(limit);
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            std::thread::sleep(looks.next()?);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(self.death_signal);
        if self.wait_blocking(GRACE_ON_DROP).is_none() {
            self.signal(Signal::KILL);
            let _ended = self.wait_blocking(GRACE_ON_DROP);
        }
    }
}

/// The pauses between looks at something that takes milliseconds or seconds, until a deadline.
#[derive(Debug)]
pub(super) struct Looks {
    deadline: Instant,
    pause: Duration,
}

impl Looks {
    const FIRST: Duration = Duration::from_millis(1);
    const LONGEST: Duration = Duration::from_millis(25);

    pub(super) fn within(limit: Duration) -> Self {
        Self {
            deadline: Instant::now() + limit,
            pause: Self::FIRST,
        }
    }

    /// The next pause, or nothing once the deadline is over.
    pub(super) fn next(&mut self) -> Option<Duration> {
        let left = self
            .deadline
            .checked_duration_since(Instant::now())
            .filter(|left| !left.is_zero())?;
        let pause = self.pause.min(left);
        self.pause = (self.pause * 2).min(Self::LONGEST);
        Some(pause)
    }
}
