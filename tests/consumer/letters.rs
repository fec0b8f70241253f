use crate::house::{House, Memory};
use twinbox::config::ConsumerSettings;
use twinbox::dead_letter::{DeadLetterError, Filter, Reason, Selection};
use twinbox::{header, testing};

#[tokio::test]
async fn payloads_that_are_none_are_buried_and_harm_nobody() {
    let house = House::new().await;
    let settings = house.settings("billing");
    let deep = "[".repeat(10_000);
    let payloads: [&[u8]; 7] = [
        b"",
        b"not json",
        b"\xff\xfe\x00",
        b"{\"key\": \"k\", \"n\": 1",
        b"{\"n\": \"one\"}",
        b"\x00",
        deep.as_bytes(),
    ];
    for (n, payload) in payloads.into_iter().enumerate() {
        house
            .send_as(&[(header::ID, &format!("bad {n}")), ("X-Odd", "a\tb")], payload)
            .await;
    }
    house.send("k", 1, "").await;
    let running = house.run(settings.clone(), &Memory::default()).await;
    let dead = house.until_dead(payloads.len()).await;
    house.until_effects(1).await;
    house.until_quiet(&settings).await;
    running.stop().await;
    for payload in payloads {
        let letter = dead
            .iter()
            .find(|letter| letter.payload == payload)
            .expect("kept byte for byte");
        assert_eq!(
            (letter.reason, letter.headers.get("X-Odd")),
            (Reason::Undecodable, Some("a\tb"))
        );
        assert!(!letter.error.is_empty() && letter.sequence.is_some());
    }
}

#[tokio::test]
async fn a_key_is_released_in_order() {
    let house = House::new().await;
    let settings = house.settings("billing");
    house
        .send_as(&[(header::ID, "bad"), (header::KEY, "k")], b"not json")
        .await;
    for n in 1..=5 {
        house.send("k", n, "").await;
    }
    house.send("other", 100, "").await;
    let running = house.run(settings.clone(), &Memory::default()).await;
    let dead = house.until_dead(6).await;
    house.until_effects(1).await;
    assert_eq!(house.effects("other").await, [100]);
    let desk = house.desk();

    // One from the middle would overtake.
    match desk.requeue(&Selection::Id(dead[3].id)).await {
        Err(DeadLetterError::OutOfOrder { earlier, .. }) => assert_eq!(earlier, dead[0].id),
        other => panic!("{other:?}"),
    }
    assert!(matches!(
        desk.requeue(&Selection::Id(-1)).await,
        Err(DeadLetterError::Unknown(-1))
    ));

    // Requeued as it is, it fails again and stays in front of the others.
    let key = Filter {
        key: Some("k".into()),
        ..Filter::default()
    };
    assert_eq!(desk.requeue(&Selection::Matching(key.clone())).await.unwrap(), 6);
    testing::wait_until("it is put back", crate::house::DEADLINE, || async {
        let dead = house.dead().await;
        let first = &dead[0];
        if dead.len() == 6 && !first.requeued {
            Ok(())
        } else {
            Err(format!("{} letters", dead.len()))
        }
    })
    .await;
    assert_eq!(house.count("effect").await, 1);

    // Given up, the others follow in order, and so does what came meanwhile.
    assert_eq!(desk.discard(&Selection::Id(dead[0].id)).await.unwrap(), 1);
    house.until_dead(0).await;
    house.send("k", 6, "").await;
    house.until_effects(7).await;
    house.until_quiet(&settings).await;
    running.stop().await;
    assert_eq!(house.effects("k").await, [1, 2, 3, 4, 5, 6]);
}

#[tokio::test]
async fn what_comes_for_a_key_while_it_is_released_stays_behind() {
    let house = House::new().await;
    let settings = ConsumerSettings {
        max_attempts: 1,
        ..house.settings("billing")
    };
    house.send("k", 0, "reject").await;
    let running = house.run(settings.clone(), &Memory::default()).await;
    let first = house.until_dead(1).await[0].id;
    for n in 1..=20 {
        house.send("k", n, "").await;
    }
    house.until_dead(21).await;
    house.desk().discard(&Selection::Id(first)).await.unwrap();
    house
        .desk()
        .requeue(&Selection::Matching(Filter::default()))
        .await
        .unwrap();
    for n in 21..=60 {
        house.send("k", n, "").await;
    }
    // What came while letters of the key lay there follows them, and is released by itself.
    testing::wait_until("all took effect", crate::house::DEADLINE, || async {
        match house.count("effect").await {
            60 => Ok(()),
            found => Err(format!("{found} of 60")),
        }
    })
    .await;
    running.stop().await;
    assert_eq!(house.effects("k").await, (1..=60).collect::<Vec<i32>>());
}
