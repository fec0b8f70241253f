//! Two hops in one program: *orders* places orders, *billing* charges an account for each and tells of the payment, and
//! the *ledger* books the payments. Start servers and run it:
//!
//! ```sh
//! twinbox dev                                 # in one terminal; it prints two addresses
//! export DATABASE_URL=postgres://… NATS_URL=nats://…
//! cargo run --example pair                    # in another, as often as you like; -- 500 places 500 orders
//! ```
//!
//! In real life these are three services, each with its own part of this file.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it prints its result")]

use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;
use twinbox::config::{ConsumerSettings, Loader, StreamSettings};
use twinbox::inbox::{BusinessActor, Consumer, Event, HandlerError, InboxTransaction};
use twinbox::store::{self, Store};
use twinbox::supervisor::drain_on_signals;
use twinbox::{Message, Outbox, Service};
use uuid::Uuid;

const ORDER_PLACED: &str = "pair.orders.placed";
const PAYMENT_CAPTURED: &str = "pair.payments.captured";
/// How long all of it may take; when a server is away, its end is not waited for longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The services' own tables. `charge` and `ledger` have no unique constraint: a second effect would be seen.
const TABLES: &str = "
    CREATE SCHEMA IF NOT EXISTS pair;
    CREATE TABLE IF NOT EXISTS pair.account (customer int PRIMARY KEY, balance_cents bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS pair.orders  (id uuid PRIMARY KEY, run uuid, customer int, amount_cents bigint);
    CREATE TABLE IF NOT EXISTS pair.charge  (order_id uuid, amount_cents bigint);
    CREATE TABLE IF NOT EXISTS pair.ledger  (order_id uuid, amount_cents bigint);
    CREATE INDEX IF NOT EXISTS charge_order ON pair.charge (order_id);
    CREATE INDEX IF NOT EXISTS ledger_order ON pair.ledger (order_id);
    INSERT INTO pair.account SELECT g, 0 FROM generate_series(0, 9) g ON CONFLICT DO NOTHING";

/// What *orders* tells, and *billing* after it.
#[derive(Debug, Deserialize, Serialize)]
struct Order {
    id: Uuid,
    customer: i32,
    amount_cents: i64,
}

impl Order {
    /// The message that carries it. Those of one customer stay in order.
    fn message(&self, subject: &str) -> Result<Message, twinbox::InvalidMessage> {
        Ok(Message::json(subject, self)?.key(format!("customer-{}", self.customer)))
    }
}

/// Charges accounts.
struct Billing;

impl BusinessActor for Billing {
    type Event = Order;

    async fn handle(
        &mut self,
        order: Event<Order>,
        transaction: &mut InboxTransaction<'_>,
    ) -> Result<(), HandlerError> {
        if order.amount_cents <= 0 {
            // No other try would help: it goes to the dead letters.
            return Err(HandlerError::reject("an order has to cost something"));
        }
        sqlx::query("UPDATE pair.account SET balance_cents = balance_cents - $2 WHERE customer = $1")
            .bind(order.customer)
            .bind(order.amount_cents)
            .execute(&mut **transaction)
            .await?;
        sqlx::query("INSERT INTO pair.charge VALUES ($1, $2)")
            .bind(order.id)
            .bind(order.amount_cents)
            .execute(&mut **transaction)
            .await?;
        // The next hop, published if this transaction commits.
        transaction.enqueue(order.message(PAYMENT_CAPTURED)?)
    }
}

/// Books payments.
struct Ledger;

impl BusinessActor for Ledger {
    type Event = Order;

    async fn handle(
        &mut self,
        payment: Event<Order>,
        transaction: &mut InboxTransaction<'_>,
    ) -> Result<(), HandlerError> {
        book(&[payment], transaction).await
    }

    /// One statement for a whole batch: several times faster, and all the same where it matters.
    async fn handle_batch(
        &mut self,
        payments: Vec<Event<Order>>,
        transaction: &mut InboxTransaction<'_>,
    ) -> Result<(), HandlerError> {
        book(&payments, transaction).await
    }
}

async fn book(payments: &[Event<Order>], transaction: &mut PgConnection) -> Result<(), HandlerError> {
    let ids: Vec<Uuid> = payments.iter().map(|payment| payment.id).collect();
    let amounts: Vec<i64> = payments.iter().map(|payment| payment.amount_cents).collect();
    sqlx::query("INSERT INTO pair.ledger SELECT * FROM unnest($1::uuid[], $2::bigint[])")
        .bind(ids)
        .bind(amounts)
        .execute(transaction)
        .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("pair: {}", twinbox::with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<ExitCode, Box<dyn Error>> {
    let orders = match std::env::args().nth(1) {
        Some(orders) => orders
            .parse()
            .map_err(|_| format!("not a number of orders: {orders}"))?,
        None => 100,
    };
    // Defaults, then twinbox.toml, then DATABASE_URL, NATS_URL and TWINBOX_… variables.
    let mut settings = Loader::new().optional_file("twinbox.toml").load()?;
    settings.streams.extend([
        stream("PAIR_ORDERS", "pair.orders.>"),
        stream("PAIR_PAYMENTS", "pair.payments.>"),
    ]);
    let store = Store::connect(&settings.database).await?;
    // The service does it by itself, but in the background, and the orders below need it at once.
    store::migrate(&store).await?;
    sqlx::raw_sql(TABLES).execute(store.pool()).await?;

    let billing = Consumer::builder(consumer("pair-billing", "PAIR_ORDERS"));
    let ledger = Consumer::builder(consumer("pair-ledger", "PAIR_PAYMENTS"));
    let service = Service::new(settings)
        .consumer(billing.actor(ORDER_PLACED, || Billing).build()?)
        .consumer(ledger.actor(PAYMENT_CAPTURED, || Ledger).build()?)
        .start()
        .await?;
    tokio::spawn(drain_on_signals(service.tree())?);

    let run = Uuid::now_v7();
    let result = tokio::select! {
        result = place_and_wait(&store, run, orders) => result,
        // By a signal, or because a part failed for good.
        outcome = service.wait() => Err(outcome.to_string().into()),
    };
    service.drain();
    let outcome = service.wait().await;
    let counted = result?;
    println!("{counted}");
    Ok(if counted.is_good() {
        ExitCode::from(outcome.exit_code())
    } else {
        ExitCode::FAILURE
    })
}

fn stream(name: &str, subject: &str) -> StreamSettings {
    StreamSettings {
        name: name.to_owned(),
        subjects: vec![subject.to_owned()],
        ..StreamSettings::default()
    }
}

fn consumer(name: &str, stream: &str) -> ConsumerSettings {
    ConsumerSettings {
        name: name.to_owned(),
        stream: stream.to_owned(),
        ..ConsumerSettings::default()
    }
}

async fn place_and_wait(store: &Store, run: Uuid, orders: i64) -> Result<Counted, Box<dyn Error>> {
    let outbox = Outbox::new(store.schema().clone());
    for n in 0..orders {
        place(store, &outbox, run, n).await?;
    }
    let all_booked = async {
        loop {
            let counted = count(store, run).await?;
            if counted.booked >= orders {
                return Ok(counted);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    match tokio::time::timeout(PATIENCE, all_booked).await {
        Ok(counted) => counted,
        Err(_) => Ok(count(store, run).await?),
    }
}

/// The change and its message, in one transaction.
async fn place(store: &Store, outbox: &Outbox, run: Uuid, n: i64) -> Result<(), Box<dyn Error>> {
    let mut transaction = store.begin().await?;
    let order = Order {
        id: Uuid::now_v7(),
        customer: (n % 10) as i32,
        amount_cents: 100 + n,
    };
    // The row that says whose turn it is comes first, the message after it: that is what gives a key its order.
    sqlx::query("SELECT FROM pair.account WHERE customer = $1 FOR UPDATE")
        .bind(order.customer)
        .execute(&mut *transaction)
        .await?;
    sqlx::query("INSERT INTO pair.orders VALUES ($1, $2, $3, $4)")
        .bind(order.id)
        .bind(run)
        .bind(order.customer)
        .bind(order.amount_cents)
        .execute(&mut *transaction)
        .await?;
    outbox
        .enqueue(&mut transaction, order.message(ORDER_PLACED)?)
        .await?;
    transaction.commit().await?;
    Ok(())
}

/// What has become of a run's orders.
#[derive(sqlx::FromRow)]
struct Counted {
    placed: i64,
    charged: i64,
    booked: i64,
    lost: i64,
    doubled: i64,
}

impl Counted {
    fn is_good(&self) -> bool {
        self.lost == 0 && self.doubled == 0
    }
}

impl std::fmt::Display for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            placed,
            charged,
            booked,
            lost,
            doubled,
        } = self;
        write!(
            f,
            "{placed} orders placed, {charged} charged, {booked} booked: {lost} lost, {doubled} doubled"
        )
    }
}

async fn count(store: &Store, run: Uuid) -> Result<Counted, sqlx::Error> {
    sqlx::query_as(
        "WITH effects AS (
             SELECT id, (SELECT count(*) FROM pair.charge WHERE order_id = id) AS charges,
                        (SELECT count(*) FROM pair.ledger WHERE order_id = id) AS entries
             FROM pair.orders WHERE run = $1)
         SELECT count(*) AS placed,
                coalesce(sum(charges), 0)::bigint AS charged,
                coalesce(sum(entries), 0)::bigint AS booked,
                count(*) FILTER (WHERE charges < 1 OR entries < 1) AS lost,
                count(*) FILTER (WHERE charges > 1 OR entries > 1) AS doubled
         FROM effects",
    )
    .bind(run)
    .fetch_one(store.pool())
    .await
}
