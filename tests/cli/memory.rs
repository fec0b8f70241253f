//! How much memory a backlog takes: none that grows with it.

use crate::business::Business;
use crate::child::Running;
use std::time::Duration;

/// What `twinbox run` may take, in kilobytes.
const MOST_KB: u64 = 150_000;
const DEADLINE: Duration = Duration::from_secs(20 * 60);

/// How many rows wait. `make memory` asks for a million.
fn backlog() -> i64 {
    match std::env::var("TWINBOX_TEST_BACKLOG") {
        Ok(rows) => rows.parse().unwrap(),
        Err(_) => 30_000,
    }
}

/// The most that the process has held so far.
fn peak_kb(running: &Running) -> u64 {
    let path = format!("/proc/{}/status", running.pid().as_raw_nonzero());
    let status = std::fs::read_to_string(path).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_drained_backlog_takes_little_memory() {
    let business = Business::new().await;
    let backlog = backlog();
    // Half a kilobyte each, on several subjects and many keys.
    sqlx::query(
        "SELECT count(twinbox.enqueue($1 || '.' || n % 16, to_jsonb(repeat(md5(n::text), 16)), key => 'k' || n % 10000))
         FROM generate_series(1, $2) AS n",
    )
    .bind(&business.stream)
    .bind(backlog)
    .execute(&mut business.world.database().await)
    .await
    .unwrap();
    let mut running = business.start(&["--set", "telemetry.log=warn"]);
    business.wait_for_within(backlog, DEADLINE).await;
    let peak = peak_kb(&running);
    eprintln!("{backlog} rows drained; at most {peak} kB held");
    assert!(peak < MOST_KB, "{peak} kB");
    assert_eq!(
        running.terminate(DEADLINE).await.code(),
        Some(0),
        "{}",
        running.log()
    );
    assert_eq!(business.count().await, backlog);
}
