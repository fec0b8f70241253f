//! What polls and pages cost, asked of PostgreSQL itself: how many pages of the database they touch.

#![cfg(feature = "testing")]

use crate::config::DatabaseSettings;
use crate::outbox::cursor::{Reach, Span, horizon};
use crate::outbox::look::Look;
use crate::outbox::relay_table::RelayTable;
use crate::outbox::snapshot::Snapshot;
use crate::store::{Store, migrate};
use crate::testing;
use sqlx::{AssertSqlSafe, PgConnection};

const ROWS: i64 = 200_000;

/// A log of settled rows, and the cursor that has settled them. Statistics are of when it was empty, or fresh.
async fn settled_log(analyzed: bool) -> (Store, Reach) {
    let settings = DatabaseSettings {
        url: testing::fresh_database().await.into(),
        ..DatabaseSettings::default()
    };
    let store = Store::connect(&settings).await.unwrap();
    migrate(&store).await.unwrap();
    let pool = store.pool();
    RelayTable::new(&store, "default")
        .create(&mut pool.acquire().await.unwrap())
        .await
        .unwrap();
    sqlx::raw_sql("ALTER TABLE twinbox.outbox SET (autovacuum_enabled = false)")
        .execute(pool)
        .await
        .unwrap();
    sqlx::query(
        "INSERT INTO twinbox.outbox (subject, payload)
         SELECT 'orders.placed', convert_to(repeat('x', 100), 'UTF8') FROM generate_series(1, $1)",
    )
    .bind(ROWS)
    .execute(pool)
    .await
    .unwrap();
    if analyzed {
        sqlx::raw_sql("VACUUM ANALYZE twinbox.outbox")
            .execute(pool)
            .await
            .unwrap();
    }
    let reach = now(&store, ROWS).await;
    (store, reach)
}

async fn now(store: &Store, floor: i64) -> Reach {
    let text: String = sqlx::query_scalar("SELECT pg_current_snapshot()::text")
        .fetch_one(store.pool())
        .await
        .unwrap();
    Reach {
        snapshot: text.parse().unwrap(),
        floor,
    }
}

/// How many pages of the database a statement touches.
async fn pages_touched(connection: &mut PgConnection, statement: &str) -> i64 {
    let explained: serde_json::Value = sqlx::query_scalar(AssertSqlSafe(format!(
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
    )))
    .persistent(false)
    .fetch_one(connection)
    .await
    .unwrap();
    let plan = &explained[0]["Plan"];
    plan["Shared Hit Blocks"].as_i64().unwrap() + plan["Shared Read Blocks"].as_i64().unwrap()
}

fn literal(text: &str) -> String {
    format!("'{text}'")
}

/// A statement with its parameters written in: what a custom plan is made for.
fn with_values(statement: &str, values: &[String]) -> String {
    let numbered = values.iter().enumerate().rev();
    numbered.fold(statement.to_owned(), |statement, (index, value)| {
        statement.replace(&format!("${}", index + 1), value)
    })
}

async fn pages_of_page(store: &Store, span: &Span, rows: u32) -> i64 {
    let statement = store.sql(&super::page_template());
    let values = [
        span.above.to_string(),
        span.settled.floor.to_string(),
        literal(&horizon(&span.settled.snapshot)),
        literal(&span.target.to_string()),
        format!(
            "ARRAY[{}]",
            span.late_transactions()
                .iter()
                .map(|xid| literal(xid))
                .collect::<Vec<_>>()
                .join(",")
        ),
        rows.to_string(),
        "4194304".to_owned(),
    ];
    let mut connection = store.pool().acquire().await.unwrap();
    pages_touched(&mut connection, &with_values(statement.as_str(), &values)).await
}

/// The poll's cost, with the plan for these values and with the one for any.
async fn pages_of_look(store: &Store, settled: &Reach) -> [i64; 2] {
    let statement = Look::new(store).statement_text();
    let running = settled
        .snapshot
        .running()
        .iter()
        .map(|xid| literal(&xid.to_string()))
        .collect::<Vec<_>>();
    let values = [
        literal("default"),
        literal("outbox"),
        settled.floor.to_string(),
        literal(&horizon(&settled.snapshot)),
        format!("ARRAY[{}]::text[]", running.join(",")),
    ];
    let mut connection = store.pool().acquire().await.unwrap();
    let prepare = format!("PREPARE look (text, text, bigint, text, text[]) AS {statement}");
    sqlx::raw_sql(AssertSqlSafe(prepare))
        .execute(&mut *connection)
        .await
        .unwrap();
    let mut pages = [0; 2];
    for (pages, mode) in pages.iter_mut().zip(["force_custom_plan", "force_generic_plan"]) {
        sqlx::raw_sql(AssertSqlSafe(format!("SET plan_cache_mode = {mode}")))
            .execute(&mut *connection)
            .await
            .unwrap();
        *pages = pages_touched(&mut connection, &format!("EXECUTE look ({})", values.join(", "))).await;
    }
    pages
}

