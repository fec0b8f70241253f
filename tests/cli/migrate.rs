//! `twinbox migrate`

use crate::world::{World, alone};

#[tokio::test]
async fn tables_are_made_once_and_checked_before() {
    let world = World::new().await;
    let before = world.run(&["migrate", "--check", "--json"]).await;
    assert_eq!(before.code, Some(1));
    let before: serde_json::Value = serde_json::from_str(&before.stdout).unwrap();
    assert_eq!((&before["applied"], &before["newer"]), (&0.into(), &0.into()));
    let words = world.run(&["migrate", "--check"]).await;
    assert!(words.stdout.contains("run `twinbox migrate`"), "{words:?}");

    let after = world.run(&["migrate", "--json"]).await.json();
    assert_eq!(after["applied"], after["known"]);
    assert!(
        world
            .run(&["migrate"])
            .await
            .ok()
            .contains("schema twinbox is up to date")
    );
    assert!(
        world
            .run(&["migrate", "--check"])
            .await
            .ok()
            .contains("up to date")
    );
}

#[tokio::test]
async fn several_at_once_do_not_disturb_each_other() {
    let world = World::new().await;
    let args = ["migrate", "--schema", "pair", "--json"];
    let (one, two, three) = tokio::join!(world.run(&args), world.run(&args), world.run(&args));
    for ended in [one, two, three] {
        let state = ended.json();
        assert_eq!(state["applied"], state["known"]);
    }
    assert_eq!(
        world
            .count("SELECT count(*) FROM pg_namespace WHERE nspname IN ('pair', 'twinbox')")
            .await,
        1
    );
}

#[test]
fn a_database_that_is_away_is_named_without_its_password() {
    let url = "postgres://app:hush@127.0.0.1:1/orders";
    for command in [
        &["migrate"][..],
        &["status"],
        &["prune", "--dry-run"],
        &["enqueue", "a", "b"],
        &["dead", "list"],
    ] {
        let error = alone(
            &[
                command,
                &["--database-url", url, "--set", "database.acquire_timeout=300ms"],
            ]
            .concat(),
        )
        .error(1);
        assert!(error.contains("app:***@127.0.0.1:1/orders"), "{error}");
        assert!(
            error.contains("--database-url") && !error.contains("hush"),
            "{error}"
        );
    }
}
