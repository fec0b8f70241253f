//! Probes of the keeper, which is made of parts of actix that are meant for library authors: what they are relied on
//! for is tested here, before the version is changed.

use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use twinbox::supervisor::fault::Fault;
use twinbox::supervisor::{ChildSpec, ChildState, RestartPolicy, exit_code};

/// The shell fails by `fault`; a message that was queued behind it is answered by the shell after it.
async fn is_borne(fault: Fault) {
    let tree = tree_of([quiet("relay")]);
    until("ready", || status(&tree, "relay").ready).await;
    tree.inject("relay", fault.clone()).unwrap();
    // Queued in the same mailbox while the panic is still to come, or just came.
    let answer = timeout(LIMIT, tree.probe("relay")).await.expect("no answer");
    assert!(answer.is_ok(), "{fault:?}: {answer:?}");
    // The work is not the shell's to keep: it ends, and is launched anew by the new shell.
    until("relaunched", || status(&tree, "relay").generation == 2).await;
    until("ready again", || status(&tree, "relay").ready).await;
    let relay = status(&tree, "relay");
    assert_eq!(relay.state, ChildState::Running, "{fault:?}");
    assert!(relay.last_error.unwrap().contains("shell"), "{fault:?}");
    assert_eq!(relay.generation, 2, "{fault:?}");
    drains_cleanly(&tree).await;
}

#[tokio::test]
async fn panic_in_a_handler() {
    is_borne(Fault::Panic).await;
}

#[tokio::test]
async fn panic_in_a_future_of_the_shell() {
    is_borne(Fault::PanicInFuture).await;
}

#[tokio::test]
async fn stop_that_nobody_asked_for() {
    is_borne(Fault::Stop).await;
}

#[tokio::test]
async fn panics_in_started() {
    is_borne(Fault::PanicInStarted { times: 3 }).await;
}

#[tokio::test]
async fn panics_in_restarting() {
    is_borne(Fault::PanicInRestarting { times: 3 }).await;
}

#[tokio::test]
async fn address_survives_a_thousand_panics_of_the_shell() {
    let tree = tree_of([quiet("relay")]);
    for round in 1..=1_000 {
        let fault = if round % 2 == 0 {
            Fault::Panic
        } else {
            Fault::PanicInFuture
        };
        tree.inject("relay", fault).unwrap();
        tree.probe("relay").await.unwrap();
    }
    until("serves", || status(&tree, "relay").ready).await;
    assert!(!tree.is_draining());
    drains_cleanly(&tree).await;
}

#[tokio::test]
async fn new_work_waits_for_that_of_the_failed_shell() {
    let running = Arc::new(Counter::default());
    let side_by_side = Arc::new(Counter::default());
    let seen = side_by_side.clone();
    let tree = tree_of([ChildSpec::new("relay", move |context| {
        let (running, side_by_side) = (running.clone(), side_by_side.clone());
        async move {
            if running.up() > 1 {
                side_by_side.up();
            }
            wait_for_drain(context).await?;
            // The end of the old work takes its time.
            sleep(Duration::from_millis(30)).await;
            running.down();
            Ok(())
        }
    })
    .restart(tireless())]);
    for generation in 1..=5 {
        until("runs", || status(&tree, "relay").ready).await;
        assert_eq!(status(&tree, "relay").generation, generation);
        tree.inject("relay", Fault::Panic).unwrap();
        until("launched anew", || status(&tree, "relay").generation > generation).await;
    }
    assert_eq!(seen.get(), 0);
    drains_cleanly(&tree).await;
}

#[tokio::test]
async fn failures_of_shell_and_work_share_a_budget() {
    let tree = tree_of([quiet("relay").restart(RestartPolicy {
        max_failures: 3,
        ..tireless()
    })]);
    for _ in 0..3 {
        tree.inject("relay", Fault::Panic).unwrap();
        tree.probe("relay").await.unwrap();
        assert!(!tree.is_draining());
    }
    tree.inject("relay", Fault::Panic).unwrap();
    let outcome = end_of(&tree).await;
    assert_eq!(outcome.exit_code(), exit_code::ESCALATED);
    assert!(outcome.to_string().contains("panicked: injected"), "{outcome}");
    assert_eq!(outcome.abandoned, [], "its work was waited for");
}

#[tokio::test]
async fn neighbours_do_not_notice() {
    let tree = tree_of([quiet("relay"), quiet("pruner")]);
    until("both are ready", || {
        tree.observe().iter().all(|child| child.ready)
    })
    .await;
    for _ in 0..10 {
        tree.inject("relay", Fault::Panic).unwrap();
        tree.probe("relay").await.unwrap();
    }
    assert_eq!(status(&tree, "pruner").generation, 1);
    drains_cleanly(&tree).await;
}

#[tokio::test]
async fn drain_during_the_backoff_of_a_shell_drains_its_work() {
    let policy = RestartPolicy {
        backoff_min: LIMIT * 2,
        backoff_max: LIMIT * 2,
        ..tireless()
    };
    let tree = tree_of([quiet("relay").restart(policy)]);
    until("ready", || status(&tree, "relay").ready).await;
    tree.inject("relay", Fault::Panic).unwrap();
    until("backing off", || {
        status(&tree, "relay").state == ChildState::BackingOff
    })
    .await;
    drains_cleanly(&tree).await;
}

#[tokio::test]
async fn panic_of_the_shell_while_draining_is_not_clean_and_waits_for_the_work() {
    let tree = tree_of([ChildSpec::new("relay", |context| async move {
        context.ready();
        context.drain().cancelled().await;
        // A while to drain, which the tree must wait out.
        sleep(Duration::from_millis(300)).await;
        Ok(())
    })
    .restart(tireless())]);
    until("ready", || status(&tree, "relay").ready).await;
    tree.drain();
    until("draining", || {
        status(&tree, "relay").state == ChildState::Draining
    })
    .await;
    tree.inject("relay", Fault::Panic).unwrap();
    let outcome = end_of(&tree).await;
    assert_eq!(outcome.exit_code(), 70, "{outcome}");
    assert_eq!(outcome.abandoned, []);
}
