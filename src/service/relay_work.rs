//! The relay, under supervision.

use super::foundation::Foundation;
use crate::broker::nats::Nats;
use crate::outbox::{Relay, RelayControl, RelayHealth, RelayRole};
use crate::supervisor::{WorkContext, WorkError};
use std::sync::Arc;

pub(super) async fn run(foundation: Arc<Foundation>, context: WorkContext) -> Result<(), WorkError> {
    if !foundation.database(&context).await? {
        return Ok(());
    }
    let Some(nats) = foundation.broker(&context).await? else {
        return Ok(());
    };
    while !context.is_draining() {
        publish(&foundation, &nats, &context).await?;
        context.put_down();
        context.resumed().await;
    }
    Ok(())
}

/// Until the service drains, or the relay is paused: then another instance may take the lease.
async fn publish(foundation: &Foundation, nats: &Arc<Nats>, context: &WorkContext) -> Result<(), WorkError> {
    let stop = context.drain().child_token();
    let control = RelayControl::new(stop.clone());
    let relay = Relay::new(
        foundation.store.clone(),
        nats.clone(),
        foundation.settings.relay.clone(),
    );
    let mut health = control.health();
    let running = relay.run(control.clone());
    let streams = foundation.keep_streams(nats);
    tokio::pin!(running, streams);
    loop {
        tokio::select! {
            ended = &mut running => return ended.map_err(WorkError::failed),
            changed = health.changed() => if changed.is_ok() {
                show(context, &health.borrow_and_update());
            },
            () = context.nudged() => control.nudge(),
            never = &mut streams => match never {},
            () = context.paused(), if !stop.is_cancelled() => stop.cancel(),
        }
    }
}

fn show(context: &WorkContext, health: &RelayHealth) {
    context.beat();
    context.busy(health.pending > 0);
    context.in_hand(match health.role {
        RelayRole::Starting => String::new(),
        RelayRole::Standby => "standby: another instance publishes".to_owned(),
        RelayRole::Leader => format!(
            "leader: outbox row {} settled, about {} pending",
            health.position, health.pending
        ),
    });
    match &health.reason {
        Some(reason) if !health.ready => context.not_ready(reason),
        _ => context.ready(),
    }
}
