//! Comparing the log with the streams: the broker may lose what it acknowledged.
//!
//! JetStream acknowledges before it syncs to disk, and a stream can be deleted, created anew or restored from an old
//! backup. So the relay remembers, for each stream, the last message that was acknowledged there ([`super::marks`]), and looks on every
//! reconnect and from time to time whether it still is where it was. Comparing last sequences is not enough, since
//! somebody may have published meanwhile.

use super::checkpoint::{self, Checkpoint, Met};
use super::deliver::Delivered;
use super::marks::{Mark, Marks};
use super::term::{Term, TermError};
use crate::broker::{BrokerError, Publisher, StreamState};
use crate::store::Store;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use time::OffsetDateTime;

/// A stream that has lost something.
#[derive(Debug)]
pub(crate) struct Loss {
    pub(crate) stream: String,
    pub(crate) why: String,
}

/// What a comparison gave.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// What was acknowledged is there.
    Holds,
    /// It is not.
    Lost(Vec<Loss>),
    /// The broker could not be asked.
    Unknown(BrokerError),
}

/// Compares, and takes checkpoints.
pub(crate) struct Auditor {
    store: Store,
    publisher: Arc<dyn Publisher>,
    relay: String,
    interval: Duration,
    marks: Arc<Marks>,
    /// Streams that were absent when they were asked for last.
    absent: HashSet<String>,
    /// The connection for which the last comparison was made.
    connections: u64,
    audited: Option<Instant>,
    /// The settled snapshot of the last checkpoints.
    checkpointed: Option<String>,
    complained: bool,
}

impl Auditor {
    pub(crate) fn new(
        store: &Store,
        publisher: Arc<dyn Publisher>,
        relay: &str,
        interval: Duration,
        marks: Arc<Marks>,
    ) -> Self {
        Self {
            store: store.clone(),
            publisher,
            relay: relay.to_owned(),
            interval,
            marks,
            absent: HashSet::new(),
            connections: 0,
            audited: None,
            checkpointed: None,
            complained: false,
        }
    }

    /// A message was acknowledged.
    pub(crate) fn note(&self, delivered: &Delivered) {
        self.marks.note(delivered);
    }

    /// The last sequences acknowledged by now: what is stored from now on has higher ones.
    pub(crate) fn sequences(&self) -> HashMap<String, u64> {
        let marks = self.marks.all().into_iter();
        marks.map(|(stream, mark)| (stream, mark.sequence)).collect()
    }

    /// Whether the connection was made anew since the last comparison.
    pub(crate) fn has_reconnected(&self) -> bool {
        self.connections != self.publisher.connections()
    }

    /// Whether it is time for a comparison.
    pub(crate) fn is_due(&self) -> bool {
        self.has_reconnected()
            || self
                .audited
                .is_none_or(|audited| audited.elapsed() >= self.interval)
    }

    /// Compares. A stream that is absent has lost nothing yet: where would it be published again?
    pub(crate) async fn audit(&mut self) -> Verdict {
        let connections = self.publisher.connections();
        let mut losses = Vec::new();
        for (stream, mark) in self.marks.all() {
            let state = match self.publisher.stream_state(&stream).await {
                Ok(Some(state)) => state,
                Ok(None) => {
                    if self.absent.insert(stream.clone()) {
                        tracing::warn!(stream, "a stream that was published to is gone");
                    }
                    continue;
                }
                Err(error) => return Verdict::Unknown(error),
            };
            self.absent.remove(&stream);
            match lost(&*self.publisher, &state, &mark).await {
                Ok(None) => self.marks.is_created(&stream, state.id.created),
                Ok(Some(why)) => losses.push(Loss { stream, why }),
                Err(error) => return Verdict::Unknown(error),
            }
        }
        self.connections = connections;
        self.audited = Some(Instant::now());
        self.complained = false;
        if losses.is_empty() {
            Verdict::Holds
        } else {
            Verdict::Lost(losses)
        }
    }

    /// The comparison could not be made and is put off. Publishing goes on: the broker would refuse that too if it
    /// could not take messages, and a missing permission must not stop everything.
    pub(crate) fn put_off(&mut self, error: &BrokerError) {
        self.connections = self.publisher.connections();
        self.audited = Some(Instant::now());
        if !self.complained {
            self.complained = true;
            tracing::warn!(
                %error,
                "can't compare the log with its streams: what the broker loses goes unnoticed until it answers; \
                 see the relay's permissions for $JS.API.STREAM.INFO and $JS.API.STREAM.MSG.GET"
            );
        }
    }

