//! A run of the work: the task that a shell launches and joins, and never aborts.

use super::record::{ChildRecord, RunRecord};
use super::words;
use super::work::{WorkContext, WorkError, WorkFactory};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, info_span};

/// How a run ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum RunEnd {
    /// It returned `Ok`.
    Finished,
    /// It returned an error after which it may be launched again, or panicked.
    Failed(String),
    /// It returned an error after which it may not.
    Fatal(String),
    /// Its settings are wrong.
    Configuration(String),
    /// The runtime that it ran on was shut down under it.
    RuntimeGone,
}

/// Launches the work of one child.
///
/// The work runs on the runtime of the program that started the tree, since the pool and the connections that it
/// uses live there and die with it.
pub(super) struct Launcher {
    pub(super) work: WorkFactory,
    pub(super) child: Arc<ChildRecord>,
    pub(super) runtime: Handle,
    pub(super) tasks: TaskTracker,
    pub(super) drain: CancellationToken,
}

/// A launched run. The shell may forget its task by a panic: the task's end can be awaited again.
pub(super) struct Run {
    pub(super) record: Arc<RunRecord>,
    pub(super) end: Shared<BoxFuture<'static, RunEnd>>,
    retire: CancellationToken,
}

impl Launcher {
    /// Launches the work anew.
    pub(super) fn launch(&self) -> Run {
        let record = self.child.next_run();
        let retire = self.drain.child_token();
        let context = WorkContext {
            child: self.child.clone(),
            run: record.clone(),
            drain: retire.clone(),
        };
        let span = info_span!("child", child = %self.child.name, generation = record.generation);
        let work = self.work.clone();
        let ended = record.ended.clone().drop_guard();
        let task = async move {
            let _ended = ended;
            // The factory is called in here, so that its panic is the work's.
            work(context).await
        };
        // The one place that spawns work. Its handle is only ever awaited: an aborted task may be inside a
        // transaction, and would hand the pool a connection that still is.
        let joined = self.tasks.spawn_on(task.instrument(span), &self.runtime);
        Run {
            record,
            end: joined.map(RunEnd::of).boxed().shared(),
            retire,
        }
    }
}

impl Run {
    /// Asks the work to finish what is in hand and return.
    pub(super) fn retire(&self) {
        self.retire.cancel();
    }
}

impl RunEnd {
    fn of(joined: Result<Result<(), WorkError>, JoinError>) -> Self {
        match joined {
            Ok(Ok(())) => Self::Finished,
            Ok(Err(WorkError::Failed(error))) => Self::Failed(words::with_causes(&*error)),
            Ok(Err(WorkError::Fatal(error))) => Self::Fatal(words::with_causes(&*error)),
            Ok(Err(WorkError::Configuration(error))) => Self::Configuration(words::with_causes(&*error)),
            Err(join) => match join.try_into_panic() {
                Ok(payload) => Self::Failed(format!("panicked: {}", words::of_panic(payload))),
                Err(_cancelled) => Self::RuntimeGone,
            },
        }
    }
}
