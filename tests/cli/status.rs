//! `twinbox status`

use twinbox::embedded::{NatsOptions, PostgresOptions, PrivateServers};

use crate::SOON;
use crate::business::Business;
use crate::world::World;

#[tokio::test]
async fn relays_consumers_and_pruners_are_shown() {
    let business = Business::new().await;
    let empty = business.world.run(&["status"]).await.ok();
    assert!(empty.contains("no relay has run yet"), "{empty}");
    let mut running = business.start(&["--set", "pruner.interval=1s"]);
    business.enqueue(1, 100).await;
    business.wait_for(100).await;
    business.wait_until_quiet().await;
    twinbox::testing::wait_until("the pruner has run", SOON, || async {
        business.world.count("SELECT count(*) FROM twinbox.pruner").await >= 2
    })
    .await;

    let status = business.world.run(&["status", "--json"]).await.json();
    let relay = &status["relays"][0];
    assert_eq!(
        (&relay["name"], &relay["published"]),
        (&"default".into(), &100.into()),
        "{status}"
    );
    assert_eq!(
        (&relay["leased"], &relay["pending"]["rows"]),
        (&true.into(), &0.into())
    );
    assert!(relay["holder"].is_string() && relay["pending"]["oldest_ms"].is_null());
    let consumer = &status["consumers"][0];
    assert_eq!(
        (&consumer["name"], &consumer["stream"]),
        (&"billing".into(), &business.stream.as_str().into())
    );
    assert_eq!(
        (&consumer["claimed"], &consumer["dead_letters"]),
        (&100.into(), &0.into())
    );
    assert_eq!(
        (&consumer["broker"]["lag"], &consumer["broker"]["in_flight"]),
        (&0.into(), &0.into())
    );
    for field in ["duplicates", "retries", "unfinished"] {
        assert!(consumer[field].is_u64(), "{field}: {consumer}");
    }
    let pruners = status["pruners"].as_array().unwrap();
    assert!(
        pruners
            .iter()
            .all(|pruner| pruner["proof"].is_string() && pruner["keep_s"].is_u64())
    );
    assert!(pruners.iter().all(|pruner| pruner["last_run_at"].is_string()));

    let words = business.world.run(&["status"]).await.ok();
    for word in [
        "relay",
        "default",
        "consumer",
        "billing",
        &business.stream,
        "pruner",
        "outbox",
        "inbox billing",
        "100",
    ] {
        assert!(words.contains(word), "{word:?} is missing:\n{words}");
    }

    assert_eq!(running.terminate(SOON).await.code(), Some(0));
    let status = business.world.run(&["status", "--json"]).await.json();
    assert_eq!(status["relays"][0]["leased"], false, "the lease is given back");

    business.enqueue(101, 103).await;
    let status = business.world.run(&["status", "--json"]).await.json();
    assert_eq!(status["relays"][0]["pending"]["rows"], 3);
    assert!(status["relays"][0]["pending"]["oldest_ms"].is_u64(), "{status}");
}

#[tokio::test]
async fn without_nats_the_rest_is_shown() {
    let mut servers = PrivateServers::start(PostgresOptions::new().fast(), NatsOptions::new())
        .await
        .unwrap();
    let business = Business::of(World::on(&servers).await).await;
    let mut running = business.start(&[]);
    business.enqueue(1, 1).await;
    business.wait_for(1).await;
    assert_eq!(running.terminate(SOON).await.code(), Some(0), "{}", running.log());
    servers.nats.stop().await.unwrap();

    let shown = business.world.run(&["status", "--json"]).await;
    assert_eq!(shown.code, Some(0), "{shown:?}");
    let status: serde_json::Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(status["consumers"][0]["claimed"], 1);
    assert!(status["consumers"][0]["broker"].is_null());
    let words = business.world.run(&["status"]).await;
    assert!(words.stdout.contains("NATS does not answer"), "{words:?}");
}
