use crate::house::{House, Memory, acting, open};
use sqlx::ConnectOptions as _;
use std::time::Duration;
use twinbox::config::{ConsumerSettings, Retention};
use twinbox::dead_letter::{DeadLetter, Filter, Reason, Selection};
use twinbox::embedded::{PostgresOptions, PrivatePostgres};
use twinbox::testing;

#[tokio::test]
async fn only_the_failing_message_of_a_batch_fails() {
    let house = House::new().await;
    let settings = ConsumerSettings {
        lanes: 1,
        ..house.settings("billing")
    };
    for n in 0..60 {
        let act = if n == 31 { "fail once" } else { "" };
        house.send(&format!("key-{}", n % 3), n, act).await;
    }
    let memory = Memory::default();
    let running = house.run(settings.clone(), &memory).await;
    house.until_effects(60).await;
    house.until_quiet(&settings).await;
    running.stop().await;
    for key in 0..3 {
        let wanted: Vec<i32> = (0..60).filter(|n| n % 3 == key).collect();
        assert_eq!(
            house.effects(&format!("key-{key}")).await,
            wanted,
            "order of key {key}"
        );
    }
    assert_eq!(house.dead().await.len(), 0);
    // In the batch, alone, and then well.
    assert_eq!(memory.runs(31), 3);
    // The others once, and those before it once more.
    let others: Vec<u32> = (0..60).filter(|n| *n != 31).map(|n| memory.runs(n)).collect();
    assert!(others.iter().all(|runs| *runs <= 2), "{others:?}");
    let status = twinbox::inbox::status(&house.store).await.unwrap();
    assert_eq!((status[0].claimed, status[0].unfinished), (60, 0));
}

#[tokio::test]
async fn many_failures_in_a_batch_are_told_apart() {
    let house = House::new().await;
    let settings = ConsumerSettings {
        lanes: 1,
        ..house.settings("billing")
    };
    let is_rejected = |n: i32| n % 50 == 17;
    for n in 0..400 {
        match n {
            _ if is_rejected(n) => house.send(&format!("bad-{n}"), n, "reject").await,
            _ if n % 7 == 3 => house.send(&format!("key-{}", n % 10), n, "fail once").await,
            _ if n % 90 == 5 => house.send(&format!("key-{}", n % 10), n, "panic once").await,
            _ => house.send(&format!("key-{}", n % 10), n, "").await,
        };
    }
    let running = house.run(settings.clone(), &Memory::default()).await;
    house.until_effects(392).await;
    house.until_quiet(&settings).await;
    running.stop().await;
    for key in 0..10 {
        let wanted: Vec<i32> = (0..400).filter(|n| n % 10 == key && !is_rejected(*n)).collect();
        assert_eq!(
            house.effects(&format!("key-{key}")).await,
            wanted,
            "order of key {key}"
        );
    }
    let dead = house.dead().await;
    assert_eq!(dead.len(), 8);
    assert!(
        dead.iter()
            .all(|letter| letter.reason == Reason::Rejected && letter.runs == 1)
    );
}

#[tokio::test]
async fn a_message_is_tried_as_often_as_it_may_and_then_buried_with_its_key() {
    let house = House::new().await;
    let settings = ConsumerSettings {
        max_attempts: 3,
        ..house.settings("billing")
    };
    house.send("bad", 1, "fail").await;
    house.send("bad", 2, "").await;
    house.send("good", 3, "").await;
    house.send("worse", 4, "reject").await;
    house.send("worse", 5, "").await;
    let memory = Memory::default();
    let running = house.run(settings.clone(), &memory).await;
    let dead = house.until_dead(4).await;
    house.until_quiet(&settings).await;
    house.send("bad", 6, "").await;
    house.until_dead(5).await;
    running.stop().await;
    let of = |n: i32| {
        let order = |payload: &[u8]| serde_json::from_slice::<serde_json::Value>(payload).unwrap()["n"] == n;
        dead.iter().find(|letter| order(&letter.payload)).unwrap()
    };
    assert_eq!(
        (of(1).reason, of(1).runs, of(1).error.as_str()),
        (Reason::Exhausted, 3, "never")
    );
    assert_eq!((of(2).reason, of(2).runs), (Reason::Follows, 0));
    assert_eq!(
        (of(4).reason, of(4).runs, of(4).error.as_str()),
        (Reason::Rejected, 1, "no good")
    );
    assert_eq!(of(5).reason, Reason::Follows);
    assert_eq!(house.effects("good").await, [3]);
    assert_eq!(house.count("effect").await, 1);
    assert_eq!(house.count("twinbox.inbox").await, 6);
    assert_eq!(house.count("twinbox.attempt").await, 0);
}

