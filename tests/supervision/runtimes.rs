//! Where a tree can be started.

use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use twinbox::supervisor::{ChildSpec, RestartPolicy, StartError, Tree, TreeSettings};

async fn works_here() {
    let tree = tree_of([
        quiet("relay"),
        ChildSpec::new("consumer/billing", |context| async move {
            assert!(context.generation() > 1, "injected");
            wait_for_drain(context).await
        })
        .restart(tireless()),
    ]);
    until("all are ready", || tree.observe().iter().all(|child| child.ready)).await;
    drains_cleanly(&tree).await;
}

#[tokio::test(flavor = "current_thread")]
async fn from_a_runtime_of_one_thread() {
    works_here().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_a_runtime_of_many_threads() {
    works_here().await;
}

#[test]
fn handle_crosses_threads() {
    fn is<T: Clone + Send + Sync + 'static>() {}
    is::<twinbox::supervisor::TreeHandle>();
    is::<twinbox::supervisor::WorkContext>();
    is::<ChildSpec>();
}

#[tokio::test(flavor = "multi_thread")]
async fn work_runs_on_the_runtime_of_the_caller() {
    let runtime = tokio::runtime::Handle::current().id();
    let tree = tree_of([ChildSpec::new("relay", move |context| async move {
        assert_eq!(tokio::runtime::Handle::current().id(), runtime);
        wait_for_drain(context).await
    })]);
    until("ready", || status(&tree, "relay").ready).await;
    assert_eq!(status(&tree, "relay").generation, 1);
    drains_cleanly(&tree).await;
}

#[tokio::test]
async fn two_trees_in_one_process() {
    let (one, two) = (tree_of([quiet("relay")]), tree_of([quiet("relay")]));
    until("both are ready", || {
        status(&one, "relay").ready && status(&two, "relay").ready
    })
    .await;
    one.inject_root_panic();
    assert_eq!(end_of(&one).await.exit_code(), 70);
    assert!(!two.is_draining());
    assert!(two.probe("relay").await.is_ok());
    drains_cleanly(&two).await;
}

#[test]
fn runtime_that_is_shut_down_under_the_tree_escalates() {
    let build = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
    };
    let (theirs, ours) = (build().unwrap(), build().unwrap());
    let tree = theirs.block_on(async {
        let tree = tree_of([quiet("relay")]);
        until("ready", || status(&tree, "relay").ready).await;
        tree
    });
    theirs.shutdown_timeout(Duration::from_secs(1));
    let outcome = ours.block_on(end_of(&tree));
    assert_eq!(outcome.exit_code(), 70);
    assert!(outcome.to_string().contains("lost the runtime"), "{outcome}");
    assert_eq!(outcome.abandoned, []);
}

#[tokio::test]
async fn impossible_trees_are_not_started() {
    let refused = |tree: Tree| tree.start().unwrap_err();
    assert!(matches!(refused(Tree::new(patient())), StartError::NoChildren));

    let twice = Tree::new(patient()).child(quiet("relay")).child(quiet("relay"));
    assert!(matches!(refused(twice), StartError::SameName(name) if name == "relay"));

    let nameless = Tree::new(patient()).child(quiet("consumer/"));
    assert!(matches!(refused(nameless), StartError::Child { .. }));

    let policy = RestartPolicy {
        backoff_min: Duration::ZERO,
        ..tireless()
    };
    let hot = refused(Tree::new(patient()).child(quiet("relay").restart(policy)));
    assert!(hot.to_string().contains("relay: backoff_min is 0ns"), "{hot}");

    let settings = TreeSettings {
        blocked_after: Duration::MAX,
        ..patient()
    };
    let endless = refused(Tree::new(settings).child(quiet("relay")));
    assert!(matches!(endless, StartError::Tree(_)), "{endless}");
}

#[test]
fn without_a_runtime_there_is_no_tree() {
    let refused = Tree::new(patient()).child(quiet("relay")).start().unwrap_err();
    assert!(matches!(refused, StartError::NoRuntime));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_and_stop_under_stress() {
    let launched = Arc::new(Counter::default());
    let ended = Arc::new(Counter::default());
    let rounds = (0..40).map(|round| {
        let (launched, ended) = (launched.clone(), ended.clone());
        tokio::spawn(async move {
            let tree = tree_of([ChildSpec::new("relay", move |context| {
                let (launched, ended) = (launched.clone(), ended.clone());
                async move {
                    launched.up();
                    let end = wait_for_drain(context).await;
                    ended.up();
                    end
                }
            })
            .restart(tireless())]);
            if round % 2 == 0 {
                until("ready", || status(&tree, "relay").ready).await;
            }
            if round % 3 == 0 {
                // May come too late, which is an answer too.
                let _ = tree.restart("relay").await;
            }
            drains_cleanly(&tree).await;
        })
    });
    for round in rounds.collect::<Vec<_>>() {
        round.await.unwrap();
    }
    assert_eq!(launched.get(), ended.get());
}
