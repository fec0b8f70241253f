//! Rows 1 and 2: the relay drains a backlog.

use crate::figure::{Better, Figure, in_turns};
use crate::house::{House, KEYS, Load, Place, SUBJECTS, TRACEPARENT, rate};
use crate::size::Size;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use twinbox::config::RelaySettings;
use twinbox::outbox::{Relay, RelayControl};

/// Against the client alone, which publishes the same from memory.
pub async fn against_memory(house: &House, size: &Size) -> Vec<Figure> {
    let place = house.place("drained").await;
    let rounds = in_turns(
        size.rounds,
        async || {
            place.sql("TRUNCATE twinbox.outbox").await;
            drain(&place, size.rows, 256).await
        },
        async || place.publish(Load::of(size.rows)).await.rate,
    )
    .await;
    let name = format!(
        "relay drains {} rows : the client publishes them from memory",
        size.rows
    );
    vec![Figure::new((1, &name), "messages/s", Better::More, 0.80, rounds)]
}

/// With what makes others slow, against itself.
pub async fn against_itself(house: &House, size: &Size) -> Vec<Figure> {
    let (empty, retaining, held) = (
        house.place("unburdened").await,
        house.place("retaining").await,
        house.place("held").await,
    );
    retain(&retaining, size.retained).await;
    let alone = async || {
        empty.sql("TRUNCATE twinbox.outbox").await;
        drain(&empty, size.rows, 256).await
    };
    let rounds = in_turns(
        size.rounds,
        async || drain(&retaining, size.rows, 256).await,
        alone,
    )
    .await;
    let name = format!("relay with {} settled rows in the table : without", size.retained);
    let with_retained = Figure::new((2, &name), "messages/s", Better::More, 0.90, rounds);
    let in_between = async || {
        held.sql("TRUNCATE twinbox.outbox").await;
        let mut open = held.store.begin().await.unwrap();
        // With an id of its own, so that it is in every snapshot.
        sqlx::query("SELECT pg_current_xact_id()")
            .execute(&mut *open)
            .await
            .unwrap();
        let drained = drain(&held, size.rows, 256).await;
        open.rollback().await.unwrap();
        drained
    };
    let rounds = in_turns(size.rounds, in_between, alone).await;
    let name = "relay with a transaction open since before the first row : without";
    let with_open = Figure::new((2, name), "messages/s", Better::More, 0.90, rounds);
    vec![with_retained, with_open]
}

/// Rows that are published long since.
pub async fn retain(place: &Place, rows: u32) {
    place.fresh_stream().await;
    // Its first run makes the cursor, which is then set behind the rows.
    run(place, async || {}).await;
    fill(place, rows, 256).await;
    place
        .sql(
            "UPDATE twinbox.relay
             SET settled = pg_current_snapshot(), floor = (SELECT max(id) FROM twinbox.outbox), target = NULL, target_floor = NULL",
        )
        .await;
}

async fn fill(place: &Place, rows: u32, payload: usize) {
    sqlx::query(
        "INSERT INTO twinbox.outbox (subject, key, headers, payload)
         SELECT $1 || '.' || g % $2, 'key-' || floor(random() * $3)::int, jsonb_build_object('traceparent', $4),
                convert_to(repeat('x', $5), 'UTF8')
         FROM generate_series(1, $6) g",
    )
    .bind(place.subject())
    .bind(i64::from(SUBJECTS))
    .bind(f64::from(KEYS))
    .bind(TRACEPARENT)
    .bind(i32::try_from(payload).unwrap())
    .bind(i64::from(rows))
    .execute(place.store.pool())
    .await
    .unwrap();
    place.sql("VACUUM ANALYZE twinbox.outbox").await;
    place.sql("CHECKPOINT").await;
}

/// From the first poll until all is acknowledged and the cursor is saved. Returns messages a second.
pub async fn drain(place: &Place, rows: u32, payload: usize) -> f64 {
    let mut stream = place.fresh_stream().await;
    fill(place, rows, payload).await;
    let begun = Instant::now();
    run(place, async || {
        while stream.info().await.unwrap().state.messages < u64::from(rows) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    rate(rows, begun)
}

/// A relay that runs until something has happened.
async fn run(place: &Place, until: impl AsyncFnOnce()) {
    let control = RelayControl::new(CancellationToken::new());
    let relay = Relay::new(place.store.clone(), place.nats.clone(), RelaySettings::default());
    let mut health = control.health();
    let running = tokio::spawn(relay.run(control.clone()));
    health.wait_for(|health| health.ready).await.unwrap();
    until().await;
    control.drain();
    running.await.unwrap().unwrap();
}
