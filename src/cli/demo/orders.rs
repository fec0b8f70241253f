//! The *orders* service: places orders, each in a transaction with its message.

use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use twinbox::store::{Store, StoreError};
use twinbox::{Message, Outbox};
use uuid::Uuid;

/// How many customers place orders; the account is the ordering key.
const CUSTOMERS: i32 = 100;
/// How many orders are placed at once.
const WRITERS: u64 = 8;
/// One order in so many is rolled back after its message was enqueued, and must never be heard of.
const ROLLED_BACK: u64 = 20;

/// What *orders* tells, and *billing* after it: the same facts, one step further.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct OrderEvent {
    pub(super) order: Uuid,
    pub(super) customer: i32,
    /// Counts a customer's orders from one: the order in which they must take effect.
    pub(super) number: i32,
    pub(super) amount_cents: i64,
}

impl OrderEvent {
    /// The message that carries it, ordered by customer.
    pub(super) fn message(&self, subject: &str, kind: &str) -> Result<Message, twinbox::InvalidMessage> {
        Ok(Message::json(subject, self)?
            .key(format!("customer-{}", self.customer))
            .kind(kind))
    }
}

/// Places `orders` orders.
pub(super) async fn place(store: &Store, orders: u64) -> Result<(), super::CommandError> {
    let outbox = Outbox::new(store.schema().clone());
    let left = Arc::new(AtomicU64::new(orders));
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..WRITERS {
        let (store, outbox, left) = (store.clone(), outbox.clone(), left.clone());
        writers.spawn(async move {
            while left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                .is_ok()
            {
                while fastrand::u64(..ROLLED_BACK) == 0 {
                    place_one(&store, &outbox, false).await?;
                }
                place_one(&store, &outbox, true).await?;
            }
            Ok::<_, super::CommandError>(())
        });
    }
    while let Some(written) = writers.join_next().await {
        written??;
    }
    Ok(())
}

async fn place_one(store: &Store, outbox: &Outbox, commit: bool) -> Result<(), super::CommandError> {
    let mut transaction = store.begin().await?;
    let customer = fastrand::i32(1..=CUSTOMERS);
    // The customer's row is locked first and the message enqueued after: that makes the order of a key.
    let number: i32 =
        sqlx::query_scalar("UPDATE demo.customer SET orders = orders + 1 WHERE id = $1 RETURNING orders")
            .bind(customer)
            .fetch_one(&mut *transaction)
            .await?;
    let event = OrderEvent {
        order: Uuid::now_v7(),
        customer,
        number,
        amount_cents: fastrand::i64(100..=10_000),
    };
    sqlx::query("INSERT INTO demo.placed_order (id, customer, number, amount_cents) VALUES ($1, $2, $3, $4)")
        .bind(event.order)
        .bind(event.customer)
        .bind(event.number)
        .bind(event.amount_cents)
        .execute(&mut *transaction)
        .await?;
    outbox
        .enqueue(&mut transaction, event.message("orders.placed", "OrderPlaced")?)
        .await?;
    if commit {
        transaction.commit().await?
    } else {
        transaction.rollback().await?
    }
    Ok(())
}

/// Creates the demo's tables.
pub(super) async fn create_tables(pool: &PgPool) -> Result<(), StoreError> {
    sqlx::raw_sql(include_str!("schema.sql")).execute(pool).await?;
    Ok(())
}
