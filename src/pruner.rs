//! The pruner: removes what can no longer come again, from both boxes, in small batches.

mod window;

pub use window::{Proof, RetentionTooShort, Window, check_retention};
