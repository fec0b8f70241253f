//! sqlx 0.9.0 can put a connection that is inside a transaction back into the pool (issues 4385 and 4393). These tests
//! show that the fault is there, so that the way round it can go when it is not, and that the way round it works.

use crate::store_in;
use futures_util::FutureExt as _;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;
use twinbox::store::Store;
use twinbox::testing;

/// Polls a future up to `times` times, letting the server answer in between, then drops it.
async fn drop_after<F: Future>(future: F, times: usize) {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..times {
        if future.as_mut().poll(&mut context).is_ready() {
            return;
        }
        // Not a wait for a condition: it moves on to another place to drop at.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// How many connections of the pool are inside a transaction although nobody holds one.
async fn poisoned(store: &Store) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND state = 'idle in transaction'",
    )
    .fetch_one(store.pool())
    .await
    .unwrap()
}

#[tokio::test]
async fn a_dropped_begin_of_ours_leaves_no_transaction_behind() {
    let store = store_in("twinbox").await;
    sqlx::query("CREATE TABLE written (n int)")
        .execute(store.pool())
        .await
        .unwrap();
    for round in 0..40 {
        drop_after(store.begin(), round % 8).await;
    }
    testing::wait_until(
        "no connection is inside a transaction",
        Duration::from_secs(10),
        || async {
            match poisoned(&store).await {
                0 => Ok(()),
                others => Err(format!("{others} are")),
            }
        },
    )
    .await;
    // What is written outside a transaction now must be there for everybody.
    for n in 0..20 {
        sqlx::query("INSERT INTO written VALUES ($1)")
            .bind(n)
            .execute(store.pool())
            .await
            .unwrap();
    }
    let other = Store::connect(&settings_of(&store)).await.unwrap();
    let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM written")
        .fetch_one(other.pool())
        .await
        .unwrap();
    assert_eq!(seen, 20);
}

#[tokio::test]
async fn the_fault_is_still_in_sqlx() {
    let store = store_in("twinbox").await;
    let mut found = 0;
    for round in 0..40 {
        #[expect(clippy::disallowed_methods, reason = "it is what the test is about")]
        let begin = store.pool().begin();
        drop_after(begin, round % 8).await;
        found = found.max(poisoned(&store).now_or_never().unwrap_or(poisoned(&store).await));
    }
    assert!(
        found > 0,
        "a dropped Pool::begin() no longer leaves a transaction in the pool: src/store/transaction.rs may be made simpler"
    );
}

fn settings_of(store: &Store) -> twinbox::config::DatabaseSettings {
    use sqlx::ConnectOptions as _;
    twinbox::config::DatabaseSettings {
        url: store.direct().to_url_lossy().to_string().into(),
        ..Default::default()
    }
}
