//! Every committed row once, each key in its order, whatever the writers do.

use crate::bench::{Bench, numbers};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use twinbox::Message;
use twinbox::outbox::Outbox;
use twinbox::store::Store;
use twinbox::testing::wait_until;
use uuid::Uuid;

const KEYS: u64 = 64;

/// Numbers that look random and come again.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Transactions that change one of the keys, number the change under the key's lock, and tell of it. They commit out
/// of order, a tenth is rolled back, some take an id early, some stay open.
async fn write(store: Store, outbox: Outbox, subject: String, seed: u64, stop: Arc<AtomicBool>) -> Vec<Uuid> {
    let mut numbers = Numbers(seed * 7919 + 1);
    let mut committed = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let mut transaction = store.begin().await.unwrap();
        let kind = numbers.below(1000);
        if kind.is_multiple_of(2) {
            sqlx::query("SELECT pg_current_xact_id()")
                .execute(&mut *transaction)
                .await
                .unwrap();
        }
        let key = i64::try_from(numbers.below(KEYS)).unwrap();
        // Pauses are what makes transactions overlap.
        let pause = |milliseconds| tokio::time::sleep(Duration::from_millis(milliseconds));
        if kind < 300 {
            pause(numbers.below(20)).await;
        }
        let mut written = Vec::new();
        for _ in 0..1 + numbers.below(3) {
            let number: i64 = sqlx::query_scalar("UPDATE counted SET n = n + 1 WHERE key = $1 RETURNING n")
                .bind(key)
                .fetch_one(&mut *transaction)
                .await
                .unwrap();
            let message = Message::new(subject.as_str(), number.to_string()).key(format!("key-{key}"));
            written.push(outbox.enqueue(&mut transaction, message).await.unwrap());
        }
        if kind < 300 {
            pause(numbers.below(20)).await;
        }
        if kind < 3 {
            pause(1500).await;
        }
        if kind.is_multiple_of(10) {
            transaction.rollback().await.unwrap();
        } else {
            transaction.commit().await.unwrap();
            committed.extend(written);
        }
    }
    committed
}

async fn out_of_order_commits(page_rows: u32, stalled: Duration) {
    let mut bench = Bench::new().await;
    bench.settings.page_rows = page_rows;
    sqlx::raw_sql("CREATE TABLE counted (key bigint PRIMARY KEY, n bigint NOT NULL)")
        .execute(bench.store.pool())
        .await
        .unwrap();
    sqlx::query("INSERT INTO counted SELECT key, 0 FROM generate_series(0, 63) AS key")
        .execute(bench.store.pool())
        .await
        .unwrap();
    let mut database = bench.database.clone();
    database.max_connections = 16;
    let store = Store::connect(&database).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..16)
        .map(|seed| {
            let (outbox, subject) = (bench.outbox.clone(), bench.subject("counted"));
            tokio::spawn(write(store.clone(), outbox, subject, seed, stop.clone()))
        })
        .collect();
    // What is written while the relay is away is one large span, read in many pages.
    tokio::time::sleep(stalled).await;
    let relay = bench.relay().await;
    // For so long everything happens at once.
    tokio::time::sleep(Duration::from_secs(4)).await;
    stop.store(true, Ordering::Relaxed);
    let mut committed = HashSet::new();
    for writer in writers {
        committed.extend(writer.await.unwrap());
    }
    let stored = bench.stored(committed.len()).await;
    let ids: HashSet<Uuid> = stored.iter().map(|message| message.id()).collect();
    assert_eq!(ids.len(), stored.len(), "none twice");
    assert_eq!(ids, committed, "all that were committed, and no others");
    let mut last: HashMap<&str, usize> = HashMap::new();
    for message in &stored {
        let last = last.entry(&message.headers["Twinbox-Key"]).or_default();
        assert_eq!(message.number(), *last + 1, "the next of its key");
        *last = message.number();
    }
    bench.is_settled().await;
    assert_eq!(
        bench.count("SELECT published FROM twinbox.relay").await,
        i64::try_from(stored.len()).unwrap()
    );
    relay.drain().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_order_commits_in_pages_of_3() {
    out_of_order_commits(3, Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_order_commits_in_pages_of_40_after_a_stall() {
    out_of_order_commits(40, Duration::from_secs(3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_order_commits_in_pages_of_500() {
    out_of_order_commits(500, Duration::from_millis(500)).await;
}

#[tokio::test]
async fn an_open_transaction_holds_up_its_own_messages_only() {
    let bench = Bench::new().await;
    let relay = bench.leader().await;
    let mut open = bench.begin().await;
    bench.outbox.enqueue(&mut open, bench.message(0)).await.unwrap();
    for number in 1..20 {
        bench.enqueue(bench.message(number)).await;
        if number % 5 == 0 {
            let expected: Vec<usize> = (1..=number).collect();
            assert_eq!(numbers(&bench.stored(number).await), expected, "not held up");
        }
    }
    bench.stored(19).await;
    open.commit().await.unwrap();
    let stored = bench.stored(20).await;
    assert_eq!(stored[19].number(), 0);
    relay.drain().await;
}

#[tokio::test]
async fn a_page_is_bounded_by_bytes_and_one_large_message_goes_alone() {
    let mut bench = Bench::new().await;
    bench.settings.page_bytes = 64 * 1024;
    let sizes = [200_000, 10, 40_000, 40_000, 300_000, 300_000, 1, 60_000, 5_000];
    let bodies = sizes.iter().map(|size| vec![b'x'; *size]);
    let subject = bench.subject("large");
    bench
        .enqueue_all(bodies.map(|body| Message::new(subject.as_str(), body).key("k")))
        .await;
    let relay = bench.leader().await;
    let stored = bench.stored(sizes.len()).await;
    assert_eq!(
        stored
            .iter()
            .map(|message| message.payload.len())
            .collect::<Vec<_>>(),
        sizes
    );
    relay.drain().await;
}

#[tokio::test]
async fn rolled_back_rows_alone_leave_nothing_to_do() {
    let bench = Bench::new().await;
    let relay = bench.leader().await;
    for number in 0..50 {
        let mut transaction = bench.begin().await;
        bench
            .outbox
            .enqueue(&mut transaction, bench.message(number))
            .await
            .unwrap();
        transaction.rollback().await.unwrap();
    }
    bench.enqueue(bench.message(50)).await;
    assert_eq!(numbers(&bench.stored(1).await), [50]);
    wait_until("the relay sleeps", crate::bench::DEADLINE, || async {
        bench.count("SELECT count(*) FROM twinbox.relay_asleep").await == 1
    })
    .await;
    relay.drain().await;
}
