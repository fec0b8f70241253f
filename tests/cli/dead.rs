//! `twinbox dead`, on dead letters that are real.

use twinbox::testing::wait_until;

use crate::SOON;
use crate::business::{Business, HANDLER};

/// Fails on what says so, and on nothing once a table says that all is well.
const CHOOSY: &str = "WITH bad AS (
        SELECT CASE WHEN convert_from(:payload_bytes, 'UTF8') = 'bad' AND NOT EXISTS (SELECT FROM public.mended)
               THEN 1 / (random() * 0)::int END AS quotient)
    INSERT INTO public.effect (message_id, subject, key, kind, headers, payload)
    SELECT :id, :subject, :key, :kind, :headers, :payload_bytes FROM bad WHERE quotient IS NULL";

async fn wait_for_letters(business: &Business, letters: usize) -> serde_json::Value {
    wait_until("the dead letters are there", SOON, || async {
        let list = business.world.run(&["dead", "list", "--json"]).await.json();
        let seen = list.as_array().unwrap().len();
        if seen == letters {
            Ok(list)
        } else {
            Err(list.to_string())
        }
    })
    .await
}

#[tokio::test]
async fn dead_letters_are_listed_shown_requeued_and_discarded() {
    let business = Business::new().await;
    business.configure("max_attempts = 2\nretry_min = \"10ms\"", CHOOSY);
    business
        .world
        .execute("CREATE TABLE public.mended (yes int)")
        .await;
    let subject = business.subject("placed");
    let enqueue = async |payload: &str, key: &str| {
        let args = ["enqueue", &subject, payload, "--key", key, "--header", "tenant=a"];
        business.world.run(&args).await.ok();
    };
    let mut running = business.start(&[]);
    enqueue("bad", "k1").await;
    wait_for_letters(&business, 1).await;
    // Follows the first, so that the key keeps its order; another key goes on.
    enqueue("later", "k1").await;
    enqueue("good", "k2").await;
    let list = wait_for_letters(&business, 2).await;
    business.wait_for(1).await;

    assert_eq!(
        list[0]["reason"], "rejected",
        "division by zero is the data's fault: {list}"
    );
    assert_eq!(list[1]["reason"], "follows", "{list}");
    for letter in list.as_array().unwrap() {
        for field in [
            "id",
            "owner",
            "message_id",
            "subject",
            "key",
            "error",
            "runs",
            "dead_at",
        ] {
            assert!(!letter[field].is_null(), "{field} is missing: {letter}");
        }
        assert_eq!(
            (&letter["owner"], &letter["key"]),
            (&"billing".into(), &"k1".into())
        );
    }
    let (first, second) = (list[0]["id"].to_string(), list[1]["id"].to_string());

    let table = business.world.run(&["dead", "list"]).await.ok();
    assert!(
        table.contains("division by zero") && table.contains("2 of 2"),
        "{table}"
    );
    let none = business
        .world
        .run(&["dead", "list", "--owner", "nobody"])
        .await
        .ok();
    assert_eq!(none.trim(), "no dead letters");
    assert_eq!(
        business
            .world
            .run(&["dead", "list", "--box", "outbox", "--json"])
            .await
            .ok()
            .trim(),
        "[]"
    );
    let page = business
        .world
        .run(&["dead", "list", "--after", &first, "--limit", "1", "--json"])
        .await
        .json();
    assert_eq!(page[0]["id"].to_string(), second);

    let shown = business.world.run(&["dead", "show", &first]).await.ok();
    for words in [
        "division by zero",
        "what to do",
        "bad",
        "tenant: a",
        &subject,
        "sequence",
    ] {
        assert!(shown.contains(words), "{words:?} is missing:\n{shown}");
    }
    let shown = business
        .world
        .run(&["dead", "show", &first, "--json"])
        .await
        .json();
    assert_eq!(
        (&shown["payload"], &shown["headers"]["tenant"]),
        (&"bad".into(), &"a".into())
    );

    for (args, told) in [
        (["dead", "show", "999"], "there is no dead letter 999"),
        (["dead", "requeue", "999"], "there is no dead letter 999"),
        (["dead", "discard", "999"], "there is no dead letter 999"),
        (["dead", "requeue", &second], "comes after"),
    ] {
        let error = business.world.run(&args).await.error(1);
        assert!(error.contains(told), "{error}");
    }

    business
        .world
        .execute("INSERT INTO public.mended VALUES (1)")
        .await;
    let requeued = business
        .world
        .run(&["dead", "requeue", "--key", "k1", "--json"])
        .await
        .json();
    assert_eq!(requeued["requeued"], 2);
    wait_for_letters(&business, 0).await;
    business.wait_for(3).await;
    let of_key: Vec<String> = business
        .effects()
        .await
        .iter()
        .filter(|effect| effect.key.as_deref() == Some("k1"))
        .map(|effect| effect.text().to_owned())
        .collect();
    assert_eq!(of_key, ["bad", "later"]);

    business.world.execute("DELETE FROM public.mended").await;
    enqueue("bad", "k3").await;
    let list = wait_for_letters(&business, 1).await;
    let id = list[0]["id"].to_string();
    assert_eq!(
        business.world.run(&["dead", "discard", &id]).await.ok().trim(),
        "discarded 1"
    );
    // The key is free again.
    enqueue("after", "k3").await;
    business.wait_for(4).await;
    assert_eq!(business.count().await, 4);
    assert_eq!(running.terminate(SOON).await.code(), Some(0));
}

#[tokio::test]
async fn a_payload_that_is_no_text_is_shown_in_hexadecimal() {
    let business = Business::new().await;
    business.configure("", "SELECT :payload");
    let _running = business.start(&[]);
    let script = format!(
        "SELECT twinbox.enqueue('{}', '\\x00ff'::bytea)",
        business.subject("image")
    );
    business.world.psql(&script).await;
    let list = wait_for_letters(&business, 1).await;
    let id = list[0]["id"].to_string();
    let shown = business.world.run(&["dead", "show", &id, "--json"]).await.json();
    assert_eq!(
        (&shown["payload"], &shown["payload_hex"]),
        (&serde_json::Value::Null, &"00ff".into())
    );
    assert!(
        business
            .world
            .run(&["dead", "show", &id])
            .await
            .ok()
            .contains("in hexadecimal: 00ff")
    );
}

#[tokio::test]
async fn what_no_stream_covers_is_parked_and_goes_by_itself_once_one_does() {
    let business = Business::new().await;
    business.configure("", HANDLER);
    let elsewhere = twinbox::testing::unique("elsewhere");
    let mut running = business.start(&["--set", "relay.unroutable_grace=100ms"]);
    business
        .world
        .run(&["enqueue", &format!("{elsewhere}.a"), "x"])
        .await
        .ok();
    let list = wait_for_letters(&business, 1).await;
    assert_eq!(
        (&list[0]["reason"], &list[0]["box"]),
        (&"unroutable".into(), &"outbox".into()),
        "{list}"
    );
    let config = async_nats::jetstream::stream::Config {
        name: elsewhere.clone(),
        subjects: vec![format!("{elsewhere}.>")],
        ..Default::default()
    };
    business
        .world
        .jetstream()
        .await
        .create_stream(config)
        .await
        .unwrap();
    wait_for_letters(&business, 0).await;
    assert_eq!(running.terminate(SOON).await.code(), Some(0));
}
