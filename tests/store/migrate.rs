use crate::store_in;
use twinbox::store::{migrate, migration_state};

#[tokio::test]
async fn many_instances_migrate_at_once() {
    let store = store_in("twinbox").await;
    assert_eq!(migration_state(&store).await.unwrap().applied, 0);
    let all = futures_util::future::join_all((0..8).map(|_| migrate(&store))).await;
    for state in all {
        let state = state.unwrap();
        assert!(state.is_current() && state.newer == 0, "{state:?}");
    }
    assert!(migration_state(&store).await.unwrap().is_current());
}

#[tokio::test]
async fn two_schemas_live_in_one_database() {
    let one = store_in("billing_messages").await;
    migrate(&one).await.unwrap();
    let settings = twinbox::config::DatabaseSettings {
        url: one_url(&one).await.into(),
        schema: twinbox::store::Schema::new("ledger_messages").unwrap(),
        ..Default::default()
    };
    let other = twinbox::store::Store::connect(&settings).await.unwrap();
    migrate(&other).await.unwrap();
    let enqueued: i64 =
        sqlx::query_scalar("SELECT count(*) FROM (SELECT billing_messages.enqueue('a', 'x')) AS e")
            .fetch_one(one.pool())
            .await
            .unwrap();
    assert_eq!(enqueued, 1);
    for (schema, rows) in [("billing_messages", 1_i64), ("ledger_messages", 0)] {
        let found: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
            "SELECT count(*) FROM {schema}.outbox"
        )))
        .fetch_one(one.pool())
        .await
        .unwrap();
        assert_eq!(found, rows, "{schema}");
    }
}

async fn one_url(store: &twinbox::store::Store) -> String {
    use sqlx::ConnectOptions as _;
    store.direct().to_url_lossy().to_string()
}
