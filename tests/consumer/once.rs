use crate::house::{House, Memory, acting, connect, open, order};
use sqlx::ConnectOptions as _;
use std::sync::Arc;
use twinbox::{header, testing};
use uuid::Uuid;

#[tokio::test]
async fn two_consumers_race_and_each_effect_is_there_once() {
    let house = House::new().await;
    // Two processes with two names at the broker and one at the inbox: each gets every message.
    let settings = house.settings("billing");
    for n in 0..300 {
        house.send(&format!("key-{}", n % 7), n, "").await;
    }
    let other_store = open(house.store.direct().to_url_lossy().as_str()).await;
    let other = House {
        store: other_store,
        nats: connect(&testing::servers().await.nats.url()).await,
        stream: house.stream.clone(),
    };
    let (one, two) = (Memory::default(), Memory::default());
    let broker_side = |name: &str| twinbox::config::ConsumerSettings {
        name: name.into(),
        ..settings.clone()
    };
    let first = house.run_by(
        house.subscribe(&broker_side("a")).await,
        acting(settings.clone(), &one),
    );
    let second = other.run_by(
        other.subscribe(&broker_side("b")).await,
        acting(settings.clone(), &two),
    );
    house.until_effects(300).await;
    house.until_quiet(&broker_side("a")).await;
    house.until_quiet(&broker_side("b")).await;
    first.stop().await;
    second.stop().await;
    assert_eq!(house.count("effect").await, 300);
    assert_eq!(house.count("twinbox.inbox").await, 300);
    assert_eq!(house.dead().await.len(), 0);
    let status = twinbox::inbox::status(&house.store).await.unwrap();
    assert_eq!((status[0].claimed, status[0].duplicates), (300, 300));
}

/// A second instance reads what the first was handed out, and meets it at work again and again.
#[tokio::test]
async fn a_twin_at_work_uses_up_no_attempt() {
    let house = House::new().await;
    let settings = twinbox::config::ConsumerSettings {
        max_attempts: 1,
        batch: 1,
        ..house.settings("billing")
    };
    for n in 0..10 {
        house.send(&format!("key-{}", n % 2), n, "slow").await;
    }
    let first = house.run(settings.clone(), &Memory::default()).await;
    house.until_effects(1).await;
    let second = house.run(settings.clone(), &Memory::default()).await;
    house.until_effects(10).await;
    house.until_quiet(&settings).await;
    first.stop().await;
    second.stop().await;
    assert_eq!(house.dead().await.len(), 0);
    assert_eq!(house.count("effect").await, 10);
    assert_eq!(
        house.count("twinbox.attempt").await,
        0,
        "what was counted too much is taken back"
    );
    for key in ["key-0", "key-1"] {
        assert!(house.effects(key).await.is_sorted());
    }
}

#[tokio::test]
async fn copies_of_all_kinds_take_effect_once() {
    let house = House::new().await;
    let settings = house.settings("billing");
    let id = Uuid::now_v7().to_string();
    // Each group is one message.
    let groups: &[&[&[(&str, &str)]]] = &[
        &[
            &[(header::ID, &id)],
            &[("twinbox-id", &id.to_uppercase())],
            &[("ce-id", &id)],
        ],
        &[
            &[("ce-id", "7"), ("ce-source", "/a")],
            &[("ce-source", "/a"), ("ce-id", "7")],
        ],
        &[&[("ce-id", "7"), ("ce-source", "/b")]],
        &[
            &[(header::ID, "01ARZ3NDEKTSV4RRFFQ69G5FAV")],
            &[(header::ID, "01ARZ3NDEKTSV4RRFFQ69G5FAV")],
        ],
        &[
            &[(header::ID, "order 7, as free text")],
            &[(header::ID, "order 7, as free text")],
        ],
        &[
            &[(header::ID, "first"), (header::ID, "second")],
            &[(header::ID, "first")],
        ],
        &[&[(header::ID, "")]],
    ];
    let long = "x".repeat(300);
    for (n, group) in groups.iter().enumerate() {
        for headers in *group {
            house.send_as(headers, &order("", n as i32, "")).await;
        }
    }
    for subject in ["order", "another"] {
        house
            .send_to(subject, &[(header::ID, &long)], &order("", 100, ""))
            .await;
    }
    let running = house.run(settings.clone(), &Memory::default()).await;
    house.until_quiet(&settings).await;
    running.stop().await;
    let mut effects = house.effects("").await;
    effects.sort_unstable();
    assert_eq!(effects, [0, 1, 2, 3, 4, 5, 6, 100]);
}

#[tokio::test]
async fn a_message_without_any_id_is_known_by_its_place() {
    let house = House::new().await;
    let settings = house.settings("billing");
    let jetstream = house.nats.jetstream();
    for n in 0..3 {
        let published = jetstream
            .publish(house.subject("order"), order("", n, "").into())
            .await
            .unwrap();
        published.await.unwrap();
    }
    for _ in 0..2 {
        let running = house.run(settings.clone(), &Memory::default()).await;
        house.until_quiet(&settings).await;
        running.stop().await;
        // A consumer made anew gets all of it again.
        jetstream
            .delete_consumer_from_stream("billing", &house.stream.name)
            .await
            .unwrap();
    }
    assert_eq!(house.effects("").await.len(), 3);
}

#[tokio::test]
async fn what_a_message_causes_has_the_same_id_each_time() {
    let house = House::new().await;
    for consumer in ["billing", "billing", "shipping"] {
        sqlx::raw_sql("TRUNCATE twinbox.inbox, effect")
            .execute(house.store.pool())
            .await
            .unwrap();
        let settings = house.settings(consumer);
        if house.count("twinbox.outbox").await == 0 {
            house.send("k", 1, "next").await;
            house.send("k", 2, "next").await;
        }
        let running = house.run(settings.clone(), &Memory::default()).await;
        house.until_effects(2).await;
        running.stop().await;
        house
            .nats
            .jetstream()
            .delete_consumer_from_stream(consumer, &house.stream.name)
            .await
            .unwrap();
    }
    // Billing's two runs, as after a restore of the database, made the same ids; shipping's are others.
    let ids: Vec<(Uuid, i64)> =
        sqlx::query_as("SELECT message_id, count(*) FROM twinbox.outbox GROUP BY 1 ORDER BY 2 DESC, 1")
            .fetch_all(house.store.pool())
            .await
            .unwrap();
    let counts: Vec<i64> = ids.iter().map(|(_, count)| *count).collect();
    assert_eq!(counts, [2, 2, 1, 1]);
    assert!(ids.iter().all(|(id, _)| id.get_version_num() == 8));
}

#[tokio::test]
async fn two_consumers_of_one_stream_know_nothing_of_each_other() {
    let house = Arc::new(House::new().await);
    let (billing, shipping) = (house.settings("billing"), house.settings("shipping"));
    let one = house.run(billing.clone(), &Memory::default()).await;
    for n in 0..10 {
        house.send("k", n, "").await;
    }
    let two = house.run(shipping.clone(), &Memory::default()).await;
    house.until_effects(20).await;
    house.until_quiet(&billing).await;
    house.until_quiet(&shipping).await;
    one.stop().await;
    two.stop().await;
    assert_eq!(house.count("twinbox.inbox").await, 20);
    assert_eq!(house.count("effect").await, 20);
}
