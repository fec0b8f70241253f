//! What is settled and old goes, and nothing else.

use crate::bench::{Bench, DEADLINE};
use std::time::Duration;
use twinbox::outbox::{prune_settled, relay_statuses};
use twinbox::testing::wait_until;

#[tokio::test]
async fn only_rows_that_every_relay_has_settled_and_that_are_old_go() {
    let bench = Bench::new().await;
    assert_eq!(prune_settled(&bench.store, Duration::ZERO, 10).await.unwrap(), 0);
    bench
        .enqueue_all((0..95).map(|number| bench.message(number)))
        .await;
    assert_eq!(
        prune_settled(&bench.store, Duration::ZERO, 10).await.unwrap(),
        0,
        "no relay"
    );
    let relay = bench.leader().await;
    bench.stored(95).await;
    bench.is_settled().await;
    wait_until("a checkpoint is taken", DEADLINE, || async {
        bench.count("SELECT count(*) FROM twinbox.checkpoint").await > 0
    })
    .await;
    let mut open = bench.begin().await;
    bench.outbox.enqueue(&mut open, bench.message(95)).await.unwrap();
    bench
        .enqueue_all((96..101).map(|number| bench.message(number)))
        .await;
    bench.stored(100).await;
    wait_until("the rest is settled", DEADLINE, || async {
        bench.count("SELECT published FROM twinbox.relay").await == 100
    })
    .await;
    relay.drain().await;
    bench.enqueue(bench.message(101)).await;

    let hour = Duration::from_secs(3600);
    assert_eq!(
        prune_settled(&bench.store, hour, 10).await.unwrap(),
        0,
        "too young"
    );
    bench
        .execute("INSERT INTO twinbox.relay (name, cluster) SELECT 'other', cluster FROM twinbox.relay")
        .await;
    assert_eq!(
        prune_settled(&bench.store, Duration::ZERO, 10).await.unwrap(),
        0,
        "another relay needs them"
    );
    bench
        .execute("DELETE FROM twinbox.relay WHERE name = 'other'")
        .await;
    assert_eq!(
        prune_settled(&bench.store, Duration::ZERO, 10).await.unwrap(),
        100
    );
    open.commit().await.unwrap();
    assert_eq!(bench.count("SELECT count(*) FROM twinbox.outbox").await, 2);
    let pending = relay_statuses(&bench.store)
        .await
        .unwrap()
        .remove(0)
        .pending
        .unwrap();
    assert_eq!((pending.rows, pending.or_more), (2, false));
    assert!(pending.oldest.unwrap() < hour);
    assert_eq!(
        bench.count("SELECT count(*) FROM twinbox.checkpoint").await,
        1,
        "the newest checkpoint stays"
    );

    let relay = bench.leader().await;
    bench.stored(102).await;
    bench.is_settled().await;
    assert_eq!(prune_settled(&bench.store, Duration::ZERO, 10).await.unwrap(), 2);
    relay.drain().await;
}
