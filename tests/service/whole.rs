//! Everything together: both hops, several instances, a drain.

use crate::shop::{DEADLINE, Fate, Shop, until_ready};
use twinbox::supervisor::{ChildStatus, Outcome};
use twinbox::{ServiceHandle, testing};

async fn end(service: &ServiceHandle) -> Outcome {
    service.drain();
    tokio::time::timeout(DEADLINE, service.wait())
        .await
        .expect("it drains in time")
}

#[tokio::test]
async fn an_order_takes_effect_at_both_hops_once_and_in_order() {
    let shop = Shop::new().await;
    // Before it starts and while it runs.
    shop.place(1..=50, Fate::Charged).await;
    let service = shop.start().await;
    shop.place(51..=100, Fate::Charged).await;
    shop.until_booked(100).await;
    until_ready(&service).await;
    let parts: Vec<String> = service.observe().into_iter().map(|part| part.name).collect();
    assert_eq!(
        parts,
        ["relay/default", "consumer/billing", "consumer/ledger", "pruner"]
    );
    let outcome = end(&service).await;
    assert_eq!(outcome.exit_code(), 0, "{outcome}");
    shop.assert_once(1..=100).await;
    shop.assert_in_order().await;
}

// A program may have one thread only.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_drain_in_the_middle_leaves_the_rest_to_the_next_service() {
    let shop = Shop::new().await;
    shop.place(1..=300, Fate::Slow).await;
    for at_least in [30, 100] {
        let service = shop.start().await;
        shop.until_booked(at_least).await;
        let outcome = end(&service).await;
        assert_eq!(outcome.exit_code(), 0, "{outcome}");
        let booked = shop.booked().await.len();
        assert!(booked < 300, "it had time for all of it");
    }
    let service = shop.start().await;
    shop.until_booked(300).await;
    assert!(end(&service).await.is_clean());
    shop.assert_once(1..=300).await;
    shop.assert_in_order().await;
}

#[tokio::test]
async fn instances_share_the_work_and_the_lease_goes_to_the_one_that_stays() {
    let shop = Shop::new().await;
    let (first, second) = (shop.start().await, shop.start().await);
    shop.place(1..=60, Fate::Slow).await;
    shop.until_booked(60).await;
    let leaders: Vec<bool> = [&first, &second].iter().map(|service| leads(service)).collect();
    assert_eq!(leaders.iter().filter(|leads| **leads).count(), 1, "{leaders:?}");
    let (leader, other) = if leaders[0] {
        (first, second)
    } else {
        (second, first)
    };
    assert!(end(&leader).await.is_clean());
    shop.place(61..=120, Fate::Slow).await;
    shop.until_booked(120).await;
    assert!(leads(&other));
    assert!(end(&other).await.is_clean());
    // The order of a key is that of one instance.
    shop.assert_once(1..=120).await;
}

fn leads(service: &ServiceHandle) -> bool {
    part(service, "relay/default")
        .in_hand
        .is_some_and(|hand| hand.starts_with("leader"))
}

fn part(service: &ServiceHandle, name: &str) -> ChildStatus {
    service
        .observe()
        .into_iter()
        .find(|part| part.name == name)
        .expect("there is such a part")
}

#[tokio::test]
async fn a_part_can_be_restarted_and_paused() {
    let shop = Shop::new().await;
    let service = shop.start().await;
    let tree = service.tree();
    until_ready(&service).await;
    for name in ["relay/default", "consumer/billing"] {
        let before = part(&service, name).generation;
        tree.restart(name).await.unwrap();
        testing::wait_until("it runs again", DEADLINE, || async {
            part(&service, name).generation > before
        })
        .await;
    }
    shop.place(1..=10, Fate::Charged).await;
    shop.until_booked(10).await;

    // A paused ledger books nothing, and all the rest goes on.
    tree.pause("consumer/ledger").await.unwrap();
    testing::wait_until("the ledger has put down what it held", DEADLINE, || async {
        part(&service, "consumer/ledger").in_hand.is_none()
    })
    .await;
    shop.place(11..=20, Fate::Charged).await;
    shop.until_charged(20).await;
    assert_eq!(shop.booked().await.len(), 10);
    tree.resume("consumer/ledger").await.unwrap();
    shop.until_booked(20).await;

    // A paused relay gives its lease to another instance.
    tree.pause("relay/default").await.unwrap();
    testing::wait_until("the relay has put down what it held", DEADLINE, || async {
        part(&service, "relay/default").in_hand.is_none()
    })
    .await;
    let other = shop.start().await;
    testing::wait_until("the other one leads", DEADLINE, || async { leads(&other) }).await;
    shop.place(21..=30, Fate::Charged).await;
    shop.until_booked(30).await;
    for service in [&other, &service] {
        assert!(end(service).await.is_clean());
    }
    shop.assert_once(1..=30).await;
}

#[tokio::test]
async fn a_pause_shows_nothing_in_hand() {
    let shop = Shop::new().await;
    let service = shop.start().await;
    until_ready(&service).await;
    let holds = || part(&service, "consumer/billing").in_hand;
    shop.place(1..=100, Fate::Slow).await;
    testing::wait_until("orders are in hand", DEADLINE, || async { holds().is_some() }).await;
    service.tree().pause("consumer/billing").await.unwrap();
    testing::wait_until("they are put down", DEADLINE, || async { holds().is_none() }).await;
    service.tree().resume("consumer/billing").await.unwrap();
    shop.until_booked(100).await;
    assert!(end(&service).await.is_clean());
    shop.assert_once(1..=100).await;
}
