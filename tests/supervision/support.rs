//! What the tests have in common.

use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};
use twinbox::supervisor::{
    ChildSpec, ChildStatus, Outcome, RestartPolicy, Tree, TreeHandle, TreeSettings, WorkContext, WorkError,
};

/// How long a condition may take to come true. Far more than any needs, also on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Panics with this in their text are wanted, and not printed.
pub const WANTED: &str = "injected";

/// Waits until `condition` holds.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < LIMIT, "waited in vain: {what}");
        // Between two looks, with a deadline above.
        sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until the tree has ended.
pub async fn end_of(tree: &TreeHandle) -> Outcome {
    match timeout(LIMIT, tree.wait()).await {
        Ok(outcome) => outcome,
        Err(_) => panic!("the tree did not end: {:#?}", tree.observe()),
    }
}

/// Drains the tree and expects a clean end.
pub async fn drains_cleanly(tree: &TreeHandle) {
    tree.drain();
    let outcome = end_of(tree).await;
    assert_eq!(outcome.exit_code(), 0, "{outcome}");
}

/// The child as it is.
pub fn status(tree: &TreeHandle, name: &str) -> ChildStatus {
    let children = tree.observe();
    let found = children.into_iter().find(|child| child.name == name);
    found.unwrap_or_else(|| panic!("no child {name}"))
}

/// Restarts at once and for ever.
pub fn tireless() -> RestartPolicy {
    RestartPolicy {
        backoff_min: Duration::from_millis(1),
        backoff_max: Duration::from_millis(1),
        max_failures: 10_000,
        window: Duration::from_secs(3600),
        stall_after: None,
        retire_deadline: LIMIT,
    }
}

/// Settings whose limits no test reaches by accident.
pub fn patient() -> TreeSettings {
    TreeSettings {
        drain_deadline: LIMIT,
        blocked_after: LIMIT,
        ..TreeSettings::default()
    }
}

/// A tree of `children` under patient settings.
pub fn tree_of(children: impl IntoIterator<Item = ChildSpec>) -> TreeHandle {
    start(patient(), children)
}

/// A tree of `children`.
pub fn start(settings: TreeSettings, children: impl IntoIterator<Item = ChildSpec>) -> TreeHandle {
    hide_wanted_panics();
    let tree = children.into_iter().fold(Tree::new(settings), Tree::child);
    tree.start().unwrap()
}

/// A child that does nothing until it is drained.
pub fn quiet(name: &str) -> ChildSpec {
    ChildSpec::new(name, wait_for_drain).restart(tireless())
}

/// Work that does nothing until it is drained.
pub async fn wait_for_drain(context: WorkContext) -> Result<(), WorkError> {
    context.ready();
    context.drain().cancelled().await;
    Ok(())
}

/// Counts, from many threads.
#[derive(Debug, Default)]
pub struct Counter(AtomicUsize);

impl Counter {
    pub fn up(&self) -> usize {
        self.0.fetch_add(1, SeqCst) + 1
    }

    pub fn down(&self) {
        self.0.fetch_sub(1, SeqCst);
    }

    pub fn get(&self) -> usize {
        self.0.load(SeqCst)
    }
}

fn hide_wanted_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let wanted = info.payload_as_str().is_some_and(|text| text.contains(WANTED));
            if !wanted {
                print(info);
            }
        }));
    });
}
