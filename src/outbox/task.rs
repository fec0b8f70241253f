//! The relay's own tasks. None is ever aborted: dropped inside a transaction, a future would poison the pool. Each ends by
//! itself when it is told to, and whoever joins it gets its panic.

use std::future::Future;
use tokio::task::JoinHandle;

/// A task at work. Where it is dropped instead of joined, the task goes on until its end.
#[derive(Debug)]
pub(crate) struct Task<T>(JoinHandle<T>);

impl<T: Send + 'static> Task<T> {
    pub(crate) fn start(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }

    /// Waits for its end. `None`: the runtime is going down.
    ///
    /// # Panics
    /// If the task did.
    pub(crate) async fn joined(self) -> Option<T> {
        match self.0.await {
            Ok(output) => Some(output),
            Err(join) if join.is_panic() => std::panic::resume_unwind(join.into_panic()),
            Err(_) => None,
        }
    }
}
