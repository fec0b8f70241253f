//! What another process held, or did and could not say, before it was gone.

use crate::house::{DEADLINE, House, Memory, acting, open};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use sqlx::ConnectOptions as _;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};
use twinbox::broker::{BrokerError, ConsumerState, Incoming, ReceiptHandle, Subscription};
use twinbox::config::{ConsumerSettings, Retention};
use twinbox::testing;

/// A process that died of it between commit and acknowledgement, as the broker sees it: nothing is ever acknowledged.
struct Mute(Arc<dyn Subscription>);

struct NoAnswer;

impl ReceiptHandle for NoAnswer {
    fn acknowledge(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        Box::pin(async { Ok(()) })
    }

    fn in_progress(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        Box::pin(async { Ok(()) })
    }
}

impl Subscription for Mute {
    fn messages(
        &self,
    ) -> BoxFuture<'_, Result<BoxStream<'static, Result<Incoming, BrokerError>>, BrokerError>> {
        Box::pin(async {
            let messages = self.0.messages().await?.map(|message| {
                message.map(|message| Incoming {
                    receipt_handle: Some(Box::new(NoAnswer)),
                    ..message
                })
            });
            Ok(messages.boxed())
        })
    }

    fn read(&self, sequences: RangeInclusive<u64>) -> BoxStream<'static, Result<Incoming, BrokerError>> {
        self.0.read(sequences)
    }

    fn state(&self) -> BoxFuture<'_, Result<ConsumerState, BrokerError>> {
        self.0.state()
    }

    fn recreate(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        self.0.recreate()
    }

    fn is_connected(&self) -> bool {
        self.0.is_connected()
    }

    fn connections(&self) -> u64 {
        self.0.connections()
    }

    fn ack_wait(&self) -> Duration {
        self.0.ack_wait()
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        self.0.flush()
    }
}

#[tokio::test]
async fn what_was_committed_and_not_acknowledged_is_skipped() {
    let house = House::new().await;
    let settings = ConsumerSettings {
        ack_wait: Duration::from_secs(1),
        handler_deadline: Duration::from_millis(500),
        ..house.settings("billing")
    };
    for n in 0..50 {
        house.send(&format!("key-{}", n % 5), n, "").await;
    }
    let mute = Arc::new(Mute(house.subscribe(&settings).await));
    let dying = house.run_by(mute, acting(settings.clone(), &Memory::default()));
    house.until_effects(50).await;
    dying.stop().await;
    let running = house.run(settings.clone(), &Memory::default()).await;
    house.until_quiet(&settings).await;
    running.stop().await;
    assert_eq!(house.count("effect").await, 50);
    assert!(twinbox::inbox::status(&house.store).await.unwrap()[0].duplicates >= 50);
}

async fn order_holds_over_a_crash(retention: Retention) {
    let house = House::with(retention).await;
    // Long: recovery must not wait for it.
    let settings = ConsumerSettings {
        ack_wait: Duration::from_secs(300),
        ..house.settings("billing")
    };
    let subscription = house.subscribe(&settings).await;
    for n in 0..40 {
        house.send(&format!("key-{}", n % 4), n, "").await;
    }
    // A process took these and is gone; it had acknowledged some in between.
    let mut messages = subscription.messages().await.unwrap();
    for n in 0..40 {
        let message = messages.next().await.unwrap().unwrap();
        if n % 10 == 3 {
            record(&house, n).await;
            message.receipt_handle.unwrap().acknowledge().await.unwrap();
        }
    }
    testing::wait_until("the acknowledgements are there", DEADLINE, || async {
        subscription.state().await.unwrap().ack_pending == 36
    })
    .await;
    drop(messages);
    for n in 40..80 {
        house.send(&format!("key-{}", n % 4), n, "").await;
    }
    let begun = Instant::now();
    let running = house.run(settings.clone(), &Memory::default()).await;
    house.until_effects(80).await;
    assert!(
        begun.elapsed() < Duration::from_secs(60),
        "it waited for the ack wait"
    );
    running.stop().await;
    for key in 0..4 {
        let mut effects = house.effects(&format!("key-{key}")).await;
        // Those that were acknowledged took effect before.
        effects.retain(|n| !(n % 10 == 3 && *n < 40));
        let wanted: Vec<i32> = (0..80)
            .filter(|n| n % 4 == key && !(n % 10 == 3 && *n < 40))
            .collect();
        assert_eq!(effects, wanted, "order of key {key}");
    }
    assert_eq!(house.count("effect").await, 80);
}

/// What the process that is gone did for a message that it acknowledged: its claim and effect.
async fn record(house: &House, n: i32) {
    sqlx::query("INSERT INTO effect (consumer, key, n) VALUES ('billing', $1, $2)")
        .bind(format!("key-{}", n % 4))
        .bind(n)
        .execute(house.store.pool())
        .await
        .unwrap();
    sqlx::raw_sql(
        "INSERT INTO twinbox.consumer (name, stream) VALUES ('billing', '') ON CONFLICT DO NOTHING;
         INSERT INTO twinbox.stream (name, created_at) VALUES ('', now()) ON CONFLICT DO NOTHING",
    )
    .execute(house.store.pool())
    .await
    .unwrap();
    let message = house
        .nats
        .jetstream()
        .get_stream(&house.stream.name)
        .await
        .unwrap();
    let message = message
        .get_raw_message(u64::try_from(n + 1).unwrap())
        .await
        .unwrap();
    let id: uuid::Uuid = message
        .headers
        .get("Twinbox-Id")
        .unwrap()
        .as_str()
        .parse()
        .unwrap();
    sqlx::query(
        "INSERT INTO twinbox.inbox (message_id, sequence, consumer, stream)
         SELECT $1, $2, c.id, s.id FROM twinbox.consumer c, twinbox.stream s WHERE c.name = 'billing' LIMIT 1",
    )
    .bind(id)
    .bind(i64::from(n) + 1)
    .execute(house.store.pool())
    .await
    .unwrap();
}

