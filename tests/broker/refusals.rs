use crate::{RELAY_RETRY, connect, consumer, outgoing, settings, stream};
use twinbox::broker::nats::Nats;
use twinbox::broker::{BrokerError, PublishError, Publisher as _};
use twinbox::embedded::{NatsOptions, PrivateNats};

#[tokio::test]
async fn a_server_without_jetstream_is_named_as_such() {
    let server = PrivateNats::start(NatsOptions::new().without_jetstream())
        .await
        .unwrap();
    let nats = connect(&server.url()).await;
    let refused = nats
        .ensure_stream(&stream("ORDERS"), RELAY_RETRY)
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("not enabled"), "{refused}");
    let refused = nats
        .subscribe(&consumer("billing", "ORDERS"))
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("not enabled"), "{refused}");
    // No message is to blame for it.
    match nats.publish(outgoing("ORDERS.a", "one")).await {
        Err(PublishError::Outage(reason)) => assert!(reason.contains("not enabled"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_missing_permission_is_an_outage_that_says_where_to_look() {
    let users = r#"
        authorization { users = [
            { user: admin, password: pw }
            { user: relay, password: pw, permissions: {
                publish: ["events.>", "$JS.API.STREAM.INFO.>", "$JS.API.STREAM.NAMES"], subscribe: "_INBOX.>" } }
        ] }"#;
    let server = PrivateNats::start(NatsOptions::new().anonymous().configuration(users))
        .await
        .unwrap();
    let url = |user: &str| format!("nats://{user}:pw@127.0.0.1:{}", server.port());
    let admin = connect(&url("admin")).await;
    let events = twinbox::config::StreamSettings {
        subjects: vec!["events.>".into()],
        ..stream("EVENTS")
    };
    admin.ensure_stream(&events, RELAY_RETRY).await.unwrap();

    let relay = connect(&url("relay")).await;
    assert_eq!(relay.ensure_stream(&events, RELAY_RETRY).await.unwrap(), []);
    relay.publish(outgoing("events.a", "one")).await.unwrap();
    let refused = relay
        .ensure_stream(&stream("OTHER"), RELAY_RETRY)
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("permission"), "{refused}");
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_at_once() {
    let unreadable = twinbox::config::NatsSettings {
        credentials_file: Some("/nonexistent/a.creds".into()),
        ..settings("nats://127.0.0.1:1")
    };
    match Nats::connect(&unreadable, "test").await {
        Err(BrokerError::Refused(reason)) => assert!(reason.contains("credentials_file"), "{reason}"),
        other => panic!("{other:?}"),
    }
    match Nats::connect(&settings("http://127.0.0.1:1"), "test").await {
        Err(BrokerError::Refused(reason)) => assert!(reason.contains("http"), "{reason}"),
        other => panic!("{other:?}"),
    }
}