#[tokio::test]
async fn attempts_outlive_the_process() {
    let house = House::new().await;
    let settings = ConsumerSettings {
        max_attempts: 4,
        retry_min: Duration::from_secs(60),
        retry_max: Duration::from_secs(60),
        ..house.settings("billing")
    };
    house.send("k", 1, "fail").await;
    // Each life of the process runs it, and waits a minute for the next run.
    for life in 1..=3 {
        let memory = Memory::default();
        let running = house.run(settings.clone(), &memory).await;
        testing::wait_until("the run is counted", crate::house::DEADLINE, || async {
            let runs: Option<i32> =
                sqlx::query_scalar("SELECT runs FROM twinbox.attempt WHERE last_error IS NOT NULL")
                    .fetch_optional(house.store.pool())
                    .await
                    .unwrap();
            if runs == Some(life) {
                Ok(())
            } else {
                Err(format!("{runs:?} of {life}"))
            }
        })
        .await;
        running.stop().await;
    }
    let running = house.run(settings, &Memory::default()).await;
    let dead = house.until_dead(1).await;
    running.stop().await;
    assert_eq!((dead[0].reason, dead[0].runs), (Reason::Exhausted, 4));
}

#[tokio::test]
async fn a_handler_that_panics_swallows_or_ends_the_transaction_is_found_out() {
    let house = House::new().await;
    let settings = ConsumerSettings {
        max_attempts: 2,
        handler_deadline: Duration::from_millis(700),
        ..house.settings("billing")
    };
    for (n, act) in ["panic", "swallow", "COMMIT", "ROLLBACK", "hang", "savepoint", ""]
        .into_iter()
        .enumerate()
    {
        house.send(act, n as i32, act).await;
    }
    let running = house.run(settings.clone(), &Memory::default()).await;
    testing::wait_until("all are settled", crate::house::DEADLINE, || async {
        house.count("twinbox.inbox").await == 7
    })
    .await;
    house.until_quiet(&settings).await;
    running.stop().await;
    let dead: Vec<(String, String)> = house
        .dead()
        .await
        .into_iter()
        .map(|letter| (letter.key.unwrap_or_default(), letter.error))
        .collect();
    let error = |act: &str| {
        dead.iter()
            .find(|(key, _)| key == act)
            .map(|(_, error)| error.clone())
            .unwrap_or_default()
    };
    assert!(
        error("panic").contains("panicked: at the order's word"),
        "{dead:?}"
    );
    assert!(
        error("swallow").contains("returned Ok after an SQL error"),
        "{dead:?}"
    );
    for act in ["COMMIT", "ROLLBACK"] {
        assert!(error(act).contains("ended the transaction itself"), "{dead:?}");
    }
    assert!(error("hang").contains("took longer than"), "{dead:?}");
    assert_eq!(house.effects("savepoint").await, [5]);
    assert_eq!(house.effects("").await.len(), 1, "the message without a key");
    for act in ["panic", "swallow", "ROLLBACK", "hang"] {
        assert_eq!(house.effects(act).await.len(), 0, "{act}");
    }
    // What the handler committed itself is committed, claim and all: it must not be there twice.
    assert_eq!(house.effects("COMMIT").await.len(), 1);
    assert_eq!(
        house.count("twinbox.outbox").await,
        0,
        "nothing of a run that failed is sent"
    );
    let open: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
    )
    .fetch_one(house.store.pool())
    .await
    .unwrap();
    assert_eq!(open, 0);
}

/// One that ends the transaction tears the batch that it is in: nothing of it is run again, and nothing silently skipped.
#[tokio::test]
async fn of_a_torn_batch_every_message_is_accounted_for() {
    for act in ["COMMIT", "ROLLBACK", "COMMIT and fail"] {
        let house = House::new().await;
        let settings = ConsumerSettings {
            lanes: 1,
            ..house.settings("billing")
        };
        for n in 0..10 {
            let act = if n == 4 { act } else { "next" };
            house.send(&format!("key-{n}"), n, act).await;
        }
        let memory = Memory::default();
        let running = house.run(settings.clone(), &memory).await;
        house.until_quiet(&settings).await;
        running.stop().await;
        let dead = house.dead().await;
        for n in 0..10 {
            let key = format!("key-{n}");
            let effects = house.effects(&key).await.len();
            let letter = dead.iter().find(|letter| letter.key.as_deref() == Some(&key));
            assert!(effects <= 1 && memory.runs(n) <= 1, "{act}: {n} ran again");
            match letter {
                Some(letter) => assert_eq!(letter.reason, Reason::Torn, "{act}: {n}"),
                // It was in another batch: done with its next hop.
                None => assert_eq!(effects, 1, "{act}: {n} is lost"),
            }
        }
        assert!(dead.iter().any(|letter| letter.key.as_deref() == Some("key-4")));
        let whole = 10 - dead.len() as i64;
        assert_eq!(
            house.count("twinbox.outbox").await,
            whole,
            "{act}: next hops of what is whole"
        );
    }
}

