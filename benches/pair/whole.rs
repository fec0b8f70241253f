//! Row 11: the whole pair at once.

use crate::by_hand;
use crate::figure::{Better, Figure, in_turns};
use crate::house::{House, KEYS, Place, SUBJECTS, TRACEPARENT};
use crate::size::Size;
use crate::work::{self, OneByOne, Work};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use twinbox::config::{ConsumerSettings, RelaySettings};
use twinbox::inbox::{Consumer, ConsumerControl};
use twinbox::outbox::{Relay, RelayControl};

/// Messages that a producer's transaction enqueues, on both sides.
const AT_A_TIME: u64 = 100;
/// The producer waits while so many have not taken effect: the backlog can't grow.
const BACKLOG: u64 = 5000;
const WORK: Work = Work::SPREAD;
/// Until all of it runs.
const WARM_UP: Duration = Duration::from_secs(1);

/// Against the same by hand.
pub async fn against_hand(house: &House, size: &Size) -> Vec<Figure> {
    let place = house.place("whole").await;
    let time = Duration::from_secs(size.whole.into());
    let rounds = in_turns(
        size.rounds,
        async || ours(&place, time).await,
        async || hand(&place, time).await,
    )
    .await;
    let name = format!(
        "the whole pair, {} s without a growing backlog : by hand",
        size.whole
    );
    vec![Figure::new((11, &name), "messages/s", Better::More, 5.0, rounds)]
}

async fn ours(place: &Place, time: Duration) -> f64 {
    place.fresh_stream().await;
    place.sql("TRUNCATE twinbox.outbox, twinbox.inbox").await;
    work::prepare(place).await;
    let settings = ConsumerSettings {
        name: "whole".into(),
        stream: place.stream.clone(),
        ..ConsumerSettings::default()
    };
    let consumer = Consumer::builder(settings)
        .actor(">", || OneByOne(WORK))
        .build()
        .unwrap();
    let (subscription, _) = place.nats.subscribe(consumer.settings()).await.unwrap();
    let end = CancellationToken::new();
    let control = ConsumerControl::new(end.clone());
    let health = control.health();
    let store = place.store.clone();
    let consuming = tokio::spawn(async move { consumer.run(&store, Arc::new(subscription), control).await });
    let relay = Relay::new(place.store.clone(), place.nats.clone(), RelaySettings::default());
    let relaying = tokio::spawn(relay.run(RelayControl::new(end.clone())));
    let rate = produce(place, "twinbox.outbox", time, || health.borrow().settled).await;
    end.cancel();
    relaying.await.unwrap().unwrap();
    consuming.await.unwrap().unwrap();
    rate
}

async fn hand(place: &Place, time: Duration) -> f64 {
    place.fresh_stream().await;
    let pool = by_hand::prepare(place).await;
    work::prepare(place).await;
    let (end, settled) = (CancellationToken::new(), AtomicU64::new(0));
    let count = || {
        settled.fetch_add(1, Ordering::Relaxed);
    };
    let (rate, ()) = tokio::join!(
        async {
            let rate = produce(place, "outbox_by_hand", time, || settled.load(Ordering::Relaxed)).await;
            end.cancel();
            rate
        },
        by_hand::pair(place, &pool, WORK, &end, count)
    );
    pool.close().await;
    rate
}

/// Enqueues for as long as the time lasts, and returns how many messages took effect a second.
async fn produce(place: &Place, outbox: &str, time: Duration, settled: impl Fn() -> u64) -> f64 {
    let insert = format!(
        "INSERT INTO {outbox} (subject, key, headers, payload)
         SELECT $1 || '.' || g % $2, 'key-' || floor(random() * $3)::int, jsonb_build_object('traceparent', $4),
                convert_to(repeat('x', 256), 'UTF8')
         FROM generate_series(1, $5) g"
    );
    let begun = Instant::now();
    let mut enqueued = 0;
    let mut warm = None;
    loop {
        if warm.is_none() && begun.elapsed() >= WARM_UP {
            warm = Some((Instant::now(), settled()));
        }
        if let Some((since, before)) = warm
            && since.elapsed() >= time
        {
            let took_effect = u32::try_from(settled() - before).unwrap();
            return f64::from(took_effect) / since.elapsed().as_secs_f64();
        }
        if enqueued - settled() > BACKLOG {
            tokio::time::sleep(Duration::from_millis(2)).await;
            continue;
        }
        sqlx::query(sqlx::AssertSqlSafe(insert.clone()))
            .bind(place.subject())
            .bind(i64::from(SUBJECTS))
            .bind(f64::from(KEYS))
            .bind(TRACEPARENT)
            .bind(AT_A_TIME.cast_signed())
            .execute(place.store.pool())
            .await
            .unwrap();
        enqueued += AT_A_TIME;
    }
}
