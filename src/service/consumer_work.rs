//! A consumer, under supervision.

use super::foundation::{Foundation, pause, pauses};
use crate::broker::Subscription;
use crate::broker::nats::Nats;
use crate::config::ConsumerSettings;
use crate::inbox::{Consumer, ConsumerControl, ConsumerHealth};
use crate::pruner::check_retention;
use crate::supervisor::{RestartPolicy, WorkContext, WorkError};
use std::sync::Arc;
use std::time::Duration;

pub(super) async fn run(
    foundation: Arc<Foundation>,
    consumer: Consumer,
    context: WorkContext,
) -> Result<(), WorkError> {
    if !foundation.database(&context).await? {
        return Ok(());
    }
    let Some(nats) = foundation.broker(&context).await? else {
        return Ok(());
    };
    while !context.is_draining() {
        let Some(subscription) = subscribe(&foundation, &nats, &consumer, &context).await? else {
            return Ok(());
        };
        consume(&foundation, &consumer, subscription, &context).await?;
        context.put_down();
        context.resumed().await;
    }
    Ok(())
}

/// Until the service drains, or the consumer is paused.
async fn consume(
    foundation: &Foundation,
    consumer: &Consumer,
    subscription: Arc<dyn Subscription>,
    context: &WorkContext,
) -> Result<(), WorkError> {
    let stop = context.drain().child_token();
    let control = ConsumerControl::new(stop.clone());
    let mut health = control.health();
    let mut beats = 0;
    let running = consumer.run(&foundation.store, subscription, control);
    tokio::pin!(running);
    loop {
        tokio::select! {
            ended = &mut running => return ended.map_err(WorkError::failed),
            changed = health.changed() => if changed.is_ok() {
                let health = health.borrow_and_update();
                if std::mem::replace(&mut beats, health.beats) != health.beats {
                    context.beat();
                }
                show(context, &health);
            },
            () = context.paused(), if !stop.is_cancelled() => stop.cancel(),
        }
    }
}

/// What a batch that takes longer is taken for is a stall.
const LONGEST_BATCH: Duration = Duration::from_secs(12 * 60 * 60);

/// A lane gives no sign while a batch runs, and that may take as long as its handlers together.
pub(super) fn restart_policy(settings: &ConsumerSettings) -> RestartPolicy {
    let longest_batch = (settings.handler_deadline * u32::from(settings.batch)).min(LONGEST_BATCH);
    let usual = RestartPolicy::default();
    RestartPolicy {
        stall_after: usual.stall_after.map(|stall_after| stall_after + longest_batch),
        retire_deadline: usual.retire_deadline + longest_batch,
        ..usual
    }
}

/// The durable consumer, created if it is absent. `None`: the service drains.
async fn subscribe(
    foundation: &Foundation,
    nats: &Arc<Nats>,
    consumer: &Consumer,
    context: &WorkContext,
) -> Result<Option<Arc<dyn Subscription>>, WorkError> {
    let settings = consumer.settings();
    let mut pauses = pauses();
    while !context.is_draining() {
        match nats.subscribe(settings).await {
            Ok((subscription, findings)) => {
                findings.iter().for_each(|finding| finding.log());
                if let Ok(state) = subscription.state().await {
                    check_retention(&foundation.settings.pruner, settings, &state.stream)
                        .map_err(WorkError::configuration)?;
                }
                return Ok(Some(Arc::new(subscription)));
            }
            Err(error) => {
                tracing::error!(consumer = settings.name, stream = settings.stream, %error, "can't consume yet");
                context.not_ready(error.to_string());
            }
        }
        pause(context, &mut pauses).await;
    }
    Ok(None)
}

fn show(context: &WorkContext, health: &ConsumerHealth) {
    context.busy(health.in_hand > 0);
    context.in_hand(if health.in_hand > 0 {
        format!("{} messages", health.in_hand)
    } else {
        String::new()
    });
    match &health.reason {
        Some(reason) if !health.ready => context.not_ready(reason),
        _ => context.ready(),
    }
}
