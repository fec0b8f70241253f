//! Row 8: how long it takes from COMMIT until the effect is visible.

use crate::figure::{Better, Figure, quantile};
use crate::house::{House, Place};
use crate::size::Size;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval};
use twinbox::config::{ConsumerSettings, Settings};
use twinbox::inbox::{BusinessActor, Consumer, Event, HandlerError, InboxTransaction};
use twinbox::{Message, Outbox, Service, testing};

/// Messages a second.
const PACE: u32 = 500;
const DEADLINE: Duration = Duration::from_secs(60);

/// At a steady pace, and after a time without any message.
pub async fn from_commit(house: &House, size: &Size) -> Vec<Figure> {
    let place = house.place("latency").await;
    place.sql("CREATE TABLE effect (n bigint PRIMARY KEY)").await;
    place.fresh_stream().await;
    let mut settings = Settings {
        database: place.database.clone(),
        nats: place.broker.clone(),
        ..Settings::default()
    };
    settings.streams.push(place.stream_settings());
    let consumer = ConsumerSettings {
        name: "effects".into(),
        stream: place.stream.clone(),
        subjects: vec![format!("{}.effect", place.subject())],
        ..ConsumerSettings::default()
    };
    let consumer = Consumer::builder(consumer)
        .actor(">", || Effects)
        .build()
        .unwrap();
    let service = Service::new(settings).consumer(consumer).start().await.unwrap();
    testing::wait_until("the pair is ready", DEADLINE, || async { service.is_ready() }).await;

    let (mut median, mut tail, mut first) = (Vec::new(), Vec::new(), Vec::new());
    let messages = PACE * size.latency;
    let mut number = 0;
    for _ in 0..size.rounds {
        let bare = bare(&place, messages).await;
        let ours = ours(&place, number, messages).await;
        number += i64::from(messages);
        let at = |times: &[f64], part| quantile(times.iter().copied(), part);
        median.push([at(&ours, 0.5), at(&bare, 0.5)]);
        tail.push([at(&ours, 0.99), at(&bare, 0.99)]);
        // How long it is idle is what is measured.
        tokio::time::sleep(Duration::from_secs(size.idle.into())).await;
        let alone = self::ours(&place, number, 1).await;
        number += 1;
        first.push([alone[0], at(&bare, 0.5)]);
    }
    service.drain();
    assert!(service.wait().await.is_clean());
    let figure = |name: &str, floor, rounds| Figure::new((8, name), "ms", Better::Less, floor, rounds);
    vec![
        figure(
            "COMMIT to effect, p50 : bare round trip and commit",
            1.0 / 3.0,
            median,
        ),
        figure(
            "COMMIT to effect, p99 : bare round trip and commit",
            1.0 / 10.0,
            tail,
        ),
        figure(
            "the first after idleness : bare round trip and commit, p50",
            1.0 / 5.0,
            first,
        ),
    ]
}

struct Effects;

impl BusinessActor for Effects {
    type Event = i64;

    async fn handle(
        &mut self,
        number: Event<i64>,
        transaction: &mut InboxTransaction<'_>,
    ) -> Result<(), HandlerError> {
        sqlx::query("INSERT INTO effect VALUES ($1)")
            .bind(number.payload)
            .execute(&mut **transaction)
            .await?;
        Ok(())
    }
}

/// Milliseconds of each message, from the return of its COMMIT until another connection sees the effect.
async fn ours(place: &Place, first: i64, messages: u32) -> Vec<f64> {
    let committed: Mutex<HashMap<i64, Instant>> = Mutex::default();
    let outbox = Outbox::new(place.store.schema().clone());
    let producing = paced(messages, async |n| {
        let number = first + i64::from(n);
        let message = Message::json(format!("{}.effect", place.subject()), &number).unwrap();
        let mut transaction = place.store.begin().await.unwrap();
        outbox.enqueue(&mut transaction, message).await.unwrap();
        transaction.commit().await.unwrap();
        let mut committed = committed.lock().unwrap_or_else(PoisonError::into_inner);
        committed.insert(number, Instant::now());
    });
    let (seen, ()) = tokio::join!(watch(place, first, messages), producing);
    let committed = committed.into_inner().unwrap_or_else(PoisonError::into_inner);
    seen.into_iter()
        // It may be seen before its producer hears of the commit.
        .map(|(number, at)| milliseconds(at.saturating_duration_since(committed[&number])))
        .collect()
}

/// When each effect was seen.
async fn watch(place: &Place, first: i64, messages: u32) -> BTreeMap<i64, Instant> {
    let mut connection = place.store.pool().acquire().await.unwrap();
    let mut seen = BTreeMap::new();
    // All below it are seen.
    let mut lowest = first;
    while seen.len() < messages as usize {
        let visible: Vec<i64> = sqlx::query_scalar("SELECT n FROM effect WHERE n >= $1")
            .bind(lowest)
            .fetch_all(&mut *connection)
            .await
            .unwrap();
        let now = Instant::now();
        for number in visible {
            seen.entry(number).or_insert(now);
        }
        while seen.contains_key(&lowest) {
            lowest += 1;
        }
        // A pause counts against us, and a busy look would take a core from those who work.
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    seen
}

/// Milliseconds of each message, from its publishing until what came of it is committed, with nothing in between.
async fn bare(place: &Place, messages: u32) -> Vec<f64> {
    place
        .sql("DROP TABLE IF EXISTS bare_effect; CREATE TABLE bare_effect (n bigint PRIMARY KEY)")
        .await;
    let jetstream = place.nats.jetstream();
    let subject = format!("{}.bare", place.subject());
    let stream = jetstream.get_stream(&place.stream).await.unwrap();
    let config = async_nats::jetstream::consumer::pull::Config {
        filter_subject: subject.clone(),
        ack_policy: async_nats::jetstream::consumer::AckPolicy::None,
        deliver_policy: async_nats::jetstream::consumer::DeliverPolicy::New,
        ..Default::default()
    };
    let incoming = stream
        .create_consumer(config)
        .await
        .unwrap()
        .messages()
        .await
        .unwrap();
    let published: Arc<Mutex<Vec<Option<Instant>>>> = Arc::new(Mutex::new(vec![None; messages as usize]));
    let producing = paced(messages, async |n| {
        published.lock().unwrap_or_else(PoisonError::into_inner)[n as usize] = Some(Instant::now());
        let sent = jetstream.publish(subject.clone(), n.to_string().into());
        sent.await.unwrap().await.unwrap();
    });
    let consuming = incoming
        .take(messages as usize)
        .map(async |message| {
            let n: u32 = str::from_utf8(&message.unwrap().payload)
                .unwrap()
                .parse()
                .unwrap();
            sqlx::query("INSERT INTO bare_effect VALUES ($1)")
                .bind(i64::from(n))
                .execute(place.store.pool())
                .await
                .unwrap();
            let published = published.lock().unwrap_or_else(PoisonError::into_inner);
            milliseconds(published[n as usize].unwrap().elapsed())
        })
        .buffer_unordered(16)
        .collect::<Vec<f64>>();
    let (times, ()) = tokio::join!(consuming, producing);
    times
}

/// Starts something so many times at the pace, however long each takes.
async fn paced(times: u32, each: impl AsyncFn(u32)) {
    let mut ticks = interval(Duration::from_secs(1) / PACE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut running = FuturesUnordered::new();
    for n in 0..times {
        loop {
            tokio::select! {
                _ = ticks.tick() => break,
                Some(()) = running.next() => {}
            }
        }
        running.push(each(n));
    }
    while running.next().await.is_some() {}
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
