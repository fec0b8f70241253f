use crate::house::{Acts, House, Memory, order};
use twinbox::config::{ConsumerSettings, SqlHandlerSettings, Unhandled};
use twinbox::dead_letter::Reason;
use twinbox::inbox::{Consumer, ConsumerConfigError};
use twinbox::{header, testing};

fn sql(subject: String, kind: Option<&str>, sql: &str) -> SqlHandlerSettings {
    SqlHandlerSettings {
        subject,
        kind: kind.map(str::to_owned),
        sql: sql.to_owned(),
    }
}

#[tokio::test]
async fn subjects_and_kinds_go_to_their_actors() {
    let house = House::new().await;
    let settings = ConsumerSettings {
        unhandled: Unhandled::DeadLetter,
        ..house.settings("billing")
    };
    let acts = |name: &str| {
        let (name, memory) = (name.to_owned(), Memory::default());
        move || Acts::new(&name, &memory)
    };
    let consumer = Consumer::builder(settings.clone())
        .actor_of_kind(house.subject("a"), "Placed", acts("placed"))
        .actor(house.subject("a"), acts("any of a"))
        .actor(house.subject("b.*"), acts("b"))
        .build()
        .unwrap();
    for (last, kind, n) in [
        ("a", Some("Placed"), 1),
        ("a", Some("Other"), 2),
        ("a", None, 3),
        ("b.x", None, 4),
        ("b.x.y", None, 5),
    ] {
        let mut headers = vec![];
        headers.extend(kind.map(|kind| (header::KIND, kind)));
        house.send_to(last, &headers, &order("", n, "")).await;
    }
    house
        .send_to("a", &[("ce-type", "Placed")], &order("", 6, ""))
        .await;
    let running = house.run_by(house.subscribe(&settings).await, consumer);
    let dead = house.until_dead(1).await;
    house.until_effects(5).await;
    running.stop().await;
    assert_eq!(dead[0].reason, Reason::Unhandled);
    assert!(dead[0].error.contains("b.x.y"), "{}", dead[0].error);
    let by: Vec<(i32, String)> = sqlx::query_as("SELECT n, consumer FROM effect ORDER BY n")
        .fetch_all(house.store.pool())
        .await
        .unwrap();
    let by: Vec<(i32, &str)> = by.iter().map(|(n, by)| (*n, by.as_str())).collect();
    assert_eq!(
        by,
        [
            (1, "placed"),
            (2, "any of a"),
            (3, "any of a"),
            (4, "b"),
            (6, "placed")
        ]
    );
}

#[tokio::test]
async fn what_nobody_handles_may_be_skipped() {
    let house = House::new().await;
    let settings = ConsumerSettings {
        unhandled: Unhandled::Skip,
        ..house.settings("billing")
    };
    let consumer = Consumer::builder(settings.clone())
        .actor(house.subject("wanted"), || {
            Acts::new("billing", &Memory::default())
        })
        .build()
        .unwrap();
    house.send_to("other", &[], b"not json").await;
    house.send_to("wanted", &[], &order("", 1, "")).await;
    let running = house.run_by(house.subscribe(&settings).await, consumer);
    house.until_effects(1).await;
    house.until_quiet(&settings).await;
    running.stop().await;
    assert_eq!(house.dead().await.len(), 0);
}

#[tokio::test]
async fn handlers_may_be_sql() {
    let house = House::new().await;
    sqlx::raw_sql(
        "CREATE TABLE got (id uuid, subject text, key text, kind text, tenant text, n int, bytes bytea)",
    )
    .execute(house.store.pool())
    .await
    .unwrap();
    let settings = ConsumerSettings {
        handlers: vec![
            sql(
                house.subject("json"),
                None,
                "INSERT INTO got VALUES (:id, :subject, :key, :kind, :headers->>'Tenant', (:payload->>'n')::int, :payload_bytes)",
            ),
            sql(
                house.subject("bytes"),
                Some("Blob"),
                "INSERT INTO got (bytes) VALUES (:payload_bytes) -- :id",
            ),
        ],
        ..house.settings("billing")
    };
    let consumer = Consumer::from_settings(settings.clone()).unwrap();
    let id = uuid::Uuid::now_v7();
    let headers = [
        (header::ID, &*id.to_string()),
        (header::KEY, "k"),
        (header::KIND, "Placed"),
        ("Tenant", "a"),
    ];
    house.send_to("json", &headers, br#"{"n": 7}"#).await;
    house
        .send_to("json", &[(header::ID, "nul")], br#"{"n": 1, "text": "\u0000"}"#)
        .await;
    house.send_to("json", &[(header::ID, "no json")], b"\xff").await;
    house
        .send_to("bytes", &[(header::KIND, "Blob")], b"\x00\xff")
        .await;
    let running = house.run_by(house.subscribe(&settings).await, consumer);
    let dead = house.until_dead(2).await;
    testing::wait_until("both are there", crate::house::DEADLINE, || async {
        house.count("got").await == 2
    })
    .await;
    running.stop().await;
    assert!(
        dead.iter().all(|letter| letter.reason == Reason::Rejected),
        "{dead:?}"
    );
    type Got = (uuid::Uuid, String, String, String, String, i32, Vec<u8>);
    let got: Got = sqlx::query_as("SELECT * FROM got WHERE id IS NOT NULL")
        .fetch_one(house.store.pool())
        .await
        .unwrap();
    let wanted = (
        id,
        house.subject("json"),
        "k".into(),
        "Placed".into(),
        "a".into(),
        7,
        br#"{"n": 7}"#.to_vec(),
    );
    assert_eq!(got, wanted);
}

#[tokio::test]
async fn a_consumer_that_can_not_work_is_refused() {
    let house = House::new().await;
    let refused = |settings: ConsumerSettings| Consumer::from_settings(settings).unwrap_err();
    assert!(matches!(
        refused(house.settings("billing")),
        ConsumerConfigError::NoHandler(_)
    ));
    let wrong = ConsumerSettings {
        handlers: vec![sql(">".into(), None, "SELECT :idd")],
        ..house.settings("billing")
    };
    let error = twinbox::with_causes(&refused(wrong));
    assert!(
        error.contains("handlers[0].sql") && error.contains(":idd") && error.contains(":payload"),
        "{error}"
    );
    let wrong = ConsumerSettings {
        lanes: 0,
        ..house.settings("a b")
    };
    let error = refused(wrong).to_string();
    assert!(error.contains("lanes") && error.contains("name"), "{error}");
}
