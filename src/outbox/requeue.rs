//! Dead letters that come back: requeued by a person, or released since what was wrong is not any more.

use super::auditor::Auditor;
use super::deliver::{Delivered, deliver};
use super::health::RelayControl;
use super::lease::LeaseClock;
use super::routes::Routes;
use super::row::Parcel;
use super::term::{Progress, Term, TermError};
use crate::broker::{PublishError, Publisher};
use crate::dead_letter::{DeadLetter, Reason, Table};
use futures_util::stream::{self, StreamExt as _};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Mutex;

/// Letters taken up at once. They are read whole, and the large ones are what lies here.
const LETTERS: i64 = 64;
/// Subjects looked at in one round.
const SUBJECTS: i64 = 200;

/// How a round went.
#[derive(Debug)]
pub(crate) enum Round {
    /// There are none left that may be taken up.
    Done,
    /// The relay is to end, or the lease is over.
    Stopped,
    /// The broker does not take messages now.
    Outage(String),
}

/// Publishes dead letters.
pub(crate) struct Requeue<'a> {
    pub(crate) control: &'a RelayControl,
    pub(crate) publisher: &'a Arc<dyn Publisher>,
    pub(crate) letters: &'a Table,
    pub(crate) term: &'a Mutex<Term>,
    pub(crate) clock: &'a LeaseClock,
    pub(crate) progress: &'a Progress,
}

/// What became of a letter.
struct Tried {
    id: i64,
    runs: i32,
    subject: String,
    outcome: Result<Delivered, PublishError>,
}

impl Requeue<'_> {
    /// Publishes all that were requeued, each key's in order. Nothing else may be in flight.
    pub(crate) async fn publish(&self, auditor: &mut Auditor) -> Result<Round, TermError> {
        loop {
            if self.control.is_draining() || !self.clock.holds() {
                return Ok(Round::Stopped);
            }
            let letters = self.next_letters().await?;
            if letters.is_empty() {
                return Ok(Round::Done);
            }
            let tried = self.try_all(letters).await;
            for delivered in tried.iter().filter_map(|one| one.outcome.as_ref().ok()) {
                auditor.note(delivered);
            }
            self.record(&tried).await?;
            let outage = tried.into_iter().find_map(|one| match one.outcome {
                Err(PublishError::Outage(why)) => Some(why),
                _ => None,
            });
            if let Some(why) = outage {
                return Ok(Round::Outage(why));
            }
        }
    }

    async fn next_letters(&self) -> Result<Vec<DeadLetter>, TermError> {
        let mut transaction = self.term.lock().await.begin_fenced().await?;
        self.letters.release_followers(&mut transaction).await?;
        let letters = self.letters.requeued(&mut transaction, LETTERS).await?;
        transaction.commit().await?;
        Ok(letters)
    }

    async fn try_all(&self, letters: Vec<DeadLetter>) -> Vec<Tried> {
        let mut chains: Vec<Vec<DeadLetter>> = Vec::new();
        let mut chain_of: HashMap<String, usize> = HashMap::new();
        for letter in letters {
            let known = letter.key.as_ref().and_then(|key| chain_of.get(key).copied());
            if let Some(index) = known {
                chains[index].push(letter);
                continue;
            }
            if let Some(key) = &letter.key {
                chain_of.insert(key.clone(), chains.len());
            }
            chains.push(vec![letter]);
        }
        let concurrent = chains.len().max(1);
        stream::iter(chains.into_iter().map(|chain| self.try_in_order(chain)))
            .buffer_unordered(concurrent)
            .flat_map(stream::iter)
            .collect()
            .await
    }

    /// One after the other, up to the first that fails.
    async fn try_in_order(&self, chain: Vec<DeadLetter>) -> Vec<Tried> {
        let mut tried = Vec::with_capacity(chain.len());
        for letter in chain {
            if !self.clock.holds() {
                break;
            }
            let (id, runs, subject) = (letter.id, letter.runs, letter.subject.clone());
            let parcel = Parcel::from(letter);
            let outcome = match parcel.message.validate() {
                Ok(()) => deliver(&**self.publisher, self.clock, &parcel, true).await,
                Err(fault) => Err(PublishError::Unpublishable(fault.to_string())),
            };
            let failed = outcome.is_err();
            tried.push(Tried {
                id,
                runs,
                subject,
                outcome,
            });
            if failed {
                break;
            }
        }
        tried
    }

    /// What is published goes; what failed for good lies there as before. An outage changes nothing.
    async fn record(&self, tried: &[Tried]) -> Result<(), TermError> {
        let (mut stored, mut already_there, mut put_back) = (0, 0, 0);
        let mut transaction = self.term.lock().await.begin_fenced().await?;
        for one in tried {
            let (reason, error) = match &one.outcome {
                Ok(delivered) => {
                    if delivered.duplicate {
                        already_there += 1;
                    } else {
                        stored += 1;
                    }
                    self.letters.remove(&mut transaction, one.id).await?;
                    continue;
                }
                Err(PublishError::Outage(_)) => continue,
                Err(error @ PublishError::Unroutable { .. }) => (Reason::Unroutable, error.to_string()),
                Err(error @ PublishError::Unpublishable(_)) => (Reason::Unpublishable, error.to_string()),
            };
            put_back += 1;
            tracing::error!(
                dead_letter = one.id,
                subject = one.subject,
                error,
                "a requeued message failed again"
            );
            self.letters
                .put_back(&mut transaction, one.id, reason, &error, one.runs + 1)
                .await?;
        }
        transaction.commit().await?;
        self.progress.published_beside(stored + already_there);
        if stored + already_there + put_back > 0 {
            tracing::info!(
                stored,
                already_there,
                put_back,
                "requeued messages were published"
            );
        }
        Ok(())
    }

    /// Requeues what was parked for subjects that a stream covers by now, and what follows nothing any more. Goes through the
    /// subjects some at a time, from `after` on; returns where it stopped.
    pub(crate) async fn release(&self, routes: &mut Routes, after: &str) -> Result<String, TermError> {
        let subjects = {
            let mut transaction = self.term.lock().await.begin_fenced().await?;
            self.letters.release_followers(&mut transaction).await?;
            let subjects = self
                .letters
                .subjects(&mut transaction, Reason::Unroutable, after, SUBJECTS)
                .await?;
            transaction.commit().await?;
            subjects
        };
        for subject in &subjects {
            match self.publisher.stream_of(subject).await {
                Ok(Some(stream)) => {
                    let mut transaction = self.term.lock().await.begin_fenced().await?;
                    let released = self
                        .letters
                        .requeue_subject(&mut transaction, Reason::Unroutable, subject)
                        .await?;
                    transaction.commit().await?;
                    routes.is_covered(subject);
                    tracing::info!(
                        subject,
                        stream,
                        released,
                        "a stream covers the subject: releasing what was parked"
                    );
                }
                Ok(None) => routes.is_parked_already(subject),
                Err(_) => break,
            }
        }
        let whole_round = subjects.len() < usize::try_from(SUBJECTS).unwrap_or(0);
        Ok(subjects
            .into_iter()
            .next_back()
            .filter(|_| !whole_round)
            .unwrap_or_default())
    }
}
