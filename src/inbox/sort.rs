//! Tells the messages that a handler is to see from those that go to the dead letters without one.

use super::actor::Decoded;
use super::batch::{Bench, new_dead_letter};
use super::claim::Claims;
use super::delivery::Delivery;
use super::envelope::Envelope;
use super::ran::{Failure, Stop, panic_text};
use super::router::Actors;
use crate::config::Unhandled;
use crate::dead_letter::{NewDeadLetter, Reason};
use sqlx::{Postgres, Transaction};
use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// A message and who handles it.
pub(super) struct Task {
    route: usize,
    envelope: Arc<Envelope>,
    decoded: Decoded,
}

impl Bench {
    /// Tells what is to be handled by whom from what goes to the dead letters at once.
    pub(super) async fn sort(
        &self,
        transaction: &mut Transaction<'static, Postgres>,
        actors: &mut Actors,
        claims: &Claims,
        fresh: impl Iterator<Item = &Delivery> + Clone,
    ) -> Result<(Vec<Task>, Vec<NewDeadLetter>), Stop> {
        let mut quarantined = HashSet::new();
        if claims.has_dead_letters {
            let keys: Vec<&str> = fresh.clone().filter_map(Delivery::key).collect();
            quarantined = self.letters.quarantined(&mut *transaction, &keys).await?;
        }
        let (mut tasks, mut dead) = (Vec::new(), Vec::new());
        for delivery in fresh {
            let envelope = &delivery.envelope;
            let is_letter = delivery.letter.is_some();
            let follows = !is_letter && envelope.key.as_ref().is_some_and(|key| quarantined.contains(key));
            let too_old = !is_letter
                && envelope
                    .enqueued_at
                    .is_some_and(|time| time < claims.forgotten_before);
            let route = actors.route(envelope);
            let verdict = match route {
                _ if follows => Err((
                    Reason::Follows,
                    "an earlier message of its key is among the dead letters".to_owned(),
                )),
                _ if too_old => Err((
                    Reason::TooOld,
                    format!(
                        "enqueued before {}, and ids that old have been forgotten",
                        claims.forgotten_before
                    ),
                )),
                None if self.settings.unhandled == Unhandled::Skip => continue,
                None => {
                    let kind = envelope.kind.as_deref().unwrap_or("none");
                    Err((
                        Reason::Unhandled,
                        format!("no handler for subject {} and kind {kind}", envelope.subject),
                    ))
                }
                Some(route) => decode(actors, route, envelope)
                    .map(|decoded| Task {
                        route,
                        envelope: envelope.clone(),
                        decoded,
                    })
                    .map_err(|error| (Reason::Undecodable, error)),
            };
            match verdict {
                Ok(task) => tasks.push(task),
                // A letter was taken out in this transaction: it is put back by whoever sees this.
                Err((reason, error)) if is_letter => {
                    return Err(Stop::Failure(Failure::hopeless(reason, error)));
                }
                Err((reason, error)) => {
                    quarantined.extend(envelope.key.clone());
                    dead.push(new_dead_letter(delivery, reason, error, 0));
                }
            }
        }
        Ok((tasks, dead))
    }
}

/// A decoder is the application's too, and may panic.
fn decode(actors: &mut Actors, route: usize, envelope: &Envelope) -> Result<Decoded, String> {
    let decoded = std::panic::catch_unwind(AssertUnwindSafe(|| actors.actor(route).decode(envelope)));
    match decoded {
        Ok(decoded) => decoded.map_err(|error| error.to_string()),
        Err(panic) => {
            actors.rebuild(route);
            Err(format!("its decoder panicked: {}", panic_text(panic.as_ref())))
        }
    }
}

/// A message as its handler takes it.
pub(super) type Handed = (Arc<Envelope>, Decoded);

/// Neighbours of one actor together, in order.
pub(super) fn neighbours(tasks: Vec<Task>) -> Vec<(usize, Vec<Handed>)> {
    let mut groups: Vec<(usize, Vec<Handed>)> = Vec::new();
    for Task {
        route,
        envelope,
        decoded,
    } in tasks
    {
        match groups.last_mut() {
            Some((last, events)) if *last == route => events.push((envelope, decoded)),
            _ => groups.push((route, vec![(envelope, decoded)])),
        }
    }
    groups
}
