//! Helpers for tests on private servers.
//!
//! One PostgreSQL and one nats-server a test process, started by the first test that asks and shared by all that
//! run in parallel; what keeps tests apart is a database of their own and unique names.
//!
//! ```no_run
//! use std::time::Duration;
//! use twinbox::testing;
//!
//! #[tokio::test]
//! async fn an_order_is_published() {
//!     let database_url = testing::fresh_database().await;
//!     let nats_url = testing::servers().await.nats.url();
//!     let stream = testing::unique("orders");
//!     // … start what is tested …
//!     let stored = testing::wait_until("the order is in the stream", Duration::from_secs(10), || async {
//!         // A bool, an Option or a Result: what comes true last is returned.
//!         Some(1).filter(|stored| *stored == 1)
//!     })
//!     .await;
//!     assert_eq!(stored, 1);
//! }
//! ```
//!
//! These functions panic where something can't be had: in a test that is the failure, and its text says what was
//! missing. A test that kills or stops servers starts its own: see [`crate::embedded`].

mod servers;
mod wait;

pub use servers::{fresh_database, servers, unique};
pub use wait::{Outcome, wait_until};
