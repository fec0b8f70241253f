//! What the pair reaches, as ratios to the limit and to what is written by hand. BENCHMARKS.md explains each figure.
//!
//! `make bench`, or `make bench-quick` for a first look; `cargo bench --features cli,testing -- --only 1,3` for some rows.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and a panic is how it fails"
)]

mod by_hand;
mod consumer;
mod enqueue;
mod figure;
mod growth;
mod house;
mod idle;
mod latency;
mod prune;
mod relay;
mod size;
mod whole;
mod work;

use clap::Parser;
use figure::{Figure, table};
use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use house::House;
use size::Size;
use std::path::PathBuf;
use std::time::Instant;

/// Measures the pair against the limit and against what is written by hand.
#[derive(Parser)]
struct Arguments {
    /// Small sizes and few rounds, for a first look.
    #[arg(long)]
    quick: bool,
    /// Only these rows of the table.
    #[arg(long, value_delimiter = ',')]
    only: Vec<u8>,
    /// How many rounds, instead of the usual number.
    #[arg(long)]
    rounds: Option<u32>,
    /// Measures how cost grows instead, and writes what the plots are made of.
    #[arg(long)]
    growth: bool,
    /// Cargo passes it to a benchmark, and to nothing else.
    #[arg(long, hide = true)]
    bench: bool,
}

type Row = for<'a> fn(&'a House, &'a Size) -> LocalBoxFuture<'a, Vec<Figure>>;

const ROWS: [(u8, Row); 11] = [
    (1, |house, size| relay::against_memory(house, size).boxed_local()),
    (2, |house, size| relay::against_itself(house, size).boxed_local()),
    (3, |house, size| consumer::one_by_one(house, size).boxed_local()),
    (4, |house, size| consumer::together(house, size).boxed_local()),
    (5, |house, size| consumer::stumbling(house, size).boxed_local()),
    (6, |house, size| consumer::among_many(house, size).boxed_local()),
    (7, |house, size| enqueue::against_bare(house, size).boxed_local()),
    (8, |house, size| latency::from_commit(house, size).boxed_local()),
    (9, |house, size| idle::service(house, size).boxed_local()),
    (10, |house, size| prune::beside(house, size).boxed_local()),
    (11, |house, size| whole::against_hand(house, size).boxed_local()),
];

#[tokio::main]
async fn main() {
    let arguments = Arguments::parse();
    // `cargo test --all-targets` runs this too.
    if !arguments.bench {
        return;
    }
    let mut size = if arguments.quick {
        Size::quick()
    } else {
        Size::whole()
    };
    size.rounds = arguments.rounds.unwrap_or(size.rounds);
    let house = House::start().await;
    if arguments.growth {
        return write("growth.json", &growth::measure(&house, &size).await);
    }
    let mut figures = Vec::new();
    for (number, row) in ROWS {
        if !arguments.only.is_empty() && !arguments.only.contains(&number) {
            continue;
        }
        let begun = Instant::now();
        let measured = row(&house, &size).await;
        println!("{}\n({} s)\n", table(&measured), begun.elapsed().as_secs());
        figures.extend(measured);
    }
    println!("{}", table(&figures));
    write("results.json", &figures);
}

fn write(name: &str, content: &impl serde::Serialize) {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/bench");
    std::fs::create_dir_all(&directory).unwrap();
    let text = serde_json::to_string_pretty(content).unwrap();
    std::fs::write(directory.join(name), text + "\n").unwrap();
    println!("written: target/bench/{name}");
}
