//! Row 7: what one enqueue costs a business transaction.

use crate::figure::{Better, Figure, in_turns};
use crate::house::{House, KEYS, Place, SUBJECTS, rate};
use crate::size::Size;
use crate::work::{self, Work};
use futures_util::future::join_all;
use sqlx::{Postgres, Transaction};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use twinbox::config::RelaySettings;
use twinbox::outbox::{Relay, RelayControl};
use twinbox::{Message, Outbox};
use uuid::Uuid;

const WRITERS: u32 = 16;

/// Against a bare table of the same columns.
pub async fn against_bare(house: &House, size: &Size) -> Vec<Figure> {
    let place = house.place("enqueueing").await;
    place.fresh_stream().await;
    place
        .sql("CREATE TABLE bare (LIKE twinbox.outbox INCLUDING DEFAULTS INCLUDING IDENTITY)")
        .await;
    work::prepare(&place).await;
    let control = RelayControl::new(CancellationToken::new());
    let relay = Relay::new(place.store.clone(), place.nats.clone(), RelaySettings::default());
    let mut health = control.health();
    let running = tokio::spawn(relay.run(control.clone()));
    health.wait_for(|health| health.ready).await.unwrap();
    let mut waiting = control.health();

    let outbox = Outbox::new(place.store.schema().clone());
    let seconds = Duration::from_secs(size.enqueueing.into());
    let rounds = in_turns(
        size.rounds,
        async || {
            let rate = write(&place, seconds, async |transaction, message| {
                outbox.enqueue(transaction, message).await.unwrap();
            })
            .await;
            waiting.wait_for(|health| health.pending == 0).await.unwrap();
            rate
        },
        async || {
            write(&place, seconds, async |transaction, message| {
                sqlx::query(
                    "INSERT INTO bare (message_id, subject, key, headers, payload) VALUES ($1, $2, $3, $4::jsonb, $5)",
                )
                .bind(Uuid::now_v7())
                .bind(&message.subject)
                .bind(&message.key)
                .bind(None::<&str>)
                .bind(&message.payload[..])
                .execute(&mut **transaction)
                .await
                .unwrap();
            })
            .await
        },
    )
    .await;
    control.drain();
    running.await.unwrap().unwrap();
    let name = "transaction with an enqueue : with an INSERT into a bare table";
    vec![Figure::new(
        (7, name),
        "transactions/s",
        Better::More,
        0.90,
        rounds,
    )]
}

/// Transactions by all writers for a time. Returns how many a second.
async fn write(
    place: &Place,
    time: Duration,
    put: impl AsyncFn(&mut Transaction<'static, Postgres>, Message),
) -> f64 {
    place.sql("CHECKPOINT").await;
    let begun = Instant::now();
    let writer = async || {
        let mut written = 0;
        while begun.elapsed() < time {
            let id = Uuid::now_v7();
            let draw = id.as_u128();
            let mut transaction = place.store.begin().await.unwrap();
            Work::SPREAD.apply(&mut transaction, id).await.unwrap();
            let subject = format!("{}.{}", place.subject(), draw % u128::from(SUBJECTS));
            let key = format!("key-{}", draw % u128::from(KEYS));
            put(&mut transaction, Message::new(subject, vec![b'x'; 256]).key(key)).await;
            transaction.commit().await.unwrap();
            written += 1;
        }
        written
    };
    let written = join_all((0..WRITERS).map(|_| writer())).await;
    rate(written.into_iter().sum(), begun)
}
