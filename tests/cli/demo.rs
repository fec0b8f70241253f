//! `twinbox demo` and `twinbox dev`.

use crate::SOON;
use crate::child::Running;
use crate::world::{World, alone, twinbox};
use rustix::process::Signal;
use std::fs::File;
use std::process::Stdio;
use tempfile::TempDir;
use twinbox::testing::wait_until;

#[test]
fn it_plays_to_the_end_and_counts() {
    let ended = alone(&["demo", "--orders", "300", "--kill", "2", "--json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let verdict: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    for field in [
        "lost",
        "doubled",
        "order_violations",
        "orphans",
        "money_off_cents",
    ] {
        assert_eq!(verdict[field], 0, "{field}: {verdict}");
    }
    assert_eq!(
        (&verdict["orders"], &verdict["effects"], &verdict["kills"]),
        (&300.into(), &600.into(), &2.into())
    );
    // Every message, and some a second and third time.
    assert!(verdict["published"].as_u64().unwrap() > 600, "{verdict}");
    assert!(verdict["deliveries"].as_u64().unwrap() > 600, "{verdict}");
    assert!(verdict["duplicates_skipped"].as_u64().unwrap() > 0, "{verdict}");
    assert!(verdict["elapsed_s"].as_f64().unwrap() > 0.0);
    for percentile in ["p50", "p99"] {
        assert!(
            verdict["latency_ms"][percentile].as_f64().unwrap() > 0.0,
            "{verdict}"
        );
    }
    let words = alone(&["demo", "--orders", "20", "--kill", "0", "--duplicates", "0"]);
    assert_eq!(words.code, Some(0), "{words:?}");
    assert!(
        words.stdout.contains("effectively-once") && words.stdout.contains("conserved to the cent"),
        "{words:?}"
    );
    assert!(
        words.stderr.is_empty(),
        "no progress bar without a terminal: {words:?}"
    );
}

/// A `twinbox dev`, with the addresses that it printed.
async fn dev(folder: &TempDir) -> (Running, World) {
    let printed = folder.path().join("printed");
    let mut command = twinbox(folder);
    command
        .arg("dev")
        .stdout(Stdio::from(File::create(&printed).unwrap()));
    let running = Running::start(command, folder.path().join("log"));
    let (database, nats) = wait_until("the addresses are printed", SOON, || async {
        let text = std::fs::read_to_string(&printed).unwrap();
        let value = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name).map(str::to_owned))
        };
        Some((value("DATABASE_URL=")?, value("NATS_URL=")?))
    })
    .await;
    let world = World::with(database, nats);
    wait_until("the tables are there", SOON, || async {
        world.run(&["migrate", "--check"]).await.code == Some(0)
    })
    .await;
    (running, world)
}

#[tokio::test]
async fn dev_stays_up_and_takes_its_servers_along() {
    for signal in [Signal::INT, Signal::KILL] {
        let folder = TempDir::new().unwrap();
        let (mut running, world) = dev(&folder).await;
        world.run(&["enqueue", "orders.placed", "x"]).await.ok();
        world.run(&["status"]).await.ok();
        running.signal(signal);
        let ended = running.end(SOON).await;
        assert_eq!(
            ended.code(),
            (signal == Signal::INT).then_some(0),
            "{}",
            running.log()
        );
        for url in [&world.database_url, &world.nats_url] {
            let address = url::Url::parse(url).unwrap();
            let address = (address.host_str().unwrap().to_owned(), address.port().unwrap());
            wait_until("the server is gone", SOON, || async {
                tokio::net::TcpStream::connect(address.clone()).await.is_err()
            })
            .await;
        }
    }
}

/// The directories that a demonstration has made, and the processes to whom one of them, or its parent, is known.
#[cfg(target_os = "linux")]
fn left_in(folder: &std::path::Path) -> Vec<String> {
    let named = folder.to_string_lossy();
    let mut left: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().display().to_string())
        .collect();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let read = |name| {
            let bytes = std::fs::read(process.path().join(name)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\0', " ")
        };
        let command = read("cmdline");
        if command.contains(&*named) || read("environ").contains(&*named) {
            let command: String = command.chars().take(200).collect();
            left.push(format!("process {command}"));
        }
    }
    left
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_interrupted_demo_leaves_no_process_and_no_directory() {
    use std::os::unix::fs::PermissionsExt as _;
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let folder = TempDir::new().unwrap();
        // PostgreSQL runs as somebody else, who has to get through.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let scratch = folder.path().join("scratch");
        std::fs::create_dir(&scratch).unwrap();
        std::fs::set_permissions(&scratch, std::fs::Permissions::from_mode(0o1777)).unwrap();
        let mut command = twinbox(&folder);
        command
            .args(["demo", "--orders", "100000"])
            .env("TMPDIR", &scratch)
            .stdout(Stdio::null());
        let mut running = Running::start(command, folder.path().join("log"));
        let is = |left: &[String], program| {
            left.iter()
                .any(|one| one.starts_with("process") && one.contains(program))
        };
        // Both servers, and the process that is to be killed, which is told by its roles.
        wait_until("the demonstration is under way", SOON, || {
            let left = left_in(&scratch);
            async move {
                let all = ["nats-server ", "postgres ", " --worker "]
                    .iter()
                    .all(|program| is(&left, program));
                all.then_some(()).ok_or(format!("{left:#?}"))
            }
        })
        .await;
        running.signal(signal);
        let ended = running.end(SOON).await;
        assert!(!ended.success(), "{signal:?}: {}", running.log());
        wait_until("nothing is left", SOON, || {
            let left = left_in(&scratch);
            async move { left.is_empty().then_some(()).ok_or(format!("{left:?}")) }
        })
        .await;
    }
}
