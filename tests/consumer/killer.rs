//! A message that kills the process that runs it.

use crate::house::{DEADLINE, House, Memory, connect, open};
use sqlx::ConnectOptions as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use twinbox::config::{ConsumerSettings, StreamSettings};
use twinbox::dead_letter::Reason;
use twinbox::testing;

const DATABASE: &str = "TWINBOX_TEST_KILLER_DATABASE";
const NATS: &str = "TWINBOX_TEST_KILLER_NATS";
const STREAM: &str = "TWINBOX_TEST_KILLER_STREAM";

fn settings(house: &House) -> ConsumerSettings {
    ConsumerSettings {
        max_attempts: 3,
        ack_wait: Duration::from_secs(2),
        handler_deadline: Duration::from_secs(1),
        ..house.settings("billing")
    }
}

/// The process that dies. It is run by the test below, by this name.
#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn the_process() {
    let variable = |name| std::env::var(name).unwrap();
    let stream = StreamSettings {
        name: variable(STREAM),
        ..StreamSettings::default()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let house = House {
            store: open(&variable(DATABASE)).await,
            nats: connect(&variable(NATS)).await,
            stream,
        };
        let settings = settings(&house);
        let running = house.run(settings.clone(), &Memory::default()).await;
        house.until_dead(1).await;
        house.until_quiet(&settings).await;
        running.stop().await;
    });
}

#[tokio::test]
async fn it_alone_uses_up_its_attempts() {
    let house = House::new().await;
    for n in 0..30 {
        let act = if n == 7 { "die" } else { "" };
        house.send(&format!("key-{n}"), n, act).await;
    }
    let begun = Instant::now();
    let mut deaths = 0;
    loop {
        assert!(begun.elapsed() < DEADLINE, "it dies and dies: {deaths} times");
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killer::the_process", "--ignored"])
            .env(DATABASE, house.store.direct().to_url_lossy().as_str())
            .env(NATS, testing::servers().await.nats.url())
            .env(STREAM, &house.stream.name)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let ended = tokio::task::spawn_blocking(move || process.wait())
            .await
            .unwrap()
            .unwrap();
        if ended.success() {
            break;
        }
        deaths += 1;
    }
    let dead = house.dead().await;
    assert_eq!(
        (dead.len(), dead[0].key.as_deref(), dead[0].reason),
        (1, Some("key-7"), Reason::Exhausted)
    );
    // The first run was among the others of its batch, so that nobody could know who killed it.
    assert_eq!((dead[0].runs, deaths), (3, 4));
    assert!(dead[0].error.contains("the process died"), "{}", dead[0].error);
    assert_eq!(house.count("effect").await, 29);
}
