//! Rows 3 to 6: the consumer works off a backlog.

use crate::by_hand;
use crate::figure::{Better, Figure, in_turns};
use crate::house::{House, Load, Place, rate};
use crate::size::Size;
use crate::work::{self, OneByOne, Stumbling, Together, Work};
use std::sync::Arc;
use std::time::Instant;
use tokio_util::sync::CancellationToken;
use twinbox::config::ConsumerSettings;
use twinbox::inbox::{Consumer, ConsumerBuilder, ConsumerControl};

/// Handlers that take one message at a time.
pub async fn one_by_one(house: &House, size: &Size) -> Vec<Figure> {
    let place = house.place("one_by_one").await;
    let works = [
        ("one UPDATE of 100,000 rows", Work::SPREAD, 5.0),
        ("one UPDATE of 1,000 rows", Work::HOT, 2.5),
        ("two UPDATEs of 1,000 rows", Work::HOT_TWICE, 2.0),
    ];
    let mut figures = Vec::new();
    for (what, work, floor) in works {
        let rounds = in_turns(
            size.rounds,
            async || {
                consume(&place, size, 0, work, |builder| {
                    builder.actor(">", move || OneByOne(work))
                })
                .await
            },
            async || loop_by_hand(&place, size, work).await,
        )
        .await;
        let name = format!("consumer, {what} : a loop by hand");
        figures.push(Figure::new((3, &name), "messages/s", Better::More, floor, rounds));
    }
    figures
}

/// A handler over sets.
pub async fn together(house: &House, size: &Size) -> Vec<Figure> {
    let place = house.place("together").await;
    let work = Work::SPREAD;
    let rounds = in_turns(
        size.rounds,
        async || {
            consume(&place, size, 0, work, |builder| {
                builder.actor(">", move || Together(work))
            })
            .await
        },
        async || loop_by_hand(&place, size, work).await,
    )
    .await;
    let name = "consumer, a batch in one UPDATE : a loop by hand";
    vec![Figure::new((4, name), "messages/s", Better::More, 9.0, rounds)]
}

/// Duplicates and failures.
pub async fn stumbling(house: &House, size: &Size) -> Vec<Figure> {
    let place = house.place("stumbling").await;
    let work = Work::SPREAD;
    let rounds = in_turns(
        size.rounds,
        async || {
            let actor = Stumbling {
                work,
                failed: Arc::default(),
            };
            consume(&place, size, 20, work, |builder| {
                builder.actor(">", move || actor.clone())
            })
            .await
        },
        async || smoothly(&place, size).await,
    )
    .await;
    let name = "consumer, 20 % duplicates and 1 % failing once : without";
    vec![Figure::new((5, name), "messages/s", Better::More, 0.7, rounds)]
}

/// Many ids in the inbox.
pub async fn among_many(house: &House, size: &Size) -> Vec<Figure> {
    let (few, many) = (house.place("few_ids").await, house.place("many_ids").await);
    remember(&many, size.ids).await;
    let rounds = in_turns(
        size.rounds,
        async || smoothly(&many, size).await,
        async || {
            few.sql("TRUNCATE twinbox.inbox").await;
            smoothly(&few, size).await
        },
    )
    .await;
    let name = format!("consumer, {} ids in the inbox : none", size.ids);
    vec![Figure::new((6, &name), "messages/s", Better::More, 0.85, rounds)]
}

/// Puts ids into the consumer's inbox, a millisecond apart, up to now.
pub async fn remember(place: &Place, ids: u32) {
    let insert = format!(
        "INSERT INTO twinbox.consumer (name, stream) VALUES ('{CONSUMER}', '{}') ON CONFLICT DO NOTHING;
         INSERT INTO twinbox.inbox (message_id, sequence, claimed_at, consumer, stream)
         SELECT (lpad(to_hex((extract(epoch FROM claimed_at) * 1000)::bigint), 12, '0') || '7'
                    || substr(md5(g::text), 1, 3) || '8' || substr(md5(g::text), 4, 15))::uuid, g, claimed_at, c.id, 0
         FROM twinbox.consumer c, generate_series(1, {ids}) g,
              LATERAL (SELECT now() - ({ids} - g) * interval '1 ms' AS claimed_at) at",
        place.stream
    );
    place.sql(&insert).await;
    place.sql("VACUUM ANALYZE twinbox.inbox").await;
}

/// The name of the consumer, in every place.
pub const CONSUMER: &str = "ours";

/// One message at a time, and nothing goes wrong.
pub async fn smoothly(place: &Place, size: &Size) -> f64 {
    consume(place, size, 0, Work::SPREAD, |builder| {
        builder.actor(">", || OneByOne(Work::SPREAD))
    })
    .await
}

async fn loop_by_hand(place: &Place, size: &Size, work: Work) -> f64 {
    work::prepare(place).await;
    place.publish(Load::of(size.by_hand)).await;
    by_hand::consume(place, size.by_hand, work).await
}

/// From the subscription until all is settled. Returns messages a second.
async fn consume(
    place: &Place,
    size: &Size,
    repeated: u32,
    work: Work,
    handlers: impl FnOnce(ConsumerBuilder) -> ConsumerBuilder,
) -> f64 {
    let load = Load {
        repeated,
        ..Load::of(size.backlog)
    };
    consume_load(place, load, work, handlers).await
}

/// The same, of any load.
pub async fn consume_load(
    place: &Place,
    load: Load,
    work: Work,
    handlers: impl FnOnce(ConsumerBuilder) -> ConsumerBuilder,
) -> f64 {
    work::prepare(place).await;
    let distinct = place.publish(load).await.distinct;
    let settings = ConsumerSettings {
        name: CONSUMER.into(),
        stream: place.stream.clone(),
        ..ConsumerSettings::default()
    };
    let consumer = handlers(Consumer::builder(settings)).build().unwrap();
    let drain = CancellationToken::new();
    let control = ConsumerControl::new(drain.clone());
    let mut health = control.health();
    let begun = Instant::now();
    let (subscription, _) = place.nats.subscribe(consumer.settings()).await.unwrap();
    let store = place.store.clone();
    let running = tokio::spawn(async move { consumer.run(&store, Arc::new(subscription), control).await });
    health
        .wait_for(|health| health.settled >= u64::from(load.messages))
        .await
        .unwrap();
    let rate = rate(load.messages, begun);
    drain.cancel();
    running.await.unwrap().unwrap();
    assert_eq!(
        work::effects(place).await,
        i64::from(distinct * work.updates),
        "effects"
    );
    rate
}
