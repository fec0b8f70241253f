//! twinbox
