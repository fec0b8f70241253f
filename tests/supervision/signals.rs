//! Whole processes: signals and exit codes. The test binary runs itself as the process, by one of its own tests.

use crate::support::*;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};
use twinbox::supervisor::fault::Fault;
use twinbox::supervisor::{ChildSpec, OnBlocked, TreeSettings, drain_on_signals};

/// Which process to be; unset in the tests themselves.
const PART: &str = "TWINBOX_TEST_PART";

/// What the process says when it can be sent signals.
const READY: &str = "part is ready";

/// Not a test by itself: the process that the tests below start.
#[test]
fn part() {
    let Ok(part) = env::var(PART) else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let code = runtime.block_on(play(&part));
    // The runtime would wait for work that was abandoned on a blocking thread.
    std::process::exit(code.into());
}

async fn play(part: &str) -> u8 {
    let settings = match part {
        "blocked" => TreeSettings {
            blocked_after: Duration::from_millis(500),
            on_blocked: OnBlocked::ExitProcess,
            ..patient()
        },
        _ => patient(),
    };
    let deaf = part == "deaf";
    let tree = start(
        settings,
        [ChildSpec::new("relay", move |context| async move {
            wait_for_drain(context).await?;
            if deaf {
                announce("draining");
                std::future::pending::<()>().await;
            }
            Ok(())
        })],
    );
    let signals = drain_on_signals(&tree).unwrap();
    until("ready", || status(&tree, "relay").ready).await;
    announce(READY);
    if part == "blocked" {
        tree.inject("relay", Fault::Block(LIMIT)).unwrap();
        // Also the thread that could act on a report is of no help.
        thread::sleep(LIMIT);
    }
    signals.await;
    tree.wait().await.exit_code()
}

#[expect(clippy::print_stdout, reason = "the other process reads it")]
fn announce(text: &str) {
    println!("{text}");
}

/// A process that ends with its test.
struct Process {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Process {
    fn start(part: &str) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "signals::part", "--nocapture", "--test-threads=1"])
            .env(PART, part)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    /// Reads until it says `text`.
    fn says(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "it never said {text}");
        }
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status().unwrap();
        assert!(sent.success());
    }

    fn end(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begin.elapsed() < LIMIT, "the process did not end");
            // Between two looks, with a deadline above.
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn sigterm_and_sigint_drain() {
    for signal in ["TERM", "INT"] {
        let mut process = Process::start("willing");
        process.says(READY);
        process.signal(signal);
        assert_eq!(process.end().code(), Some(0), "{signal}");
    }
}

#[test]
fn a_second_signal_does_not_wait() {
    let mut process = Process::start("deaf");
    process.says(READY);
    process.signal("TERM");
    process.says("draining");
    let begin = Instant::now();
    process.signal("INT");
    assert_eq!(process.end().code(), Some(75));
    assert!(begin.elapsed() < LIMIT / 2, "waited for the deadline");
}

#[test]
fn blocked_process_ends_itself() {
    let mut process = Process::start("blocked");
    process.says(READY);
    assert_eq!(process.end().code(), Some(71));
}
