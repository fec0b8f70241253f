//! `examples/pair.rs`, as somebody runs it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use twinbox::embedded::{NatsOptions, PostgresOptions, PrivateServers};
use twinbox::testing;

/// Cargo builds examples beside the tests, but tells no test where, and not for `cargo test --test service`.
fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let example = test.ancestors().nth(2).unwrap().join("examples/pair");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/pair.rs");
    let written = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    assert!(
        written(&example) > written(Path::new(source)),
        "{} is not there or old: cargo build --examples, with the features of this test",
        example.display()
    );
    example
}

async fn run(database_url: &str, nats_url: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(example());
    command
        .args(args)
        .env("DATABASE_URL", database_url)
        .env("NATS_URL", nats_url);
    let Output {
        status,
        stdout,
        stderr,
    } = tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[tokio::test]
async fn the_example_counts_what_became_of_its_orders() {
    let servers = PrivateServers::start(PostgresOptions::new().fast(), NatsOptions::new())
        .await
        .unwrap();
    let (database, nats) = (
        servers.postgres.create_database("pair").await.unwrap(),
        servers.nats.url(),
    );
    for (args, orders) in [(&[][..], 100), (&["20"][..], 20)] {
        let ended = run(&database, &nats, args).await;
        let told = format!("{orders} orders placed, {orders} charged, {orders} booked: 0 lost, 0 doubled\n");
        assert_eq!(ended, (Some(0), told, String::new()));
    }
}

#[tokio::test]
async fn the_example_says_what_is_wrong() {
    let database = testing::fresh_database().await;
    let (code, stdout, stderr) = run(&database, "nats://127.0.0.1:1", &["many"]).await;
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.contains("not a number of orders: many"), "{stderr}");
    let (code, _, stderr) = run("postgres://127.0.0.1:1/none", "nats://127.0.0.1:1", &[]).await;
    assert_eq!(code, Some(1), "{stderr}");
}