/// A letter that is requeued and tears its transaction, which had taken it out, is there again.
#[tokio::test]
async fn a_letter_that_ends_the_transaction_is_not_lost() {
    let house = House::new().await;
    let settings = house.settings("billing");
    house.send("k", 1, "COMMIT").await;
    house.send("k", 2, "").await;
    let running = house.run(settings.clone(), &Memory::default()).await;
    let first = house.until_dead(2).await;
    house
        .desk()
        .requeue(&Selection::Matching(Filter::default()))
        .await
        .unwrap();
    let again = testing::wait_until("it ran again", crate::house::DEADLINE, || async {
        let twice = house.effects("k").await.iter().filter(|n| **n == 1).count() == 2;
        let dead = house.dead().await;
        (twice && dead.first().is_some_and(|letter| !letter.requeued)).then_some(dead)
    })
    .await;
    running.stop().await;
    let ids = |letters: &[DeadLetter]| letters.iter().map(|letter| letter.id).collect::<Vec<_>>();
    assert_eq!(
        ids(&first),
        ids(&again),
        "under its old number, and what follows it still behind it"
    );
    assert_eq!(again[0].reason, Reason::Torn);
}

/// What always meets another transaction is tried for ever, and is nobody's failure.
#[tokio::test]
async fn a_conflict_without_end_uses_no_attempt() {
    let house = House::new().await;
    sqlx::raw_sql(
        "CREATE SEQUENCE met;
         CREATE FUNCTION meet() RETURNS trigger LANGUAGE plpgsql AS
         $$BEGIN PERFORM nextval('met'); RAISE EXCEPTION 'always' USING ERRCODE = '40001'; END$$;
         CREATE TRIGGER meet BEFORE INSERT ON effect FOR EACH ROW WHEN (NEW.n = 1) EXECUTE FUNCTION meet()",
    )
    .execute(house.store.pool())
    .await
    .unwrap();
    let settings = ConsumerSettings {
        lanes: 1,
        ..house.settings("billing")
    };
    house.send("k", 1, "").await;
    let running = house.run(settings, &Memory::default()).await;
    let met = || async {
        sqlx::query_scalar::<_, i64>("SELECT last_value FROM met")
            .fetch_one(house.store.pool())
            .await
            .unwrap()
    };
    testing::wait_until("it met some", crate::house::DEADLINE, || async {
        met().await >= 8
    })
    .await;
    assert_eq!(house.dead().await.len(), 0);
    assert_eq!(house.count("twinbox.attempt").await, 0);
    sqlx::raw_sql("DROP TRIGGER meet ON effect")
        .execute(house.store.pool())
        .await
        .unwrap();
    house.until_effects(1).await;
    running.stop().await;
}

#[tokio::test]
async fn colliding_handlers_are_nobodys_failure() {
    let house = House::new().await;
    let settings = ConsumerSettings {
        max_attempts: 2,
        ..house.settings("billing")
    };
    for n in 0..1500 {
        house.send(&format!("key-{n}"), n, "collide").await;
    }
    // A foreign transaction that holds one of the rows for some seconds.
    let foreign = open(house.store.direct().to_url_lossy().as_str()).await;
    let mut held = foreign.begin().await.unwrap();
    sqlx::query("UPDATE shared SET n = n WHERE id = 0")
        .execute(&mut *held)
        .await
        .unwrap();
    let release = tokio::spawn(async move {
        // How long it holds it is what is tested.
        tokio::time::sleep(Duration::from_secs(3)).await;
        held.rollback().await.unwrap();
    });
    // Two instances, which share the brake.
    let first = house.run(settings.clone(), &Memory::default()).await;
    let second = house.run(settings.clone(), &Memory::default()).await;
    house.until_effects(1500).await;
    house.until_quiet(&settings).await;
    first.stop().await;
    second.stop().await;
    release.await.unwrap();
    let shared: i64 = sqlx::query_scalar("SELECT sum(n)::bigint FROM shared")
        .fetch_one(house.store.pool())
        .await
        .unwrap();
    assert_eq!((house.count("effect").await, shared), (1500, 4500));
    assert_eq!(house.dead().await.len(), 0);
    assert_eq!(twinbox::inbox::status(&house.store).await.unwrap()[0].retries, 0);
}

