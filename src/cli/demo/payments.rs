//! The consuming services: *billing* charges accounts, *ledger* books payments.

use super::orders::OrderEvent;
use twinbox::inbox::{BusinessActor, Event, HandlerError, InboxTransaction};

/// Charges an account for each order, and tells of the payment in the same transaction.
pub(super) struct Billing;

impl BusinessActor for Billing {
    type Event = OrderEvent;

    async fn handle(
        &mut self,
        event: Event<OrderEvent>,
        transaction: &mut InboxTransaction<'_>,
    ) -> Result<(), HandlerError> {
        let order = &event.payload;
        sqlx::query("UPDATE demo.account SET balance_cents = balance_cents - $2 WHERE customer = $1")
            .bind(order.customer)
            .bind(order.amount_cents)
            .execute(&mut **transaction)
            .await?;
        book(
            transaction,
            "INSERT INTO demo.charge (order_id, customer, number, amount_cents) VALUES ($1, $2, $3, $4)",
            order,
        )
        .await?;
        let captured = order
            .message("payments.captured", "PaymentCaptured")
            .map_err(HandlerError::reject)?;
        transaction.enqueue(captured)
    }
}

/// Books each payment.
pub(super) struct Ledger;

impl BusinessActor for Ledger {
    type Event = OrderEvent;

    async fn handle(
        &mut self,
        event: Event<OrderEvent>,
        transaction: &mut InboxTransaction<'_>,
    ) -> Result<(), HandlerError> {
        let insert = "INSERT INTO demo.ledger_entry (order_id, customer, number, amount_cents) VALUES ($1, $2, $3, $4)";
        book(transaction, insert, &event.payload).await
    }
}

async fn book(
    transaction: &mut InboxTransaction<'_>,
    insert: &'static str,
    order: &OrderEvent,
) -> Result<(), HandlerError> {
    sqlx::query(insert)
        .bind(order.order)
        .bind(order.customer)
        .bind(order.number)
        .bind(order.amount_cents)
        .execute(&mut **transaction)
        .await?;
    Ok(())
}
