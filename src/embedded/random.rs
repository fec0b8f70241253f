use std::fs::File;
use std::io::{self, Read};

/// Bytes of the system's random source.
pub(super) fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// 128 random bits in hexadecimal: a password or a name that needs no quoting in a URL or a configuration.
pub(super) fn token() -> io::Result<String> {
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes()?)))
}
