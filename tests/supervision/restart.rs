//! Failures of the work, and what follows.

use crate::support::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tokio::time::sleep;
use twinbox::supervisor::{ChildSpec, ChildState, RestartPolicy, WorkError};

#[tokio::test]
async fn panic_is_followed_by_a_launch_with_fresh_state() {
    let tree = tree_of([ChildSpec::new("relay", |context| {
        // Made anew by the factory.
        let mut rounds = 0;
        async move {
            rounds += 1;
            assert_eq!(rounds, 1, "state of a failed run was kept");
            if context.generation() <= 2 {
                panic!("injected {}", context.generation());
            }
            wait_for_drain(context).await
        }
    })
    .restart(tireless())]);

    until("third launch is ready", || status(&tree, "relay").ready).await;
    let relay = status(&tree, "relay");
    assert_eq!((relay.generation, relay.restarts), (3, 2));
    assert_eq!(relay.last_error.as_deref(), Some("panicked: injected 2"));
    assert_eq!(relay.state, ChildState::Running);
    drains_cleanly(&tree).await;
}

#[tokio::test]
async fn panic_of_the_factory_is_the_works() {
    let calls = Counter::default();
    let tree = tree_of([ChildSpec::new("relay", move |context| {
        assert!(calls.up() > 1, "injected by the factory");
        wait_for_drain(context)
    })
    .restart(tireless())]);
    until("second launch is ready", || status(&tree, "relay").ready).await;
    assert_eq!(status(&tree, "relay").restarts, 1);
    drains_cleanly(&tree).await;
}

#[tokio::test]
async fn a_thousand_panics_under_one_address() {
    let tree = tree_of([ChildSpec::new("relay", |context| async move {
        assert!(context.generation() > 1_000, "injected");
        wait_for_drain(context).await
    })
    .restart(tireless())]);
    until("launched after all panics", || status(&tree, "relay").ready).await;
    assert_eq!(status(&tree, "relay").restarts, 1_000);
    assert_eq!(tree.probe("relay").await, Ok(1_001));
    drains_cleanly(&tree).await;
}

#[tokio::test]
async fn ok_without_being_asked_is_a_failure() {
    let tree = tree_of([ChildSpec::new("relay", |context| async move {
        if context.generation() == 1 {
            return Ok(());
        }
        wait_for_drain(context).await
    })
    .restart(tireless())]);
    until("second launch is ready", || status(&tree, "relay").ready).await;
    assert_eq!(
        status(&tree, "relay").last_error.as_deref(),
        Some("ended although nobody asked it to")
    );
    drains_cleanly(&tree).await;
}

#[derive(Debug, thiserror::Error)]
#[error("the page was not read")]
struct PageNotRead(#[source] std::io::Error);

#[tokio::test]
async fn failure_backs_off_and_is_told_with_its_causes() {
    let policy = RestartPolicy {
        backoff_min: Duration::from_millis(100),
        backoff_max: Duration::from_secs(10),
        ..tireless()
    };
    let begin = Instant::now();
    let tree = tree_of([ChildSpec::new("relay", |context| async move {
        if context.generation() <= 3 {
            let cause = std::io::Error::other("connection reset");
            return Err(WorkError::failed(PageNotRead(cause)));
        }
        wait_for_drain(context).await
    })
    .restart(policy)]);

    until("backing off", || {
        status(&tree, "relay").state == ChildState::BackingOff
    })
    .await;
    let relay = status(&tree, "relay");
    assert!(!relay.ready);
    assert_eq!(
        relay.last_error.as_deref(),
        Some("the page was not read: connection reset")
    );
    until("fourth launch is ready", || status(&tree, "relay").ready).await;
    // Half of 100, 200 and 400 ms is the least that jitter leaves.
    assert!(
        begin.elapsed() >= Duration::from_millis(350),
        "{:?}",
        begin.elapsed()
    );
    drains_cleanly(&tree).await;
}

#[tokio::test]
async fn busy_without_progress_is_restarted_and_idle_is_not() {
    let policy = RestartPolicy {
        stall_after: Some(Duration::from_millis(50)),
        ..tireless()
    };
    let stuck = ChildSpec::new("stuck", |context| async move {
        context.busy(context.generation() == 1);
        wait_for_drain(context).await
    });
    let working = ChildSpec::new("working", |context| async move {
        context.busy(true);
        while !context.is_draining() {
            context.beat();
            // The work's own pace, not a wait.
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    });
    let idle = ChildSpec::new("idle", wait_for_drain);
    let patience = RestartPolicy {
        // Generous, since a busy machine may hold up the beats.
        stall_after: Some(Duration::from_secs(10)),
        ..tireless()
    };
    let tree = tree_of([
        stuck.restart(policy.clone()),
        working.restart(patience),
        idle.restart(policy),
    ]);
    until("stuck is restarted", || status(&tree, "stuck").generation == 2).await;
    assert_eq!(
        status(&tree, "stuck").last_error.as_deref(),
        Some("had work and made no progress for 50ms")
    );
    assert_eq!(status(&tree, "working").generation, 1);
    assert_eq!(status(&tree, "idle").generation, 1);
    drains_cleanly(&tree).await;
}

#[tokio::test]
async fn outage_uses_no_restart() {
    let policy = RestartPolicy {
        max_failures: 0,
        stall_after: Some(Duration::from_millis(20)),
        ..tireless()
    };
    let rounds = Arc::new(Counter::default());
    let database_up = Arc::new(AtomicBool::new(false));
    let (seen, up) = (rounds.clone(), database_up.clone());
    let tree = tree_of([ChildSpec::new("relay", move |context| {
        let (rounds, database_up) = (rounds.clone(), database_up.clone());
        async move {
            context.busy(true);
            while !context.is_draining() {
                if database_up.load(SeqCst) {
                    context.busy(false);
                    context.ready();
                } else {
                    context.not_ready("no database");
                }
                rounds.up();
                // The work's own pace, not a wait.
                sleep(Duration::from_millis(1)).await;
            }
            Ok(())
        }
    })
    .restart(policy)]);

    until("many rounds without a database", || seen.get() > 100).await;
    let relay = status(&tree, "relay");
    assert_eq!((relay.generation, relay.ready), (1, false));
    assert_eq!(relay.not_ready_reason.as_deref(), Some("no database"));
    assert_eq!(relay.last_error, None);
    up.store(true, SeqCst);
    until("ready again", || status(&tree, "relay").ready).await;
    assert_eq!(status(&tree, "relay").generation, 1);
    drains_cleanly(&tree).await;
}

#[tokio::test]
async fn two_runs_are_never_side_by_side() {
    let running = Arc::new(Counter::default());
    let policy = RestartPolicy {
        stall_after: Some(Duration::from_millis(10)),
        ..tireless()
    };
    let tree = tree_of([ChildSpec::new("relay", move |context| {
        let running = running.clone();
        async move {
            assert_eq!(running.up(), 1, "two runs side by side");
            context.busy(true);
            context.drain().cancelled().await;
            // The end of the old run takes its time.
            sleep(Duration::from_millis(5)).await;
            running.down();
            Ok(())
        }
    })
    .restart(policy)]);
    until("restarted for a stall, over and over", || {
        status(&tree, "relay").generation >= 10
    })
    .await;
    let error = status(&tree, "relay").last_error.unwrap();
    assert!(error.starts_with("had work"), "{error}");
    drains_cleanly(&tree).await;
}
