//! How cost grows: one series a plot.

use crate::consumer::{consume_load, remember, smoothly};
use crate::figure::median;
use crate::house::{House, Load, Place};
use crate::relay::{drain, retain};
use crate::size::Size;
use crate::work::{OneByOne, Work};
use serde::Serialize;

/// A plot: what it shows over what, and its points.
#[derive(Serialize)]
pub struct Plot {
    file: &'static str,
    title: &'static str,
    x: &'static str,
    y: &'static str,
    series: Vec<Series>,
}

#[derive(Serialize)]
struct Series {
    name: &'static str,
    points: Vec<(f64, f64)>,
}

impl Plot {
    fn of_one(
        file: &'static str,
        title: &'static str,
        (x, y): (&'static str, &'static str),
        name: &'static str,
        points: Vec<(f64, f64)>,
    ) -> Self {
        let series = vec![Series { name, points }];
        Self {
            file,
            title,
            x,
            y,
            series,
        }
    }
}

pub async fn measure(house: &House, size: &Size) -> Vec<Plot> {
    vec![
        rows_retained(house, size).await,
        ids_in_inbox(house, size).await,
        payload(house, size).await,
    ]
}

/// 10,000, then ten times as many, up to the last.
fn decades(last: u32) -> impl Iterator<Item = u32> {
    let tens = std::iter::successors(Some(10_000_u32), |rows| rows.checked_mul(10));
    tens.take_while(move |rows| *rows < last).chain([last])
}

async fn several(rounds: u32, mut measure: impl AsyncFnMut() -> f64) -> f64 {
    let mut measured = Vec::new();
    for _ in 0..rounds {
        measured.push(measure().await);
    }
    median(measured.into_iter())
}

async fn rows_retained(house: &House, size: &Size) -> Plot {
    let place = house.place("growth_retained").await;
    let (mut points, mut retained) = (Vec::new(), 0);
    for rows in decades(size.retained) {
        retain(&place, rows - retained).await;
        retained = rows;
        let rate = several(size.rounds, async || drain(&place, size.rows, 256).await).await;
        points.push((f64::from(rows), rate));
    }
    let axes = ("settled rows in the outbox", "messages a second");
    Plot::of_one(
        "drain-by-rows-retained.svg",
        "Draining, by the rows that the outbox keeps",
        axes,
        "relay",
        points,
    )
}

async fn ids_in_inbox(house: &House, size: &Size) -> Plot {
    let (mut points, mut number) = (Vec::new(), 0);
    for ids in decades(size.ids) {
        number += 1;
        let place = house.place(&format!("growth_ids_{number}")).await;
        remember(&place, ids).await;
        let rate = several(size.rounds, async || smoothly(&place, size).await).await;
        points.push((f64::from(ids), rate));
    }
    let axes = ("ids in the inbox", "messages a second");
    Plot::of_one(
        "claims-by-ids.svg",
        "Consuming, by the ids in the inbox",
        axes,
        "consumer",
        points,
    )
}

async fn payload(house: &House, size: &Size) -> Plot {
    let place = house.place("growth_payload").await;
    let (mut relay, mut consumer) = (Vec::new(), Vec::new());
    for bytes in [100, 1024, 8 * 1024, 64 * 1024, 256 * 1024] {
        // No more than half a gigabyte at a time.
        let messages = size.backlog.min(u32::try_from((512 << 20) / bytes).unwrap());
        let x = f64::from(u32::try_from(bytes).unwrap());
        let drained = async || {
            place.sql("TRUNCATE twinbox.outbox").await;
            drain(&place, messages, bytes).await
        };
        relay.push((x, several(size.rounds, drained).await));
        let consumed = async || consumed(&place, messages, bytes).await;
        consumer.push((x, several(size.rounds, consumed).await));
    }
    Plot {
        file: "rate-by-payload.svg",
        title: "Draining and consuming, by the size of a message",
        x: "bytes of payload",
        y: "messages a second",
        series: vec![
            Series {
                name: "relay",
                points: relay,
            },
            Series {
                name: "consumer",
                points: consumer,
            },
        ],
    }
}

async fn consumed(place: &Place, messages: u32, payload: usize) -> f64 {
    place.sql("TRUNCATE twinbox.inbox").await;
    let load = Load {
        payload,
        ..Load::of(messages)
    };
    consume_load(place, load, Work::SPREAD, |builder| {
        builder.actor(">", || OneByOne(Work::SPREAD))
    })
    .await
}
