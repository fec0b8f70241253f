//! A holder whose lease was taken changes nothing any more.

#![cfg(feature = "testing")]

use super::{Term, TermError};
use crate::config::DatabaseSettings;
use crate::outbox::checkpoint::Met;
use crate::outbox::relay_table::RelayTable;
use crate::outbox::row::DedupId;
use crate::store::{Store, migrate};
use crate::testing::{self, wait_until};
use std::time::Duration;
use time::OffsetDateTime;

const DEADLINE: Duration = Duration::from_secs(20);

async fn migrated() -> (Store, RelayTable) {
    let settings = DatabaseSettings {
        url: testing::fresh_database().await.into(),
        ..DatabaseSettings::default()
    };
    let store = Store::connect(&settings).await.unwrap();
    migrate(&store).await.unwrap();
    let table = RelayTable::new(&store, "default");
    (store, table)
}

async fn row(store: &Store) -> String {
    sqlx::query_scalar("SELECT (relay)::text || (SELECT count(*) FROM twinbox.checkpoint) FROM twinbox.relay")
        .fetch_one(store.pool())
        .await
        .unwrap()
}

async fn take(store: &Store, table: &RelayTable, holder: &str) -> Option<Term> {
    Term::take(store, table, holder, Duration::from_millis(500))
        .await
        .unwrap()
}

async fn take_in_the_end(store: &Store, table: &RelayTable, holder: &str) -> Term {
    wait_until("the lease is over", DEADLINE, || take(store, table, holder)).await
}

#[tokio::test]
async fn a_lease_has_one_holder_until_it_is_over_or_given_back() {
    let (store, table) = migrated().await;
    let mut first = take(&store, &table, "first").await.unwrap();
    assert!(take(&store, &table, "second").await.is_none());
    first.save().await.unwrap();
    let mut second = take_in_the_end(&store, &table, "second").await;
    assert_eq!((first.epoch(), second.epoch()), (1, 2));
    assert!(!first.clock().holds() && second.clock().holds());
    second.release().await.unwrap();
    assert!(!second.clock().holds());
    assert_eq!(take(&store, &table, "third").await.unwrap().epoch(), 3);
    // The same holder, after it lost track of its row, need not wait for itself.
    assert_eq!(take(&store, &table, "third").await.unwrap().epoch(), 4);
    store.close().await;
}

#[tokio::test]
async fn no_write_of_a_former_holder_changes_anything() {
    let (store, table) = migrated().await;
    let met = [Met {
        stream: "ORDERS".to_owned(),
        created: OffsetDateTime::UNIX_EPOCH,
        sequence: 1,
        dedup_id: DedupId::first(uuid::Uuid::nil()),
    }];
    for write in 0..7 {
        let mut first = take_in_the_end(&store, &table, "first").await;
        let mut second = take_in_the_end(&store, &table, "second").await;
        let before = row(&store).await;
        let refused = match write {
            0 => first.save().await,
            1 => first.aim(0).await,
            2 => first.rewind(None, &[]).await,
            3 => first.take_checkpoints(&met).await,
            4 => first.begin_fenced().await.map(drop),
            5 => first.fall_asleep().await,
            _ => first.release().await,
        };
        assert!(matches!(refused, Err(TermError::Over)), "{write}: {refused:?}");
        assert!(!first.clock().holds());
        assert_eq!(row(&store).await, before, "{write}");
        assert!(matches!(first.look().await, Err(TermError::Over)));
        second.save().await.unwrap();
        second.release().await.unwrap();
    }
    store.close().await;
}

#[tokio::test]
async fn nobody_takes_the_lease_during_a_fenced_transaction() {
    let (store, table) = migrated().await;
    let first = take(&store, &table, "first").await.unwrap();
    let fenced = first.begin_fenced().await.unwrap();
    let committed = async {
        wait_until("it waits for the row", DEADLINE, || async {
            let waiting: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event_type = 'Lock'",
            )
            .fetch_one(store.pool())
            .await
            .unwrap();
            waiting == 1
        })
        .await;
        fenced.commit().await.unwrap();
    };
    let ((), second) = tokio::join!(committed, take_in_the_end(&store, &table, "second"));
    assert_eq!(second.epoch(), 2);
    store.close().await;
}

#[tokio::test]
async fn a_row_that_is_not_what_its_holder_wrote_ends_the_term() {
    let (store, table) = migrated().await;
    let mut term = take(&store, &table, "first").await.unwrap();
    term.aim(0).await.unwrap();
    term.settle_target();
    term.save().await.unwrap();
    term.look().await.unwrap();
    // As if it were of an hour ago.
    sqlx::query("UPDATE twinbox.relay SET settled = '5:5:'")
        .execute(store.pool())
        .await
        .unwrap();
    assert!(matches!(term.look().await, Err(TermError::Replaced)));
    assert!(!term.clock().holds());
    store.close().await;
}
