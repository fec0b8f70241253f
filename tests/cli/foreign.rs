//! Messages that another NATS client publishes, in the forms in which such clients do.

use crate::SOON;
use crate::business::Business;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Publishes with nats-py: arguments are the server and the stream, whose name begins the subjects.
const PUBLISHER: &str = r#"
import asyncio, sys
import nats

async def main(url, stream):
    client = await nats.connect(url)
    jetstream = client.jetstream()
    async def publish(number, headers):
        await jetstream.publish(f"{stream}.order", str(number).encode(), headers=headers)
    uuid = "01890a5d-ac96-774b-bcce-b302099a8057"
    # One message in two forms of its id.
    await publish(1, {"Nats-Msg-Id": uuid})
    await publish(1, {"Nats-Msg-Id": uuid.upper()})
    await publish(2, {"Nats-Msg-Id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"})
    await publish(3, {"Nats-Msg-Id": "order 3, as free text"})
    # CloudEvents in binary mode: source and id are its identity, whatever else differs.
    for _ in range(2):
        await publish(4, {"ce-specversion": "1.0", "ce-id": "4", "ce-source": "/shop", "ce-type": "OrderPlaced",
                          "ce-partitionkey": "k4"})
    await publish(5, {"ce-specversion": "1.0", "ce-id": "4", "ce-source": "/other", "ce-type": "OrderPlaced"})
    # Without an id each is a message of its own, and so it is without any header.
    await publish(6, {"Tenant": "a"})
    await publish(7, None)
    await publish(7, None)
    await client.close()

asyncio.run(main(sys.argv[1], sys.argv[2]))
"#;

/// A Python that has nats-py: in a folder of the build's, made by the first run.
fn python() -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("nats-py");
    let python = folder.join("bin/python");
    let has_client = || {
        let asked = Command::new(&python)
            .args(["-c", "import nats"])
            .stderr(Stdio::null())
            .status();
        asked.is_ok_and(|status| status.success())
    };
    if has_client() {
        return Some(python);
    }
    let made = Command::new("python3").args(["-m", "venv"]).arg(&folder).status();
    if !made.is_ok_and(|status| status.success()) {
        return None;
    }
    let installed = Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "nats-py==2.11.0"])
        .status();
    (installed.is_ok_and(|status| status.success()) && has_client()).then_some(python)
}

#[tokio::test]
async fn what_another_client_publishes_takes_effect_once() {
    let Some(python) = tokio::task::spawn_blocking(python).await.unwrap() else {
        eprintln!("SKIPPED: no python3 with venv and pip to install nats-py with");
        return;
    };
    let business = Business::new().await;
    let mut running = business.start(&[]);
    running.logs(&["consumer created"], SOON).await;
    let (url, stream) = (business.world.nats_url.clone(), business.stream.clone());
    let published = tokio::task::spawn_blocking(move || {
        Command::new(python)
            .args(["-c", PUBLISHER, &url, &stream])
            .output()
            .unwrap()
    })
    .await
    .unwrap();
    assert!(
        published.status.success(),
        "{}",
        String::from_utf8_lossy(&published.stderr)
    );
    business.wait_for(8).await;
    business.wait_until_quiet().await;
    let effects = business.effects().await;
    let mut numbers: Vec<&str> = effects.iter().map(|effect| effect.text()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, ["1", "2", "3", "4", "5", "6", "7", "7"]);
    let four = effects.iter().find(|effect| effect.text() == "4").unwrap();
    assert_eq!(
        (four.key.as_deref(), four.kind.as_deref()),
        (Some("k4"), Some("OrderPlaced"))
    );
    assert_eq!(running.terminate(SOON).await.code(), Some(0));
}
