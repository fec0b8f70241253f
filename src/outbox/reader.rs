//! Reading ahead: the next page is read while the one before is published.

use super::cursor::Span;
use super::log::{Log, Page};
use super::row::LogRow;
use super::task::Task;
use crate::config::RelaySettings;
use crate::dead_letter::Table;
use crate::store::{Store, StoreError};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc;

/// Pages that wait to be taken; beside them one in the reader's hands.
const PAGES_AHEAD: usize = 1;

/// A page, and which of its keys are quarantined.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) rows: Vec<LogRow>,
    /// Each with the first outbox row that lies among the dead letters.
    pub(crate) quarantined: HashMap<String, i64>,
}

/// How reading ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ReadEnd {
    /// The span is read.
    Exhausted,
    /// It was told to stop, or nobody takes its pages any more.
    Stopped,
}

/// Reads the pages of a span.
pub(crate) struct Reader {
    pub(crate) store: Store,
    pub(crate) log: Log,
    pub(crate) letters: Table,
    /// Whether there are dead letters at all.
    pub(crate) any_letters: bool,
    pub(crate) page_rows: u32,
    pub(crate) page_bytes: u32,
    pub(crate) stop: Arc<AtomicBool>,
}

/// A reader at work, on a task of its own.
pub(crate) struct Reading {
    pub(crate) batches: mpsc::Receiver<Batch>,
    pub(crate) ended: Task<Result<ReadEnd, StoreError>>,
}

impl Reader {
    pub(crate) fn new(store: &Store, log: &Log, letters: &Table, settings: &RelaySettings) -> Self {
        Self {
            store: store.clone(),
            log: log.clone(),
            letters: letters.clone(),
            any_letters: true,
            page_rows: settings.page_rows,
            page_bytes: settings.page_bytes,
            stop: Arc::new(AtomicBool::new(false)),
        }
    }

    /// Begins to read.
    pub(crate) fn start(self, span: Span) -> Reading {
        let (sender, batches) = mpsc::channel(PAGES_AHEAD);
        let ended = Task::start(self.read(span, sender));
        Reading { batches, ended }
    }

    async fn read(self, mut span: Span, sender: mpsc::Sender<Batch>) -> Result<ReadEnd, StoreError> {
        loop {
            if self.stop.load(Ordering::Relaxed) || sender.is_closed() {
                return Ok(ReadEnd::Stopped);
            }
            let page = self.log.page(&span, self.page_rows, self.page_bytes).await?;
            let Page { rows, last } = page;
            if let Some(row) = rows.last() {
                span.above = row.id;
                let quarantined = self.quarantined(&rows).await?;
                if sender.send(Batch { rows, quarantined }).await.is_err() {
                    return Ok(ReadEnd::Stopped);
                }
            }
            if last {
                return Ok(ReadEnd::Exhausted);
            }
        }
    }

    async fn quarantined(&self, rows: &[LogRow]) -> Result<HashMap<String, i64>, StoreError> {
        let keys: HashSet<&str> = rows.iter().filter_map(LogRow::key).collect();
        if !self.any_letters || keys.is_empty() {
            return Ok(HashMap::new());
        }
        let keys: Vec<&str> = keys.into_iter().collect();
        let mut connection = self.store.pool().acquire().await?;
        Ok(self.letters.quarantined_from(&mut connection, &keys).await?)
    }
}
