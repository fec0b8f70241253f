//! Enqueueing, and what it looks like in the stream.

use crate::bench::{Bench, numbers};
use sqlx::Row as _;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use twinbox::outbox::{EnqueueError, Outbox};
use twinbox::store::Schema;
use twinbox::{InvalidMessage, Message};
use uuid::Uuid;

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[tokio::test]
async fn a_committed_message_is_published_and_a_rolled_back_one_is_not() {
    let bench = Bench::new().await;
    let relay = bench.leader().await;
    let mut rolled_back = bench.begin().await;
    bench
        .outbox
        .enqueue(&mut rolled_back, bench.message(1))
        .await
        .unwrap();
    rolled_back.rollback().await.unwrap();
    let id = bench
        .enqueue(
            Message::json(bench.subject("orders.placed"), &serde_json::json!({"order": 7}))
                .unwrap()
                .key("order-7")
                .kind("OrderPlaced")
                .header("traceparent", TRACE)
                .header("Tag", "x"),
        )
        .await;

    let stored = bench.stored(1).await.remove(0);
    assert_eq!(stored.subject, bench.subject("orders.placed"));
    assert_eq!(stored.text(), r#"{"order":7}"#);
    assert_eq!(stored.headers["Nats-Msg-Id"], id.to_string());
    assert_eq!(stored.headers["Twinbox-Id"], id.to_string());
    assert_eq!(stored.headers["Twinbox-Key"], "order-7");
    assert_eq!(stored.headers["Event-Type"], "OrderPlaced");
    assert_eq!(stored.headers["Content-Type"], "application/json");
    assert_eq!(stored.headers["traceparent"], TRACE);
    assert_eq!(stored.headers["Tag"], "x");
    let time = OffsetDateTime::parse(&stored.headers["Twinbox-Time"], &Rfc3339).unwrap();
    let enqueued: OffsetDateTime = sqlx::query_scalar("SELECT enqueued_at FROM twinbox.outbox")
        .fetch_one(bench.store.pool())
        .await
        .unwrap();
    assert_eq!(time, enqueued);
    assert!(stored.headers["Twinbox-Time"].ends_with('Z'));

    bench.is_settled().await;
    let status = twinbox::outbox::relay_statuses(&bench.store)
        .await
        .unwrap()
        .remove(0);
    assert!(status.leased && status.holder.as_deref() == Some(relay.holder.as_str()));
    relay.drain().await;
    let status = twinbox::outbox::relay_statuses(&bench.store)
        .await
        .unwrap()
        .remove(0);
    assert_eq!((status.published, status.leased, status.holder), (1, false, None));
    assert!(!status.asleep);
}

#[tokio::test]
async fn a_batch_keeps_its_order_and_is_one_statement() {
    let bench = Bench::new().await;
    let ids = bench
        .enqueue_all((0..500).map(|number| bench.message(number).key("k")))
        .await;
    assert_eq!(ids.len(), 500);
    assert!(ids.is_sorted(), "ids are in the order of time");
    assert!(bench.enqueue_all([]).await.is_empty());
    let relay = bench.leader().await;
    let stored = bench.stored(500).await;
    assert_eq!(numbers(&stored), (0..500).collect::<Vec<_>>());
    assert_eq!(stored.iter().map(|message| message.id()).collect::<Vec<_>>(), ids);
    relay.drain().await;
}

#[tokio::test]
async fn sql_enqueues_too() {
    let bench = Bench::new().await;
    let relay = bench.leader().await;
    let subject = bench.subject("sql");
    let own_id = Uuid::now_v7();
    let row = sqlx::query(
        "SELECT twinbox.enqueue($1, '{\"a\": 1}'::jsonb, 'k', '{\"Tag\": [\"x\", \"y\"]}') AS one,
                twinbox.enqueue($1, '\\x00ff'::bytea, message_id => $2) AS two",
    )
    .bind(&subject)
    .bind(own_id)
    .fetch_one(bench.store.pool())
    .await
    .unwrap();
    let (one, two): (Uuid, Uuid) = (row.get("one"), row.get("two"));
    assert_eq!(two, own_id);
    let mut stored = bench.stored(2).await;
    stored.sort_by_key(|message| message.id() == two);
    assert_eq!(stored[0].id(), one);
    assert_eq!(stored[0].text(), r#"{"a": 1}"#);
    assert_eq!(stored[0].headers["Content-Type"], "application/json");
    assert_eq!(stored[0].headers["Twinbox-Key"], "k");
    assert_eq!(stored[1].payload, [0, 255]);
    assert!(!stored[1].headers.contains_key("Twinbox-Key"));
    relay.drain().await;
}

#[tokio::test]
async fn what_no_broker_would_take_is_refused_and_harms_nothing() {
    let bench = Bench::new().await;
    let mut transaction = bench.begin().await;
    let refused = bench
        .outbox
        .enqueue(&mut transaction, Message::new("a b", ""))
        .await;
    assert!(matches!(
        refused,
        Err(EnqueueError::Invalid {
            index: 0,
            source: InvalidMessage::Subject { .. }
        })
    ));
    let refused = bench
        .outbox
        .enqueue_all(
            &mut transaction,
            [bench.message(0), bench.message(1).header("Nats-Rollup", "all")],
        )
        .await;
    assert!(matches!(refused, Err(EnqueueError::Invalid { index: 1, .. })));
    // The transaction goes on.
    bench
        .outbox
        .enqueue(&mut transaction, bench.message(2))
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(bench.count("SELECT count(*) FROM twinbox.outbox").await, 1);

    let elsewhere = Outbox::new(Schema::new("elsewhere").unwrap());
    let mut transaction = bench.begin().await;
    let refused = elsewhere.enqueue(&mut transaction, bench.message(0)).await;
    assert!(matches!(refused, Err(EnqueueError::NotMigrated { .. })));
}