#[tokio::test]
async fn an_outage_of_the_database_uses_no_attempt() {
    let mut postgres = PrivatePostgres::start(PostgresOptions::new().fast())
        .await
        .unwrap();
    let url = postgres.create_database("billing").await.unwrap();
    let house = House::on(&url, &testing::servers().await.nats.url(), Retention::Limits).await;
    let settings = ConsumerSettings {
        max_attempts: 1,
        ..house.settings("billing")
    };
    let running = house.run(settings.clone(), &Memory::default()).await;
    for n in 0..400 {
        house.send(&format!("key-{}", n % 20), n, "").await;
        if n % 150 == 149 {
            postgres.kill().await.unwrap();
            let health = running.control.health();
            testing::wait_until("it says why it is not ready", crate::house::DEADLINE, || async {
                health
                    .borrow()
                    .reason
                    .clone()
                    .filter(|reason| reason != "starting")
            })
            .await;
            postgres.restart().await.unwrap();
        }
    }
    house.until_effects(400).await;
    house.until_quiet(&settings).await;
    running.stop().await;
    for key in 0..20 {
        let wanted: Vec<i32> = (0..400).filter(|n| n % 20 == key).collect();
        assert_eq!(house.effects(&format!("key-{key}")).await, wanted);
    }
    assert_eq!(house.dead().await.len(), 0);
    assert_eq!(twinbox::inbox::status(&house.store).await.unwrap()[0].retries, 0);
}

#[tokio::test]
async fn a_consumer_that_starts_in_an_outage_waits_for_its_end() {
    let mut postgres = PrivatePostgres::start(PostgresOptions::new().fast())
        .await
        .unwrap();
    let url = postgres.create_database("billing").await.unwrap();
    let house = House::on(&url, &testing::servers().await.nats.url(), Retention::Limits).await;
    let settings = house.settings("billing");
    let subscription = house.subscribe(&settings).await;
    house.send("a", 1, "").await;
    postgres.kill().await.unwrap();
    let start = || house.run_by(subscription.clone(), acting(settings.clone(), &Memory::default()));
    let (stopped, waiting) = (start(), start());
    for running in [&stopped, &waiting] {
        let mut health = running.control.health();
        let reason = health.wait_for(|health| health.reason.as_deref() != Some("starting"));
        assert!(
            reason
                .await
                .unwrap()
                .reason
                .as_ref()
                .unwrap()
                .contains("the database")
        );
    }
    // One that is to end does not wait for it.
    stopped.stop().await;
    postgres.restart().await.unwrap();
    house.until_effects(1).await;
    waiting.stop().await;
}

/// A connection that is lost is an outage, and uses no attempt; one that the handler loses each time must not hold up its lane.
#[tokio::test]
async fn a_handler_that_loses_the_connection_each_time_is_found_out() {
    let house = House::new().await;
    let settings = ConsumerSettings {
        max_attempts: 2,
        lanes: 1,
        ..house.settings("billing")
    };
    house.send("a", 1, "").await;
    house.send("b", 2, "lose the connection").await;
    house.send("c", 3, "lose the connection once").await;
    house.send("d", 4, "").await;
    let memory = Memory::default();
    let running = house.run(settings.clone(), &memory).await;
    house.until_effects(3).await;
    let dead = house.until_dead(1).await;
    house.until_quiet(&settings).await;
    running.stop().await;
    assert_eq!((dead[0].key.as_deref(), dead[0].runs), (Some("b"), 2));
    assert!(
        dead[0].error.contains("lost 3 times in a row"),
        "{}",
        dead[0].error
    );
    assert!(memory.runs(2) >= 6, "{}", memory.runs(2));
    let retries = twinbox::inbox::status(&house.store).await.unwrap()[0].retries;
    assert_eq!(retries, 1, "of b alone");
}

#[tokio::test]
async fn a_missing_table_keeps_messages_waiting_and_loses_none() {
    let house = House::new().await;
    let settings = ConsumerSettings {
        max_attempts: 1,
        ..house.settings("billing")
    };
    house.send("k", 1, "missing table").await;
    house.send("k", 2, "").await;
    let running = house.run(settings.clone(), &Memory::default()).await;
    let health = running.control.health();
    testing::wait_until("it says what is missing", crate::house::DEADLINE, || async {
        health
            .borrow()
            .reason
            .clone()
            .filter(|reason| reason.contains("not_there"))
    })
    .await;
    sqlx::raw_sql("CREATE TABLE not_there (n int)")
        .execute(house.store.pool())
        .await
        .unwrap();
    house.until_effects(2).await;
    running.stop().await;
    assert_eq!(house.effects("k").await, [1, 2]);
    assert_eq!(house.dead().await.len(), 0);
}
