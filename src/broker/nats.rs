//! NATS JetStream behind the seam.

mod connection;
mod headers;
mod publisher;
mod refusal;
mod subscription;
mod topology;

pub use connection::Nats;
pub use subscription::NatsSubscription;
