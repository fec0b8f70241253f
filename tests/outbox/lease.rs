//! One relay publishes, others stand by and take over.

use crate::bench::{Bench, DEADLINE, Running, connect, numbers};
use crate::publishers::{Asking, Stop};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use twinbox::outbox::RelayRole;
use twinbox::store::Store;
use twinbox::testing::wait_until;

/// Relays of their own runtime, on a thread of their own: they can be stalled, or vanish.
pub struct Elsewhere {
    runtime: Option<tokio::runtime::Runtime>,
}

impl Elsewhere {
    pub fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        Self {
            runtime: Some(runtime),
        }
    }

    /// Starts a relay there, whose publisher `wrap` makes.
    pub async fn relay(
        &self,
        bench: &Bench,
        wrap: impl FnOnce(Arc<dyn twinbox::broker::Publisher>) -> Arc<Asking> + Send + 'static,
    ) -> (Running, Arc<Asking>) {
        let (database, url, settings) = (
            bench.database.clone(),
            bench.nats_url.clone(),
            bench.settings.clone(),
        );
        let start = async move {
            let publisher = wrap(connect(&url, "relay elsewhere").await);
            let store = Store::connect(&database).await.unwrap();
            (Running::start(store, publisher.clone(), settings), publisher)
        };
        self.runtime.as_ref().unwrap().spawn(start).await.unwrap()
    }

    /// All of it is gone, in the middle of whatever it does.
    pub fn vanish(mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[tokio::test]
async fn a_standby_takes_over_at_once_after_a_clean_release() {
    let bench = Bench::new().await;
    let first = bench.leader().await;
    let second = bench.relay().await;
    second
        .until("the second stands by", |health| {
            health.role == RelayRole::Standby && health.ready
        })
        .await;
    bench.enqueue(bench.message(0)).await;
    bench.stored(1).await;
    assert_eq!(second.health().published, 0);

    let asked = Instant::now();
    first.drain().await;
    second.leads().await;
    assert!(asked.elapsed() < bench.settings.lease, "{:?}", asked.elapsed());
    assert_eq!(second.health().epoch, 2);
    bench.enqueue(bench.message(1)).await;
    assert_eq!(numbers(&bench.stored(2).await), [0, 1]);
    second.drain().await;
}

#[tokio::test]
async fn a_standby_takes_over_from_one_that_vanished() {
    let bench = Bench::new().await;
    let elsewhere = Elsewhere::new();
    let (first, _) = elsewhere.relay(&bench, Asking::counting).await;
    first.leads().await;
    bench.enqueue(bench.message(0)).await;
    bench.stored(1).await;
    let second = bench.relay().await;
    second
        .until("the second stands by", |health| health.role == RelayRole::Standby)
        .await;

    elsewhere.vanish();
    let vanished = Instant::now();
    bench.enqueue(bench.message(1)).await;
    second.leads().await;
    assert!(
        vanished.elapsed() < bench.settings.lease * 2,
        "{:?}",
        vanished.elapsed()
    );
    assert_eq!(numbers(&bench.stored(2).await), [0, 1]);
    second.drain().await;
}

#[tokio::test]
async fn a_stalled_holder_wakes_up_fenced_and_gives_up_its_connection() {
    let bench = Bench::new().await;
    let stop = Arc::new(Stop::default());
    let elsewhere = Elsewhere::new();
    let gate = stop.clone();
    let (first, publisher) = elsewhere
        .relay(&bench, |nats| {
            Asking::new(nats, move |number, _| {
                if number >= 40 {
                    gate.pass();
                }
                None
            })
        })
        .await;
    first.leads().await;
    stop.close();
    bench
        .enqueue_all((0..200).map(|number| bench.message(number).key(format!("key-{}", number % 20))))
        .await;
    wait_until("the first is stalled", DEADLINE, || async {
        stop.reached.load(Ordering::Relaxed)
    })
    .await;

    let second = bench.leader().await;
    assert_eq!(second.health().epoch, 2);
    bench.stored(200).await;
    bench.is_settled().await;
    let row =
        "SELECT epoch || ' ' || settled::text || ' ' || position || ' ' || published FROM twinbox.relay";
    let settled: String = sqlx::query_scalar(row)
        .fetch_one(bench.store.pool())
        .await
        .unwrap();
    let published = publisher.published();

    stop.open();
    wait_until("the first gives up its connection", DEADLINE, || async {
        publisher.reconnects.load(Ordering::Relaxed) > 0
    })
    .await;
    first
        .until("the first stands by", |health| health.role == RelayRole::Standby)
        .await;
    // The publish at which it was stalled, and no other.
    assert_eq!(publisher.published(), published);
    let now: String = sqlx::query_scalar(row)
        .fetch_one(bench.store.pool())
        .await
        .unwrap();
    assert_eq!(now, settled, "it has written nothing");

    // In the order of the log for each key, whatever came twice.
    let stored = bench.stored(200).await;
    for key in 0..20 {
        let of_key: Vec<usize> = numbers(&stored)
            .into_iter()
            .filter(|number| number % 20 == key)
            .collect();
        assert!(of_key.is_sorted(), "{of_key:?}");
    }
    bench.enqueue(bench.message(200)).await;
    bench.stored(201).await;
    second.drain().await;
    first.leads().await;
    bench.enqueue(bench.message(201)).await;
    bench.stored(202).await;
    first.drain().await;
}

#[tokio::test]
async fn one_of_many_leads_at_a_time() {
    let bench = Bench::new().await;
    let mut relays = Vec::new();
    for _ in 0..3 {
        relays.push(bench.relay().await);
    }
    for round in 0..3 {
        wait_until("one leads", DEADLINE, || {
            let leaders = relays
                .iter()
                .filter(|relay| relay.health().role == RelayRole::Leader)
                .count();
            async move { if leaders == 1 { Ok(()) } else { Err(leaders) } }
        })
        .await;
        bench.enqueue(bench.message(round)).await;
        assert_eq!(
            numbers(&bench.stored(round + 1).await),
            (0..=round).collect::<Vec<_>>()
        );
        let leader = relays
            .iter()
            .position(|relay| relay.health().role == RelayRole::Leader)
            .unwrap();
        relays.remove(leader).drain().await;
    }
    assert_eq!(bench.count("SELECT published FROM twinbox.relay").await, 3);
}

#[tokio::test]
async fn a_relay_that_is_dropped_drains() {
    let bench = Bench::new().await;
    let relay = bench.leader().await;
    bench.enqueue(bench.message(0)).await;
    bench.stored(1).await;
    relay.drop_it();
    wait_until("the lease is given back", Duration::from_secs(5), || async {
        bench
            .count("SELECT count(*) FROM twinbox.relay WHERE holder IS NULL AND published = 1")
            .await
            == 1
    })
    .await;
}
