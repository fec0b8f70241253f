//! Orders to single children.

use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use twinbox::supervisor::{ChildSpec, ChildState, OrderError, RestartPolicy, Wake, WorkError};

#[tokio::test]
async fn nudge_wakes_and_many_are_one() {
    let nudged = Arc::new(Counter::default());
    let go = Arc::new(Notify::new());
    let (seen, allow) = (nudged.clone(), go.clone());
    let tree = tree_of([ChildSpec::new("relay", move |context| {
        let (nudged, go) = (nudged.clone(), go.clone());
        async move {
            context.ready();
            go.notified().await;
            while context.idle(LIMIT).await != Wake::Draining {
                nudged.up();
            }
            Ok(())
        }
    })]);
    until("ready", || status(&tree, "relay").ready).await;
    for _ in 0..1_000 {
        tree.nudge("relay").unwrap();
    }
    allow.notify_one();
    until("nudged", || seen.get() == 1).await;
    tree.nudge("relay").unwrap();
    until("nudged again", || seen.get() == 2).await;
    drains_cleanly(&tree).await;
    assert_eq!(seen.get(), 2);
}

#[tokio::test]
async fn pause_lasts_over_a_restart_and_ends_with_resume() {
    let steps = Arc::new(Counter::default());
    let seen = steps.clone();
    let tree = tree_of([ChildSpec::new("relay", move |context| {
        let steps = steps.clone();
        async move {
            context.ready();
            loop {
                context.resumed().await;
                if context.is_draining() {
                    return Ok(());
                }
                steps.up();
                context.idle(Duration::from_millis(1)).await;
            }
        }
    })
    .restart(tireless())]);
    until("it works", || seen.get() > 3).await;
    tree.pause("relay").await.unwrap();
    until("paused", || status(&tree, "relay").state == ChildState::Paused).await;
    tree.restart("relay").await.unwrap();
    until("restarted", || status(&tree, "relay").generation == 2).await;
    until("still paused", || {
        status(&tree, "relay").state == ChildState::Paused
    })
    .await;
    let paused_at = seen.get();
    assert_eq!(tree.probe("relay").await, Ok(2));
    assert_eq!(seen.get(), paused_at);
    tree.resume("relay").await.unwrap();
    until("it works again", || seen.get() > paused_at).await;
    tree.pause("relay").await.unwrap();
    drains_cleanly(&tree).await;
}

#[tokio::test]
async fn pause_is_no_stall() {
    let policy = RestartPolicy {
        stall_after: Some(Duration::from_millis(20)),
        max_failures: 0,
        ..tireless()
    };
    let go = Arc::new(Notify::new());
    let allow = go.clone();
    let tree = tree_of([
        ChildSpec::new("relay", move |context| {
            let go = go.clone();
            async move {
                go.notified().await;
                context.busy(true);
                context.resumed().await;
                context.busy(false);
                wait_for_drain(context).await
            }
        })
        .restart(policy),
        ChildSpec::new("clock", |context| async move {
            while context.idle(Duration::from_millis(20)).await != Wake::Draining {
                context.in_hand("tick");
            }
            Ok(())
        }),
    ]);
    tree.pause("relay").await.unwrap();
    allow.notify_one();
    until("busy and paused", || status(&tree, "relay").busy).await;
    until("longer than a stall", || {
        status(&tree, "relay").progress_age > Some(Duration::from_millis(100))
    })
    .await;
    assert!(!tree.is_draining());
    tree.resume("relay").await.unwrap();
    until("goes on", || status(&tree, "relay").ready).await;
    drains_cleanly(&tree).await;
}

#[tokio::test]
async fn restart_on_demand_uses_no_budget_and_cuts_a_backoff_short() {
    let demand = quiet("relay").restart(RestartPolicy {
        max_failures: 0,
        ..tireless()
    });
    let failed = ChildSpec::new("consumer/billing", |context| async move {
        if context.generation() == 1 {
            return Err(WorkError::failed("once"));
        }
        wait_for_drain(context).await
    })
    .restart(RestartPolicy {
        backoff_min: LIMIT * 2,
        backoff_max: LIMIT * 2,
        ..tireless()
    });
    let tree = tree_of([demand, failed]);
    for generation in 2..=5 {
        until("ready", || status(&tree, "relay").ready).await;
        tree.restart("relay").await.unwrap();
        until("launched", || status(&tree, "relay").generation == generation).await;
    }
    until("backing off", || {
        status(&tree, "consumer/billing").state == ChildState::BackingOff
    })
    .await;
    tree.restart("consumer/billing").await.unwrap();
    until("launched at once", || status(&tree, "consumer/billing").ready).await;
    drains_cleanly(&tree).await;
    assert_eq!(tree.restart("relay").await, Err(OrderError::Ending));
}

#[tokio::test]
async fn unknown_children_are_refused() {
    let tree = tree_of([quiet("relay")]);
    assert_eq!(tree.nudge("rely"), Err(OrderError::NoSuchChild));
    assert_eq!(tree.pause("rely").await, Err(OrderError::NoSuchChild));
    drains_cleanly(&tree).await;
}

#[tokio::test]
async fn statuses_serialize() {
    let tree = tree_of([quiet("consumer/billing")]);
    until("ready", || status(&tree, "consumer/billing").ready).await;
    let json = serde_json::to_value(tree.observe()).unwrap();
    assert_eq!(json[0]["name"], "consumer/billing");
    assert_eq!(json[0]["state"], "running");
    assert_eq!(json[0]["restarts"], 0);
    assert!(json[0]["progress_age_ms"].is_u64());
    tree.drain();
    let json = serde_json::to_value(end_of(&tree).await).unwrap();
    assert_eq!(json["ending"], "drained");
}
