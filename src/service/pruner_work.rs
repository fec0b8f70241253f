//! The pruner, under supervision.

use super::foundation::Foundation;
use crate::config::ConsumerSettings;
use crate::error_text::with_causes;
use crate::pruner::Pruner;
use crate::supervisor::{WorkContext, WorkError};
use std::sync::Arc;

pub(super) async fn run(
    foundation: Arc<Foundation>,
    inboxes: Arc<[ConsumerSettings]>,
    context: WorkContext,
) -> Result<(), WorkError> {
    if !foundation.database(&context).await? {
        return Ok(());
    }
    let Some(nats) = foundation.broker(&context).await? else {
        return Ok(());
    };
    let settings = foundation.settings.pruner.clone();
    let interval = settings.interval;
    let pruner = Pruner::new(foundation.store.clone(), nats, settings, inboxes.to_vec());
    while !context.is_draining() {
        context.resumed().await;
        context.busy(true);
        match pruner.run_once(context.drain()).await {
            Ok(reports) => {
                reports.iter().for_each(|report| report.log());
                context.ready();
            }
            // What it could not prune now it prunes the next time.
            Err(error) => {
                let reason = with_causes(&error);
                tracing::warn!(reason, "pruning failed");
                context.not_ready(reason);
            }
        }
        context.beat();
        context.busy(false);
        context.idle(interval).await;
    }
    Ok(())
}
