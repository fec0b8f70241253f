//! Publishers that do what a test wants.

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use twinbox::broker::{BrokerError, Outgoing, PublishError, Publisher, Receipt, StreamState};

type Before = dyn Fn(usize, &Outgoing) -> Option<PublishError> + Send + Sync;

/// A publisher that is asked first. Counts what is published, the first being number 0.
pub struct Asking {
    inner: Arc<dyn Publisher>,
    before: Box<Before>,
    pub published: AtomicUsize,
    /// Publishes while there was no connection.
    pub published_in_vain: AtomicUsize,
    pub reconnects: AtomicUsize,
}

impl Asking {
    /// `before` may answer for the broker, or block the thread.
    pub fn new(
        inner: Arc<dyn Publisher>,
        before: impl Fn(usize, &Outgoing) -> Option<PublishError> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            inner,
            before: Box::new(before),
            published: AtomicUsize::new(0),
            published_in_vain: AtomicUsize::new(0),
            reconnects: AtomicUsize::new(0),
        })
    }

    /// One that lets everything through.
    pub fn counting(inner: Arc<dyn Publisher>) -> Arc<Self> {
        Self::new(inner, |_, _| None)
    }

    pub fn published(&self) -> usize {
        self.published.load(Ordering::Relaxed)
    }
}

impl Publisher for Asking {
    fn publish(&self, message: Outgoing) -> BoxFuture<'static, Result<Receipt, PublishError>> {
        let number = self.published.fetch_add(1, Ordering::Relaxed);
        if !self.inner.is_connected() {
            self.published_in_vain.fetch_add(1, Ordering::Relaxed);
        }
        match (self.before)(number, &message) {
            Some(error) => async { Err(error) }.boxed(),
            None => self.inner.publish(message),
        }
    }

    fn is_connected(&self) -> bool {
        self.inner.is_connected()
    }

    fn connections(&self) -> u64 {
        self.inner.connections()
    }

    fn reconnect(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        self.reconnects.fetch_add(1, Ordering::Relaxed);
        self.inner.reconnect()
    }

    fn max_payload(&self) -> usize {
        self.inner.max_payload()
    }

    fn stream_of(&self, subject: &str) -> BoxFuture<'_, Result<Option<String>, BrokerError>> {
        self.inner.stream_of(subject)
    }

    fn stream_state(&self, stream: &str) -> BoxFuture<'_, Result<Option<StreamState>, BrokerError>> {
        self.inner.stream_state(stream)
    }

    fn dedup_id_at(&self, stream: &str, sequence: u64) -> BoxFuture<'_, Result<Option<String>, BrokerError>> {
        self.inner.dedup_id_at(stream, sequence)
    }
}

/// A gate that stops the thread that comes to it, as SIGSTOP stops a process.
#[derive(Default)]
pub struct Stop {
    closed: Mutex<bool>,
    opened: Condvar,
    pub reached: AtomicBool,
}

impl Stop {
    pub fn close(&self) {
        *self.closed.lock().unwrap() = true;
    }

    pub fn open(&self) {
        *self.closed.lock().unwrap() = false;
        self.opened.notify_all();
    }

    pub fn pass(&self) {
        let mut closed = self.closed.lock().unwrap();
        while *closed {
            self.reached.store(true, Ordering::Relaxed);
            closed = self.opened.wait(closed).unwrap();
        }
    }
}
