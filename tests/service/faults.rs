//! What goes wrong around a service, and inside its actors.

use crate::shop::{DEADLINE, Fate, Order, Shop, until_ready};
use std::sync::atomic::Ordering;
use twinbox::config::{ConsumerSettings, Role, SqlHandlerSettings};
use twinbox::dead_letter::{Desk, Filter, Reason};
use twinbox::embedded::{NatsOptions, PostgresOptions, PrivateServers};
use twinbox::inbox::Consumer;
use twinbox::{Service, ServiceError, ServiceHandle, testing};

#[tokio::test]
async fn an_actor_that_panics_takes_nobody_with_it() {
    let shop = Shop::new().await;
    let service = shop.start().await;
    shop.place(1..=20, Fate::Charged).await;
    shop.place(21..=21, Fate::PanicsOnce).await;
    shop.place(22..=22, Fate::Panics).await;
    // 27 has the key of 22 and follows it; the others go on.
    shop.place(23..=40, Fate::Charged).await;
    shop.until_booked(36).await;
    let desk = Desk::new(shop.store.clone());
    let dead = testing::wait_until("the letters", DEADLINE, || async {
        let dead = desk.list(&Filter::default(), 0, 100).await.unwrap();
        if dead.len() == 4 {
            Ok(dead)
        } else {
            Err(format!("{dead:?}"))
        }
    })
    .await;
    let mut numbers: Vec<(u32, Reason)> = dead
        .iter()
        .map(|letter| {
            let order: Order = serde_json::from_slice(&letter.payload).unwrap();
            (order.number, letter.reason)
        })
        .collect();
    numbers.sort_unstable_by_key(|(number, _)| *number);
    assert_eq!(
        numbers,
        [
            (22, Reason::Exhausted),
            (27, Reason::Follows),
            (32, Reason::Follows),
            (37, Reason::Follows)
        ]
    );
    let first = dead
        .iter()
        .find(|letter| letter.reason == Reason::Exhausted)
        .unwrap();
    assert!(first.error.contains("this actor has a fault"), "{first:?}");
    assert!(shop.panics.load(Ordering::Relaxed) >= 5);
    let restarts: u64 = service.observe().iter().map(|part| part.restarts).sum();
    assert_eq!(restarts, 0, "{:?}", service.observe());
    until_ready(&service).await;
    service.drain();
    assert!(service.wait().await.is_clean());
    let mut booked = shop.booked().await;
    booked.sort_unstable();
    let well: Vec<u32> = (1..=40)
        .filter(|number| ![22, 27, 32, 37].contains(number))
        .collect();
    assert_eq!(booked, well);
}

#[tokio::test]
async fn it_is_not_ready_while_a_server_is_away_and_loses_nothing() {
    let mut servers = PrivateServers::start(PostgresOptions::new().fast(), NatsOptions::new().anonymous())
        .await
        .unwrap();
    let shop = Shop::on(&servers).await;
    shop.place(1..=20, Fate::Charged).await;
    servers.nats.kill().await.unwrap();
    servers.postgres.kill().await.unwrap();

    // Both are away when it starts: that is no error.
    let service = shop.start().await;
    until_not_ready(&service, "database").await;
    servers.postgres.restart().await.unwrap();
    until_not_ready(&service, "NATS").await;
    servers.nats.restart().await.unwrap();
    shop.until_booked(20).await;
    until_ready(&service).await;

    servers.nats.kill().await.unwrap();
    shop.place(21..=40, Fate::Charged).await;
    until_not_ready(&service, "").await;
    servers.nats.restart().await.unwrap();
    shop.until_booked(40).await;
    until_ready(&service).await;

    servers.postgres.kill().await.unwrap();
    until_not_ready(&service, "").await;
    servers.postgres.restart().await.unwrap();
    shop.place(41..=60, Fate::Charged).await;
    shop.until_booked(60).await;
    until_ready(&service).await;

    service.drain();
    let outcome = service.wait().await;
    assert!(outcome.is_clean(), "{outcome}");
    shop.assert_once(1..=60).await;
    shop.assert_in_order().await;
    let dead = Desk::new(shop.store.clone())
        .list(&Filter::default(), 0, 100)
        .await;
    assert_eq!(dead.unwrap().len(), 0);
}

#[tokio::test]
async fn a_stream_that_somebody_deletes_is_made_anew_and_filled_again() {
    let shop = Shop::new().await;
    let service = shop.start().await;
    shop.place(1..=20, Fate::Charged).await;
    shop.until_booked(20).await;
    shop.delete_stream().await;
    shop.place(21..=40, Fate::Charged).await;
    shop.until_booked(40).await;
    // Everything that the log has is in the stream again, and took no second effect.
    shop.until_stored(80).await;
    until_ready(&service).await;
    service.drain();
    assert!(service.wait().await.is_clean());
    shop.assert_once(1..=40).await;
    shop.assert_in_order().await;
}

async fn until_not_ready(service: &ServiceHandle, why: &str) {
    testing::wait_until("not ready", DEADLINE, || async {
        let parts = service.observe();
        let told = |reason: &Option<String>| reason.as_ref().is_some_and(|reason| reason.contains(why));
        if parts
            .iter()
            .any(|part| !part.ready && told(&part.not_ready_reason))
        {
            Ok(())
        } else {
            Err(format!("{parts:?}"))
        }
    })
    .await;
}

#[tokio::test]
async fn what_no_waiting_can_mend_is_told_at_the_start() {
    let shop = Shop::new().await;
    let told = async |service: Service| match service.start().await {
        Ok(_) => panic!("it started"),
        Err(error) => (twinbox::with_causes(&error), error),
    };

    let mut settings = shop.settings.clone();
    settings.relay.window = 0;
    settings.nats.url = "".into();
    let (text, error) = told(Service::new(settings)).await;
    assert!(matches!(error, ServiceError::Settings(faults) if faults.len() == 2));
    assert!(
        text.contains("relay.window") && text.contains("nats.url"),
        "{text}"
    );

    let mut settings = shop.settings.clone();
    settings.run.roles = Vec::<Role>::new();
    let (text, _) = told(Service::new(settings)).await;
    assert!(text.contains("run.roles"), "{text}");

    let billing = ConsumerSettings {
        name: "billing".to_owned(),
        stream: shop.stream.clone(),
        handlers: vec![SqlHandlerSettings {
            subject: ">".to_owned(),
            kind: None,
            sql: "SELECT :payload".to_owned(),
        }],
        ..ConsumerSettings::default()
    };
    let twice = shop
        .service()
        .consumer(Consumer::from_settings(billing.clone()).unwrap());
    let (text, error) = told(twice).await;
    assert!(matches!(error, ServiceError::Twice(name) if name == "billing"));
    assert!(text.contains("names are unique"), "{text}");

    let mut settings = shop.settings.clone();
    settings.consumers.push(ConsumerSettings {
        handlers: vec![SqlHandlerSettings {
            sql: "SELECT :amount".to_owned(),
            ..billing.handlers[0].clone()
        }],
        ..billing
    });
    let (text, error) = told(Service::new(settings)).await;
    assert!(matches!(error, ServiceError::Consumer { name, .. } if name == "billing"));
    assert!(text.contains("billing") && text.contains(":amount"), "{text}");

    let mut settings = shop.settings.clone();
    settings.database.url = "mysql://db/orders".into();
    let (text, _) = told(Service::new(settings)).await;
    assert!(text.contains("database.url"), "{text}");
}
