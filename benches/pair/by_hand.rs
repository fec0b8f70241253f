//! What a good engineer writes by hand.

use crate::house::{Place, TRACEPARENT, rate};
use crate::work::Work;
use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::{self, AckKind};
use futures_util::StreamExt as _;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Transactions at a time.
const AT_ONCE: u32 = 16;
/// Rows that the relay locks at a time.
const PAGE: i64 = 100;

/// A loop of one transaction a message. Returns messages a second.
pub async fn consume(place: &Place, messages: u32, work: Work) -> f64 {
    let pool = prepare(place).await;
    let incoming = incoming(place).await;
    let begun = Instant::now();
    incoming
        .take(messages as usize)
        .for_each_concurrent(AT_ONCE as usize, |message| handle(&pool, message.unwrap(), work))
        .await;
    let rate = rate(messages, begun);
    pool.close().await;
    rate
}

/// The inbox and the outbox.
pub async fn prepare(place: &Place) -> PgPool {
    place
        .sql(
            "DROP TABLE IF EXISTS inbox_by_hand, outbox_by_hand;
             CREATE TABLE inbox_by_hand (id uuid PRIMARY KEY);
             CREATE TABLE outbox_by_hand (
                id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                message_id uuid NOT NULL DEFAULT gen_random_uuid(),
                subject text NOT NULL, key text, headers jsonb, payload bytea NOT NULL)",
        )
        .await;
    PgPoolOptions::new()
        .max_connections(AT_ONCE + 2)
        .connect_with(place.store.direct().clone())
        .await
        .unwrap()
}

async fn incoming(place: &Place) -> pull::Stream {
    let stream = place.nats.jetstream().get_stream(&place.stream).await.unwrap();
    let config = pull::Config {
        durable_name: Some(format!("by-hand-{}", Uuid::now_v7())),
        max_ack_pending: 20_000,
        ..Default::default()
    };
    stream
        .create_consumer(config)
        .await
        .unwrap()
        .messages()
        .await
        .unwrap()
}

/// Claim, work, commit, acknowledge; again, if transactions waited for each other.
async fn handle(pool: &PgPool, message: jetstream::Message, work: Work) {
    let id: Uuid = message
        .headers
        .as_ref()
        .and_then(|headers| headers.get("Twinbox-Id"))
        .unwrap()
        .as_str()
        .parse()
        .unwrap();
    while let Err(error) = claim_and_work(pool, id, work).await {
        let code = error.as_database_error().and_then(|error| error.code());
        assert_eq!(code.as_deref(), Some("40P01"), "{error}");
    }
    message.ack_with(AckKind::Ack).await.unwrap();
}

async fn claim_and_work(pool: &PgPool, id: Uuid, work: Work) -> sqlx::Result<()> {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the other side, and it drops nothing"
    )]
    let mut transaction = pool.begin().await?;
    let claimed = sqlx::query("INSERT INTO inbox_by_hand VALUES ($1) ON CONFLICT DO NOTHING")
        .bind(id)
        .execute(&mut *transaction)
        .await?;
    if claimed.rows_affected() == 1 {
        work.apply(&mut transaction, id).await?;
    }
    transaction.commit().await
}

/// The whole pair, until it is told to end.
pub async fn pair(place: &Place, pool: &PgPool, work: Work, end: &CancellationToken, settled: impl Fn()) {
    let consuming = async {
        incoming(place)
            .await
            .take_until(end.cancelled())
            .for_each_concurrent(AT_ONCE as usize, |message| {
                let settled = &settled;
                async move {
                    handle(pool, message.unwrap(), work).await;
                    settled();
                }
            })
            .await;
    };
    tokio::join!(relay(place, pool, end), consuming);
}

#[derive(sqlx::FromRow)]
struct Row {
    id: i64,
    message_id: Uuid,
    subject: String,
    key: Option<String>,
    payload: Vec<u8>,
}

/// Locks a page of rows, publishes and awaits each, deletes them.
async fn relay(place: &Place, pool: &PgPool, end: &CancellationToken) {
    let jetstream = place.nats.jetstream();
    while !end.is_cancelled() {
        #[expect(
            clippy::disallowed_methods,
            reason = "this is the other side, and it drops nothing"
        )]
        let mut transaction = pool.begin().await.unwrap();
        let rows: Vec<Row> = sqlx::query_as(
            "SELECT id, message_id, subject, key, payload FROM outbox_by_hand
             ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED",
        )
        .bind(PAGE)
        .fetch_all(&mut *transaction)
        .await
        .unwrap();
        let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
        for row in rows {
            let mut headers = async_nats::HeaderMap::new();
            headers.insert("Nats-Msg-Id", row.message_id.to_string());
            headers.insert("Twinbox-Id", row.message_id.to_string());
            headers.insert("Twinbox-Key", row.key.unwrap_or_default());
            headers.insert("traceparent", TRACEPARENT);
            let sent = jetstream.publish_with_headers(row.subject, headers, row.payload.into());
            sent.await.unwrap().await.unwrap();
        }
        sqlx::query("DELETE FROM outbox_by_hand WHERE id = ANY ($1)")
            .bind(&ids)
            .execute(&mut *transaction)
            .await
            .unwrap();
        transaction.commit().await.unwrap();
        if ids.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
