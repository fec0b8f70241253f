//! The broker loses what it acknowledged: it is noticed, and published again.

use crate::bench::{Bench, DEADLINE, numbers};
use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::time::Duration;
use twinbox::embedded::{NatsOptions, PrivateNats};
use twinbox::testing::{self, wait_until};

impl Bench {
    async fn has_checkpoint_at(&self, sequence: i64) {
        wait_until("a checkpoint is taken", DEADLINE, || async {
            let newest = self
                .count("SELECT coalesce(max(sequence), 0) FROM twinbox.checkpoint")
                .await;
            if newest == sequence { Ok(()) } else { Err(newest) }
        })
        .await;
    }

    async fn all_numbers_are_stored(&self, count: usize) {
        let all: BTreeSet<usize> = (0..count).collect();
        wait_until("all numbers are in the stream", DEADLINE, || async {
            let stored: BTreeSet<usize> = self
                .all_stored()
                .await
                .iter()
                .filter(|message| message.headers.contains_key("Twinbox-Id"))
                .map(|message| message.number())
                .collect();
            if stored == all { Ok(()) } else { Err(stored.len()) }
        })
        .await;
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A server whose store can be put back to what it was.
struct Restorable {
    nats: PrivateNats,
    backup: tempfile::TempDir,
}

impl Restorable {
    async fn start() -> Self {
        Self {
            nats: PrivateNats::start(NatsOptions::new().anonymous()).await.unwrap(),
            backup: tempfile::tempdir().unwrap(),
        }
    }

    async fn back_up(&mut self) {
        self.nats.stop().await.unwrap();
        copy(&self.nats.store_directory(), self.backup.path());
        self.nats.restart().await.unwrap();
    }

    async fn restore(&mut self) {
        self.nats.stop().await.unwrap();
        std::fs::remove_dir_all(self.nats.store_directory()).unwrap();
        copy(self.backup.path(), &self.nats.store_directory());
        self.nats.restart().await.unwrap();
    }
}

#[tokio::test]
async fn a_stream_restored_from_a_backup_gets_its_tail_again() {
    let mut server = Restorable::start().await;
    let bench = Bench::on(testing::fresh_database().await, server.nats.url()).await;
    let relay = bench.leader().await;
    bench
        .enqueue_all((0..100).map(|number| bench.message(number).key("k")))
        .await;
    bench.stored(100).await;
    bench.has_checkpoint_at(100).await;
    server.back_up().await;
    bench
        .enqueue_all((100..200).map(|number| bench.message(number).key("k")))
        .await;
    bench.stored(200).await;
    bench.has_checkpoint_at(200).await;

    server.restore().await;
    let stored = bench.stored(200).await;
    assert_eq!(numbers(&stored), (0..200).collect::<Vec<_>>());
    bench.is_settled().await;
    bench.has_checkpoint_at(200).await;
    // The stream holds again: nothing is published in a loop.
    bench.enqueue(bench.message(200).key("k")).await;
    bench.stored(201).await;
    bench.has_checkpoint_at(201).await;
    relay.drain().await;
}

#[tokio::test]
async fn a_reconnect_is_the_occasion_to_compare() {
    let mut server = Restorable::start().await;
    let mut bench = Bench::on(testing::fresh_database().await, server.nats.url()).await;
    let relay = bench.leader().await;
    bench
        .enqueue_all((0..50).map(|number| bench.message(number)))
        .await;
    bench.stored(50).await;
    bench.has_checkpoint_at(50).await;
    relay.drain().await;
    server.back_up().await;
    // No comparison is due by time, and nothing is enqueued any more that would meet a low sequence.
    bench.settings.checkpoint_interval = Duration::from_secs(3600);
    let relay = bench.leader().await;
    bench
        .enqueue_all((50..80).map(|number| bench.message(number)))
        .await;
    bench.stored(80).await;
    bench.is_settled().await;
    server.restore().await;
    bench.stored(80).await;
    bench.all_numbers_are_stored(80).await;
    relay.drain().await;
}

/// What was acknowledged is known to the next relay, too, although no checkpoint was taken since.
#[tokio::test]
async fn a_loss_while_no_relay_runs_is_noticed_by_the_next() {
    for orderly in [true, false] {
        let mut server = Restorable::start().await;
        let mut bench = Bench::on(testing::fresh_database().await, server.nats.url()).await;
        let relay = bench.leader().await;
        bench
            .enqueue_all((0..50).map(|number| bench.message(number)))
            .await;
        bench.stored(50).await;
        bench.has_checkpoint_at(50).await;
        relay.drain().await;
        server.back_up().await;

        bench.settings.checkpoint_interval = Duration::from_secs(3600);
        let relay = bench.leader().await;
        bench
            .enqueue_all((50..80).map(|number| bench.message(number)))
            .await;
        bench.stored(80).await;
        bench.is_settled().await;
        if orderly {
            relay.drain().await;
        } else {
            relay.drop_it();
        }
        server.restore().await;
        let relay = bench.leader().await;
        bench.all_numbers_are_stored(80).await;
        relay.drain().await;
    }
}

#[tokio::test]
async fn a_tail_that_others_have_filled_up_is_noticed_by_the_ids() {
    let mut server = Restorable::start().await;
    let bench = Bench::on(testing::fresh_database().await, server.nats.url()).await;
    let relay = bench.leader().await;
    bench
        .enqueue_all((0..50).map(|number| bench.message(number)))
        .await;
    bench.stored(50).await;
    bench.has_checkpoint_at(50).await;
    server.back_up().await;
    bench
        .enqueue_all((50..80).map(|number| bench.message(number)))
        .await;
    bench.stored(80).await;
    bench.has_checkpoint_at(80).await;
    relay.drain().await;
    server.restore().await;
    wait_until("connected again", DEADLINE, || async {
        use twinbox::broker::Publisher as _;
        bench.nats.is_connected()
    })
    .await;
    for _ in 0..100 {
        let published = bench
            .nats
            .jetstream()
            .publish(bench.subject("foreign"), "0".into())
            .await
            .unwrap();
        published.await.unwrap();
    }
    let relay = bench.leader().await;
    bench.all_numbers_are_stored(80).await;
    assert_eq!(bench.state().await.last_sequence, 50 + 100 + 30);
    relay.drain().await;
}

#[tokio::test]
async fn a_stream_created_anew_gets_everything_again() {
    let bench = Bench::new().await;
    let relay = bench.leader().await;
    bench
        .enqueue_all((0..100).map(|number| bench.message(number)))
        .await;
    bench.stored(100).await;
    bench.has_checkpoint_at(100).await;
    bench.nats.jetstream().delete_stream(&bench.stream).await.unwrap();
    bench.create_stream(Duration::from_secs(120)).await;
    let stored = bench.stored(100).await;
    assert_eq!(
        stored
            .iter()
            .map(|message| message.id())
            .collect::<HashSet<_>>()
            .len(),
        100
    );
    bench.is_settled().await;
    bench.has_checkpoint_at(100).await;
    relay.drain().await;
}

#[tokio::test]
async fn a_receipt_with_a_low_sequence_means_loss_at_once() {
    let mut bench = Bench::new().await;
    bench.settings.checkpoint_interval = Duration::from_secs(3600);
    let relay = bench.leader().await;
    bench
        .enqueue_all((0..100).map(|number| bench.message(number)))
        .await;
    bench.stored(100).await;
    bench.is_settled().await;
    bench.nats.jetstream().delete_stream(&bench.stream).await.unwrap();
    bench.create_stream(Duration::from_secs(120)).await;
    bench.enqueue(bench.message(100)).await;
    bench.all_numbers_are_stored(101).await;
    bench.is_settled().await;
    relay.drain().await;
}

#[tokio::test]
async fn a_duplicate_that_is_gone_is_published_under_a_fresh_id() {
    let bench = Bench::new().await;
    let relay = bench.leader().await;
    let ids = bench
        .enqueue_all((0..50).map(|number| bench.message(number).key("k")))
        .await;
    bench.stored(50).await;
    bench.has_checkpoint_at(50).await;
    relay.drain().await;
    // The broker still knows the ids, and has the messages no more; and the relay has a reason to go back.
    bench
        .nats
        .jetstream()
        .get_stream(&bench.stream)
        .await
        .unwrap()
        .purge()
        .await
        .unwrap();
    bench
        .execute("UPDATE twinbox.checkpoint SET sequence = 1000")
        .await;
    bench
        .execute("UPDATE twinbox.relay_mark SET sequence = 1000")
        .await;
    let relay = bench.leader().await;
    let stored = bench.stored(50).await;
    assert_eq!(numbers(&stored), (0..50).collect::<Vec<_>>());
    for (message, id) in stored.iter().zip(ids) {
        assert_eq!(message.id(), id);
        assert_eq!(message.headers["Nats-Msg-Id"], format!("{id}:r1"));
    }
    bench.is_settled().await;
    relay.drain().await;
}

#[tokio::test]
async fn a_stream_that_was_purged_has_not_lost_anything() {
    let bench = Bench::new().await;
    let relay = bench.leader().await;
    bench
        .enqueue_all((0..20).map(|number| bench.message(number)))
        .await;
    bench.stored(20).await;
    bench.has_checkpoint_at(20).await;
    bench
        .nats
        .jetstream()
        .get_stream(&bench.stream)
        .await
        .unwrap()
        .purge()
        .await
        .unwrap();
    bench.enqueue(bench.message(20)).await;
    bench.has_checkpoint_at(21).await;
    assert_eq!(numbers(&bench.stored(1).await), [20]);
    relay.drain().await;
}
