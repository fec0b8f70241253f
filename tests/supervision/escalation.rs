//! What a child can't answer for alone.

use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use twinbox::supervisor::{
    ChildSpec, ChildState, Ending, Outcome, RestartPolicy, TreeSettings, WorkError, exit_code,
};

/// A sibling whose end takes a while.
struct Sibling {
    launches: Arc<Counter>,
    ends: Arc<Counter>,
    spec: ChildSpec,
}

fn sibling() -> Sibling {
    let (launches, ends) = (Arc::new(Counter::default()), Arc::new(Counter::default()));
    let (launched, ended) = (launches.clone(), ends.clone());
    let spec = ChildSpec::new("sibling", move |context| {
        let (launched, ended) = (launched.clone(), ended.clone());
        async move {
            launched.up();
            context.drain().cancelled().await;
            // A while to drain, which the tree must wait out.
            sleep(Duration::from_millis(50)).await;
            ended.up();
            Ok(())
        }
    });
    Sibling {
        launches,
        ends,
        spec: spec.restart(tireless()),
    }
}

/// How a tree of `relay` and a sibling ends, if `fail` is how the relay does.
async fn outcome_of(policy: RestartPolicy, fail: impl Fn() -> WorkError + Send + Sync + 'static) -> Outcome {
    let sibling = sibling();
    let fail = Arc::new(fail);
    let relay = ChildSpec::new("relay", move |_| {
        let (fail, launches) = (fail.clone(), sibling.launches.clone());
        async move {
            until("the sibling runs", || launches.get() == 1).await;
            Err(fail())
        }
    });
    let tree = tree_of([relay.restart(policy), sibling.spec]);
    let outcome = end_of(&tree).await;
    assert_eq!(sibling.ends.get(), 1, "the sibling was not drained");
    assert_eq!(outcome.abandoned, []);
    assert_eq!(status(&tree, "sibling").state, ChildState::Done);
    outcome
}

#[tokio::test]
async fn too_many_failures_end_the_tree() {
    let failures = Arc::new(Counter::default());
    let seen = failures.clone();
    let policy = RestartPolicy {
        max_failures: 3,
        ..tireless()
    };
    let outcome = outcome_of(policy, move || {
        WorkError::failed(format!("injected {}", failures.up()))
    })
    .await;
    assert_eq!(outcome.exit_code(), exit_code::ESCALATED);
    assert_eq!(seen.get(), 4, "three failures are borne, the fourth is not");
    let text = outcome.to_string();
    assert!(text.contains("relay") && text.contains("injected 4"), "{text}");
}

#[tokio::test]
async fn fatal_ends_the_tree_at_once() {
    let outcome = outcome_of(tireless(), || WorkError::fatal("schema of the future")).await;
    assert_eq!(outcome.exit_code(), 70);
    assert_eq!(
        outcome.ending,
        Ending::Escalated {
            child: "relay".to_owned(),
            reason: "failed fatally: schema of the future".to_owned()
        }
    );
}

#[tokio::test]
async fn configuration_ends_the_tree_with_its_own_code() {
    let outcome = outcome_of(tireless(), || {
        WorkError::configuration("retention is shorter than the window")
    })
    .await;
    assert_eq!(outcome.exit_code(), 78);
    assert!(
        outcome.to_string().contains("shorter than the window"),
        "{outcome}"
    );
}

#[tokio::test]
async fn the_first_cause_decides_and_the_abandoned_are_named() {
    let settings = TreeSettings {
        drain_deadline: Duration::from_millis(50),
        ..patient()
    };
    let bad = ChildSpec::new("bad", |_| async {
        Err(WorkError::configuration("no such stream"))
    });
    let deaf = ChildSpec::new("deaf", |context| async move {
        context.in_hand("page 7");
        std::future::pending().await
    });
    let outcome = end_of(&start(settings, [deaf, bad])).await;
    assert_eq!(outcome.exit_code(), 78);
    assert_eq!(outcome.abandoned.len(), 1);
    assert_eq!(outcome.abandoned[0].in_hand.as_deref(), Some("page 7"));
}

#[tokio::test]
async fn failure_while_draining_is_not_clean() {
    let child = ChildSpec::new("relay", |context| async move {
        context.ready();
        context.drain().cancelled().await;
        Err(WorkError::failed("the cursor was not saved"))
    });
    let tree = tree_of([child.restart(tireless())]);
    until("ready", || status(&tree, "relay").ready).await;
    tree.drain();
    let outcome = end_of(&tree).await;
    assert_eq!(outcome.exit_code(), 70);
    assert!(
        outcome.to_string().contains("the cursor was not saved"),
        "{outcome}"
    );
}

#[tokio::test]
async fn old_work_that_does_not_end_escalates() {
    let settings = TreeSettings {
        drain_deadline: Duration::from_millis(100),
        ..patient()
    };
    let policy = RestartPolicy {
        stall_after: Some(Duration::from_millis(20)),
        retire_deadline: Duration::from_millis(50),
        ..tireless()
    };
    let launches = Arc::new(Counter::default());
    let seen = launches.clone();
    let deaf = ChildSpec::new("deaf", move |context| {
        launches.up();
        async move {
            context.busy(true);
            std::future::pending().await
        }
    });
    let sibling = sibling();
    let outcome = end_of(&start(settings, [deaf.restart(policy), sibling.spec])).await;
    assert_eq!(outcome.exit_code(), 70);
    assert!(
        outcome.to_string().contains("asked to end for a restart"),
        "{outcome}"
    );
    assert_eq!(outcome.abandoned[0].name, "deaf");
    assert_eq!(seen.get(), 1, "launched beside the old work");
    assert_eq!(sibling.ends.get(), 1);
}

#[tokio::test]
async fn panic_of_the_root_is_not_a_clean_end() {
    let sibling = sibling();
    let tree = tree_of([sibling.spec]);
    until("the sibling runs", || sibling.launches.get() == 1).await;
    tree.inject_root_panic();
    let outcome = end_of(&tree).await;
    assert_eq!(outcome.exit_code(), 70);
    assert!(matches!(outcome.ending, Ending::RootLost { .. }), "{outcome}");
    assert_eq!(sibling.ends.get(), 1, "the work was left alone");
}
