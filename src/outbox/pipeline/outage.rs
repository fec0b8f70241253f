//! The broker does not take messages now: nothing leaves until it does. An outage uses nothing up and has no end but its
//! own.

use super::Pipeline;
use crate::outbox::auditor::Verdict;
use std::time::{Duration, Instant};

/// Why nothing leaves.
pub(super) const NO_CONNECTION: &str = "no connection to the broker";
/// How long a comparison that can't be made holds up publishing after a reconnect.
const AUDIT_PATIENCE: Duration = Duration::from_secs(15);

impl Pipeline<'_> {
    /// Something that was published did not come through.
    pub(super) fn begin_hold(&mut self, why: &str) {
        if self.hold.is_some() {
            return;
        }
        if !self.probing {
            tracing::warn!(
                why,
                "the broker does not take messages: holding them until it does"
            );
        }
        self.probing = true;
        self.hold = Some(Instant::now() + self.backoff.next());
        self.tools.control.is_held_up(why);
    }

    /// The broker took or refused a message: it is there.
    pub(super) fn works(&mut self) {
        if self.probing && self.hold.is_none() {
            self.probing = false;
            self.backoff.reset();
            self.tools.control.works();
            tracing::info!("the broker takes messages again");
        }
    }

    /// Sees an outage begin and end, and a connection that was made anew: then what was acknowledged is compared with
    /// what is there, before anything else is published.
    pub(super) async fn look_after_outage(&mut self) {
        if self.hold.is_none() {
            if !self.tools.publisher.is_connected() {
                self.begin_hold(NO_CONNECTION);
            } else if self.tools.auditor.has_reconnected() {
                self.hold = Some(Instant::now());
            }
        }
        let is_over = self.hold.is_some_and(|until| Instant::now() >= until);
        // What is in flight comes back first, if only as a failure: two of a key must never be out together.
        if !is_over || !self.in_flight.is_empty() {
            return;
        }
        if !self.tools.publisher.is_connected() {
            self.hold = Some(Instant::now() + self.backoff.next());
            return;
        }
        if self.tools.auditor.has_reconnected() {
            match self.tools.auditor.audit().await {
                Verdict::Holds => {}
                Verdict::Lost(losses) => self.losses = losses,
                Verdict::Unknown(error) => {
                    let since = *self.audit_failing_since.get_or_insert_with(Instant::now);
                    if since.elapsed() < AUDIT_PATIENCE {
                        self.hold = Some(Instant::now() + self.backoff.next());
                        return;
                    }
                    self.tools.auditor.put_off(&error);
                }
            }
            self.audit_failing_since = None;
        }
        self.hold = None;
        // Those that failed came back in any order.
        self.ready.make_contiguous().sort_unstable();
    }
}
