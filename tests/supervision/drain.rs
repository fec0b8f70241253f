//! The end that was asked for.

use crate::support::*;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::sleep;
use twinbox::supervisor::{ChildSpec, ChildState, OrderError, RestartPolicy, TreeSettings, WorkError};

/// Work that never ends.
fn deaf(name: &str, in_hand: &'static str) -> ChildSpec {
    ChildSpec::new(name, move |context| async move {
        context.ready();
        context.in_hand(in_hand);
        std::future::pending().await
    })
    .restart(tireless())
}

#[tokio::test]
async fn drain_waits_for_what_is_in_hand() {
    let commit = Arc::new(Notify::new());
    let committed = Arc::new(Counter::default());
    let (go, seen) = (commit.clone(), committed.clone());
    let tree = tree_of([
        quiet("pruner"),
        ChildSpec::new("relay", move |context| {
            let (commit, committed) = (commit.clone(), committed.clone());
            async move {
                context.ready();
                context.drain().cancelled().await;
                commit.notified().await;
                committed.up();
                Ok(())
            }
        }),
    ]);
    until("both are ready", || {
        tree.observe().iter().all(|child| child.ready)
    })
    .await;
    tree.drain();
    tree.drain();
    until("pruner is done", || {
        status(&tree, "pruner").state == ChildState::Done
    })
    .await;
    until("relay drains", || {
        status(&tree, "relay").state == ChildState::Draining
    })
    .await;
    assert!(!status(&tree, "relay").ready);
    assert_eq!(tree.outcome(), None);
    assert_eq!(tree.pause("relay").await, Err(OrderError::Ending));

    let waiters: Vec<_> = (0..10)
        .map(|_| {
            let tree = tree.clone();
            tokio::spawn(async move { end_of(&tree).await })
        })
        .collect();
    go.notify_one();
    for waiter in waiters {
        assert!(waiter.await.unwrap().is_clean());
    }
    assert_eq!(seen.get(), 1);
    assert!(end_of(&tree).await.is_clean(), "also for who asks late");
}

#[tokio::test]
async fn drain_past_its_deadline_names_whom_it_leaves() {
    let settings = TreeSettings {
        drain_deadline: Duration::from_millis(50),
        ..patient()
    };
    let tree = start(
        settings,
        [
            quiet("pruner"),
            deaf("relay", "page 7"),
            deaf("consumer/billing", ""),
        ],
    );
    until("all are ready", || tree.observe().iter().all(|child| child.ready)).await;
    tree.drain();
    let outcome = end_of(&tree).await;
    assert_eq!(outcome.exit_code(), 75);
    let left: Vec<_> = outcome
        .abandoned
        .iter()
        .map(|child| (&*child.name, child.in_hand.as_deref()))
        .collect();
    assert_eq!(left, [("relay", Some("page 7")), ("consumer/billing", None)]);
    assert!(outcome.to_string().contains("relay (page 7)"), "{outcome}");
}

#[tokio::test]
async fn abandoned_work_is_not_aborted() {
    let settings = TreeSettings {
        drain_deadline: Duration::from_millis(20),
        ..patient()
    };
    let commit = Arc::new(Notify::new());
    let committed = Arc::new(Counter::default());
    let (go, seen) = (commit.clone(), committed.clone());
    let tree = start(
        settings,
        [ChildSpec::new("relay", move |context| {
            let (commit, committed) = (commit.clone(), committed.clone());
            async move {
                context.ready();
                commit.notified().await;
                committed.up();
                Ok(())
            }
        })],
    );
    until("ready", || status(&tree, "relay").ready).await;
    tree.drain();
    assert_eq!(end_of(&tree).await.exit_code(), 75);
    go.notify_one();
    until("it goes on to its end", || seen.get() == 1).await;
}

#[tokio::test]
async fn second_drain_does_not_wait() {
    let tree = tree_of([deaf("relay", "page 7")]);
    until("ready", || status(&tree, "relay").ready).await;
    tree.drain();
    until("it drains", || {
        status(&tree, "relay").state == ChildState::Draining
    })
    .await;
    let asked = Instant::now();
    tree.drain_now();
    let outcome = end_of(&tree).await;
    assert!(asked.elapsed() < LIMIT / 2, "waited for the deadline");
    assert_eq!(outcome.exit_code(), 75);
}

#[tokio::test]
async fn drain_cuts_a_backoff_short() {
    let policy = RestartPolicy {
        backoff_min: LIMIT * 2,
        backoff_max: LIMIT * 2,
        ..tireless()
    };
    let tree =
        tree_of([ChildSpec::new("relay", |_| async { Err(WorkError::failed("once")) }).restart(policy)]);
    until("backing off", || {
        status(&tree, "relay").state == ChildState::BackingOff
    })
    .await;
    drains_cleanly(&tree).await;
    assert_eq!(status(&tree, "relay").generation, 1);
}

#[tokio::test]
async fn drain_as_the_first_thing() {
    for _ in 0..50 {
        let tree = tree_of([quiet("relay"), quiet("pruner")]);
        drains_cleanly(&tree).await;
    }
}

#[tokio::test]
async fn dropped_handles_do_not_end_the_tree() {
    let rounds = Arc::new(Counter::default());
    let stop = Arc::new(Notify::new());
    let (seen, ask) = (rounds.clone(), stop.clone());
    let tree = tree_of([ChildSpec::new("relay", move |context| {
        let (rounds, stop) = (rounds.clone(), stop.clone());
        async move {
            loop {
                rounds.up();
                tokio::select! {
                    () = stop.notified() => break,
                    // The work's own pace, not a wait.
                    () = sleep(Duration::from_millis(1)) => {}
                }
            }
            // So that the tree does not outlive the test.
            drop(context);
            Err(WorkError::fatal("told to"))
        }
    })]);
    drop(tree);
    let at_drop = seen.get();
    until("it goes on", || seen.get() > at_drop + 20).await;
    ask.notify_one();
}