    /// Takes checkpoints where something was settled since the last ones. Nothing may be in flight.
    pub(crate) async fn checkpoint(&mut self, term: &mut Term) -> Result<(), TermError> {
        let settled = term.cursor().settled.snapshot.to_string();
        if self.checkpointed.as_ref() == Some(&settled) {
            return Ok(());
        }
        let marks = self.marks.all().into_iter();
        let met: Vec<Met> = marks
            .filter_map(|(stream, mark)| {
                Some(Met {
                    stream,
                    created: mark.created?,
                    sequence: mark.sequence,
                    dedup_id: mark.dedup_id,
                })
            })
            .collect();
        if !met.is_empty() {
            term.take_checkpoints(&met).await?;
        }
        self.checkpointed = Some(settled);
        Ok(())
    }

    /// Goes back in the log to the newest checkpoint that holds for every stream that lost something. `false`: the broker
    /// could not be asked; nothing was done.
    pub(crate) async fn recover(&mut self, losses: &[Loss], term: &mut Term) -> Result<bool, TermError> {
        let mut back_to: Option<Option<Checkpoint>> = None;
        let mut marks: Vec<(String, Option<Mark>)> = Vec::new();
        for loss in losses {
            let Ok(holding) = self.newest_that_holds(&loss.stream).await? else {
                return Ok(false);
            };
            marks.push((loss.stream.clone(), holding.as_ref().map(|it| mark_of(&it.met))));
            let earlier = match (&back_to, &holding) {
                (None, _) | (Some(Some(_)), None) => true,
                (Some(Some(chosen)), Some(holding)) => holding.id < chosen.id,
                (Some(None), _) => false,
            };
            if earlier {
                back_to = Some(holding);
            }
        }
        let Some(back_to) = back_to else {
            return Ok(true);
        };
        term.rewind(back_to.as_ref(), &marks).await?;
        self.checkpointed = None;
        for loss in losses {
            tracing::error!(
                stream = loss.stream,
                why = loss.why,
                checkpoint = back_to.as_ref().map(|it| it.met.sequence),
                "the broker lost messages that it had acknowledged: going back in the log to publish them again"
            );
        }
        Ok(true)
    }

    async fn newest_that_holds(
        &self,
        stream: &str,
    ) -> Result<Result<Option<Checkpoint>, BrokerError>, TermError> {
        let state = match self.publisher.stream_state(stream).await {
            Ok(Some(state)) => state,
            Ok(None) => return Ok(Ok(None)),
            Err(error) => return Ok(Err(error)),
        };
        let mut connection = self.store.pool().acquire().await?;
        let checkpoints = checkpoint::of_stream(&mut connection, &self.store, &self.relay, stream).await?;
        drop(connection);
        for checkpoint in checkpoints {
            match lost(&*self.publisher, &state, &mark_of(&checkpoint.met)).await {
                Ok(None) => return Ok(Ok(Some(checkpoint))),
                Ok(Some(_)) => {}
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(None))
    }
}

fn mark_of(met: &Met) -> Mark {
    Mark::new(met.sequence, met.dedup_id, Some(met.created))
}

/// Why a message that was acknowledged is not where it was, if so.
async fn lost(
    publisher: &dyn Publisher,
    state: &StreamState,
    mark: &Mark,
) -> Result<Option<String>, BrokerError> {
    if mark
        .created
        .is_some_and(|created| !is_same_time(created, state.id.created))
    {
        return Ok(Some("the stream was created anew".to_owned()));
    }
    if state.last_sequence < mark.sequence {
        return Ok(Some(format!(
            "the stream ends at {}, and {} was acknowledged",
            state.last_sequence, mark.sequence
        )));
    }
    if mark.sequence < state.first_sequence {
        // It is older than what the stream retains.
        return Ok(None);
    }
    match publisher.dedup_id_at(&state.id.name, mark.sequence).await {
        Ok(Some(found)) if found != mark.dedup_id.text() => Ok(Some(format!(
            "another message stands at {} than was acknowledged",
            mark.sequence
        ))),
        // A message that was removed by itself is no sign of a loss: the end of the stream is where it was.
        Ok(_) => Ok(None),
        Err(error) if publisher.is_connected() => {
            tracing::debug!(%error, stream = state.id.name, "can't read from the stream, its numbers hold");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// PostgreSQL keeps microseconds.
fn is_same_time(one: OffsetDateTime, other: OffsetDateTime) -> bool {
    let microseconds = |time: OffsetDateTime| time.unix_timestamp_nanos().div_euclid(1000);
    microseconds(one) == microseconds(other)
}
