//! An idle relay sleeps, and an enqueue wakes it.

use crate::bench::{Bench, DEADLINE, Running};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use twinbox::config::RelaySettings;
use twinbox::embedded::{PostgresOptions, PrivatePostgres};
use twinbox::outbox::RelayRole;
use twinbox::testing::{self, wait_until};

/// Nothing but a notification wakes it in time.
const FOREVER: Duration = Duration::from_secs(3600);

async fn sleeps(relay: &Running) {
    relay.until("the relay sleeps", |health| health.asleep).await;
}

async fn is_marked(bench: &Bench) -> bool {
    bench.count("SELECT count(*) FROM twinbox.relay_asleep").await == 1
}

#[tokio::test]
async fn an_enqueue_wakes_a_sleeping_relay() {
    let mut bench = Bench::new().await;
    bench.settings.poll_max = FOREVER;
    let relay = bench.leader().await;
    for round in 0..5 {
        sleeps(&relay).await;
        assert!(is_marked(&bench).await);
        let begun = Instant::now();
        if round % 2 == 0 {
            bench.enqueue(bench.message(round)).await;
        } else {
            sqlx::query("SELECT twinbox.enqueue($1, '1'::text)")
                .bind(bench.subject("a"))
                .execute(bench.store.pool())
                .await
                .unwrap();
        }
        bench.stored(round + 1).await;
        let latency = begun.elapsed();
        assert!(latency < Duration::from_secs(2), "{latency:?}");
        wait_until("the mark is gone or set anew", DEADLINE, || async {
            !relay.health().asleep || is_marked(&bench).await
        })
        .await;
    }
    relay.drain().await;
    assert!(!is_marked(&bench).await, "a relay that ended wakes nobody");
}

#[tokio::test]
async fn a_nudge_wakes_it_too() {
    let mut bench = Bench::new().await;
    bench.settings.poll_max = FOREVER;
    let relay = bench.leader().await;
    sleeps(&relay).await;
    // A row that was inserted past every function notifies nobody.
    bench.insert(&bench.subject("a"), None, None, b"0").await;
    relay.control.nudge();
    bench.stored(1).await;
    relay.drain().await;
}

#[tokio::test]
async fn a_listen_that_is_cut_is_made_anew() {
    let mut bench = Bench::new().await;
    bench.settings.poll_max = Duration::from_millis(500);
    let relay = bench.leader().await;
    for round in 0..2 {
        sleeps(&relay).await;
        bench
            .execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE datname = current_database() AND query LIKE 'LISTEN%'",
            )
            .await;
        wait_until("it listens again", DEADLINE, || async {
            bench
                .count(
                    "SELECT count(*) FROM pg_stat_activity
                     WHERE datname = current_database() AND query LIKE 'LISTEN%'",
                )
                .await
                == 1
        })
        .await;
        bench.enqueue(bench.message(round)).await;
        bench.stored(round + 1).await;
    }
    relay.drain().await;
}

/// A proxy in front of PostgreSQL that lets everything through but notifications.
async fn muffle(url: &str, muffled: Arc<AtomicBool>) -> String {
    let url = url::Url::parse(url).unwrap();
    let server = (url.host_str().unwrap().to_owned(), url.port().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut proxied = url.clone();
    proxied
        .set_port(Some(listener.local_addr().unwrap().port()))
        .unwrap();
    proxied.set_query(Some("sslmode=disable"));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(server.clone()).await.unwrap();
            tokio::spawn(forward(client, server, muffled.clone()));
        }
    });
    proxied.to_string()
}

async fn forward(client: TcpStream, server: TcpStream, muffled: Arc<AtomicBool>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
    let mut head = [0; 5];
    while from_server.read_exact(&mut head).await.is_ok() {
        let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
        let mut body = vec![0; length - 4];
        from_server.read_exact(&mut body).await.unwrap();
        if head[0] == b'A' && muffled.load(Ordering::Relaxed) {
            continue;
        }
        let sent = to_client.write_all(&[&head[..], &body].concat()).await;
        if sent.is_err() {
            break;
        }
    }
}

#[tokio::test]
async fn a_listen_gone_deaf_is_found_out_and_polling_takes_over() {
    use secrecy::ExposeSecret as _;
    let mut bench = Bench::new().await;
    bench.settings.poll_max = FOREVER;
    let muffled = Arc::new(AtomicBool::new(true));
    let direct = muffle(bench.database.url.expose_secret(), muffled.clone()).await;
    bench.database.direct_url = Some(direct.as_str().into());
    let relay = bench.leader().await;
    sleeps(&relay).await;
    // No notification comes through, and no poll is due for an hour: what finds it is that it does not hear itself.
    bench.enqueue(bench.message(0)).await;
    bench.stored(1).await;
    // It hears again, and trusts it again.
    muffled.store(false, Ordering::Relaxed);
    bench.enqueue(bench.message(1)).await;
    bench.stored(2).await;
    relay.drain().await;
}

#[tokio::test]
async fn an_idle_relay_asks_little() {
    let postgres = PrivatePostgres::start(PostgresOptions::new().fast().setting("log_statement", "all"))
        .await
        .unwrap();
    let url = postgres.create_database("idle").await.unwrap();
    let mut bench = Bench::on(url, testing::servers().await.nats.url()).await;
    let defaults = RelaySettings::default();
    bench.settings.lease = defaults.lease;
    bench.settings.checkpoint_interval = defaults.checkpoint_interval;
    let leader = bench.leader().await;
    let standby = bench.relay().await;
    for round in 0..20 {
        bench.enqueue(bench.message(round)).await;
    }
    bench.stored(20).await;
    sleeps(&leader).await;
    standby
        .until("the other stands by", |health| health.role == RelayRole::Standby)
        .await;
    // A save after the last message may still come.
    wait_until("all is saved", DEADLINE, || async {
        bench
            .count("SELECT count(*) FROM twinbox.relay WHERE target IS NULL AND published = 20")
            .await
            == 1
    })
    .await;
    let statements = || {
        let log = std::fs::read_to_string(postgres.directory().join("postgres.log")).unwrap();
        log.lines()
            .filter(|line| line.contains("statement: ") || line.contains("execute "))
            .count()
    };
    let before = statements();
    // For so long they are counted: a renewal of the lease is among them.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let count = statements() - before;
    // The leader's below five a second, and the standby's two looks of two statements.
    assert!(count < 5 * 5 + 5 * 4, "{count} statements in 5 s");
    assert!(count >= 5, "the statements are not counted: {count}");
    standby.drain().await;
    let before = statements();
    // The leader's alone.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let count = statements() - before;
    assert!(count < 4 * 5, "{count} statements in 4 s");
    leader.drain().await;
}
