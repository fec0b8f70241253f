//! Row 9: what a service costs that has nothing to do.

use crate::figure::{Better, Figure};
use crate::house::House;
use crate::size::Size;
use std::time::Duration;
use twinbox::config::{ConsumerSettings, Settings};
use twinbox::inbox::Consumer;
use twinbox::{Service, testing};

use crate::work::{OneByOne, Work};

/// Percent of a core, and statements a second, against what they may be.
pub async fn service(house: &House, size: &Size) -> Vec<Figure> {
    let place = house.place("idle").await;
    // PostgreSQL itself tells each statement, those inside of transactions and those of the pool too.
    place.sql("ALTER DATABASE idle SET log_statement = 'all'").await;
    let mut settings = Settings {
        database: place.database.clone(),
        nats: place.broker.clone(),
        ..Settings::default()
    };
    settings.streams.push(place.stream_settings());
    let consumer = ConsumerSettings {
        name: "idle".into(),
        stream: place.stream.clone(),
        ..ConsumerSettings::default()
    };
    let consumer = Consumer::builder(consumer).actor(">", || OneByOne(Work::SPREAD));
    let service = Service::new(settings).consumer(consumer.build().unwrap());
    let service = service.start().await.unwrap();
    let ready = || async { service.is_ready() };
    testing::wait_until("the service is ready", Duration::from_secs(60), ready).await;

    let (mut busy, mut statements) = (Vec::new(), Vec::new());
    let time = Duration::from_secs(size.idle.into());
    for _ in 0..size.rounds {
        let (cpu, log) = (cpu_time(), statements_so_far(house));
        // How long it is idle is what is measured.
        tokio::time::sleep(time).await;
        busy.push([(cpu_time() - cpu).as_secs_f64() * 100.0 / time.as_secs_f64(), 1.0]);
        statements.push([(statements_so_far(house) - log) / time.as_secs_f64(), 5.0]);
    }
    service.drain();
    assert!(service.wait().await.is_clean());
    vec![
        Figure::new(
            (9, "idle service, CPU : its limit"),
            "% of a core",
            Better::Less,
            1.0,
            busy,
        ),
        Figure::new(
            (9, "idle service, statements : their limit"),
            "a second",
            Better::Less,
            1.0,
            statements,
        ),
    ]
}

/// What all threads of this process have used, which does nothing but run the service.
fn cpu_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").expect("benchmarks need Linux's /proc");
    let used = tasks.flatten().filter_map(|task| {
        let schedule = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        schedule.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(used.sum())
}

fn statements_so_far(house: &House) -> f64 {
    let log = house.log(usize::MAX);
    let statements = log
        .lines()
        .filter(|line| line.contains("LOG:  statement:") || line.contains("LOG:  execute "))
        .count();
    f64::from(u32::try_from(statements).unwrap())
}
