//! `twinbox run`: how it begins, and how it ends.

use crate::SOON;
use crate::business::Business;
use crate::world::World;
use rustix::process::Signal;
use twinbox::embedded::{NatsOptions, PostgresOptions, PrivateServers};
use twinbox::testing::wait_until;

/// Takes a while, so that a signal finds it in the middle of a batch.
const SLOW: &str = "WITH slept AS (SELECT pg_sleep(0.02))
    INSERT INTO public.effect (message_id, subject, key, headers, payload)
    SELECT :id, :subject, :key, :headers, :payload_bytes FROM slept";

#[tokio::test]
async fn sigterm_in_the_middle_of_a_batch_loses_and_doubles_nothing() {
    let business = Business::new().await;
    business.configure("", SLOW);
    business.enqueue(1, 500).await;
    for (signal, at_least) in [(Signal::TERM, 50), (Signal::INT, 150), (Signal::KILL, 250)] {
        let mut running = business.start(&[]);
        business.wait_for(at_least).await;
        running.signal(signal);
        let ended = running.end(SOON).await;
        if signal != Signal::KILL {
            assert_eq!(ended.code(), Some(0), "{}", running.log());
            assert!(running.log().contains("drained"), "{}", running.log());
        }
        assert!(business.count().await < 500, "it had time for all of it");
    }
    let mut running = business.start(&[]);
    business.wait_for(500).await;
    business.assert_once_in_order(1, 500).await;
    assert_eq!(running.terminate(SOON).await.code(), Some(0));
}

#[tokio::test]
async fn parts_run_alone_and_together_do_the_whole() {
    let business = Business::new().await;
    business.enqueue(1, 20).await;
    let mut consumer = business.start(&["--roles", "consumer"]);
    consumer.logs(&["consumer created"], SOON).await;
    assert_eq!(business.count().await, 0, "nobody has published yet");
    let mut relay = business.start(&["--roles", "relay"]);
    business.wait_for(20).await;
    let mut pruner = business.start(&["--roles", "pruner"]);
    wait_until("the pruner has run", SOON, || async {
        business.world.run(&["status", "--json"]).await.json()["pruners"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    })
    .await;
    for part in [&mut consumer, &mut relay, &mut pruner] {
        assert_eq!(part.terminate(SOON).await.code(), Some(0), "{}", part.log());
    }
}

#[tokio::test]
async fn it_starts_while_its_servers_are_away_and_outlives_their_absence() {
    let mut servers = PrivateServers::start(PostgresOptions::new().fast(), NatsOptions::new())
        .await
        .unwrap();
    let business = Business::of(World::on(&servers).await).await;
    business.enqueue(1, 30).await;
    servers.nats.kill().await.unwrap();
    servers.postgres.kill().await.unwrap();
    let mut running = business.start(&[]);
    running.logs(&["waiting for the database"], SOON).await;
    servers.postgres.restart().await.unwrap();
    servers.nats.restart().await.unwrap();
    business.wait_for(30).await;

    servers.postgres.kill().await.unwrap();
    servers.postgres.restart().await.unwrap();
    business.enqueue(31, 60).await;
    servers.nats.kill().await.unwrap();
    servers.nats.restart().await.unwrap();
    business.enqueue(61, 90).await;
    business.wait_for(90).await;
    business.wait_until_quiet().await;
    business.assert_once_in_order(1, 90).await;
    assert_eq!(
        business
            .world
            .count("SELECT count(*) FROM twinbox.dead_letter")
            .await,
        0
    );
    assert_eq!(running.terminate(SOON).await.code(), Some(0), "{}", running.log());
}

#[tokio::test]
async fn what_can_not_work_ends_with_78_and_says_why() {
    let business = Business::new().await;
    for (set, told) in [
        ("relay.window=0", "relay.window"),
        ("database.url=nonsense", "database.url"),
        ("nats.url=", "nats.url"),
        ("nats.url=http://broker", "nats.url"),
        ("run.roles=", "run.roles"),
    ] {
        let error = business.world.run(&["run", "--set", set]).await.error(78);
        assert!(error.contains(told), "{set}: {error}");
    }
    business.configure("", "SELECT :no_such_thing");
    let error = business.world.run(&["run"]).await.error(78);
    assert!(
        error.contains("no_such_thing") && error.contains(":payload"),
        "{error}"
    );

    // Found out once the stream is there: shorter than what a message can take to come again.
    business.configure("", "SELECT :payload");
    let mut running = business.start(&["--set", "pruner.inbox_retention=1day"]);
    assert_eq!(running.end(SOON).await.code(), Some(78), "{}", running.log());
    assert!(
        running.log().contains("10days") && running.log().contains("inbox_retention"),
        "{}",
        running.log()
    );
}

#[tokio::test]
async fn without_jetstream_it_says_so_and_waits() {
    let servers = PrivateServers::start(
        PostgresOptions::new().fast(),
        NatsOptions::new().without_jetstream(),
    )
    .await
    .unwrap();
    let business = Business::of(World::on(&servers).await).await;
    let mut running = business.start(&[]);
    running.logs(&["not enabled"], SOON).await;
    assert_eq!(running.terminate(SOON).await.code(), Some(0), "{}", running.log());
}

#[tokio::test]
async fn two_instances_share_the_work_and_one_takes_over() {
    let business = Business::new().await;
    // What a killed instance held comes to the other after this time.
    business.configure("ack_wait = \"2s\"\nhandler_deadline = \"1s\"", SLOW);
    business.enqueue(1, 300).await;
    let lease = ["--set", "relay.lease=1s"];
    let first = business.start(&lease);
    business.wait_for(20).await;
    let mut second = business.start(&lease);
    business.wait_for(60).await;
    first.signal(Signal::KILL);
    business.enqueue(301, 400).await;
    business.wait_for(400).await;
    business.wait_until_quiet().await;
    assert_eq!(business.count().await, 400);
    let distinct = "SELECT count(DISTINCT payload) FROM effect";
    assert_eq!(business.world.count(distinct).await, 400);
    assert_eq!(second.terminate(SOON).await.code(), Some(0), "{}", second.log());
}