#[tokio::test]
async fn order_holds_over_a_crash_on_a_limits_stream() {
    order_holds_over_a_crash(Retention::Limits).await;
}

#[tokio::test]
async fn order_holds_over_a_crash_on_a_work_queue() {
    order_holds_over_a_crash(Retention::WorkQueue).await;
}

#[tokio::test]
async fn order_holds_over_a_crash_on_an_interest_stream() {
    order_holds_over_a_crash(Retention::Interest).await;
}

#[tokio::test]
async fn a_process_that_is_gone_in_the_middle_leaves_nothing_half_done() {
    let house = House::new().await;
    let settings = house.settings("billing");
    for n in 0..600 {
        house.send(&format!("key-{}", n % 30), n, "").await;
    }
    let url = house.store.direct().to_url_lossy().to_string();
    for crash in 1..=4 {
        // A process: a runtime of its own, whose tasks are all gone at once.
        let (url, settings) = (url.clone(), settings.clone());
        let stream = house.stream.clone();
        let wanted = crash * 100;
        let nats_url = testing::servers().await.nats.url();
        let process = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let house = House {
                    store: open(&url).await,
                    nats: crate::house::connect(&nats_url).await,
                    stream,
                };
                let running = house.run(settings, &Memory::default()).await;
                house.until_effects(wanted).await;
                std::mem::forget(running);
            });
            runtime.shutdown_background();
        });
        process.await.unwrap();
    }
    let running = house.run(settings.clone(), &Memory::default()).await;
    house.until_effects(600).await;
    running.stop().await;
    for key in 0..30 {
        let wanted: Vec<i32> = (0..600).filter(|n| n % 30 == key).collect();
        assert_eq!(
            house.effects(&format!("key-{key}")).await,
            wanted,
            "order of key {key}"
        );
    }
    assert_eq!(house.dead().await.len(), 0);
}

#[tokio::test]
async fn a_drain_finishes_the_batch_in_hand_and_the_next_process_goes_on() {
    let house = House::new().await;
    let settings = ConsumerSettings {
        batch: 5,
        ..house.settings("billing")
    };
    for n in 0..40 {
        house.send(&format!("key-{}", n % 4), n, "slow").await;
    }
    let memory = Memory::default();
    let running = house.run(settings.clone(), &memory).await;
    testing::wait_until("it is in the middle of a batch", DEADLINE, || async {
        (0..4).any(|n| memory.runs(n) > 0)
    })
    .await;
    running.stop().await;
    let done = house.count("effect").await;
    assert!((1..40).contains(&done), "{done} were done");
    assert_eq!(house.count("twinbox.inbox").await, done);
    let running = house.run(settings.clone(), &Memory::default()).await;
    house.until_effects(40).await;
    running.stop().await;
    for key in 0..4 {
        let wanted: Vec<i32> = (0..40).filter(|n| n % 4 == key).collect();
        assert_eq!(house.effects(&format!("key-{key}")).await, wanted);
    }
}

#[tokio::test]
async fn slow_handlers_are_not_run_a_second_time_beside_the_first() {
    let house = House::new().await;
    // All of it takes several times the ack wait.
    let settings = ConsumerSettings {
        ack_wait: Duration::from_secs(1),
        handler_deadline: Duration::from_millis(900),
        lanes: 1,
        ..house.settings("billing")
    };
    for n in 0..12 {
        house.send("k", n, "slow").await;
    }
    let memory = Memory::default();
    let running = house.run(settings.clone(), &memory).await;
    house.until_effects(12).await;
    house.until_quiet(&settings).await;
    running.stop().await;
    for n in 0..12 {
        assert_eq!(memory.runs(n), 1, "runs of {n}");
    }
    assert_eq!(house.effects("k").await, (0..12).collect::<Vec<i32>>());
}

#[tokio::test]
async fn a_consumer_that_somebody_deletes_is_made_anew_behind_the_inbox() {
    let house = House::new().await;
    let settings = house.settings("billing");
    let memory = Memory::default();
    let running = house.run(settings.clone(), &memory).await;
    for n in 0..20 {
        house.send("k", n, "").await;
    }
    house.until_effects(20).await;
    house
        .nats
        .jetstream()
        .delete_consumer_from_stream("billing", &house.stream.name)
        .await
        .unwrap();
    for n in 20..40 {
        house.send("k", n, "").await;
    }
    house.until_effects(40).await;
    house.until_quiet(&settings).await;
    running.stop().await;
    assert_eq!(house.effects("k").await, (0..40).collect::<Vec<i32>>());
    assert!((0..40).all(|n| memory.runs(n) == 1));
}
