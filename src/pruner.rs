//! The pruner: removes what can no longer come again, from both boxes, in small batches.

mod prune;
mod report;
mod window;

pub use prune::{Pruner, PrunerError};
pub use report::{PrunerStatus, Report, status};
pub use window::{Proof, RetentionTooShort, Window, check_retention};
