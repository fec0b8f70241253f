//! `twinbox prune`

use crate::SOON;
use crate::business::Business;
use crate::world::World;

#[tokio::test]
async fn a_dry_run_counts_and_removes_nothing() {
    let business = Business::new().await;
    let mut running = business.start(&["--roles", "relay,consumer"]);
    business.enqueue(1, 50).await;
    business.wait_for(50).await;
    business.wait_until_quiet().await;
    assert_eq!(running.terminate(SOON).await.code(), Some(0));

    let now = ["--set", "pruner.outbox_retention=0s"];
    let dry = business
        .world
        .run(&[&["prune", "--dry-run", "--json"], &now[..]].concat())
        .await
        .json();
    assert_eq!(
        (&dry[0]["name"], &dry[0]["rows"]),
        (&"outbox".into(), &50.into()),
        "{dry}"
    );
    assert_eq!(
        (&dry[1]["name"], &dry[1]["rows"]),
        (&"inbox billing".into(), &0.into()),
        "{dry}"
    );
    assert!(
        dry[1]["proof"].as_str().unwrap().contains("the stream begins at"),
        "{dry}"
    );
    assert!(dry[1]["keep_s"].as_u64() > Some(3 * 24 * 3600), "{dry}");
    assert_eq!(
        business.world.count("SELECT count(*) FROM twinbox.outbox").await,
        50
    );

    let words = business
        .world
        .run(&[&["prune", "--dry-run"], &now[..]].concat())
        .await
        .ok();
    assert!(
        words.contains("would remove") && words.contains("inbox billing"),
        "{words}"
    );

    let done = business
        .world
        .run(&[&["prune", "--json"], &now[..]].concat())
        .await
        .json();
    assert_eq!(done[0]["rows"], 50);
    assert_eq!(
        business.world.count("SELECT count(*) FROM twinbox.outbox").await,
        0
    );
    assert_eq!(
        business.world.count("SELECT count(*) FROM twinbox.inbox").await,
        50
    );
}

#[tokio::test]
async fn without_a_broker_nothing_is_proved() {
    let world = World::new().await;
    world.run(&["migrate"]).await.ok();
    world.settings("[[consumers]]\nname = \"c\"\nstream = \"S\"\n[[consumers.handlers]]\nsql = \"SELECT 1\"");
    let error = world
        .run(&[
            "prune",
            "--nats-url",
            "nats://127.0.0.1:1",
            "--set",
            "nats.request_timeout=1s",
        ])
        .await
        .error(1);
    assert!(error.contains("127.0.0.1:1"), "{error}");
}
