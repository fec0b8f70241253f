//! What happens when the process that started servers ends. It is this test binary, run once more.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use twinbox::embedded::{NatsOptions, PostgresOptions, PrivateServers};
use twinbox::testing::wait_until;

const ROLE: &str = "TWINBOX_TEST_ROLE";
const DIRECTORIES: &str = "directories: ";
const SOON: Duration = Duration::from_secs(30);

/// Not a test: what the others start. It holds two servers and says where, then waits to be ended.
#[tokio::test]
#[ignore = "the part of a parent, which other tests start"]
async fn parent() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let servers = PrivateServers::start(PostgresOptions::new().fast(), NatsOptions::new())
        .await
        .unwrap();
    let directories =
        [servers.postgres.directory(), servers.nats.directory()].map(|path| path.to_str().unwrap());
    writeln!(std::io::stdout(), "\n{DIRECTORIES}{}", directories.join(" ")).unwrap();
    match role.as_str() {
        "return" => std::mem::forget(servers), // as a static would
        "panic" => panic!("as a test that fails"),
        _ => std::future::pending().await,
    }
}

/// Not a test either: starts servers with the environment that it was given, and fails as they do.
#[tokio::test]
#[ignore = "the part of a process without servers' programs, which another test starts"]
async fn starter() {
    if std::env::var(ROLE).is_ok() {
        PrivateServers::start(PostgresOptions::new().fast(), NatsOptions::new())
            .await
            .map_err(|e| e.to_string())
            .unwrap();
    }
}

fn run_again(test: &str, role: &str) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &format!("parent::{test}"), "--ignored", "--nocapture"])
        .env(ROLE, role)
        // A group as a terminal would make it.
        .process_group(0)
        .stdin(Stdio::null());
    command
}

/// Also its output: a parent could not even report to a pipe that nobody holds.
fn start_parent(role: &str) -> (Child, Vec<PathBuf>, BufReader<ChildStdout>) {
    let mut child = run_again("parent", role)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let directories = output
        .by_ref()
        .lines()
        .map(Result::unwrap)
        .find_map(|line| {
            line.strip_prefix(DIRECTORIES)
                .map(|list| list.split(' ').map(PathBuf::from).collect())
        })
        .expect("the parent says where its servers are");
    (child, directories, output)
}

async fn nothing_is_left(directories: &[PathBuf]) {
    wait_until("the servers are gone, with their directories", SOON, || async {
        for directory in directories {
            #[cfg(target_os = "linux")]
            {
                let family = super::family::of(directory);
                if !family.is_empty() {
                    return Err(format!("{family:?}"));
                }
            }
            if directory.exists() {
                return Err(format!("{} exists", directory.display()));
            }
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_killed_parent_leaves_nothing() {
    let (mut parent, directories, _output) = start_parent("wait");
    #[cfg(target_os = "linux")]
    assert!(
        super::family::of(&directories[0]).len() > 3,
        "a server, its children, a guardian"
    );
    parent.kill().unwrap();
    parent.wait().unwrap();
    nothing_is_left(&directories).await;
}

#[tokio::test]
async fn ctrl_c_to_the_process_group_leaves_nothing() {
    let (mut parent, directories, _output) = start_parent("wait");
    rustix::process::kill_process_group(Pid::from_child(&parent), Signal::INT).unwrap();
    parent.wait().unwrap();
    nothing_is_left(&directories).await;
}

#[tokio::test]
async fn a_parent_that_returns_or_panics_leaves_nothing() {
    for role in ["return", "panic"] {
        let (mut parent, directories, _output) = start_parent(role);
        let status = parent.wait().unwrap();
        assert_eq!(status.success(), role == "return");
        nothing_is_left(&directories).await;
    }
}

#[tokio::test]
async fn missing_programs_are_named_with_what_to_install() {
    let empty = tempfile::tempdir().unwrap();
    let without = |variable: &str, value: &str| {
        let output = run_again("starter", "wait")
            .env(variable, value)
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
    };
    let absent = empty.path().join("nothing");
    let text = without("NATS_SERVER", absent.to_str().unwrap());
    assert!(text.contains("nats-server not found"), "{text}");
    assert!(
        text.contains("the variable NATS_SERVER must name the program itself"),
        "{text}"
    );
    let text = without("POSTGRES_BIN_DIR", empty.path().to_str().unwrap());
    assert!(text.contains("postgres not found"), "{text}");
    assert!(
        text.contains("the variable POSTGRES_BIN_DIR must name a directory"),
        "{text}"
    );
}