/// A transaction that inserts so many rows and stays open.
async fn late_rows(store: &Store, rows: i64) -> sqlx::Transaction<'static, sqlx::Postgres> {
    let mut late = store.begin().await.unwrap();
    sqlx::query(
        "INSERT INTO twinbox.outbox (subject, payload) SELECT 'late', '' FROM generate_series(1, $1)",
    )
    .bind(rows)
    .execute(&mut *late)
    .await
    .unwrap();
    late
}

async fn advance(store: &Store) {
    sqlx::query("SELECT pg_current_xact_id()")
        .execute(store.pool())
        .await
        .unwrap();
}

async fn costs_do_not_grow_with_the_log(analyzed: bool) {
    let (store, settled) = settled_log(analyzed).await;
    // Nothing new.
    let span = |above, target: &Snapshot| Span {
        settled: settled.clone(),
        target: target.clone(),
        above,
    };
    let target = now(&store, ROWS).await.snapshot;
    let pages = pages_of_page(&store, &span(0, &target), 2000).await;
    assert!(pages < 30, "an empty page touches {pages}");
    let pages = pages_of_look(&store, &settled).await;
    assert!(
        pages.iter().all(|pages| *pages < 40),
        "an empty poll touches {pages:?}"
    );

    // Few rows after many.
    sqlx::query("INSERT INTO twinbox.outbox (subject, payload) SELECT 'new', '' FROM generate_series(1, 10)")
        .execute(store.pool())
        .await
        .unwrap();
    let target = now(&store, ROWS + 10).await.snapshot;
    let pages = pages_of_page(&store, &span(0, &target), 2000).await;
    assert!(pages < 50, "a small page touches {pages}");

    // A large span: each page begins where the last one ended.
    let beginning = Reach::beginning();
    for above in [0, ROWS / 2, ROWS - 1000] {
        let span = Span {
            settled: beginning.clone(),
            target: target.clone(),
            above,
        };
        let pages = pages_of_page(&store, &span, 500).await;
        assert!(pages < 200, "a page after {above} touches {pages}");
    }
    store.close().await;
}

#[tokio::test]
async fn with_fresh_statistics() {
    costs_do_not_grow_with_the_log(true).await;
}

#[tokio::test]
async fn with_statistics_of_an_empty_table() {
    costs_do_not_grow_with_the_log(false).await;
}

async fn late_transactions_are_read_from_where_the_last_page_ended(analyzed: bool) {
    let (store, _) = settled_log(analyzed).await;
    let late = late_rows(&store, 20_000).await;
    advance(&store).await;
    let settled = now(&store, ROWS + 20_000).await;
    // Other tests have transactions in the same cluster.
    assert!(!settled.snapshot.running().is_empty(), "the late one is running");
    let pages = pages_of_look(&store, &settled).await;
    assert!(
        pages.iter().all(|pages| *pages < 40),
        "a poll while it is open touches {pages:?}"
    );
    late.commit().await.unwrap();
    advance(&store).await;
    let target = now(&store, ROWS + 20_000).await.snapshot;
    for above in [0, ROWS + 10_000, ROWS + 19_900] {
        let span = Span {
            settled: settled.clone(),
            target: target.clone(),
            above,
        };
        assert!(!span.late_transactions().is_empty());
        let pages = pages_of_page(&store, &span, 500).await;
        assert!(pages < 200, "a page after {above} touches {pages}");
    }
    // And where it has no rows after a position, none are walked for them.
    let span = Span {
        settled,
        target,
        above: ROWS + 20_000,
    };
    let pages = pages_of_page(&store, &span, 500).await;
    assert!(pages < 40, "the page after the last touches {pages}");
    store.close().await;
}

#[tokio::test]
async fn late_with_fresh_statistics() {
    late_transactions_are_read_from_where_the_last_page_ended(true).await;
}

#[tokio::test]
async fn late_with_statistics_of_an_empty_table() {
    late_transactions_are_read_from_where_the_last_page_ended(false).await;
}
