//! `twinbox enqueue`

use crate::business::Business;
use crate::world::World;

#[tokio::test]
async fn what_is_enqueued_has_its_effect() {
    let business = Business::new().await;
    let subject = business.subject("placed");
    let id = "01890a5d-ac96-774b-bcce-b302099a8057";
    let args = [
        "enqueue",
        &subject,
        r#"{"n": 1}"#,
        "--key",
        "k",
        "--header",
        "Event-Type=OrderPlaced",
        "--header",
        "note=a=b",
        "--id",
        id,
        "--json",
    ];
    assert_eq!(business.world.run(&args).await.json()["message_id"], id);
    let piped = business
        .world
        .run_with(&["enqueue", &subject, "-"], "from a pipe\n")
        .await
        .ok();
    assert_eq!(piped.trim().len(), 36, "the id: {piped}");

    let _running = business.start(&[]);
    business.wait_for(2).await;
    let effects = business.effects().await;
    let given = effects
        .iter()
        .find(|effect| effect.message_id.to_string() == id)
        .unwrap();
    assert_eq!(given.text(), r#"{"n": 1}"#);
    assert_eq!(
        (given.key.as_deref(), given.kind.as_deref()),
        (Some("k"), Some("OrderPlaced"))
    );
    assert_eq!(given.headers["note"], "a=b");
    let from_pipe = effects
        .iter()
        .find(|effect| effect.message_id.to_string() == piped.trim())
        .unwrap();
    assert_eq!(from_pipe.text(), "from a pipe\n");
}

#[tokio::test]
async fn what_no_broker_would_take_is_refused() {
    let world = World::new().await;
    world.run(&["migrate"]).await.ok();
    for (args, told) in [
        (vec!["orders.*", "x"], "wildcard"),
        (vec!["orders..a", "x"], "empty token"),
        (vec!["$JS.API", "x"], "$"),
        (vec!["", "x"], "is empty"),
        (vec!["a", "x", "--key", ""], "is empty"),
        (vec!["a", "x", "--header", "Nats-Msg-Id=1"], "begins with Nats-"),
        (vec!["a", "x", "--header", "a b=1"], "header"),
    ] {
        let error = world.run(&[&["enqueue"], &args[..]].concat()).await.error(1);
        assert!(error.contains(told), "{args:?}: {error}");
    }
    assert_eq!(world.count("SELECT count(*) FROM twinbox.outbox").await, 0);
}

#[tokio::test]
async fn a_database_without_tables_says_what_to_run() {
    let world = World::new().await;
    for command in [
        &["enqueue", "a", "b"][..],
        &["status"],
        &["prune", "--dry-run"],
        &["dead", "list"],
        &["dead", "show", "1"],
        &["dead", "requeue", "--all"],
    ] {
        let error = world.run(command).await.error(1);
        assert!(error.contains("`twinbox migrate`"), "{command:?}: {error}");
    }
}
