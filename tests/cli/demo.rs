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
