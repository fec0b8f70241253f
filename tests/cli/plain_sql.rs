//! Nothing of ours on the producer's side: `psql` enqueues, in transactions with business of its own.

use rustix::process::Signal;

use crate::SOON;
use crate::business::Business;

#[tokio::test]
async fn rows_that_psql_inserts_take_effect_once_and_rolled_back_ones_never() {
    let business = Business::new().await;
    let mut running = business.start(&[]);
    let script = r#"
        CREATE TABLE placed (id int PRIMARY KEY, note text);

        BEGIN;
        INSERT INTO placed VALUES (1, 'text');
        SELECT twinbox.enqueue('S.placed', 'Grüße'::text);
        COMMIT;

        BEGIN;
        INSERT INTO placed VALUES (2, 'jsonb');
        SELECT twinbox.enqueue('S.placed', jsonb_build_object('order', 2, 'cents', 1050), 'customer-7',
                               '{"Event-Type": "OrderPlaced", "tag": ["a", "b"]}');
        COMMIT;

        BEGIN;
        INSERT INTO placed VALUES (3, 'bytea');
        SELECT twinbox.enqueue('S.image', '\x00ff'::bytea, key => 'customer-7');
        COMMIT;

        BEGIN;
        INSERT INTO placed VALUES (4, 'rolled back');
        SELECT twinbox.enqueue('S.placed', 'never'::text);
        ROLLBACK;

        BEGIN;
        SELECT twinbox.enqueue('S.placed', 'released');
        SAVEPOINT s;
        SELECT twinbox.enqueue('S.placed', 'never');
        ROLLBACK TO s;
        COMMIT;

        SELECT twinbox.enqueue('S.placed', 'own id', message_id => '01890A5D-AC96-774B-BCCE-B302099A8057');
        -- A producer that says it twice under one id.
        SELECT twinbox.enqueue('S.placed', 'own id', message_id => '01890a5d-ac96-774b-bcce-b302099a8057');
        SELECT twinbox.enqueue('S.placed', '');"#;
    let script = script.replace("S.", &format!("{}.", business.stream));
    let ids = business.world.psql(&script).await;
    assert_eq!(ids.lines().count(), 9, "each enqueue returns an id: {ids}");

    business.wait_for(6).await;
    business.wait_until_quiet().await;
    let effects = business.effects().await;
    assert_eq!(effects.len(), 6, "{effects:?}");
    let of = |payload: &[u8]| {
        let found: Vec<_> = effects
            .iter()
            .filter(|effect| effect.payload == payload)
            .collect();
        assert_eq!(found.len(), 1, "{payload:?}");
        found[0]
    };
    assert!(ids.contains(&of("Grüße".as_bytes()).message_id.to_string()));
    let json = of(br#"{"cents": 1050, "order": 2}"#);
    assert_eq!(
        (json.key.as_deref(), json.kind.as_deref()),
        (Some("customer-7"), Some("OrderPlaced"))
    );
    assert_eq!(json.headers["tag"], serde_json::json!(["a", "b"]));
    assert_eq!(json.headers["Content-Type"], "application/json");
    let image = of(&[0, 0xff]);
    assert_eq!(
        (image.subject.clone(), image.key.as_deref()),
        (business.subject("image"), Some("customer-7"))
    );
    assert_eq!(
        of(b"own id").message_id.to_string(),
        "01890a5d-ac96-774b-bcce-b302099a8057"
    );
    of(b"released");
    of(b"");

    assert_eq!(running.terminate(SOON).await.code(), Some(0), "{}", running.log());
}

#[tokio::test]
async fn a_handler_reads_json_and_a_row_waits_for_who_is_not_there() {
    let business = Business::new().await;
    business.configure(
        "",
        "INSERT INTO public.effect (message_id, subject, headers, key, payload) \
         SELECT :id, :subject, :headers, :payload->>'customer', convert_to((:payload->'cents')::int + 1 || '', 'UTF8')",
    );
    // Nobody runs yet.
    let script = format!(
        "SELECT twinbox.enqueue('{}', '{{\"customer\": \"c7\", \"cents\": 41}}'::jsonb)",
        business.subject("placed")
    );
    business.world.psql(&script).await;
    let mut running = business.start(&[]);
    business.wait_for(1).await;
    let effects = business.effects().await;
    assert_eq!((effects[0].text(), effects[0].key.as_deref()), ("42", Some("c7")));
    running.signal(Signal::INT);
    assert_eq!(running.end(SOON).await.code(), Some(0));
}
