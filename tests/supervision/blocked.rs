//! A blocked tree thread, which only the watchdog sees.

use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use twinbox::supervisor::fault::Fault;
use twinbox::supervisor::{ChildSpec, Ending, TreeSettings, exit_code};

fn watchful() -> TreeSettings {
    TreeSettings {
        blocked_after: Duration::from_millis(500),
        ..patient()
    }
}

#[tokio::test]
async fn blocked_thread_is_reported_and_the_work_drained() {
    let ends = Arc::new(Counter::default());
    let seen = ends.clone();
    let tree = start(
        watchful(),
        [ChildSpec::new("relay", move |context| {
            let ends = ends.clone();
            async move {
                wait_for_drain(context).await?;
                ends.up();
                Ok(())
            }
        })],
    );
    until("ready", || status(&tree, "relay").ready).await;
    tree.inject("relay", Fault::Block(Duration::from_secs(5)))
        .unwrap();
    let outcome = end_of(&tree).await;
    assert_eq!(outcome.exit_code(), exit_code::BLOCKED);
    assert_eq!(outcome.ending, Ending::Blocked);
    assert_eq!(outcome.abandoned, []);
    assert_eq!(seen.get(), 1);
    // It can still be looked at.
    assert_eq!(status(&tree, "relay").name, "relay");
}

#[tokio::test]
async fn a_thread_that_is_not_blocked_is_left_alone() {
    let tree = start(watchful(), [quiet("relay")]);
    until("ready", || status(&tree, "relay").ready).await;
    until("longer than a blockade", || {
        status(&tree, "relay").progress_age > Some(Duration::from_millis(1_500))
    })
    .await;
    drains_cleanly(&tree).await;
}
