//! Signals of the operating system, for a daemon. A library leaves them to the program it is in.

use super::handle::TreeHandle;
use std::io;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

/// Drains the tree on SIGTERM or SIGINT; a second one no longer waits for the drain.
///
/// The signals are caught from this call on, not only from the first poll of what it returns, which ends with the
/// tree. They stay caught after that, so the program has to end then.
///
/// # Errors
/// If the signals can't be caught.
pub fn drain_on_signals(tree: &TreeHandle) -> io::Result<impl Future<Output = ()> + Send + use<>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let tree = tree.clone();
    Ok(async move {
        let mut asked = false;
        loop {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
                _ = tree.wait() => return,
            };
            if asked {
                warn!(signal = name, "second signal: not waiting for the drain");
                tree.drain_now();
            } else {
                info!(signal = name, "draining; a second signal does not wait for it");
                tree.drain();
                asked = true;
            }
        }
    })
}
