//! A whole service: the tree of relay, consumers and pruner, started with one call.
//!
//! ```no_run
//! use twinbox::Service;
//! use twinbox::config::Loader;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let settings = Loader::new().optional_file("twinbox.toml").load()?;
//!     let service = Service::new(settings).start().await?;
//!     // … the program's own work, then:
//!     service.drain();
//!     let outcome = service.wait().await;
//!     std::process::exit(outcome.exit_code().into());
//! }
//! ```

mod consumer_work;
mod foundation;
mod pruner_work;
mod relay_work;

use crate::config::{Impossible, Role, Settings};
use crate::inbox::{Consumer, ConsumerConfigError};
use crate::store::{Store, StoreError};
use crate::supervisor::{
    ChildSpec, ChildStatus, OnBlocked, Outcome, StartError, Tree, TreeHandle, TreeSettings,
};
use foundation::Foundation;
use std::sync::Arc;

/// Why a service does not start. What is merely away at the start (database, broker) is no reason: it is waited for.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// Settings that can't be.
    #[error("impossible settings: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Settings(Vec<Impossible>),
    /// Two consumers of one name.
    #[error("consumer {0} stands twice: names are unique, since the inbox keeps claims by them")]
    Twice(String),
    /// A consumer of the settings.
    #[error("consumer {name}")]
    Consumer {
        /// Its name.
        name: String,
        /// What is wrong.
        #[source]
        source: ConsumerConfigError,
    },
    /// The database's address.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The tree.
    #[error(transparent)]
    Tree(#[from] StartError),
}

/// A service that is to be started.
#[derive(Debug)]
pub struct Service {
    settings: Settings,
    consumers: Vec<Consumer>,
    on_blocked: OnBlocked,
}

impl Service {
    /// A service by its settings: a relay, the consumers whose handlers are SQL, and a pruner.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            consumers: Vec::new(),
            on_blocked: OnBlocked::default(),
        }
    }

    /// Adds a consumer whose business actors are Rust.
    #[must_use]
    pub fn consumer(mut self, consumer: Consumer) -> Self {
        self.consumers.push(consumer);
        self
    }

    /// What happens if the thread of the actors is blocked. Default: the outcome says so.
    #[must_use]
    pub fn on_blocked(mut self, on_blocked: OnBlocked) -> Self {
        self.on_blocked = on_blocked;
        self
    }

    /// Starts the tree, whose work runs on the tokio runtime of the caller. It goes on until it is drained.
    ///
    /// # Errors
    /// [`ServiceError`] for what no waiting can mend.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn start(self) -> Result<ServiceHandle, ServiceError> {
        let faults = self.settings.validate();
        if !faults.is_empty() {
            return Err(ServiceError::Settings(faults));
        }
        let consumers = self.all_consumers()?;
        let store = Store::connect_lazily(&self.settings.database)?;
        let tree_settings = TreeSettings {
            drain_deadline: self.settings.run.drain_deadline,
            on_blocked: self.on_blocked,
            ..TreeSettings::default()
        };
        let foundation = Arc::new(Foundation::new(self.settings, store.clone()));
        let tree = children(&foundation, &consumers)
            .into_iter()
            .fold(Tree::new(tree_settings), Tree::child);
        Ok(ServiceHandle {
            tree: tree.start()?,
            store,
        })
    }

    /// The consumers in Rust, and those of the settings.
    fn all_consumers(&self) -> Result<Vec<Consumer>, ServiceError> {
        let mut consumers = self.consumers.clone();
        for settings in &self.settings.consumers {
            let consumer =
                Consumer::from_settings(settings.clone()).map_err(|source| ServiceError::Consumer {
                    name: settings.name.clone(),
                    source,
                })?;
            consumers.push(consumer);
        }
        for (index, consumer) in consumers.iter().enumerate() {
            let name = &consumer.settings().name;
            if consumers[..index]
                .iter()
                .any(|earlier| earlier.settings().name == *name)
            {
                return Err(ServiceError::Twice(name.clone()));
            }
        }
        Ok(consumers)
    }
}

fn children(foundation: &Arc<Foundation>, consumers: &[Consumer]) -> Vec<ChildSpec> {
    let mut children = Vec::new();
    let has = |role| foundation.settings.run.roles.contains(&role);
    if has(Role::Relay) {
        let foundation = foundation.clone();
        let name = format!("relay/{}", foundation.settings.relay.name);
        children.push(ChildSpec::new(name, move |context| {
            relay_work::run(foundation.clone(), context)
        }));
    }
    if has(Role::Consumer) {
        for consumer in consumers {
            let (foundation, consumer) = (foundation.clone(), consumer.clone());
            let name = format!("consumer/{}", consumer.settings().name);
            let policy = consumer_work::restart_policy(consumer.settings());
            let work = move |context| consumer_work::run(foundation.clone(), consumer.clone(), context);
            children.push(ChildSpec::new(name, work).restart(policy));
        }
    }
    if has(Role::Pruner) {
        let foundation = foundation.clone();
        let inboxes: Arc<[_]> = consumers
            .iter()
            .map(|consumer| consumer.settings().clone())
            .collect();
        let work = move |context| pruner_work::run(foundation.clone(), inboxes.clone(), context);
        children.push(ChildSpec::new("pruner", work));
    }
    children
}

/// A service that runs. Clones stand for the same one; it goes on when all are dropped.
#[derive(Clone, Debug)]
pub struct ServiceHandle {
    tree: TreeHandle,
    store: Store,
}

impl ServiceHandle {
    /// Begins an orderly end: nothing new is taken up, what is in hand is finished, cursors are saved, the lease is given
    /// back. Past the deadline of the settings the rest is abandoned, and done again by whoever comes next.
    pub fn drain(&self) {
        self.tree.drain();
    }

    /// Ends at once. Nothing is lost; what is in hand is done again.
    pub fn drain_now(&self) {
        self.tree.drain_now();
    }

    /// Waits until the service has ended.
    pub async fn wait(&self) -> Outcome {
        let outcome = self.tree.wait().await;
        if outcome.abandoned.is_empty() {
            self.store.close().await;
        }
        outcome
    }

    /// How each part is.
    pub fn observe(&self) -> Vec<ChildStatus> {
        self.tree.observe()
    }

    /// Whether every part can do its work.
    pub fn is_ready(&self) -> bool {
        self.observe().iter().all(|child| child.ready)
    }

    /// The tree, to pause, resume, nudge or restart a part.
    pub fn tree(&self) -> &TreeHandle {
        &self.tree
    }
}
