//! The rules for a message stand twice: in Rust, and in SQL for every other language. They must agree.

use crate::store_in;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use twinbox::store::migrate;
use twinbox::{Headers, Message};

/// Text made of what the rules are about, more often than chance would have it.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        5 => "[a-z]{1,3}",
        1 => Just(".".to_owned()),
        1 => prop::sample::select(vec!["*", ">", "$", " ", "\t", "\n", "\r", ":", "é", "\u{7f}", "\u{85}", "\u{a0}", "\u{3000}", "Nats-", "twinbox-"])
            .prop_map(str::to_owned),
        1 => (1000_usize..1030).prop_map(|length| "x".repeat(length)),
    ];
    prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
}

#[tokio::test]
async fn sql_and_rust_refuse_the_same_messages() {
    let store = store_in("twinbox").await;
    migrate(&store).await.unwrap();
    let messages = (
        text(),
        prop::option::of(text()),
        prop::collection::vec((text(), text()), 0..3),
    );
    let mut runner = TestRunner::deterministic();
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..3000 {
        let (subject, key, headers) = messages.new_tree(&mut runner).unwrap().current();
        let headers: Headers = headers.into_iter().collect();
        let message = Message {
            key: key.clone(),
            headers: headers.clone(),
            ..Message::new(&subject, "")
        };
        let rust = message.validate();
        let sql = sqlx::query("SELECT twinbox.check_message($1, $2, $3::jsonb)")
            .bind(&subject)
            .bind(&key)
            .bind(serde_json::to_string(&headers).unwrap())
            .execute(store.pool())
            .await;
        if rust.is_ok() {
            accepted += 1
        } else {
            refused += 1
        }
        assert_eq!(
            rust.is_ok(),
            sql.is_ok(),
            "{message:?}: Rust {rust:?}, SQL {sql:?}"
        );
    }
    assert!(
        accepted > 200 && refused > 200,
        "the messages should be of both kinds: {accepted} and {refused}"
    );
}
