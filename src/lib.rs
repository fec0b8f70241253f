//! twinbox

#[cfg(feature = "embedded")]
pub mod embedded;
#[cfg(feature = "testing")]
pub mod testing;
