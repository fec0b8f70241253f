//! Which actor handles which messages.

use super::actor::{AnyActor, BusinessActor, Typed};
use super::envelope::Envelope;
use crate::broker::subject_matches;
use std::sync::Arc;

/// Makes an actor anew.
pub(super) type Factory = Arc<dyn Fn() -> Box<dyn AnyActor> + Send + Sync>;

/// Messages of some subjects, and perhaps of one kind, and who handles them.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) subject: String,
    pub(super) kind: Option<String>,
    pub(super) factory: Factory,
}

impl Route {
    pub(super) fn new<A: BusinessActor>(
        subject: String,
        kind: Option<String>,
        factory: impl Fn() -> A + Send + Sync + 'static,
    ) -> Self {
        Self {
            subject,
            kind,
            factory: Arc::new(move || Box::new(Typed(factory()))),
        }
    }

    fn takes(&self, envelope: &Envelope) -> bool {
        subject_matches(&self.subject, &envelope.subject)
            && self
                .kind
                .as_ref()
                .is_none_or(|kind| envelope.kind.as_ref() == Some(kind))
    }
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Route")
            .field("subject", &self.subject)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// The actors of one lane.
pub(super) struct Actors {
    routes: Arc<[Route]>,
    actors: Vec<Box<dyn AnyActor>>,
}

impl Actors {
    pub(super) fn new(routes: Arc<[Route]>) -> Self {
        let actors = routes.iter().map(|route| (route.factory)()).collect();
        Self { routes, actors }
    }

    /// The route of a message: the first that takes it, in the order of registration.
    pub(super) fn route(&self, envelope: &Envelope) -> Option<usize> {
        self.routes.iter().position(|route| route.takes(envelope))
    }

    pub(super) fn actor(&mut self, route: usize) -> &mut Box<dyn AnyActor> {
        &mut self.actors[route]
    }

    /// Makes an actor anew: its memory may hold what was rolled back, or what a panic left half done.
    pub(super) fn rebuild(&mut self, route: usize) {
        self.actors[route] = (self.routes[route].factory)();
    }
}
